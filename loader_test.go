package nwt_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nwt-go/nwt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// augmented is a dataset whose samples hold their index, and noise that
// depends on Sample.Rand.
func augmented(n int) nwt.Dataset {
	fields := []nwt.Field{{Name: "index", Type: nwt.Int64}, {Name: "noise", Type: nwt.Float32, Shape: []int{3, 2}}}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(i)
		for k := range nwt.Values[float32](dst, 1) {
			nwt.Values[float32](dst, 1)[k] = dst.Rand().Float32()
		}
		return nil
	})
}

func newLoader(t testing.TB, ds nwt.Dataset, opts ...nwt.Option) *nwt.Loader {
	t.Helper()
	l, err := nwt.NewLoader(ds, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// collect is what an epoch yields: the bytes of every batch.
func collect(t testing.TB, l *nwt.Loader, epoch int) (batches [][]byte) {
	t.Helper()
	for b, err := range l.Epoch(t.Context(), epoch) {
		require.NoError(t, err)
		require.Equal(t, len(batches), b.Index())
		require.Equal(t, epoch, b.Epoch())
		batches = append(batches, slices.Concat(b.Bytes(0), b.Bytes(1)))
	}
	require.Len(t, batches, l.Len())
	return batches
}

func TestBatchesAreTheSameWhateverTheWorkerCount(t *testing.T) {
	ds := augmented(333)
	want := newLoader(t, ds, nwt.WithBatchSize(16), nwt.WithShuffle(7), nwt.WithWorkers(0))
	var epochs [][][]byte
	for epoch := range 3 {
		epochs = append(epochs, collect(t, want, epoch))
	}
	require.NotEqual(t, epochs[0], epochs[1])
	for _, workers := range []int{1, 2, 5, 33} {
		l := newLoader(t, ds, nwt.WithBatchSize(16), nwt.WithShuffle(7), nwt.WithWorkers(workers))
		for epoch := range 3 {
			require.Equal(t, epochs[epoch], collect(t, l, epoch), "%d workers, epoch %d", workers, epoch)
		}
	}
}

func TestAnEpochOfABillionSamplesStartsAtOnce(t *testing.T) {
	l := newLoader(t, augmented(1e9), nwt.WithShuffle(1), nwt.WithWorkers(2))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, 32, b.Len())
		break
	}
}

func TestLeavingAnEpochAnywhereLosesNothing(t *testing.T) {
	ds := augmented(100)
	for _, workers := range []int{0, 1, 3} {
		l := newLoader(t, ds, nwt.WithBatchSize(7), nwt.WithWorkers(workers), nwt.WithShuffle(3))
		want := collect(t, l, 5)
		for cut := range 100 {
			n := 0
			for _, err := range l.Epoch(t.Context(), cut) {
				require.NoError(t, err)
				if n++; n > cut%16 {
					break
				}
			}
			if cut%10 == 0 {
				require.Equal(t, want, collect(t, l, 5))
			}
		}
	}
}

func TestABadSampleEndsTheEpochAfterTheBatchesBeforeIt(t *testing.T) {
	boom := errors.New("boom")
	ds := nwt.NewDataset(100, scalar, func(_ context.Context, i int, dst *nwt.Sample) error {
		switch {
		case i == 47:
			return fmt.Errorf("file 47: %w", boom)
		case i == 73 && dst.Epoch() == 1:
			panic("a bad day")
		case dst.Epoch() == 2 && i == 30:
			nwt.Values[int64](dst, 0)[0] = 1
		}
		return nil
	})
	for _, workers := range []int{0, 1, 4} {
		l := newLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(workers))
		n := 0
		var err error
		for b, e := range l.Epoch(t.Context(), 0) {
			if err = e; err == nil {
				n++
				require.Equal(t, 10, b.Len())
			}
		}
		require.Equal(t, 4, n)
		var le *nwt.LoadError
		require.ErrorAs(t, err, &le)
		require.ErrorIs(t, err, boom)
		require.Equal(t, 47, le.Index)
		require.Nil(t, le.Stack)
	}
}
