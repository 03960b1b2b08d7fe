package nwt_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// resumesAnywhere checks the promise of every order: an epoch that is left in the
// middle and resumed on other ranks, with other batches and workers, delivers the
// identical rest. Field 0 of ds tells samples apart, augmentation included.
func resumesAnywhere(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) {
	t.Helper()
	load := func(world, batch, workers, from, steps int) (positions map[int]string, state nwt.State) {
		positions = map[int]string{}
		for rank := range world {
			l := newLoader(t, ds, append(slices.Clip(opts), nwt.WithRank(rank, world), nwt.WithBatchSize(batch), nwt.WithWorkers(workers))...)
			done := 0
			for b, err := range l.Resume(t.Context(), nwt.State{Epoch: 2, Samples: from}) {
				require.NoError(t, err)
				size := len(b.Bytes(0)) / b.Len()
				for place := range b.Len() {
					position := int(nwt.Values[int64](b, 1)[place])
					sample := string(b.Bytes(0)[place*size : (place+1)*size])
					require.Contains(t, []string{"", sample}, positions[position])
					positions[position] = sample
				}
				state = b.State()
				if done++; done == steps {
					break
				}
			}
			require.NoError(t, l.Close())
		}
		return positions, state
	}
	whole, _ := load(1, 16, 0, 0, -1)
	head, state := load(2, 5, 2, 0, 3)
	require.Len(t, head, state.Samples)
	rest, _ := load(3, 7, 1, state.Samples, -1)
	require.Len(t, rest, len(whole)-len(head), "nothing comes twice")
	maps.Copy(rest, head)
	require.Equal(t, whole, rest)
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

// threeTimes repeats each sample three times, as RASampler does.
func threeTimes(t *testing.T, n int) nwt.Sampler {
	t.Helper()
	s, err := sampler.Computed(3*n, func(epoch int) (indices []int) {
		shuffled := nwt.Shuffled(n, 1)
		for i := range n {
			index := shuffled.At(epoch, i)
			indices = append(indices, index, index, index)
		}
		return indices
	})
	require.NoError(t, err)
	return s
}

func TestRepeatedAugmentationIsADifferentOneEachTime(t *testing.T) {
	const n = 50
	count, distinct := map[int64]int{}, map[int64]bool{}
	for b, err := range newLoader(t, drawn(n), nwt.WithSampler(threeTimes(t, n))).Epoch(t.Context(), 1) {
		require.NoError(t, err)
		for d := range slices.Chunk(nwt.Values[int64](b, 0), 2) {
			count[d[0]]++
			distinct[d[1]] = true
		}
	}
	require.Len(t, distinct, 3*n)
	for i := range int64(n) {
		require.Equal(t, 3, count[i])
	}
}

func TestAComputedOrderResumesOnOtherRanks(t *testing.T) {
	resumesAnywhere(t, drawn(40), nwt.WithSampler(threeTimes(t, 40)))
}

func TestAnOrderIsComputedOnceForAnEpoch(t *testing.T) {
	var calls atomic.Int64
	s, err := sampler.Computed(1000, func(int) []int { calls.Add(1); return make([]int, 1000) })
	require.NoError(t, err)
	l := newLoader(t, drawn(1), nwt.WithSampler(s), nwt.WithWorkers(4), nwt.WithBatchSize(10))
	for _, err := range l.Epochs(t.Context(), 0, 5) {
		require.NoError(t, err)
	}
	require.EqualValues(t, 5, calls.Load())
}

func TestAComputedOrderThatFailsEndsTheEpoch(t *testing.T) {
	for says, order := range map[string]func(int) []int{
		"gives 9 indices for epoch 0: must be 10": func(int) []int { return make([]int, 9) },
		"index 7 for position 3":                  func(int) []int { return []int{0, 0, 0, 7, 0, 0, 0, 0, 0, 0} },
		"index -1 for position 0":                 func(int) []int { return []int{-1, 0, 0, 0, 0, 0, 0, 0, 0, 0} },
		"panic: no order":                         func(int) []int { panic("no order") },
	} {
		s, err := sampler.Computed(10, order)
		require.NoError(t, err)
		for _, ds := range []nwt.Dataset{drawn(7), emptyBatches{drawn(7)}} {
			for _, workers := range []int{0, 2} {
				_, err := epoch(t.Context(), newLoader(t, ds, nwt.WithSampler(s), nwt.WithWorkers(workers)), 0)
				var le *nwt.LoadError
				require.ErrorAs(t, err, &le)
				require.ErrorContains(t, err, says)
			}
		}
	}
}

// quickly is a sampler of a user's that knows Fill.
type quickly struct{ asked, filled *atomic.Int64 }

func (quickly) Len() int { return 100 }
func (s quickly) At(_, i int) int {
	s.asked.Add(1)
	return 99 - i
}
func (s quickly) Fill(_, from int, indices []int) {
	s.filled.Add(1)
	for i := range indices {
		indices[i] = 99 - from - i
	}
}

func TestASamplerOfTheUsersIsAskedForManyPositionsAtOnce(t *testing.T) {
	s := quickly{&atomic.Int64{}, &atomic.Int64{}}
	part, err := sampler.Select(s, slices.Repeat([]int{3}, 100))
	require.NoError(t, err)
	for _, s := range []nwt.Sampler{s, part} {
		for b, err := range newLoader(t, drawn(100), nwt.WithSampler(s), nwt.WithBatchSize(10)).Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for place, i := range b.Indices() {
				require.Equal(t, s.At(0, 10*b.Index()+place), i)
			}
		}
	}
	require.EqualValues(t, 200, s.asked.Load(), "by this test alone")
	require.Positive(t, s.filled.Load())
}

