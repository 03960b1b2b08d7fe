package nwt_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/host"
)

func sleeping(n int, d time.Duration) nwt.Dataset {
	return nwt.NewDataset(n, scalar, func(ctx context.Context, _ int, _ *nwt.Sample) error {
		return heed(ctx, d)
	})
}

// heed waits for d, or until ctx ends.
func heed(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestADatasetThatWaitsGetsMoreWorkersThanCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := nwt.Tune(t.Context(), sleeping(10_000, time.Millisecond), nwt.WithMaxWorkers(32), nwt.WithIterations(10), virtual)
		require.NoError(t, err)
		require.GreaterOrEqual(t, r.Workers, 6*virtualCPUs, "%v", r)
		require.Contains(t, r.String(), "chosen")
	})
}

func TestADatasetThatComputesGetsNoMoreWorkersThanCPUs(t *testing.T) {
	computing := func() (nwt.Dataset, nwt.Option) {
		m := nwt.NewVirtualMachine(virtualCPUs)
		return nwt.NewDataset(1_000_000, scalar, func(context.Context, int, *nwt.Sample) error {
			m.Compute(time.Millisecond)
			return nil
		}), m.Option()
	}
	synctest.Test(t, func(t *testing.T) {
		ds, machine := computing()
		r, err := nwt.Tune(t.Context(), ds, machine)
		require.NoError(t, err)
		require.Equal(t, virtualCPUs, r.Workers, "%v", r)
		require.Equal(t, virtualCPUs, r.Trials[len(r.Trials)-1].Workers, "no CPU was idle: %v", r)
	})
	synctest.Test(t, func(t *testing.T) {
		ds, machine := computing()
		l := newLoader(t, ds, nwt.WithAutoWorkers(), nwt.WithWorkers(1), machine, silent)
		train(t, l, 500, func() {})
		r := l.Result()
		require.NotNil(t, r)
		require.Equal(t, virtualCPUs, r.Workers, "%v", r)
		require.Equal(t, virtualCPUs, r.Trials[len(r.Trials)-1].Workers, "no CPU was idle: %v", r)
	})
}

func TestTuningReportsWhereItStands(t *testing.T) {
	var seen []nwt.Progress
	var shown []*nwt.Trial
	var trials []nwt.Trial
	r, err := nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithMaxWorkers(2), nwt.WithProgress(func(p nwt.Progress) {
		if seen = append(seen, p); p.Trial != nil {
			shown, trials = append(shown, p.Trial), append(trials, *p.Trial)
			require.Equal(t, p.Workers, p.Trial.Workers)
			require.Equal(t, 100*p.Trial.Mean, p.Trial.Total)
		}
	}))
	require.NoError(t, err)
	for i, trial := range shown {
		require.Equal(t, trials[i], *trial, "what a program was shown stays as it was")
	}
	require.NotEmpty(t, seen)
	for i := range seen[1:] {
		require.LessOrEqual(t, seen[i].Done, seen[i+1].Done)
	}
	require.Equal(t, "done", seen[len(seen)-1].Phase)
	require.Equal(t, 1.0, seen[len(seen)-1].Done)
	for _, trial := range r.Trials {
		require.Positive(t, trial.Mean)
		require.Positive(t, trial.PeakRSS)
		require.Len(t, r.Trials, 3)
		require.LessOrEqual(t, trial.Low, trial.High)
	}
}

func TestTuningRunsTheStepAndItsErrorsComeBack(t *testing.T) {
	boom := errors.New("boom")
	steps := 0
	r, err := nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithMaxWorkers(1), nwt.WithIterations(10),
		nwt.WithStep(func(_ context.Context, b *nwt.Batch) error { steps++; return nil }))
	require.NoError(t, err)
	require.Positive(t, steps)
	require.True(t, r.Step)
	_, err = nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithStep(func(context.Context, *nwt.Batch) error { return boom }))
	require.ErrorIs(t, err, boom)
	_, err = nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithStep(func(context.Context, *nwt.Batch) error { panic(boom) }))
	require.ErrorIs(t, err, boom)
}

func TestTuningEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := nwt.Tune(ctx, sleeping(1000, time.Millisecond), nwt.WithProgress(func(nwt.Progress) { cancel() }))
	require.ErrorIs(t, err, context.Canceled)
}

func TestWorkerCountsThatNeedTooMuchMemoryAreRuledOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 8 << 20 // a batch; with more workers there are more of them
		ds := nwt.NewDataset(1000, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{size}}},
			func(_ context.Context, _ int, s *nwt.Sample) error {
				clear(s.Bytes(0))
				time.Sleep(5 * time.Millisecond)
				return nil
			})
		debug.FreeOSMemory() // as tuning does
		limit := host.Memory().RSS + 10*size
		r, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(1), nwt.WithMaxWorkers(32), nwt.WithIterations(8), nwt.WithMemoryLimit(limit), virtual)
		require.NoError(t, err)
		require.LessOrEqual(t, r.Workers, 10)
		require.NotEmpty(t, r.RuledOut)
		last := r.RuledOut[len(r.RuledOut)-1]
		require.Equal(t, 32, last.Workers)
		require.Contains(t, last.Reason, "(set by WithMemoryLimit)")
		require.Contains(t, r.String(), r.RuledOut[0].Reason)
		for _, trial := range r.Trials {
			if trial.Memory > 0 { // else the peak, pages of files included
				require.LessOrEqual(t, trial.Memory, limit)
			}
		}
	})
}

func TestALimitThatNothingFitsInIsAnError(t *testing.T) {
	_, err := nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithMemoryLimit(1))
	require.ErrorContains(t, err, "0 workers took")
	require.ErrorContains(t, err, "over the limit of 1 B (set by WithMemoryLimit)")
}

// countedDataset counts the calls of Load.
func countedDataset(calls *atomic.Int64) nwt.Dataset {
	return nwt.NewDataset(1000, scalar, func(context.Context, int, *nwt.Sample) error { calls.Add(1); return nil })
}

func TestAResultIsTakenFromTheCache(t *testing.T) {
	var calls atomic.Int64
	ds := countedDataset(&calls)
	opts := []nwt.Option{nwt.WithMaxWorkers(1), nwt.WithIterations(20), nwt.WithResultCache(filepath.Join(t.TempDir(), "tuning.json"))}
	first, err := nwt.Tune(t.Context(), ds, opts...)
	require.NoError(t, err)
	require.False(t, first.Cached)
	loaded := calls.Load()

	again, err := nwt.Tune(t.Context(), ds, append(opts, nwt.WithShuffle(1), nwt.WithSampler(nil))...)
	require.Error(t, err, "options are checked all the same")
	require.Nil(t, again)
	again, err = nwt.Tune(t.Context(), ds, append(opts, nwt.WithBatchSize(40), nwt.WithStrategy(nwt.Exhaustive()), nwt.WithRank(1, 2))...)
	require.NoError(t, err)
	require.Equal(t, loaded, calls.Load())
	require.True(t, again.Cached)
	again.Cached = false
	require.Equal(t, first, again)
}

func TestWhatChangesTheAnswerIsTunedAnew(t *testing.T) {
	step := func(context.Context, *nwt.Batch) error { return nil }
	for name, opt := range map[string]nwt.Option{
		"alpha":       nwt.WithRelativeAlpha(0.5),
		"alpha total": nwt.WithAlpha(time.Second),
		"batch size":  nwt.WithBatchSize(100),
		"finish":      nwt.WithFinish(step),
		"iterations":  nwt.WithIterations(21),
		"max workers": nwt.WithMaxWorkers(2),
		"memory":      nwt.WithMemoryLimit(1 << 40),
		"order":       nwt.WithShuffle(1),
		"page-locked": nwt.WithPinned(false),
		"prefetch":    nwt.WithPrefetch(7),
		"step":        nwt.WithStep(step),
		"time":        nwt.WithTuningTime(time.Minute),
		"timeout":     nwt.WithTimeout(time.Hour),
		"unordered":   nwt.WithUnordered(),
		"worker init": nwt.WithWorkerInit(func(context.Context, int) error { return nil }),
	} {
		t.Run(name, func(t *testing.T) {
			ds := emptyDataset(1000)
			opts := []nwt.Option{nwt.WithMaxWorkers(1), nwt.WithIterations(20), nwt.WithResultCache(filepath.Join(t.TempDir(), "tuning.json"))}
			_, err := nwt.Tune(t.Context(), ds, opts...)
			require.NoError(t, err)
			r, err := nwt.Tune(t.Context(), ds, append(opts, opt)...)
			require.NoError(t, err)
			require.False(t, r.Cached)
			r, err = nwt.Tune(t.Context(), ds, append(opts, opt)...)
			require.NoError(t, err)
			require.True(t, r.Cached)
		})
	}
}

