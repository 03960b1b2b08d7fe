package loading_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

// drawing is n samples that draw at random: what they hold depends on all that Load may depend on.
type drawing struct {
	n, longest int
	bad        int // index of a sample that can't be loaded
}

func (d drawing) Len() int { return d.n }

func (d drawing) Fields() []nwt.Field {
	return []nwt.Field{
		{Name: "draws", Type: nwt.Float32, Shape: []int{d.longest}, RaggedDims: 1},
		{Name: "where", Type: nwt.Int64, Shape: []int{3}},
	}
}

func (d drawing) Sizes(index int, sizes []int) { sizes[0] = index % (d.longest + 1) }

func (d drawing) Load(_ context.Context, index int, dst *nwt.Sample) error {
	if index == d.bad {
		return errors.New("bad")
	}
	n := index % (d.longest + 1)
	dst.SetLen(0, n)
	for i := range n {
		nwt.Values[float32](dst, 0)[i] = dst.Rand().Float32()
	}
	copy(nwt.Values[int64](dst, 1), []int64{int64(index), int64(dst.Position()), int64(dst.Epoch())})
	return nil
}

// drawingTogether loads many samples in a call.
type drawingTogether struct{ drawing }

func (d drawingTogether) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for i, index := range indices {
		if err := d.Load(ctx, index, dst[i]); err != nil {
			return err
		}
	}
	return nil
}

// serving returns the source of a loader.
func serving(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) driver.Source {
	t.Helper()
	source, err := kit.NewLoader(t, ds, opts...).Serving()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, source.Close()) })
	return source
}

// requireSame checks that a served batch is the loader's.
func requireSame(t *testing.T, want *nwt.Batch, got driver.Batch) {
	t.Helper()
	require.Equal(t, want.Len(), got.Len())
	for f := range want.Fields() {
		require.Equal(t, want.Shape(f), got.Shape(f))
		require.Equal(t, want.Bytes(f), got.Bytes(f), "field %d of batch %d", f, want.Number())
	}
	require.Equal(t, want.Lens(0, 0), got.Lens(0, 0))
}

func TestServedBatchesAreThoseOfEachRanksLoader(t *testing.T) {
	weights := slices.Repeat([]float64{1, 2, 3}, 40)
	weighted, err := sampler.Weighted(weights[:100], 90, 3)
	require.NoError(t, err)
	tokens, err := sampler.TokenBatches(100, func(i int) int { return 1 + i%6 }, sampler.Tokens{Max: 30}, 4)
	require.NoError(t, err)
	orders := map[string][]nwt.Option{
		"in order": nil, "shuffled": {nwt.WithShuffle(7)}, "seeded": {nwt.WithShuffle(7), nwt.WithSeed(8)},
		"weighted": {nwt.WithSampler(weighted)}, "by tokens": {nwt.WithSampler(tokens), nwt.WithBatchSize(40)}, "whole steps": {nwt.WithDropLast()},
	}
	for name, order := range orders {
		for _, ds := range []nwt.Dataset{drawing{n: 100, longest: 5, bad: -1}, drawingTogether{drawing{n: 100, longest: 5, bad: -1}}} {
			for _, workers := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s, %T, %d workers", name, ds, workers), func(t *testing.T) {
					opts := append([]nwt.Option{nwt.WithBatchSize(12), nwt.WithWorkers(workers)}, order...)
					source := serving(t, ds, opts...)
					var clients sync.WaitGroup
					for rank := range 3 {
						l := kit.NewLoader(t, ds, append(slices.Clip(opts), nwt.WithRank(rank, 3))...)
						clients.Go(func() {
							for batch, err := range l.Epoch(t.Context(), 2) {
								require.NoError(t, err)
								places, after, left, err := source.Places(nil, rank, 3, driver.State{Epoch: 2}, batch.Number())
								require.NoError(t, err)
								require.Equal(t, batch.State(), nwt.State(after))
								require.Equal(t, l.Len()-1-batch.Number(), left)
								got, bad, err := source.Load(t.Context(), places, nil, nil)
								require.NoError(t, err)
								require.Empty(t, bad)
								requireSame(t, batch, got)
								got.Release()
							}
						})
					}
					clients.Wait()
				})
			}
		}
	}
}

