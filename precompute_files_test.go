package nwt_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// filled is a dataset of samples of 1000 bytes, none of them zero: all of sample i
// are i%250+1+of.
func filled(n int, of byte) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "bytes", Type: nwt.Uint8, Shape: []int{1000}}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		copy(dst.Bytes(0), bytes.Repeat([]byte{byte(i%250) + 1 + of}, 1000))
		return nil
	})
}

// A dataset of the program may ask for it.
func TestASampleThatIsNotThereIsNotTakenForDamage(t *testing.T) {
	for _, index := range []int{-1, math.MinInt, 10, 11, math.MaxInt} {
		path := filepath.Join(t.TempDir(), "samples")
		var log journal
		p, err := nwt.Precompute(t.Context(), filled(10, 0), path, "1", log.option())
		require.NoError(t, err)
		wrong := nwt.NewDataset(1, p.Fields(), func(ctx context.Context, _ int, dst *nwt.Sample) error { return p.Load(ctx, index, dst) })
		_, err = nwt.LoadSample(t.Context(), wrong, 0)
		require.ErrorContains(t, err, fmt.Sprintf("samples: index %d is out of range 0 … 9", index))
		require.FileExists(t, path)
		require.Empty(t, log.String())
		require.NoError(t, p.Close())
	}
}