// On the same machine, two ranks that may run on four CPUs each have all of them if they are
// bound to others, and two if they share them.
func TestAnotherShareOfTheCPUsIsTunedAnew(t *testing.T) {
	t.Setenv("RANK", "0")
	t.Setenv("WORLD_SIZE", "2")
	t.Setenv("LOCAL_RANK", "0")
	t.Setenv("LOCAL_WORLD_SIZE", "2")
	path := filepath.Join(t.TempDir(), "tuning.json")
	cached := func(procs int) (cached bool) {
		synctest.Test(t, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), sleeping(1000, time.Millisecond), nwt.WithLauncher(), nwt.WithMaxWorkers(1), nwt.WithIterations(1),
				nwt.WithResultCache(path), nwt.NewVirtualMachine(procs).Option(), quietLog)
			require.NoError(t, err)
			cached = r.Cached
		})
		return cached
	}
	require.Equal(t, []bool{false, false, true, true}, []bool{cached(4), cached(8), cached(4), cached(8)})
}

// blank is a dataset of one field. As functions that are inlined have names of their own,
// two datasets of functions would differ by these.
type blank struct{ field nwt.Field }

func (blank) Len() int              { return 100 }
func (d blank) Fields() []nwt.Field { return []nwt.Field{d.field} }
func (d blank) Load(_ context.Context, _ int, dst *nwt.Sample) error {
	if d.field.Ragged {
		dst.SetLen(0, 0)
	}
	return nil
}

// sheet is a blank of another type.
type sheet struct{ blank }

// whole is a subset that is all of ds.
func whole(t *testing.T, ds nwt.Dataset) nwt.Dataset {
	indices := make([]int, ds.Len())
	for i := range indices {
		indices[i] = i
	}
	subset, err := nwt.Subset(ds, indices)
	require.NoError(t, err)
	return subset
}

// Two datasets or functions whose samples take equally many bytes.
func TestAnotherDatasetOrFunctionIsTunedAnew(t *testing.T) {
	dataset := func(f nwt.Field) nwt.Dataset { return blank{f} }
	flat := dataset(nwt.Field{Name: "x", Type: nwt.Float32, Shape: []int{2, 3}})
	for name, c := range map[string]struct {
		was nwt.Dataset // flat if nil
		ds  nwt.Dataset
		opt nwt.Option
	}{
		"dimension": {
			was: dataset(nwt.Field{Name: "x", Type: nwt.Float32}),
			ds:  dataset(nwt.Field{Name: "x", Type: nwt.Float32, Shape: []int{1}}),
		},
		"shape":              {ds: dataset(nwt.Field{Name: "x", Type: nwt.Float32, Shape: []int{3, 2}})},
		"ragged":             {ds: dataset(nwt.Field{Name: "x", Type: nwt.Float32, Shape: []int{2, 3}, Ragged: true})},
		"field":              {ds: dataset(nwt.Field{Name: "y", Type: nwt.Float32, Shape: []int{2, 3}})},
		"type":               {ds: dataset(nwt.Field{Name: "x", Type: nwt.Int32, Shape: []int{2, 3}})},
		"function":           {ds: nwt.NewDataset(100, flat.Fields(), func(context.Context, int, *nwt.Sample) error { return nil })},
		"type of a part":     {was: whole(t, flat), ds: whole(t, sheet{flat.(blank)})},
		"cached part":        {was: whole(t, flat), ds: whole(t, nwt.Cached(flat, 1<<20))},
		"part of LoadBatch":  {was: whole(t, batched{flat}), ds: whole(t, flat)},
		"function of a part": {was: whole(t, flat), ds: whole(t, nwt.NewDataset(100, flat.Fields(), func(context.Context, int, *nwt.Sample) error { return nil }))},
		"function of Map": {
			was: nwt.Map(flat, flat.Fields(), func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil }),
			ds:  nwt.Map(flat, flat.Fields(), func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil }),
		},
		"step":   {ds: flat, opt: nwt.WithStep(func(context.Context, *nwt.Batch) error { return nil })},
		"finish": {ds: flat, opt: nwt.WithFinish(func(context.Context, *nwt.Batch) error { return nil })},
	} {
		nothing := func(context.Context, *nwt.Batch) error { return nil }
		opts := []nwt.Option{nwt.WithMaxWorkers(0), nwt.WithIterations(2), nwt.WithStep(nothing), nwt.WithFinish(nothing),
			nwt.WithResultCache(filepath.Join(t.TempDir(), "tuning.json")), silent}
		if c.was == nil {
			c.was = flat
		}
		_, err := nwt.Tune(t.Context(), c.was, opts...)
		require.NoError(t, err)
		if c.opt != nil {
			opts = append(opts, c.opt)
		}
		for _, cached := range []bool{false, true} {
			r, err := nwt.Tune(t.Context(), c.ds, opts...)
			require.NoError(t, err)
			require.Equal(t, cached, r.Cached, name)
		}
	}
}