func TestABatchIsServedInTheMemoryOfItsRequest(t *testing.T) {
	source := serving(t, drawing{n: 100, longest: 5, bad: -1}, nwt.WithBatchSize(10), nwt.WithWorkers(2))
	var out atomic.Int32
	for number := range 10 {
		places, _, _, err := source.Places(nil, 0, 1, driver.State{}, number)
		require.NoError(t, err)
		var mine []byte
		b, _, err := source.Load(t.Context(), places, func(n int) ([]byte, error) {
			out.Add(1)
			mine = make([]byte, n)
			return mine, nil
		}, func(mem []byte) error {
			out.Add(-1)
			require.Same(t, &mine[0], &mem[0])
			return nil
		})
		require.NoError(t, err)
		require.Same(t, &mine[0], &b.Memory()[0])
		require.EqualValues(t, 1, out.Load())
		b.Release()
		require.Zero(t, out.Load())
	}
	_, _, err := source.Load(t.Context(), make([]driver.Place, 1), func(int) ([]byte, error) { return nil, kit.ErrTorn }, nil)
	require.ErrorIs(t, err, kit.ErrTorn)
}

func TestAServedSampleThatIsBadIsNamedAndTheOthersAreLoaded(t *testing.T) {
	for _, ds := range []nwt.Dataset{drawing{n: 10, longest: 3, bad: 4}, drawingTogether{drawing{n: 10, longest: 3, bad: 4}}} {
		source := serving(t, ds, nwt.WithBatchSize(4), nwt.WithLogger(kit.Quiet))
		places := []driver.Place{{Index: 3, Position: 7}, {Index: 4, Position: 8}, {Index: 10, Position: 9}, {Index: -1, Position: 2}}
		b, bad, err := source.Load(t.Context(), places, nil, nil)
		require.NoError(t, err)
		require.Equal(t, 1, b.Len())
		require.Len(t, bad, 3)
		require.ErrorContains(t, bad[0], "sample 4 of epoch 0 (position 8")
		require.ErrorContains(t, bad[1], "out of range 0 … 9")
		require.ErrorContains(t, bad[2], "position 2")
		b.Release()
		_, _, err = source.Load(t.Context(), make([]driver.Place, 5), nil, nil)
		require.ErrorContains(t, err, "must be 1 … 4")
		_, _, err = source.Load(t.Context(), []driver.Place{{}, {Epoch: 1}}, nil, nil)
		require.ErrorContains(t, err, "one epoch")
		_, _, _, err = source.Places(nil, 0, 1, driver.State{}, 3)
		require.ErrorContains(t, err, "must be 0 … 2")
		_, _, _, err = source.Places(nil, 2, 2, driver.State{}, 0)
		require.ErrorContains(t, err, "rank 2 of 2")
	}
}

func TestSamplesThatHangCostAServerTheSameAsALoader(t *testing.T) {
	for _, together := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ds := nwt.NewDataset(100, kit.Scalar, func(ctx context.Context, i int, dst *nwt.Sample) error {
				if i == 30 || i == 61 {
					<-ctx.Done()
					time.Sleep(time.Hour)
				}
				nwt.Values[float32](dst, 0)[0] = float32(i)
				return nil
			})
			if together {
				ds = kit.Batchwise{Dataset: ds}
			}
			source := serving(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithTimeout(time.Second/2), nwt.WithLogger(kit.Quiet))
			began, got := time.Now(), 0
			for number := range 10 {
				places, _, _, err := source.Places(nil, 0, 1, driver.State{}, number)
				require.NoError(t, err)
				b, bad, err := source.Load(t.Context(), places, nil, nil)
				require.NoError(t, err)
				got += b.Len()
				require.Equal(t, 10-b.Len(), len(bad))
				for _, err := range bad {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				b.Release()
			}
			require.Equal(t, 98, got)
			require.Less(t, time.Since(began), time.Minute)
			require.NoError(t, source.Close())
			time.Sleep(2 * time.Hour)
		})
	}
}

