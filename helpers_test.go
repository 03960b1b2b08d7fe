package nwt_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// numbered returns a dataset whose samples are their index, loaded by load before.
func numbered(n int, load func(ctx context.Context, i int, dst *nwt.Sample) error) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "i", Type: nwt.Int64}}, func(ctx context.Context, i int, dst *nwt.Sample) error {
		if err := load(ctx, i, dst); err != nil {
			return err
		}
		nwt.Values[int64](dst, 0)[0] = int64(i)
		return nil
	})
}

func values(t *testing.T, l *nwt.Loader, epoch int) (all []int64, err error) {
	t.Helper()
	for b, e := range l.Epoch(t.Context(), epoch) {
		if e != nil {
			return all, e
		}
		all = append(all, nwt.Values[int64](b, 0)...)
	}
	return all, nil
}

func upTo(n int, without ...int64) (out []int64) {
	for i := range int64(n) {
		out = append(out, i)
		for _, w := range without {
			if w == i {
				out = out[:len(out)-1]
			}
		}
	}
	return out
}

// sum writes the sum of a batch's indices to each of its samples.
func sum(_ context.Context, b *nwt.Batch) error {
	total := int64(0)
	for _, index := range nwt.Values[int64](b, 0) {
		total += index
	}
	sums := nwt.Values[int64](b, 1)
	for i := range sums {
		sums[i] = total
	}
	return nil
}

func emptyDataset(n int) nwt.Dataset {
	return nwt.Overwrites(nwt.NewDataset(n, scalar, func(context.Context, int, *nwt.Sample) error { return nil }))
}

// numbers returns a dataset of the numbers from … from+n−1.
func numbers(from, n int) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "number", Type: nwt.Int64}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(from + i)
		return nil
	})
}

// made returns what datasets of this package make of one, by name.
func made(t *testing.T, ds nwt.Dataset) map[string]nwt.Dataset {
	t.Helper()
	subset, err := nwt.Subset(ds, []int{12, 3, 5})
	require.NoError(t, err)
	parts, err := nwt.Split(ds, 1, 0.5, 0.5)
	require.NoError(t, err)
	concat, err := nwt.Concat(ds, ds)
	require.NoError(t, err)
	zip, err := nwt.Zip(ds)
	require.NoError(t, err)
	return map[string]nwt.Dataset{
		"Subset": subset, "Split": parts[1], "Concat": concat, "Zip": zip, "Cached": nwt.Cached(ds, 1<<20),
		"Subset of Concat": must(nwt.Subset(concat, []int{1, 2})), "Overwrites": nwt.Overwrites(ds), "Overwrites of Subset": nwt.Overwrites(subset),
	}
}

// augmented returns a dataset whose samples hold their index, and noise that
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
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.Equal(t, l.Stats().Retained, l.Stats().Slots, "a slot was lost")
	})
	return l
}

// collect returns what an epoch yields: the bytes of every batch.
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

// holds tells what is wrong with a batch of words that was padded to its longest
// samples.
func holds(t *testing.T, b *nwt.Batch, ids []int) {
	t.Helper()
	longest := [3]int{1, 1, 1}
	for _, id := range ids {
		longest = [3]int{max(longest[0], id%10), max(longest[1], id%4), max(longest[2], id%3)}
	}
	require.Equal(t, []int{len(ids), longest[0]}, b.Shape(0))
	require.Equal(t, []int{len(ids)}, b.Shape(1))
	require.Equal(t, []int{len(ids), longest[1], longest[2], 3}, b.Shape(2))
	for p, id := range ids {
		want := make([]int32, longest[0])
		for k := range id % 10 {
			want[k] = int32(id)
		}
		require.Equal(t, want, nwt.Values[int32](b, 0)[p*longest[0]:][:longest[0]])
		require.EqualValues(t, id, nwt.Values[int64](b, 1)[p])
		picture := make([]byte, longest[1]*longest[2]*3)
		for y := range id % 4 {
			for k := range id % 3 * 3 {
				picture[y*longest[2]*3+k] = byte(id)
			}
		}
		require.Equal(t, picture, b.Bytes(2)[p*len(picture):][:len(picture)])
		require.EqualValues(t, id%10, b.Lens(0)[p])
		require.EqualValues(t, id%4, b.LensOf(2, 0)[p])
		require.EqualValues(t, id%3, b.LensOf(2, 1)[p])
	}
	require.Len(t, nwt.Values[int32](b, 0), len(ids)*longest[0])
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// drawn is n samples that hold their index and a random number, and their position.
func drawn(n int) nwt.Dataset {
	fields := []nwt.Field{{Name: "drawn", Type: nwt.Int64, Shape: []int{2}}, {Name: "position", Type: nwt.Int64}}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		d := nwt.Values[int64](dst, 0)
		d[0], d[1] = int64(i), dst.Rand().Int64()
		nwt.Values[int64](dst, 1)[0] = int64(dst.Position())
		return nil
	})
}

func indicesUpTo(n int, without ...int) (all []int) {
	for i := range n {
		if !slices.Contains(without, i) {
			all = append(all, i)
		}
	}
	return all
}

// A journal is a log that a test reads.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

func (j *journal) option() nwt.Option { return nwt.WithLogger(slog.New(slog.NewTextHandler(j, nil))) }

// promptly fails a test in which f doesn't return.
func promptly(t testing.TB, f func()) {
	t.Helper()
	guard := time.AfterFunc(hangs, func() { panic(t.Name() + " hangs") })
	defer guard.Stop()
	f()
}