// otherShelves is a stream of another type.
type otherShelves struct{ nwt.Stream }

func TestAnotherStreamOrWayOfReadingItIsTunedAnew(t *testing.T) {
	stream := newShelves(100, 100, 100, 100, 100, 100)
	for name, c := range map[string]struct {
		stream nwt.Stream
		opt    nwt.Option
	}{
		"stream":     {stream: otherShelves{stream}},
		"interleave": {stream: stream, opt: nwt.WithInterleave(2)},
		"window":     {stream: stream, opt: nwt.WithShuffleWindow(7)},
		"epoch":      {stream: stream, opt: nwt.WithEpochSamples(300)},
	} {
		t.Run(name, func(t *testing.T) {
			opts := []nwt.Option{nwt.WithMaxWorkers(0), nwt.WithIterations(2), nwt.WithShuffle(1), nwt.WithResultCache(filepath.Join(t.TempDir(), "tuning.json")), silent}
			_, err := nwt.Tune(t.Context(), nwt.Streamed(stream), opts...)
			require.NoError(t, err)
			if c.opt != nil {
				opts = append(opts, c.opt)
			}
			for _, cached := range []bool{false, true} {
				r, err := nwt.Tune(t.Context(), nwt.Streamed(c.stream), opts...)
				require.NoError(t, err)
				require.Equal(t, cached, r.Cached)
			}
		})
	}
}

// evenly is an epoch of 96 samples in batches of so many.
type evenly int

func (n evenly) Len() int           { return 96 }
func (n evenly) At(_, i int) int    { return i }
func (n evenly) Batches() int       { return 96 / int(n) }
func (n evenly) Largest() int       { return int(n) }
func (n evenly) Start(_, b int) int { return int(n) * b }

func TestBatchesCountForWhatTheyHoldNotForWhatTheyMay(t *testing.T) {
	path := nwt.WithResultCache(filepath.Join(t.TempDir(), "tuning.json"))
	for _, tt := range []struct {
		batch  evenly
		cached bool
	}{{48, false}, {2, false}, {32, true}, {3, true}} {
		r, err := nwt.Tune(t.Context(), emptyDataset(96), nwt.WithBatchSize(64), nwt.WithSampler(tt.batch), nwt.WithMaxWorkers(0), nwt.WithIterations(2), path)
		require.NoError(t, err)
		require.Equal(t, tt.cached, r.Cached, "batches of %d", tt.batch)
	}
}

