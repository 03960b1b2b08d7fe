package loading_test

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

var badOptions = []struct {
	opt    nwt.Option
	option string
	value  any
	bound  string
}{
	{nwt.WithBatchSize(0), "WithBatchSize", 0, "1 … 16777215"},
	{nwt.WithBatchSize(1 << 24), "WithBatchSize", 1 << 24, "1 … 16777215"},
	{nwt.WithWorkers(-1), "WithWorkers", -1, "0 … 1024"},
	{nwt.WithWorkers(1025), "WithWorkers", 1025, "0 … 1024"},
	{nwt.WithPrefetch(0), "WithPrefetch", 0, "1 … 1022"},
	{nwt.WithPrefetch(1023), "WithPrefetch", 1023, "1 … 1022"},
	{nwt.WithSampler(nil), "WithSampler", nil, "the sampler is nil"},
	{nwt.WithRank(0, 0), "WithRank: world", 0, "1 … 1048576"},
	{nwt.WithRank(0, 1<<20+1), "WithRank: world", 1<<20 + 1, "1 … 1048576"},
	{nwt.WithRank(-1, 3), "WithRank: rank", -1, "0 … 2"},
	{nwt.WithRank(3, 3), "WithRank: rank", 3, "0 … 2"},
	{nwt.WithErrorBudget(-1), "WithErrorBudget", -1, "0 … 2147483647"},
	{nwt.WithWorkerInit(nil), "WithWorkerInit", nil, "the function is nil"},
	{nwt.WithStrategy(2), "WithStrategy", nwt.Strategy(2), "must be Greedy or Exhaustive"},
	{nwt.WithStrategy(-1), "WithStrategy", nwt.Strategy(-1), "must be Greedy or Exhaustive"},
	{nwt.WithLogger(nil), "WithLogger", nil, "the logger is nil"},
	{nil, "options[0]", nil, "is nil"},
}

func TestABadOptionIsNamedWithItsValueAndBound(t *testing.T) {
	for _, c := range badOptions {
		t.Run(fmt.Sprintf("%s(%v)", c.option, c.value), func(t *testing.T) {
			l, err := nwt.NewLoader(kit.EmptyDataset(1), c.opt)
			require.Nil(t, l)
			_, tuning := nwt.Tune(t.Context(), kit.EmptyDataset(1), c.opt)
			for _, err := range []error{err, tuning} {
				all := kit.ArgumentErrors(err)
				require.Len(t, all, 1)
				require.Equal(t, c.option, all[0].Name)
				require.Equal(t, c.value, all[0].Value)
				require.Contains(t, all[0].Reason, c.bound)
				if c.value != nil {
					require.ErrorContains(t, err, fmt.Sprint(c.value))
				}
			}
		})
	}
}

func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	var opts []nwt.Option
	for _, c := range badOptions {
		opts = append(opts, c.opt)
	}
	_, err := nwt.NewLoader(nwt.NewDataset(0, nil, func(context.Context, int, *nwt.Sample) error { return nil }), opts...)
	require.Len(t, kit.ArgumentErrors(err), len(badOptions)+2)
	_, err = nwt.NewLoader(nil, nwt.WithWorkers(-1))
	require.Len(t, kit.ArgumentErrors(err), 2)
	_, err = nwt.NewLoader(nwt.NewDataset(0, nil, nil), nwt.WithRetry(-1, -1))
	require.Len(t, kit.ArgumentErrors(err), 5, "of each argument, its own: %v", err)
}

