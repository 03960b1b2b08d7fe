package sampler_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/chancetest"
	"github.com/nwt-go/nwt/sampler"
)

func newPrioritized(t testing.TB, capacity, draws int) *sampler.Prioritized {
	s, err := sampler.NewPrioritized(capacity, draws, 7)
	require.NoError(t, err)
	return s
}

// drawnBy draws an epoch, and returns its indices.
func drawnBy(t *testing.T, s *sampler.Prioritized) (indices []int) {
	epoch, err := s.Draw()
	require.NoError(t, err)
	for i := range s.Len() {
		indices = append(indices, s.At(epoch, i))
	}
	return indices
}

func TestPrioritizedDrawsInProportionToTheWeightsOfTheMoment(t *testing.T) {
	s := newPrioritized(t, 11, 12_000)
	for _, weights := range [][]float64{{1, 2, 0, 4, 5}, {0, 0, 3}, {1e-300, 3e-300}, {1e298, 2e298, 3e298, 0, 0, 0, 0, 0, 0, 0, 4e298}} {
		sum, heaviest := 0.0, slices.Max(weights)
		for i := range 11 {
			w := 0.0
			if i < len(weights) {
				w = weights[i]
			}
			require.NoError(t, s.Set(i, w))
			sum += w / heaviest
		}
		counts := make([]int, 11)
		for _, index := range drawnBy(t, s) {
			counts[index]++
		}
		for i, count := range counts {
			expected := 12_000 * s.Weight(i) / heaviest / sum
			require.InDelta(t, expected, count, 5*math.Sqrt(expected), "index %d of %v", i, weights)
			if count > 0 {
				require.InDelta(t, expected/12_000, s.Probability(i), 1e-9)
			} else {
				require.Zero(t, s.Probability(i))
			}
		}
	}
}

func TestPrioritizedDrawsAreIndependent(t *testing.T) {
	const n, cells = 40_000, 10
	s := newPrioritized(t, cells, n)
	for i := range cells {
		require.NoError(t, s.Set(i, 1))
	}
	pairs := make([]int, cells*cells)
	a, b := drawnBy(t, s), drawnBy(t, s)
	for i := range a {
		pairs[a[i]*cells+b[i]]++
	}
	chancetest.Uniform(t, pairs, cells*cells, cells*cells-1, "one epoch and the next")
}

// What is drawn depends on the weights, not on the order in which they were set, nor on older ones.
func TestWhatIsDrawnDependsOnTheWeightsAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	weights := make([]float64, 1000)
	for i := range weights {
		weights[i] = rng.ExpFloat64()
	}
	draw := func() []int {
		s := newPrioritized(t, 1000, 500)
		for range 5000 {
			require.NoError(t, s.Set(rng.IntN(1000), rng.ExpFloat64()*1e9))
		}
		for _, i := range rng.Perm(1000) {
			require.NoError(t, s.Set(i, weights[i]))
		}
		return drawnBy(t, s)
	}
	require.Equal(t, draw(), draw())
}

