package orders_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

// stateAfter returns the state after some batches of epoch 3.
func stateAfter(t *testing.T, batches int, ds nwt.Dataset, opts ...nwt.Option) (s nwt.State) {
	t.Helper()
	l := kit.NewLoader(t, ds, append(opts, nwt.WithWorkers(1))...)
	for b, err := range l.Epoch(t.Context(), 3) {
		require.NoError(t, err)
		if s = b.State(); b.Number() == batches-1 {
			break
		}
	}
	return s
}

// resumed counts how often each index comes in the rest of an epoch and the whole one after it.
func resumed(t *testing.T, s nwt.State, ds nwt.Dataset, opts ...nwt.Option) (times map[int]int, err error) {
	t.Helper()
	l := kit.NewLoader(t, ds, append(opts, nwt.WithWorkers(1))...)
	times = map[int]int{}
	for b, err := range l.ResumeEpochs(t.Context(), s, s.Epoch+2) {
		if err != nil {
			return times, err
		}
		for _, i := range b.Indices() {
			times[i]++
		}
	}
	return times, nil
}

func TestResumeRefusesAnotherOrderAndSaysWhatDiffers(t *testing.T) {
	weights := slices.Repeat([]float64{1, 2, 3, 4}, 6)
	heavier := append(slices.Clone(weights[1:]), 5)
	oneOf5 := func(i int) int { return i % 5 }
	shuffle := func(seed uint64) []nwt.Option { return []nwt.Option{nwt.WithShuffle(seed)} }
	by := func(s nwt.Sampler, err error) []nwt.Option {
		require.NoError(t, err)
		return []nwt.Option{nwt.WithSampler(s)}
	}
	mix := func(second float64) nwt.Mix {
		return nwt.Mix{Parts: []int{50, 50}, Block: 10, Phases: []nwt.Phase{{Weights: []float64{1, second}}}}
	}
	shards := func(lengths ...int) nwt.Dataset { return nwt.Streamed(kit.NewShelves(lengths...)) }
	records := func(lengths ...int) nwt.Dataset {
		return nwt.Streamed(kit.NewCounted(lengths...))
	}
	window := func(seed uint64, n int) []nwt.Option {
		return []nwt.Option{nwt.WithShuffle(seed), nwt.WithShuffleWindow(n)}
	}
	interleave := func(n int) []nwt.Option { return []nwt.Option{nwt.WithInterleave(n)} }
	for name, c := range map[string]struct {
		then, now         nwt.Dataset
		thenOpts, nowOpts []nwt.Option
		want              string
	}{
		"another seed":             {kit.Augmented(100), kit.Augmented(100), shuffle(1), shuffle(2), "another seed"},
		"a file more":              {kit.Augmented(100), kit.Augmented(101), shuffle(1), shuffle(1), "another number of samples (the sampler is now "},
		"a file fewer, in order":   {kit.Augmented(100), kit.Augmented(99), nil, nil, "another number of samples (the sampler is now "},
		"both":                     {kit.Augmented(100), kit.Augmented(101), shuffle(1), shuffle(2), "another number of samples and another seed"},
		"no shuffle":               {kit.Augmented(100), kit.Augmented(100), shuffle(1), nil, "another sampler"},
		"a sampler of one's own":   {kit.Augmented(100), kit.Augmented(100), shuffle(1), []nwt.Option{nwt.WithSampler(backwards(100))}, "another sampler"},
		"weights":                  {kit.Augmented(24), kit.Augmented(24), by(sampler.Weighted(weights, 100, 1)), by(sampler.Weighted(heavier, 100, 1)), "another sampler"},
		"the seed of weights":      {kit.Augmented(24), kit.Augmented(24), by(sampler.Weighted(weights, 100, 1)), by(sampler.Weighted(weights, 100, 2)), "another sampler"},
		"without replacement":      {kit.Augmented(24), kit.Augmented(24), by(sampler.WeightedWithoutReplacement(weights, 24, 1)), by(sampler.WeightedWithoutReplacement(heavier, 24, 1)), "another sampler"},
		"blocks":                   {kit.Augmented(30), kit.Augmented(30), by(sampler.LocallyShuffled([]int{10, 20}, 1, 1)), by(sampler.LocallyShuffled([]int{20, 10}, 1, 1)), "another sampler"},
		"a mixture":                {kit.Augmented(100), kit.Augmented(100), by(sampler.Mixed(100, mix(1), 1)), by(sampler.Mixed(100, mix(2), 1)), "another sampler"},
		"buckets":                  {kit.Augmented(100), kit.Augmented(100), by(sampler.Bucketed(100, oneOf5, sampler.Buckets{BatchSize: 8}, 1)), by(sampler.Bucketed(100, oneOf5, sampler.Buckets{BatchSize: 16}, 1)), "another sampler"},
		"the lengths of documents": {kit.Augmented(30), kit.Augmented(30), by(sampler.TokenBatches(30, oneOf5, sampler.Tokens{Max: 8}, 2)), by(sampler.TokenBatches(30, func(i int) int { return 1 + i%4 }, sampler.Tokens{Max: 8}, 2)), "another sampler"},
		"part of a dataset":        {kit.Augmented(30), kit.Augmented(30), by(sampler.Select(nwt.Shuffled(20, 1), make([]int, 20))), by(sampler.Select(nwt.Shuffled(20, 2), make([]int, 20))), "another sampler"},
		"another part":             {kit.Augmented(30), kit.Augmented(30), by(sampler.Select(nwt.Sequential(20), make([]int, 20))), by(sampler.Select(nwt.Sequential(20), append(make([]int, 19), 1))), "another sampler"},

		"a shard more":           {shards(20, 20, 20), shards(20, 20, 20, 20), nil, nil, "other shards"},
		"another seed of them":   {shards(20, 20, 20), shards(20, 20, 20), window(1, 8), window(2, 8), "another seed"},
		"another window":         {shards(20, 20, 20), shards(20, 20, 20), window(1, 8), window(1, 9), "WithShuffleWindow"},
		"another interleave":     {shards(20, 20, 20), shards(20, 20, 20), interleave(1), interleave(2), "WithInterleave"},
		"a record more":          {records(20, 20, 20), records(20, 21, 20), nil, nil, "other shards"},
		"counts, another window": {records(20, 20, 20), records(20, 20, 20), window(1, 8), window(1, 100), "WithShuffleWindow"},
	} {
		t.Run(name, func(t *testing.T) {
			batch := nwt.WithBatchSize(8)
			then, now := append(c.thenOpts, batch), append(c.nowOpts, batch)
			s := stateAfter(t, 2, c.then, then...)
			require.NotZero(t, s.Order)
			_, err := resumed(t, s, c.then, then...)
			require.NoError(t, err, "the same goes on")
			_, err = resumed(t, s, c.now, now...)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "State{Epoch: 4}")
			s.Order = 0
			_, err = resumed(t, s, c.now, now...)
			require.NoError(t, err, "a state without it resumes as ever")
			_, err = resumed(t, nwt.State{Epoch: 4, Order: 1<<63 - 1}, c.now, now...)
			require.NoError(t, err, "nothing of the epoch was delivered")
		})
	}
}