// What can be told only of options that are right in themselves comes too: of the
// sampler's length, what a batch takes, and what a stream can't do.
func TestWhatOptionsAndDatasetMakeTogetherIsReportedAtOnce(t *testing.T) {
	huge := nwt.NewDataset(3, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{kit.MostBytes / 2}}}, func(context.Context, int, *nwt.Sample) error { return nil })
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		opts []nwt.Option
		want []string
	}{
		"a bad option and a bad sampler":     {kit.EmptyDataset(3), []nwt.Option{nwt.WithMaxWorkers(-3), nwt.WithSampler(nwt.Shuffled(-4, 1))}, []string{"WithMaxWorkers", "WithSampler"}},
		"no dataset and a bad sampler":       {nil, []nwt.Option{nwt.WithSampler(nwt.Sequential(0))}, []string{"Dataset", "WithSampler"}},
		"a large batch and a bad sampler":    {huge, []nwt.Option{nwt.WithBatchSize(9), nwt.WithSampler(nwt.Sequential(0))}, []string{"WithSampler", "WithBatchSize"}},
		"a large batch and too few samples":  {huge, []nwt.Option{nwt.WithBatchSize(9), nwt.WithDropLast()}, []string{"WithDropLast", "WithBatchSize"}},
		"a stream with a sampler and a rank": {nwt.Streamed(kit.NewShelves(3)), []nwt.Option{nwt.WithSampler(nwt.Sequential(3)), nwt.WithRank(0, 4)}, []string{"WithSampler", "WithRank: world"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, loader := nwt.NewLoader(c.ds, c.opts...)
			_, tuning := nwt.Tune(t.Context(), c.ds, c.opts...)
			for _, err := range []error{loader, tuning} {
				var got []string
				for _, oe := range kit.ArgumentErrors(err) {
					got = append(got, oe.Name)
				}
				require.Equal(t, c.want, got)
			}
		})
	}
}

// Two options may set the same thing. Then, too, the last one wins.
func TestOfTwoOptionsThatSetTheSameTheLastWins(t *testing.T) {
	t.Setenv("RANK", "1")
	t.Setenv("WORLD_SIZE", "4")
	byRank := kit.NewLoader(t, kit.EmptyDataset(100), nwt.WithBatchSize(10), nwt.WithRankFromEnv(), nwt.WithRank(0, 1))
	require.Equal(t, 10, byRank.Len())
	byLauncher := kit.NewLoader(t, kit.EmptyDataset(100), nwt.WithBatchSize(10), nwt.WithRank(0, 1), nwt.WithRankFromEnv())
	require.Equal(t, 3, byLauncher.Len())
}

func TestAnEmptyValueIsSeenInItsError(t *testing.T) {
	_, err := nwt.NewLoader(kit.EmptyDataset(1), nwt.WithResultCache("", "a"))
	require.EqualError(t, err, `nwt: WithResultCache: "", "a": needs the path of a file and a name for the dataset`)
	_, err = nwt.NewLoader(kit.EmptyDataset(1), nwt.WithResultCache("a", ""))
	require.EqualError(t, err, `nwt: WithResultCache: "a", "": needs the path of a file and a name for the dataset`)
}

func TestASamplerThatCannotBeUsedIsAnError(t *testing.T) {
	for name, s := range map[string]nwt.Sampler{
		"empty":       kit.SamplerFunc{N: 0},
		"negative":    kit.SamplerFunc{N: -4},
		"nil pointer": (*kit.SamplerFunc)(nil),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := nwt.NewLoader(kit.EmptyDataset(3), nwt.WithSampler(s))
			all := kit.ArgumentErrors(err)
			require.Len(t, all, 1)
			require.Equal(t, "WithSampler", all[0].Name)
		})
	}
}

func TestOfAnOptionGivenTwiceTheLastWins(t *testing.T) {
	l := kit.NewLoader(t, kit.EmptyDataset(100), nwt.WithBatchSize(3), nwt.WithWorkers(9), nwt.WithBatchSize(10), nwt.WithWorkers(2))
	require.Equal(t, 10, l.Len())
	require.Equal(t, 2, l.Workers())
}

func TestALauncherThatContradictsItselfIsToldOnce(t *testing.T) {
	t.Setenv("RANK", "9")
	t.Setenv("WORLD_SIZE", "2")
	_, err := nwt.NewLoader(kit.EmptyDataset(1), nwt.WithRankFromEnv())
	require.EqualError(t, err, `nwt: WithRankFromEnv: rank and world from torchrun: RANK is "9"; want a number from 0 to 1`)
}