// Memory that is left today isn't what was left when a result was kept.
func TestAKeptChoiceMustFitIntoTheMemoryOfToday(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 8 << 20 // a batch; with more workers there are more of them
		ds := nwt.NewDataset(1000, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{size}}},
			func(_ context.Context, _ int, s *nwt.Sample) error {
				for i := 0; i < size; i += 4096 { // each page
					s.Bytes(0)[i] = 1
				}
				time.Sleep(5 * time.Millisecond)
				return nil
			})
		kept := filepath.Join(t.TempDir(), "tuning.json")
		m, path := nwt.NewVirtualMachine(virtualCPUs), nwt.WithResultCache(kept)
		tune := func(left uint64, cached bool, opts ...nwt.Option) *nwt.Result {
			t.Helper()
			m.Left = left
			r, err := nwt.Tune(t.Context(), ds, append(opts, nwt.WithBatchSize(1), nwt.WithMaxWorkers(32), nwt.WithIterations(40), path, m.Option(), silent)...)
			require.NoError(t, err)
			require.Equal(t, cached, r.Cached, "%v", r)
			return r
		}
		const much, little = 1 << 40, 13 * size
		all := tune(much, false)
		require.Equal(t, 32, all.Workers)
		require.Equal(t, 32, tune(much, true).Workers)
		if raceDetector { // its own memory comes and goes by many megabytes
			return
		}

		data, err := os.ReadFile(kept) // by a machine whose clock is ahead
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(kept, bytes.Replace(data, []byte(`"saved":"20`), []byte(`"saved":"21`), 1), 0o644))
		bounded := tune(little, false)
		require.Less(t, bounded.Workers, 16)
		require.NotEmpty(t, bounded.RuledOut)
		require.Equal(t, bounded.Workers, tune(little, true).Workers)

		require.Equal(t, bounded.Workers, tune(much, true).Workers, "what memory has bounded counts for a day")

		debug.FreeOSMemory() // as tuning does
		limit := nwt.WithMemoryLimit(host.Memory().RSS + 10*size)
		bounded = tune(much, false, limit)
		require.NotEmpty(t, bounded.RuledOut)
		require.Equal(t, bounded.Workers, tune(much, true, limit).Workers)
		held := make([]byte, 6*size) // by the program, before it tunes
		for i := 0; i < len(held); i += 4096 {
			held[i] = 1
		}
		require.Less(t, tune(much, false, limit).Workers, bounded.Workers)
		require.EqualValues(t, 1, held[0])
	})
}

func TestATuningThatFailsIsNotKept(t *testing.T) {
	opts := []nwt.Option{nwt.WithMaxWorkers(0), nwt.WithIterations(2), nwt.WithResultCache(filepath.Join(t.TempDir(), "tuning.json")), silent}
	bad := true
	ds := numbered(100, func(context.Context, int, *nwt.Sample) error {
		if bad {
			return errBad
		}
		return nil
	})
	r, err := nwt.Tune(t.Context(), ds, opts...)
	require.ErrorIs(t, err, errBad)
	require.Nil(t, r)
	bad = false
	r, err = nwt.Tune(t.Context(), ds, opts...)
	require.NoError(t, err)
	require.False(t, r.Cached)
	var seen []nwt.Progress
	r, err = nwt.Tune(t.Context(), ds, append(opts, nwt.WithProgress(func(p nwt.Progress) { seen = append(seen, p) }))...)
	require.NoError(t, err)
	require.True(t, r.Cached)
	require.Len(t, seen, 1)
	require.Equal(t, "done", seen[0].Phase)
	require.Equal(t, r.Workers, seen[0].Workers)
}

func TestRanksThatStartTogetherAgreeOnOneAnswer(t *testing.T) {
	var calls atomic.Int64
	ds := countedDataset(&calls)
	path := filepath.Join(t.TempDir(), "tuning.json")
	results := make([]*nwt.Result, 4)
	var ranks sync.WaitGroup
	for rank := range results {
		ranks.Go(func() {
			r, err := nwt.Tune(t.Context(), ds, nwt.WithRank(rank, 4), nwt.WithMaxWorkers(1), nwt.WithIterations(20), nwt.WithResultCache(path))
			if err == nil {
				results[rank] = r
			}
		})
	}
	ranks.Wait()
	tuned := 0
	for _, r := range results {
		require.NotNil(t, r)
		require.Equal(t, results[0].Workers, r.Workers)
		if !r.Cached {
			tuned++
		}
	}
	require.Equal(t, 1, tuned)
}

