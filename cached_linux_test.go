package nwt

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/cache"
)

func TestSamplesForWhichThereIsNoMemoryAreLoadedAnewAndThatIsLogged(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("all of the address space is less than memory")
	}
	const n = 9
	loads := 0
	ds := Cached(NewDataset(n, []Field{{Name: "i", Type: Int64}}, func(_ context.Context, i int, dst *Sample) error {
		loads++
		Values[int64](dst, 0)[0] = int64(i)
		return nil
	}), math.MaxInt64)
	ds.kept = cache.New(n, 1<<50, math.MaxInt64) // nobody has as much memory
	var log bytes.Buffer
	l, err := NewLoader(ds, WithWorkers(0), WithBatchSize(n), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	require.NoError(t, err)
	for epoch := range 2 {
		for b, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			for i, value := range Values[int64](b, 0) {
				require.EqualValues(t, i, value)
			}
		}
	}
	require.Equal(t, 2*n, loads)
	require.Equal(t, 1, strings.Count(log.String(), "there is no memory for more cached samples; the others are loaded anew"))
	require.Contains(t, log.String(), "cannot allocate memory")
	require.Equal(t, 8*n, l.Stats().DatasetBytes)
	require.NoError(t, l.Close())
	require.NoError(t, ds.Close())
}