func TestWhatIsWrongInAPartIsToldOnce(t *testing.T) {
	_, err := nwt.Subset(nil, []int{1})
	require.EqualError(t, err, "nwt: Subset: Dataset: is nil")
	var oe *nwt.ArgumentError
	require.ErrorAs(t, err, &oe)
	_, err = nwt.Concat(kit.EmptyDataset(1), nwt.NewDataset(1, kit.EmptyDataset(1).Fields(), nil))
	require.EqualError(t, err, "nwt: Concat: dataset 1: NewDataset: load is nil")
}

func TestAnArgumentErrorIsShortHoweverLongItsValue(t *testing.T) {
	err := &nwt.ArgumentError{Name: "Subset", Value: make([]int, 1_000_000), Reason: "too long"}
	require.Less(t, len(err.Error()), 300)
	require.ErrorContains(t, err, "too long")
}

func TestWhatIsForStreamsOnlyDoesNothingElse(t *testing.T) {
	of := func(ds nwt.Dataset, opts ...nwt.Option) (indices [][]int) {
		batches, err := kit.Epoch(t.Context(), kit.NewLoader(t, ds, append(opts, nwt.WithBatchSize(4))...), 1)
		require.NoError(t, err)
		return batches
	}
	streams := []nwt.Option{nwt.WithInterleave(1), nwt.WithShuffleWindow(2), nwt.WithEpochSamples(5)}
	require.Equal(t, of(kit.EmptyDataset(30), nwt.WithShuffle(1)), of(kit.EmptyDataset(30), append(streams, nwt.WithShuffle(1))...))
	shelves := nwt.Streamed(kit.NewShelves(7, 3, 5))
	require.Equal(t, of(shelves), of(shelves, nwt.WithShuffleWindow(2)), "without WithShuffle")
}

func TestASamplerForAnotherDatasetIsToldBeforeTheFirstEpoch(t *testing.T) {
	one := func(int) int { return 1 }
	tokens := func(n int) nwt.Sampler { return kit.Must(sampler.TokenBatches(n, one, sampler.Tokens{Max: 4}, 1))(t) }
	of := func(n int) []nwt.Sampler {
		weights := make([]float64, n+5) // the rest is never drawn
		weights[n-1] = 1
		phases := []nwt.Phase{{Samples: 10, Weights: []float64{1, 0, 0}}, {Weights: []float64{1, 1, 0}}}
		return []nwt.Sampler{
			nwt.Sequential(n),
			nwt.Shuffled(n, 1),
			tokens(n),
			kit.Must(sampler.Bucketed(n, one, sampler.Buckets{BatchSize: 2}, 1))(t),
			kit.Must(sampler.LocallyShuffled([]int{3, n - 3}, 1, 1))(t),
			kit.Must(sampler.Mixed(7, nwt.Mix{Parts: []int{3, n - 3, 9}, Phases: phases}, 1))(t),
			kit.Must(sampler.Weighted(weights, 3, 1))(t),
			kit.Must(sampler.WeightedWithoutReplacement(weights, 1, 1))(t),
			kit.Must(sampler.Select(nwt.Shuffled(2, 1), []int{0, n - 1, 1000}))(t),
			kit.Must(sampler.Select(tokens(2), []int{n - 1, 0}))(t),
		}
	}
	for i, s := range of(8) {
		_, err := nwt.NewLoader(kit.EmptyDataset(8), nwt.WithSampler(s))
		require.NoError(t, err)
		s = of(9)[i]
		_, err = nwt.NewLoader(kit.EmptyDataset(8), nwt.WithSampler(s))
		require.EqualError(t, err, fmt.Sprintf("nwt: WithSampler: %v: visits index 8, but the dataset has only 8 samples", s))
		err = kit.NewLoader(t, kit.EmptyDataset(8)).SetSampler(s)
		require.EqualError(t, err, fmt.Sprintf("nwt: SetSampler: %v: visits index 8, but the dataset has only 8 samples", s))
	}
}