// What a file says is checked before it is believed, at its exact bounds.
func TestAKeptResultThatCannotBeIsMeasuredAnew(t *testing.T) {
	ds, path := emptyDataset(1000), filepath.Join(t.TempDir(), "tuning.json")
	opts := []nwt.Option{nwt.WithMaxWorkers(1), nwt.WithIterations(20), nwt.WithResultCache(path), nwt.WithLogger(slog.New(slog.DiscardHandler))}
	_, err := nwt.Tune(t.Context(), ds, opts...)
	require.NoError(t, err)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	chosen := func(workers int) func(result map[string]any) {
		return func(r map[string]any) {
			one := r["trials"].([]any)[:1]
			one[0].(map[string]any)["workers"] = workers
			r["workers"], r["fastest"], r["trials"] = workers, workers, one
		}
	}
	trial := func(figure string, value int) func(result map[string]any) {
		return func(r map[string]any) { r["trials"].([]any)[1].(map[string]any)[figure] = value }
	}
	figure := func(name string, value any) func(result map[string]any) {
		return func(r map[string]any) { r[name] = value }
	}
	bounded := func(reason string) func(result map[string]any) {
		return func(r map[string]any) {
			r["confidence"], r["ruled_out"] = 0.95, []any{map[string]any{"workers": 2, "reason": reason}}
		}
	}
	for name, c := range map[string]struct {
		change func(result map[string]any)
		age    time.Duration
		cached bool
	}{
		"as it was":            {func(map[string]any) {}, 0, true},
		"0 workers":            {chosen(0), 0, true},
		"the most workers":     {chosen(1024), 0, true},
		"more than the most":   {chosen(1025), 0, false},
		"fewer than no worker": {chosen(-1), 0, false},
		"what wasn't tried":    {func(r map[string]any) { r["workers"] = 3 }, 0, false},
		"no trials":            {func(r map[string]any) { r["trials"] = []any{} }, 0, false},
		"a negative trial":     {trial("workers", -5), 0, false},
		"a trial of too many":  {trial("workers", 1025), 0, false},
		"a count tried twice":  {trial("workers", 0), 0, false},
		"nothing measured":     {trial("iterations", 0), 0, false},
		"a negative time":      {trial("mean_ns", -1), 0, false},
		"a fastest not tried":  {figure("fastest", 3), 0, false},
		"negative alpha":       {figure("alpha_ns", -1), 0, false},
		"0 iterations":         {figure("iterations", 0), 0, false},
		"more than sure":       {figure("confidence", 1.1), 0, false},
		"faster than the best": {figure("slower", -0.1), 0, false},
		"a negative floor":     {figure("floor_ns", -1), 0, false},
		"unsure":               {func(r map[string]any) { r["confidence"] = 0.89 }, 23 * time.Hour, true},
		"unsure for a day":     {func(r map[string]any) { r["confidence"] = 0.89 }, 25 * time.Hour, false},
		"unsure, of tomorrow":  {func(r map[string]any) { r["confidence"] = 0.89 }, -25 * time.Hour, false},
		"sure for years":       {func(r map[string]any) { r["confidence"] = 0.90 }, 25_000 * time.Hour, true},
		"bounded":              {bounded("2 workers would take too much"), 23 * time.Hour, true},
		"bounded for a day":    {bounded("2 workers would take too much"), 25 * time.Hour, false},
		"bounded by an option": {bounded("0 workers weren't tried: WithTimeout holds only with workers"), 25 * time.Hour, true},
	} {
		var file map[string]any
		require.NoError(t, json.Unmarshal(data, &file))
		entry := file["entries"].([]any)[0].(map[string]any)
		c.change(entry["value"].(map[string]any))
		entry["saved"] = time.Now().Add(-c.age)
		changed, err := json.Marshal(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, changed, 0o644))
		r, err := nwt.Tune(t.Context(), ds, opts...)
		require.NoError(t, err)
		require.Equal(t, c.cached, r.Cached, name)
	}
}