// Only the order counts: not how it is divided, nor who loads it.
func TestAStateIsTheSameWhoeverTakesIt(t *testing.T) {
	for _, ds := range []nwt.Dataset{kit.Augmented(96), nwt.Streamed(kit.NewCounted(40, 30, 26))} {
		want := stateAfter(t, 6, ds, nwt.WithShuffle(1), nwt.WithBatchSize(8))
		for _, opts := range [][]nwt.Option{
			{nwt.WithBatchSize(24), nwt.WithPrefetch(5), nwt.WithSeed(4), nwt.WithDropLast(), nwt.WithErrorBudget(3)},
			{nwt.WithBatchSize(12), nwt.WithRank(1, 2), nwt.WithWorkers(3)},
		} {
			require.Equal(t, want, stateAfter(t, 2, ds, append(opts, nwt.WithShuffle(1))...))
		}
	}
	own := stateAfter(t, 2, kit.Augmented(96), nwt.WithSampler(nwt.Shuffled(96, 1)), nwt.WithBatchSize(24))
	require.Equal(t, stateAfter(t, 2, kit.Augmented(96), nwt.WithShuffle(1), nwt.WithBatchSize(24)), own)
}

func TestAStateSurvivesJSONThroughAnyHands(t *testing.T) {
	s := stateAfter(t, 2, kit.Printed{Dataset: kit.Augmented(96), Print: "monday"}, nwt.WithShuffle(1), nwt.WithBatchSize(8))
	require.Greater(t, s.Order, uint64(1)<<53, "a float64 doesn't hold it")
	text, err := json.Marshal(s)
	require.NoError(t, err)
	var hands map[string]any
	require.NoError(t, json.Unmarshal(text, &hands))
	text, err = json.Marshal(hands)
	require.NoError(t, err)
	var back nwt.State
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, s, back)
	require.NoError(t, json.Unmarshal([]byte(`{"epoch":3,"samples":25600}`), &back))
	text, err = json.Marshal(nwt.State{Epoch: 3, Samples: 25600})
	require.NoError(t, err)
	require.JSONEq(t, `{"epoch":3,"samples":25600}`, string(text))
}

