package nwt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
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
		{Name: "draws", Type: nwt.Float32, Shape: []int{d.longest}, Ragged: true},
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

func (d drawingTogether) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for i, index := range indices {
		if err := d.Load(ctx, index, dst[i]); err != nil {
			return err
		}
	}
	return nil
}

// requireSame checks that placed samples are those of a batch.
func requireSame(t *testing.T, want *nwt.Batch, got *nwt.PlacedBatch, mem []byte) {
	t.Helper()
	for f := range want.Fields() {
		from, to, shape := got.Field(f)
		require.Equal(t, want.Shape(f), shape)
		require.Equal(t, want.Bytes(f), mem[from:to], "field %d of batch %d", f, want.Index())
	}
	require.Equal(t, want.Lens(0), got.LensOf(0, 0))
}

func TestPlacedSamplesAreThoseOfTheLoadersBatches(t *testing.T) {
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
			for rank := range 3 {
				t.Run(fmt.Sprintf("%s, %T, rank %d", name, ds, rank), func(t *testing.T) {
					opts := append([]nwt.Option{nwt.WithBatchSize(12), nwt.WithWorkers(1), nwt.WithRank(rank, 3)}, order...)
					l := newLoader(t, ds, opts...)
					placed, hands := l.NewPlacedBatch(), []*nwt.Hand{l.NewHand(0), l.NewHand(1)}
					for batch, err := range l.Epoch(t.Context(), 2) {
						require.NoError(t, err)
						places, after, err := l.Places(nil, nwt.State{Epoch: 2}, batch.Index())
						require.NoError(t, err)
						require.Equal(t, batch.State(), after)
						n, err := l.BatchesFrom(after)
						require.NoError(t, err)
						require.Equal(t, l.Len()-1-batch.Index(), n)
						size, err := placed.Set(places)
						require.NoError(t, err)
						mem := make([]byte, size)
						placed.In(mem)
						middle := len(places) / 2
						var both sync.WaitGroup
						both.Go(func() { _ = hands[0].Load(t.Context(), placed, 0, middle) })
						both.Go(func() { _ = hands[1].Load(t.Context(), placed, middle, len(places)) })
						both.Wait()
						requireSame(t, batch, placed, mem)
					}
					for _, h := range hands {
						h.Close()
					}
				})
			}
		}
	}
}

func TestASampleThatIsPlacedWronglyOrBadIsNamedAndTheOthersAreLoaded(t *testing.T) {
	for _, ds := range []nwt.Dataset{drawing{n: 10, longest: 3, bad: 4}, drawingTogether{drawing{n: 10, longest: 3, bad: 4}}} {
		l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithLogger(quiet))
		b, h := l.NewPlacedBatch(), l.NewHand(0)
		defer h.Close()
		size, err := b.Set([]nwt.Place{{Index: 3, Position: 7}, {Index: 4, Position: 8}, {Index: 10, Position: 9}, {Index: -1, Position: 10}})
		require.NoError(t, err)
		b.In(make([]byte, size))
		require.NoError(t, h.Load(t.Context(), b, 0, 4))
		require.NoError(t, b.Err(0))
		require.ErrorContains(t, b.Err(1), "sample 4 of epoch 0 (position 8")
		require.ErrorContains(t, b.Err(2), "out of range 0 … 9")
		require.ErrorContains(t, b.Err(3), "out of range 0 … 9")
		_, err = b.Set(make([]nwt.Place, 5))
		require.ErrorContains(t, err, "at most 4")
		_, _, err = l.Places(nil, nwt.State{}, 3)
		require.ErrorContains(t, err, "must be 0 … 2")
	}
}

// A dataset in another process is given places, and loads what the local one would.
func TestASampleTellsWhereItBelongs(t *testing.T) {
	const n = 60
	near := drawing{n: n, longest: 4, bad: -1}
	far := newLoader(t, near, nwt.WithBatchSize(1))
	placed, h := far.NewPlacedBatch(), far.NewHand(0)
	defer h.Close()
	remote := nwt.NewDataset(n, near.Fields(), func(ctx context.Context, index int, dst *nwt.Sample) error {
		p := dst.Place()
		require.Equal(t, index, p.Index)
		size, err := placed.Set([]nwt.Place{p})
		require.NoError(t, err)
		mem := make([]byte, size)
		placed.In(mem)
		require.NoError(t, h.Load(ctx, placed, 0, 1))
		dst.SetLen(0, int(placed.LensOf(0, 0)[0]))
		for f := range 2 {
			from, to, _ := placed.Field(f)
			copy(dst.Bytes(f), mem[from:to])
		}
		return placed.Err(0)
	})
	indices := rand.New(rand.NewPCG(1, 2)).Perm(n)[:40]
	for _, of := range []func(ds nwt.Dataset) nwt.Dataset{
		func(ds nwt.Dataset) nwt.Dataset { return ds },
		func(ds nwt.Dataset) nwt.Dataset { part, _ := nwt.Subset(ds, indices); return part },
		func(ds nwt.Dataset) nwt.Dataset {
			return nwt.Map(ds, near.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
				dst.SetLen(0, src.Len(0))
				copy(dst.Bytes(0), src.Bytes(0))
				copy(dst.Bytes(1), src.Bytes(1))
				return nil
			})
		},
	} {
		opts := []nwt.Option{nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(0)}
		want := newLoader(t, nwt.NewDataset(of(near).Len(), near.Fields(), of(near).Load), opts...)
		got := newLoader(t, of(remote), opts...)
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