func TestTheOrderChangesBetweenEpochs(t *testing.T) {
	for _, workers := range []int{0, 3} {
		l := newLoader(t, drawn(100), nwt.WithShuffle(1), nwt.WithWorkers(workers), nwt.WithBatchSize(8))
		require.Equal(t, 13, l.Len())
		got, err := epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Len(t, got, 13)

		hard, err := sampler.Select(nwt.Sequential(5), []int{9, 8, 7, 6, 5})
		require.NoError(t, err)
		require.NoError(t, l.SetSampler(hard))
		require.Equal(t, 1, l.Len())
		got, err = epoch(t.Context(), l, 1)
		require.NoError(t, err)
		require.Equal(t, [][]int{{9, 8, 7, 6, 5}}, got)

		require.ErrorContains(t, refusal(t, l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 6})), "must be 0 … 5, the samples of an epoch")
		for range l.Epoch(t.Context(), 2) {
			require.ErrorIs(t, l.SetSampler(hard), nwt.ErrBusy)
		}
		require.ErrorContains(t, l.SetSampler(nil), "must not be nil")
		require.ErrorContains(t, l.SetSampler(nwt.Sequential(0)), "SetSampler: 0: the length of an epoch must be")
		require.NoError(t, l.Close())
		require.ErrorIs(t, l.SetSampler(hard), nwt.ErrClosed)
	}
}

func TestAnEpochOfALongerOrderIsResumedToItsEnd(t *testing.T) {
	for _, workers := range []int{0, 3} {
		l := newLoader(t, drawn(10), nwt.WithWorkers(workers), nwt.WithBatchSize(8))
		often, err := sampler.Weighted(slices.Repeat([]float64{1}, 10), 30, 1)
		require.NoError(t, err)
		require.NoError(t, l.SetSampler(often))
		whole, err := epoch(t.Context(), l, 1)
		require.NoError(t, err)
		require.Len(t, whole, 4)
		var rest [][]int
		for b, err := range l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 16}) {
			require.NoError(t, err)
			rest = append(rest, slices.Clone(b.Indices()))
		}
		require.Equal(t, whole[2:], rest)
		require.ErrorContains(t, refusal(t, l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 31})), "must be 0 … 30, the samples of an epoch")
	}
}

// With small batches, workers need more of them.
func TestAsManyBatchesAreAheadAsTheOrderNeeds(t *testing.T) {
	l := newLoader(t, drawn(100), nwt.WithWorkers(20), nwt.WithBatchSize(10))
	require.Equal(t, 3, l.Stats().Prefetch)
	singly := nwt.WithSampler(sizes(slices.Repeat([]int{1}, 100)))
	require.Equal(t, 21, newLoader(t, drawn(100), nwt.WithWorkers(20), nwt.WithBatchSize(10), singly).Stats().Prefetch)
	require.NoError(t, l.SetSampler(sizes(slices.Repeat([]int{1}, 100))))
	require.Equal(t, 21, l.Stats().Prefetch)
	_, err := epoch(t.Context(), l, 0)
	require.NoError(t, err)
	require.NoError(t, l.SetSampler(nwt.Sequential(100)))
	require.Equal(t, 3, l.Stats().Prefetch)
	require.LessOrEqual(t, l.Stats().Slots, 4, "the memory of the others is given back")
}

func TestAStreamHasNoSampler(t *testing.T) {
	l := newLoader(t, nwt.Streamed(&shelves{lengths: []int{1}}))
	require.ErrorContains(t, l.SetSampler(nwt.Sequential(1)), "can't be combined with a stream")
}