// A checkpoint between two batches holds the draws of both, though the weights have changed since.
func TestPrioritizedGoesOnFromACheckpointWhereItStood(t *testing.T) {
	const batch, ahead, steps = 8, 3, 14
	ds := nwt.NewDataset(100, []nwt.Field{{Name: "x", Type: nwt.Int64}}, func(context.Context, int, *nwt.Sample) error { return nil })
	train := func(stop int, saved []byte, state nwt.State) (all [][]int, _ []byte, _ nwt.State) {
		s := newPrioritized(t, 100, batch*ahead)
		require.NoError(t, s.Set(3, 1))
		require.NoError(t, s.Set(60, 1))
		l, err := nwt.NewLoader(ds, nwt.WithSampler(s), nwt.WithBatchSize(batch), nwt.WithWorkers(2))
		require.NoError(t, err)
		defer l.Close()
		step, seq := 0, l.Resume(t.Context(), state)
		if saved != nil {
			require.NoError(t, s.UnmarshalBinary(saved))
			step = state.Epoch*ahead + state.Samples/batch
		}
		for {
			if saved == nil {
				epoch, err := s.Draw()
				require.NoError(t, err)
				seq = l.Epoch(t.Context(), epoch)
			}
			saved = nil
			for b, err := range seq {
				require.NoError(t, err)
				all = append(all, append([]int(nil), b.Indices()...))
				for _, index := range b.Indices() {
					require.NoError(t, s.Set((index*7+step)%100, s.Weight(index)+s.Probability(index)))
				}
				if step++; step == stop {
					state = b.State()
					saved, err = s.MarshalBinary()
					require.NoError(t, err)
					return all, saved, state
				}
			}
		}
	}
	whole, _, _ := train(steps, nil, nwt.State{})
	for stop := 1; stop < steps; stop++ {
		first, saved, state := train(stop, nil, nwt.State{})
		rest, _, _ := train(steps, saved, state)
		require.Equal(t, whole, append(first, rest...), "stopped after %d steps", stop)
	}
}

func TestWhatPrioritizedCannotDoIsAnErrorAndChangesNothing(t *testing.T) {
	_, err := sampler.NewPrioritized(0, 0, 1)
	require.ErrorContains(t, err, "NewPrioritized: capacity")
	require.ErrorContains(t, err, "NewPrioritized: draws")
	s := newPrioritized(t, 10, 4)
	_, err = s.Draw()
	require.ErrorContains(t, err, "all weights are 0")
	require.PanicsWithValue(t, "sampler: Prioritized: epoch 0 isn't drawn: nothing is drawn yet. Call Draw, and load the epoch that it returns, by Epoch or Resume (tune with Weighted)", func() { s.At(0, 0) })
	require.NoError(t, s.Set(4, 2))
	for _, w := range []float64{math.NaN(), -1, math.Inf(1), math.MaxFloat64} {
		require.ErrorContains(t, s.Set(4, w), "the weight of index 4: "+fmt.Sprint(w))
	}
	require.ErrorContains(t, s.Set(10, 1), "must be 0 … 9")
	require.Equal(t, []int{4, 4, 4, 4}, drawnBy(t, s))
	require.Equal(t, 1.0, s.Probability(4))
	require.PanicsWithValue(t, "sampler: Prioritized: epoch 1 isn't drawn: the latest is epoch 0. Call Draw, and load the epoch that it returns, by Epoch or Resume (tune with Weighted)", func() { s.At(1, 0) })

	saved, err := s.MarshalBinary()
	require.NoError(t, err)
	for n := range saved {
		require.Error(t, s.UnmarshalBinary(saved[:n]))
	}
	require.ErrorContains(t, s.UnmarshalBinary(append(saved, 0)), "cut or damaged")
	require.ErrorContains(t, newPrioritized(t, 11, 4).UnmarshalBinary(saved), "capacity 10, draws 4, seed 7")
	for i := range saved {
		damaged := append([]byte(nil), saved...)
		damaged[i] ^= 0xff
		other := newPrioritized(t, 10, 4)
		if err := other.UnmarshalBinary(damaged); err == nil {
			_, err = other.Draw()
			require.NoError(t, err)
		}
	}
	require.NoError(t, s.UnmarshalBinary(saved))
	require.Equal(t, []int{4, 4, 4, 4}, drawnBy(t, s))
}

func TestGoroutinesMaySetWeightsWhileALoaderDraws(t *testing.T) {
	s := newPrioritized(t, 100, 64)
	require.NoError(t, s.Set(1, 1))
	var setting sync.WaitGroup
	for g := range uint64(4) {
		setting.Go(func() {
			rng := rand.New(rand.NewPCG(1, g))
			for range 2000 {
				_ = s.Set(rng.IntN(100), rng.Float64())
			}
		})
	}
	for range 100 {
		drawnBy(t, s)
		_, err := s.MarshalBinary()
		require.NoError(t, err)
	}
	setting.Wait()
}
