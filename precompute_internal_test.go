package nwt

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// lines is a dataset of ragged samples: sample i is i%5 bytes of value i.
func lines(n int) Dataset {
	return NewDataset(n, []Field{{Name: "line", Type: Uint8, Shape: []int{4}, Ragged: true}}, func(_ context.Context, i int, dst *Sample) error {
		dst.SetLen(0, i%5)
		copy(dst.Bytes(0), bytes.Repeat([]byte{byte(i)}, 4))
		return nil
	})
}

func TestADescriptionThatCannotBeReadIsOfSomethingElse(t *testing.T) {
	want := &precomputedFor{Version: "v1", Samples: 3, Fields: lines(3).Fields()}
	for _, description := range []string{"", "{}", `{"Fields":[{"Type":"Complex64"}]}`, `{"Version":7}`, `{"Version":"v1","Samples":3,"Fields":[{}]}`} {
		require.NotEmpty(t, want.difference([]byte(description)), description)
	}
}

func TestTypesAreWrittenByName(t *testing.T) {
	for d := Bool; d.valid(); d++ {
		name, err := d.MarshalText()
		require.NoError(t, err)
		var back DType
		require.NoError(t, back.UnmarshalText(name))
		require.Equal(t, d, back)
	}
	_, err := DType(0).MarshalText()
	require.ErrorContains(t, err, "DType(0)")
	require.ErrorContains(t, new(DType).UnmarshalText([]byte("Complex64")), `unknown type "Complex64"`)
}