func TestAServersEpochsBeginAndEndWhereALoadersDo(t *testing.T) {
	ds := &lengthened{Dataset: kit.Numbers(0, 1000)}
	ds.n.Store(100)
	source := serving(t, ds, nwt.WithBatchSize(10))
	_, after, left, err := source.Places(nil, 0, 1, driver.State{}, 9)
	require.NoError(t, err)
	require.Zero(t, left)
	places, _, left, err := source.Places(nil, 0, 1, after, 0)
	require.NoError(t, err, "the next epoch")
	require.Equal(t, 1, places[0].Epoch)
	require.Equal(t, 9, left)
	ds.n.Store(120)
	places, _, left, err = source.Places(nil, 0, 1, after, 0)
	require.NoError(t, err, "the epoch was over, whatever has changed since")
	require.Equal(t, 1, places[0].Epoch)
	require.Equal(t, 11, left)
	_, _, _, err = source.Places(nil, 0, 1, driver.State{Samples: 50, Order: after.Order}, 0)
	require.ErrorContains(t, err, "another number of samples")
	b, bad, err := source.Load(t.Context(), []driver.Place{{Index: 119}}, nil, nil)
	require.NoError(t, err)
	require.Empty(t, bad)
	b.Release()
	for name, opt := range map[string]nwt.Option{"WithUnordered": nwt.WithUnordered(), "WithDevice": nwt.WithDevice(kit.Nowhere{})} {
		_, err := kit.NewLoader(t, ds, opt).Serving()
		require.ErrorContains(t, err, name)
	}
}

// lengthened is a dataset whose length changes.
type lengthened struct {
	nwt.Dataset
	n atomic.Int64
}

func (d *lengthened) Len() int { return int(d.n.Load()) }

func TestAllWorkersShareTheFewBatchesThatAreAskedForAhead(t *testing.T) {
	const requests, batch, workers = 4, 8, 16
	synctest.Test(t, func(t *testing.T) {
		var calls sync.WaitGroup // that many at the same time, or none of them ends
		calls.Add(workers)
		var began atomic.Int32
		ds := &kit.Pages{N: 64, OnLoadMany: func(context.Context, []int, []*nwt.Sample) error {
			if began.Add(1) <= workers {
				calls.Done()
			}
			calls.Wait()
			return nil
		}}
		source := serving(t, ds, nwt.WithBatchSize(batch), nwt.WithWorkers(workers))
		places, _, _, err := source.Places(nil, 0, 1, driver.State{}, 0)
		require.NoError(t, err)
		var asked sync.WaitGroup
		for range requests {
			asked.Go(func() {
				b, _, err := source.Load(t.Context(), places, nil, nil)
				require.NoError(t, err)
				b.Release()
			})
		}
		asked.Wait()
	})
}

func TestARequestThatIsGivenUpLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := kit.Numbered(100, func(ctx context.Context, _ int, _ *nwt.Sample) error { time.Sleep(time.Second); return nil })
		source := serving(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(2))
		var out atomic.Int32
		alloc := func(n int) ([]byte, error) { out.Add(1); return make([]byte, n), nil }
		free := func([]byte) error { out.Add(-1); return nil }
		for i := range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Second)
			_, _, err := source.Load(ctx, make([]driver.Place, 10), alloc, free)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		b, _, err := source.Load(t.Context(), []driver.Place{{Index: 7}}, alloc, free)
		require.NoError(t, err)
		b.Release()
		time.Sleep(time.Minute)
		require.Zero(t, out.Load())
		var closed sync.WaitGroup
		for range 3 {
			closed.Go(func() {
				_, _, err := source.Load(t.Context(), make([]driver.Place, 10), alloc, free)
				require.ErrorIs(t, err, nwt.ErrClosed)
			})
		}
		time.Sleep(time.Second)
		require.NoError(t, source.Close())
		closed.Wait()
		require.Zero(t, out.Load())
		_, _, err = source.Load(t.Context(), make([]driver.Place, 1), nil, nil)
		require.ErrorIs(t, err, nwt.ErrClosed)
	})
}

// The context of its calls ends, with and without WithTimeout; those of other requests go on.
func TestARequestThatIsGivenUpEndsItsLoads(t *testing.T) {
	for _, opts := range [][]nwt.Option{nil, {nwt.WithTimeout(time.Hour)}} {
		synctest.Test(t, func(t *testing.T) {
			ds := kit.Numbered(100, func(ctx context.Context, index int, _ *nwt.Sample) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Duration(index) * time.Minute):
					return nil
				}
			})
			source := serving(t, ds, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(1))...)
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _, err := source.Load(ctx, []driver.Place{{Index: 50}, {Index: 51}}, nil, nil)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			b, bad, err := source.Load(t.Context(), []driver.Place{{Index: 1}, {Index: 2}}, nil, nil)
			require.NoError(t, err)
			require.Empty(t, bad)
			b.Release()
			require.Equal(t, 3*time.Minute+time.Second, time.Since(began))
		})
	}
}