func TestAComputedOrderAllocatesNothingPerBatch(t *testing.T) {
	s, err := sampler.Computed(1<<16, func(int) []int { return make([]int, 1<<16) })
	require.NoError(t, err)
	requireNoAllocations(t, drawn(1), nwt.WithSampler(s))
}

var errBad = errors.New("bad")

type unmade struct{ n int }

func (s *unmade) Len() int        { return s.n }
func (s *unmade) At(_, i int) int { return i }
func (s *unmade) String() string  { return fmt.Sprint(s.n) }

func TestASamplerThatIsANilPointerIsAnError(t *testing.T) {
	var none *unmade
	for _, opts := range [][]nwt.Option{{nwt.WithSampler(none)}, {nwt.WithSampler(none), nwt.WithShuffle(1)}} {
		_, err := nwt.NewLoader(augmented(10), opts...)
		require.ErrorAs(t, err, new(*nwt.OptionError))
	}
	require.ErrorAs(t, newLoader(t, augmented(10)).SetSampler(none), new(*nwt.OptionError))
}

func TestALocalShuffleResumesOnOtherRanks(t *testing.T) {
	s, err := sampler.LocallyShuffled([]int{10, 20, 5, 40, 25}, 2, 1)
	require.NoError(t, err)
	resumesAnywhere(t, drawn(100), nwt.WithSampler(s))
}

func TestALocalShuffleAllocatesNothingPerBatch(t *testing.T) {
	s, err := sampler.LocallyShuffled(slices.Repeat([]int{1 << 8}, 1<<8), 3, 1)
	require.NoError(t, err)
	requireNoAllocations(t, drawn(1<<16), nwt.WithSampler(s))
}

func TestAMixtureResumesOnOtherRanks(t *testing.T) {
	parts := []nwt.Dataset{drawn(20), drawn(70)}
	concat, err := nwt.Concat(parts...)
	require.NoError(t, err)
	s, err := sampler.Mixed(100, nwt.Mix{Parts: []int{20, 70}, Phases: []nwt.Phase{{Samples: 222, Weights: []float64{1, 3}}, {Weights: []float64{1, 1}}}, Block: 8}, 1)
	require.NoError(t, err)
	resumesAnywhere(t, concat, nwt.WithSampler(s))
}

func TestAMixtureAllocatesNothingPerBatch(t *testing.T) {
	s, err := sampler.Mixed(1<<16, nwt.Mix{Parts: []int{20, 70}, Phases: []nwt.Phase{{Samples: 222, Weights: []float64{1, 3}}, {Weights: []float64{1, 1}}}, Block: 8}, 1)
	require.NoError(t, err)
	requireNoAllocations(t, drawn(90), nwt.WithSampler(s))
}

// requireNoAllocations is for orders of 2¹⁶ positions.
func requireNoAllocations(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) {
	t.Helper()
	l := newLoader(t, ds, append(opts, nwt.WithWorkers(0))...)
	next, stop := iter.Pull2(l.Epoch(t.Context(), 0))
	defer stop()
	next()
	require.Zero(t, testing.AllocsPerRun(100, func() { next() }))
}

// outspoken is a sampler of the program's that has the methods that a sampler may have.
type outspoken struct {
	nwt.Sampler
	last, step func() int
}

func (s outspoken) LastIndex() int { return s.last() }
func (s outspoken) Step() int      { return s.step() }

func TestASamplerOfTheUsersMayTellMoreOfItself(t *testing.T) {
	is := func(n int) func() int { return func() int { return n } }
	panics := func() int { panic("no idea") }
	order := nwt.Sequential(40)
	for want, s := range map[string]nwt.Sampler{
		"":                    outspoken{order, is(39), is(40)},
		"visits index 40":     outspoken{order, is(40), is(40)},
		"LastIndex panicked":  outspoken{order, panics, is(40)},
		"Step panicked: no i": outspoken{order, is(-1), panics},
	} {
		_, err := nwt.NewLoader(drawn(40), nwt.WithSampler(s))
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorAs(t, err, new(*nwt.OptionError))
		require.ErrorContains(t, err, want)
	}
	for step, warns := range map[int]bool{40: false, 10: false, 7: true, 0: false} {
		var log journal
		newLoader(t, drawn(40), nwt.WithBatchSize(5), nwt.WithRank(0, 2), nwt.WithSampler(outspoken{order, is(39), is(step)}), log.option())
		require.Equal(t, warns, strings.Contains(log.String(), "batches will mix lengths"), "steps of %d", step)
	}
}