// One line, which names those that the program gave and no others.
func TestOptionsWithoutEffectAreNamedInOneLine(t *testing.T) {
	step := func(context.Context, *nwt.Batch) error { return nil }
	forTune := []nwt.Option{nwt.WithStep(step), nwt.WithTuningTime(time.Second), nwt.WithIterations(5), nwt.WithMaxWorkers(1),
		nwt.WithRelativeAlpha(.5), nwt.WithMemoryLimit(1 << 40), nwt.WithProgress(func(nwt.Progress) {}), nwt.WithStrategy(nwt.Exhaustive)}
	forStreams := []nwt.Option{nwt.WithInterleave(3), nwt.WithShuffleWindow(7), nwt.WithEpochSamples(3)}
	load := func(opts ...nwt.Option) { kit.NewLoader(t, kit.EmptyDataset(8), opts...) }
	stream := nwt.Streamed(nwt.NewStream(kit.EmptyDataset(1).Fields(), 3, func(context.Context, int) iter.Seq2[int, error] { return nil }, func(context.Context, int, *nwt.Sample) error { return nil }))
	for _, c := range []struct {
		of   string
		call func(opts ...nwt.Option)
		opts []nwt.Option
		want string
	}{
		{"NewLoader", load, []nwt.Option{nwt.WithStep(step), nwt.WithWorkers(1)}, "WithStep"},
		{"NewLoader", load, forTune, "WithIterations, WithMaxWorkers, WithMemoryLimit, WithProgress, WithRelativeAlpha, WithStep, WithStrategy, WithTuningTime"},
		{"NewLoader", load, []nwt.Option{nwt.WithAlpha(time.Second), nwt.WithResultCache("file", "name")}, "WithAlpha, WithResultCache"},
		{"NewLoader", load, append(forTune, nwt.WithAutoWorkers()), "WithProgress, WithStep, WithStrategy, WithTuningTime"},
		{"NewLoader", load, forStreams, "WithEpochSamples, WithInterleave, WithShuffleWindow"},
		{"NewLoader", load, nil, ""},
		{"NewLoader", load, []nwt.Option{nwt.WithTimeout(time.Second)}, ""},
		{"NewLoader", load, []nwt.Option{nwt.WithTimeout(time.Second), nwt.WithWorkers(0)}, "WithTimeout"},
		{"NewLoader", func(opts ...nwt.Option) { kit.NewLoader(t, stream, opts...) }, forStreams, ""},
		{"NewTunedLoader", func(opts ...nwt.Option) {
			l, err := nwt.NewTunedLoader(t.Context(), kit.EmptyDataset(8), append(opts, nwt.WithMaxWorkers(0))...)
			require.NoError(t, err)
			require.NoError(t, l.Close())
		}, []nwt.Option{nwt.WithWorkers(1), nwt.WithInterleave(3), nwt.WithStep(step), nwt.WithIterations(1)}, "WithInterleave, WithWorkers"},
		{"Tune", func(opts ...nwt.Option) {
			_, err := nwt.Tune(t.Context(), kit.EmptyDataset(8), append(opts, nwt.WithMaxWorkers(0))...)
			require.NoError(t, err)
		}, []nwt.Option{nwt.WithWorkers(1), nwt.WithIterations(1)}, "WithWorkers"},
		{"Precompute", func(opts ...nwt.Option) {
			p, err := nwt.Precompute(t.Context(), kit.EmptyDataset(8), filepath.Join(t.TempDir(), "samples"), "v1", opts...)
			require.NoError(t, err)
			require.NoError(t, p.Close())
		}, []nwt.Option{nwt.WithWorkers(1), nwt.WithShuffle(1), nwt.WithDropLast(), nwt.WithProgress(func(nwt.Progress) {})}, "WithDropLast, WithShuffle"},
	} {
		var log kit.Journal
		c.call(append([]nwt.Option{log.Option()}, c.opts...)...)
		if c.want == "" {
			require.NotContains(t, log.String(), "without effect")
			continue
		}
		require.Equal(t, 1, strings.Count(log.String(), "without effect"), log.String())
		if strings.Contains(c.want, ",") {
			c.want = strconv.Quote(c.want)
		}
		require.Contains(t, log.String(), "in="+c.of+" options="+c.want+"\n")
	}
}