func TestAServerWhoseWorkersCannotBeginSaysSoAndTriesAgain(t *testing.T) {
	failures := atomic.Int32{}
	failures.Store(3)
	init := func(context.Context, int) error {
		if failures.Add(-1) >= 0 {
			return kit.ErrTorn
		}
		return nil
	}
	source := serving(t, kit.Numbers(0, 10), nwt.WithBatchSize(5), nwt.WithWorkers(1), nwt.WithWorkerInit(init))
	failed := 0
	for {
		b, _, err := source.Load(t.Context(), []driver.Place{{Index: 1}, {Index: 2}}, nil, nil)
		if err == nil {
			require.Equal(t, 2, b.Len())
			b.Release()
			break
		}
		require.ErrorIs(t, err, kit.ErrTorn)
		failed++
	}
	require.Positive(t, failed)
}

// A dataset in another process is given places, and loads what the local one would.
func TestASampleTellsWhereItBelongs(t *testing.T) {
	const n = 60
	near := drawing{n: n, longest: 4, bad: -1}
	far := serving(t, near, nwt.WithBatchSize(1))
	remote := nwt.NewDataset(n, near.Fields(), func(ctx context.Context, index int, dst *nwt.Sample) error {
		p := dst.Place()
		require.Equal(t, index, p.Index)
		b, _, err := far.Load(ctx, []driver.Place{p}, nil, nil)
		require.NoError(t, err)
		defer b.Release()
		dst.SetLen(0, int(b.Lens(0, 0)[0]))
		for f := range 2 {
			copy(dst.Bytes(f), b.Bytes(f))
		}
		return nil
	})
	indices := rand.New(rand.NewPCG(1, 2)).Perm(n)[:40]
	for _, of := range []func(ds nwt.Dataset) nwt.Dataset{
		func(ds nwt.Dataset) nwt.Dataset { return ds },
		func(ds nwt.Dataset) nwt.Dataset { part, _ := nwt.Subset(ds, indices); return part },
		func(ds nwt.Dataset) nwt.Dataset {
			return nwt.Map(ds, near.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
				dst.SetLen(0, src.Len(0, 0))
				copy(dst.Bytes(0), src.Bytes(0))
				copy(dst.Bytes(1), src.Bytes(1))
				return nil
			})
		},
	} {
		opts := []nwt.Option{nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(0)}
		want := kit.NewLoader(t, nwt.NewDataset(of(near).Len(), near.Fields(), of(near).Load), opts...)
		got := kit.NewLoader(t, of(remote), opts...)
		require.Equal(t, memories(t, want.Epoch(t.Context(), 1)), memories(t, got.Epoch(t.Context(), 1)))
	}
}

// memories returns what the batches hold.
func memories(t *testing.T, batches iter.Seq2[*nwt.Batch, error]) (all [][]byte) {
	for b, err := range batches {
		require.NoError(t, err)
		for f := range b.Fields() {
			all = append(all, bytes.Clone(b.Bytes(f)))
		}
	}
	return all
}

func TestMemoryThatIsRefusedFailsItsRequestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := kit.Numbered(100, func(context.Context, int, *nwt.Sample) error { time.Sleep(time.Second); return nil })
		source := serving(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(1), nwt.WithLogger(kit.Quiet))
		var others sync.WaitGroup
		for range 3 {
			others.Go(func() {
				b, _, err := source.Load(t.Context(), make([]driver.Place, 10), nil, nil)
				require.NoError(t, err)
				b.Release()
			})
		}
		time.Sleep(time.Second / 2)
		began := time.Now()
		_, _, err := source.Load(t.Context(), make([]driver.Place, 1), func(int) ([]byte, error) { return nil, kit.ErrTorn }, nil)
		require.ErrorIs(t, err, kit.ErrTorn)
		require.Less(t, time.Since(began), time.Second, "while others are loaded")
		others.Wait()
		require.NoError(t, source.Close())
	})
}