// What was delivered whole needs no order: training goes on with what there is by now.
func TestAStateAtTheEndOfAnEpochGoesOnWithWhateverHasChanged(t *testing.T) {
	s := stateAfter(t, 12, kit.Augmented(96), nwt.WithShuffle(1), nwt.WithBatchSize(8))
	for _, ds := range []nwt.Dataset{kit.Augmented(96), kit.Augmented(100), kit.Augmented(50)} {
		times, err := resumed(t, s, ds, nwt.WithShuffle(2), nwt.WithBatchSize(8))
		require.NoError(t, err)
		require.Len(t, times, ds.Len())
		for index, n := range times {
			require.Equal(t, 1, n, index)
		}
		l := kit.NewLoader(t, ds, nwt.WithShuffle(2))
		for range l.Resume(t.Context(), s) {
			t.Fatal("nothing is left of the epoch")
		}
	}
	for name, c := range map[string]struct {
		ds  nwt.Dataset
		opt nwt.Option
	}{
		"the last samples are dropped":         {kit.Augmented(100), nwt.WithDropLast()},
		"a stream's epoch has so many":         {nwt.Streamed(kit.NewShelves(60, 60)), nwt.WithEpochSamples(96)},
		"a counted stream's epoch has so many": {nwt.Streamed(kit.NewCounted(60, 60)), nwt.WithEpochSamples(96)},
	} {
		with := func(seed uint64) []nwt.Option {
			return []nwt.Option{nwt.WithBatchSize(8), nwt.WithShuffle(seed), c.opt}
		}
		s := stateAfter(t, 12, c.ds, with(1)...)
		times, err := resumed(t, s, c.ds, with(2)...)
		require.NoError(t, err, name)
		require.Len(t, times, 96, name)
	}
}

// A part tells nothing by itself.
func TestResumeRefusesAnotherPartOfADataset(t *testing.T) {
	for name, part := range map[string]func(k int) (nwt.Dataset, error){
		"Subset": func(k int) (nwt.Dataset, error) { return nwt.Subset(kit.Augmented(96), []int{1, 2, 3 + k, 4, 5, 6}) },
		"Split": func(k int) (nwt.Dataset, error) {
			parts, err := nwt.Split(kit.Augmented(96), uint64(k), .5, .5)
			return parts[0], err
		},
		"Concat of parts": func(k int) (nwt.Dataset, error) {
			parts, err := nwt.Split(kit.Augmented(96), 7, .5, .5)
			require.NoError(t, err)
			return nwt.Concat(parts[k], parts[1-k])
		},
	} {
		one, err := part(0)
		require.NoError(t, err)
		other, err := part(1)
		require.NoError(t, err)
		s := stateAfter(t, 2, one, nwt.WithBatchSize(2))
		_, err = resumed(t, s, one, nwt.WithBatchSize(2))
		require.NoError(t, err)
		_, err = resumed(t, s, other, nwt.WithBatchSize(2))
		require.ErrorContains(t, err, "another fingerprint of the dataset", name)
	}
}

// One file was removed and one added: some samples would come twice and others never.
func TestResumeRefusesADatasetWithAnotherFingerprint(t *testing.T) {
	s := stateAfter(t, 2, kit.Printed{Dataset: kit.Augmented(96), Print: "monday"}, nwt.WithBatchSize(8))
	unchecked := s
	unchecked.Order = 0
	for _, c := range []struct {
		ds      nwt.Dataset
		from    nwt.State
		refused bool
	}{
		{kit.Printed{Dataset: kit.Augmented(96), Print: "monday"}, s, false},
		{kit.Printed{Dataset: kit.Augmented(96), Print: "tuesday"}, s, true},
		{kit.Printed{Dataset: kit.Augmented(96), Print: "tuesday"}, unchecked, false},
		{kit.Augmented(96), s, false},
	} {
		var log kit.Journal
		times, err := resumed(t, c.from, c.ds, nwt.WithBatchSize(8), log.Option())
		require.Empty(t, log.String())
		if !c.refused {
			require.NoError(t, err)
			require.Len(t, times, 96)
			continue
		}
		var wrong *nwt.ArgumentError
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, "State.Order", wrong.Name)
		for _, says := range []string{"another fingerprint of the dataset", "State{Epoch: 4}"} {
			require.ErrorContains(t, err, says)
		}
	}
	whole := stateAfter(t, 12, kit.Printed{Dataset: kit.Augmented(96), Print: "monday"}, nwt.WithBatchSize(8))
	l := kit.NewLoader(t, kit.Printed{Dataset: kit.Augmented(96), Print: "tuesday"}, nwt.WithBatchSize(8))
	for range l.Resume(t.Context(), whole) {
		t.Fatal("nothing is left of the epoch")
	}
	for b, err := range l.ResumeEpochs(t.Context(), whole, 5) {
		require.NoError(t, err)
		require.Equal(t, 4, b.Epoch())
	}
}

type backwards int

func (n backwards) Len() int        { return int(n) }
func (n backwards) At(_, i int) int { return int(n) - 1 - i }