func TestWaitingForAnotherProcessThatTunesTakesNoTuningTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tuning.json")
		unlock, err := files.Lock(t.Context(), path+".tune")
		require.NoError(t, err)
		go func() {
			time.Sleep(time.Hour)
			unlock() // without a result
		}()
		ds := numbered(1000, func(context.Context, int, *nwt.Sample) error { time.Sleep(time.Millisecond); return nil })
		r, err := nwt.Tune(t.Context(), ds, nwt.WithMaxWorkers(4), nwt.WithTuningTime(time.Minute), nwt.WithResultCache(path), nwt.NewVirtualMachine(4).Option(), silent)
		require.NoError(t, err)
		require.Equal(t, 4, r.Workers)
	})
}

func TestADamagedCacheIsIgnoredWithAWarningAndRewritten(t *testing.T) {
	for name, damage := range map[string]func(data []byte) []byte{
		"cut off":    func(data []byte) []byte { return data[:len(data)/2] },
		"other file": func([]byte) []byte { return []byte("weights") },
		"other result": func(data []byte) []byte {
			return bytes.Replace(data, []byte(`"workers":`), []byte(`"workers":"many","was":`), 1)
		},
		"impossible": func(data []byte) []byte {
			return bytes.Replace(data, []byte(`"workers":`), []byte(`"workers":9999`), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ds, path, warnings := emptyDataset(1000), filepath.Join(t.TempDir(), "tuning.json"), new(bytes.Buffer)
			opts := []nwt.Option{nwt.WithMaxWorkers(1), nwt.WithIterations(20), nwt.WithResultCache(path),
				nwt.WithLogger(slog.New(slog.NewTextHandler(warnings, nil)))}
			_, err := nwt.Tune(t.Context(), ds, opts...)
			require.NoError(t, err)
			require.Empty(t, warnings.String())
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, damage(data), 0o644))

			r, err := nwt.Tune(t.Context(), ds, opts...)
			require.NoError(t, err)
			require.False(t, r.Cached)
			require.Equal(t, 1, strings.Count(warnings.String(), "ignoring"), "%s", warnings) // it is looked at before and after waiting for others that tune
			r, err = nwt.Tune(t.Context(), ds, opts...)
			require.NoError(t, err)
			require.True(t, r.Cached)
		})
	}
}

func TestAResultSurvivesJSON(t *testing.T) {
	r, err := nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithMaxWorkers(2), nwt.WithIterations(20))
	require.NoError(t, err)
	data, err := json.Marshal(r)
	require.NoError(t, err)
	again := &nwt.Result{}
	require.NoError(t, json.Unmarshal(data, again))
	require.Equal(t, r, again)
}

func TestATuningTimeThatIsOverBeforeItBeginsStillMeasuresOnce(t *testing.T) {
	for _, workers := range []int{0, 4} {
		r, err := nwt.Tune(t.Context(), augmented(100), nwt.WithTuningTime(time.Nanosecond), nwt.WithMaxWorkers(workers))
		require.NoError(t, err)
		require.Len(t, r.Trials, 1)
		require.NotEmpty(t, r.Reason)
	}
}

// Within the error budget an epoch may lose all its samples. Then the next epoch won't
// have a batch either, nor the one after it.
func TestTuningEndsIfNoSampleCanBeLoaded(t *testing.T) {
	for name, ds := range map[string]nwt.Dataset{
		"map":    numbered(20, func(context.Context, int, *nwt.Sample) error { return errBoom }),
		"stream": nwt.Streamed(&breaking{shelves: newShelves(10, 10), onLoad: func(*nwt.Sample) { panic(errBoom) }}),
		"later": numbered(20, func(_ context.Context, _ int, dst *nwt.Sample) error {
			if dst.Epoch() > 3 {
				return errBoom
			}
			return nil
		}),
	} {
		for _, opt := range []nwt.Option{nwt.WithTuningTime(time.Hour), nwt.WithIterations(100), nwt.WithUnordered(), nwt.WithDevice(nowhere{})} {
			promptly(t, func() {
				_, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(2), nwt.WithErrorBudget(20), nwt.WithIterations(100), quietLog, opt)
				require.ErrorContains(t, err, "could be loaded, so there is no batch to measure; the last: ", name)
				require.ErrorIs(t, err, errBoom)
			})
		}
	}
}
