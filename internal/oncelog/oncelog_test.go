package oncelog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAThingIsFirstOnce(t *testing.T) {
	var l Log
	require.True(t, l.First("a"))
	require.True(t, l.First(1))
	require.False(t, l.First("a"))
}

func TestHoweverManyThingsThereAreMemoryIsBounded(t *testing.T) {
	var l Log
	for i := range most {
		require.True(t, l.First(i))
	}
	require.False(t, l.First(most))
	require.Len(t, l.logged, most)
}
