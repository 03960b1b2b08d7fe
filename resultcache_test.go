//go:build !race

package nwt_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// kept tunes in virtual time with a file of results, under a name.
func kept(t *testing.T, path, name string, ds nwt.Dataset, opts ...nwt.Option) (r *nwt.Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r = tune(t, ds, append([]nwt.Option{nwt.WithMaxWorkers(2), nwt.WithIterations(20), nwt.WithResultCache(path, name)}, opts...)...)
	})
	return r
}

func TestAResultIsTakenFromTheCacheAfterAFewBatches(t *testing.T) {
	path, ds := filepath.Join(t.TempDir(), "tuning.json"), kit.Sleeping(1000, time.Millisecond)
	first := kept(t, path, "a", ds)
	require.False(t, first.Cached)
	steps := 0
	counting := nwt.WithProgress(func(nwt.Progress) { steps++ })
	again := kept(t, path, "a", ds, nwt.WithBatchSize(40), nwt.WithStrategy(nwt.Exhaustive()), nwt.WithRank(1, 2), counting)
	require.True(t, again.Cached)
	require.Equal(t, 1, steps, "it was done at once")
	require.Contains(t, again.String(), "earlier, by greedy search")
	again.Cached = false
	require.Equal(t, first, again)
	_, err := nwt.Tune(t.Context(), ds, nwt.WithResultCache(path, "a"), nwt.WithShuffle(1), nwt.WithSampler(nil))
	require.Error(t, err, "options are checked all the same")
}

func TestAnotherNameOrOptionIsTunedAnew(t *testing.T) {
	step := func(context.Context, *nwt.Batch) error { return nil }
	path, ds := filepath.Join(t.TempDir(), "tuning.json"), kit.Sleeping(1000, time.Millisecond)
	require.False(t, kept(t, path, "a", ds).Cached)
	require.False(t, kept(t, path, "b", ds).Cached)
	require.False(t, kept(t, filepath.Join(t.TempDir(), "other.json"), "a", ds).Cached)
	for name, opt := range map[string]nwt.Option{
		"alpha":       nwt.WithRelativeAlpha(0.5),
		"alpha total": nwt.WithAlpha(time.Second),
		"batch size":  nwt.WithBatchSize(100),
		"finish":      nwt.WithBatchTransform(step),
		"iterations":  nwt.WithIterations(21),
		"max workers": nwt.WithMaxWorkers(1),
		"memory":      nwt.WithMemoryLimit(1 << 40),
		"page-locked": nwt.WithPinned(false),
		"prefetch":    nwt.WithPrefetch(7),
		"step":        nwt.WithStep(step),
		"timeout":     nwt.WithTimeout(time.Hour),
		"unordered":   nwt.WithUnordered(),
		"worker init": nwt.WithWorkerInit(func(context.Context, int) error { return nil }),
		"machine":     nwt.NewVirtualMachine(3).Option(),
		"device":      nwt.WithDevice(kit.Nowhere{}),
	} {
		require.False(t, kept(t, path, "a", ds, opt).Cached, name)
		require.True(t, kept(t, path, "a", ds, opt).Cached, name)
	}
	fields := []nwt.Field{{Name: "y", Type: nwt.Float32}}
	other := nwt.NewDataset(1000, fields, func(ctx context.Context, _ int, _ *nwt.Sample) error { return kit.Heed(ctx, time.Millisecond) })
	require.False(t, kept(t, path, "a", other).Cached, "another field")
	require.True(t, kept(t, path, "a", ds).Cached)
}

// On the same machine, two ranks that may run on four CPUs each have all of them if they are
// bound to others, and two if they share them.
func TestAnotherShareOfTheCPUsIsTunedAnew(t *testing.T) {
	for name, value := range map[string]string{"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"} {
		t.Setenv(name, value)
	}
	path := filepath.Join(t.TempDir(), "tuning.json")
	cached := func(procs int) bool {
		return kept(t, path, "a", kit.Sleeping(1000, time.Millisecond), nwt.WithRankFromEnv(), nwt.NewVirtualMachine(procs).Option()).Cached
	}
	require.Equal(t, []bool{false, false, true, true}, []bool{cached(4), cached(8), cached(4), cached(8)})
}

// Who copies a program and forgets the name, or whose storage became slower, isn't told a
// count that was found for something else.
func TestAnotherDatasetUnderTheSameNameIsTunedAnewAndThatIsLogged(t *testing.T) {
	for name, step := range map[string]nwt.Option{"without a step": kit.Silent, "with a step": stepOf(time.Millisecond)} {
		path := filepath.Join(t.TempDir(), "tuning.json")
		require.False(t, kept(t, path, "a", kit.Sleeping(1000, time.Millisecond), step).Cached)
		require.True(t, kept(t, path, "a", kit.Sleeping(1000, 1500*time.Microsecond), step).Cached, "not twice as slow")
		for _, load := range []time.Duration{10 * time.Millisecond, time.Millisecond} {
			var log kit.Journal
			r := kept(t, path, "a", kit.Sleeping(1000, load), step, log.Option())
			require.False(t, r.Cached, "%s, %v", name, load)
			require.Contains(t, log.String(), "nwt: tuning anew")
			require.Contains(t, log.String(), "name=a reason=\"with ")
			require.True(t, kept(t, path, "a", kit.Sleeping(1000, load), step).Cached, "the new result is kept")
		}
	}
}

func TestATuningThatFailsIsNotKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tuning.json")
	_, err := nwt.Tune(t.Context(), kit.Numbered(100, func(context.Context, int, *nwt.Sample) error { return kit.ErrBad }), nwt.WithResultCache(path, "a"), kit.Silent)
	require.ErrorIs(t, err, kit.ErrBad)
	ds := kit.Numbered(100, func(context.Context, int, *nwt.Sample) error { time.Sleep(time.Millisecond); return nil })
	require.False(t, kept(t, path, "a", ds).Cached)
	require.True(t, kept(t, path, "a", ds).Cached)
}

// Memory that is left today isn't what was left when a result was kept.
func TestADatasetThatFailsIsAnErrorWithoutAKeptResult(t *testing.T) {
	path, ds, failing := filepath.Join(t.TempDir(), "tuning.json"), kit.Sleeping(1000, time.Millisecond), errors.New("failing")
	require.False(t, kept(t, path, "a", ds).Cached)
	broken := nwt.NewDataset(1000, ds.Fields(), func(context.Context, int, *nwt.Sample) error { return failing })
	synctest.Test(t, func(t *testing.T) {
		r, err := nwt.Tune(t.Context(), broken, virtual, nwt.WithMaxWorkers(2), nwt.WithIterations(20), nwt.WithResultCache(path, "a"), kit.Silent)
		require.ErrorIs(t, err, failing)
		require.Nil(t, r)
	})
}

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
		m, path := nwt.NewVirtualMachine(virtualCPUs), nwt.WithResultCache(filepath.Join(t.TempDir(), "tuning.json"), "a")
		tuned := func(left uint64, cached bool, opts ...nwt.Option) *nwt.Result {
			t.Helper()
			m.Left = left
			r := tune(t, ds, append(opts, nwt.WithBatchSize(1), nwt.WithMaxWorkers(16), path, m.Option())...)
			require.Equal(t, cached, r.Cached, "%v", r)
			return r
		}
		const much, little = 1 << 40, 10 * size
		all := tuned(much, false)
		require.GreaterOrEqual(t, all.Workers, 12, "%v", all)
		require.Equal(t, all.Workers, tuned(much, true).Workers)
		if kit.RaceDetector { // its own memory comes and goes by many megabytes
			return
		}
		bounded := tuned(little, false)
		require.Less(t, bounded.Workers, all.Workers)
		require.NotEmpty(t, bounded.RuledOut)

		debug.FreeOSMemory() // as tuning does
		limit := nwt.WithMemoryLimit(int64(host.Memory().RSS + 10*size))
		bounded = tuned(much, false, limit)
		require.Equal(t, bounded.Workers, tuned(much, true, limit).Workers)
		held := make([]byte, 8*size) // by the program, before it tunes
		for i := 0; i < len(held); i += 4096 {
			held[i] = 1
		}
		require.LessOrEqual(t, tuned(much, false, limit).Workers, bounded.Workers)
		require.EqualValues(t, 1, held[0])
	})
}

func TestRanksThatStartTogetherAgreeOnOneAnswer(t *testing.T) {
	path, ds := filepath.Join(t.TempDir(), "tuning.json"), kit.Sleeping(1000, 200*time.Microsecond)
	results := make([]*nwt.Result, 4)
	var ranks sync.WaitGroup
	for rank := range results {
		ranks.Go(func() {
			r, err := nwt.Tune(t.Context(), ds, nwt.WithRank(rank, 4), nwt.WithMaxWorkers(1), nwt.WithIterations(20), nwt.WithResultCache(path, "a"), virtual, kit.Silent)
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

func TestWaitingForAnotherProcessThatTunesTakesNoTuningTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tuning.json")
		unlock, err := files.Lock(t.Context(), path+".tune")
		require.NoError(t, err)
		go func() {
			time.Sleep(time.Hour)
			unlock() // without a result
		}()
		r := tune(t, kit.Sleeping(1000, time.Millisecond), nwt.WithMaxWorkers(4), nwt.WithTuningTime(time.Minute), nwt.WithResultCache(path, "a"))
		require.Equal(t, 4, r.Workers)
	})
}

func TestAKeptResultThatCannotBeOrMayNotHoldIsMeasuredAnew(t *testing.T) {
	ds, path := kit.Sleeping(1000, time.Millisecond), filepath.Join(t.TempDir(), "tuning.json")
	kept(t, path, "a", ds)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	figure := func(name string, value any) func(map[string]any) {
		return func(r map[string]any) { r[name] = value }
	}
	trial := func(name string, value any) func(map[string]any) {
		return func(r map[string]any) {
			for _, t := range r["trials"].([]any) {
				t.(map[string]any)[name] = value
			}
		}
	}
	bounded := func(reason string) func(map[string]any) {
		return func(r map[string]any) {
			r["repeatability"], r["ruled_out"] = 0.95, []any{map[string]any{"workers": 2, "reason": reason}}
		}
	}
	for name, c := range map[string]struct {
		change func(map[string]any)
		age    time.Duration
		cached bool
	}{
		"as it was":           {func(map[string]any) {}, 0, true},
		"what wasn't tried":   {figure("workers", 3), 0, false},
		"no trials":           {figure("trials", []any{}), 0, false},
		"a fastest not tried": {figure("fastest", 3), 0, false},
		"nothing measured":    {trial("iterations", 0), 0, false},
		"a negative time":     {trial("mean_ns", -1), 0, false},
		"unsure":              {figure("repeatability", 0.89), 23 * time.Hour, true},
		"unsure for a day":    {figure("repeatability", 0.89), 25 * time.Hour, false},
		"unsure, of tomorrow": {figure("repeatability", 0.89), -25 * time.Hour, false},
		"by chance":           {figure("repeatability", 0.79), 9 * time.Minute, true},
		"by chance, long ago": {figure("repeatability", 0.79), 11 * time.Minute, false},
		"crowded":             {trial("other_cpu", 0.11), 9 * time.Minute, true},
		"crowded, long ago":   {trial("other_cpu", 0.11), 11 * time.Minute, false},
		"hardly crowded":      {trial("other_cpu", 0.09), 25_000 * time.Hour, true},
		"sure for years":      {figure("repeatability", 0.90), 25_000 * time.Hour, true},
		"bounded":             {bounded("2 workers would take too much"), 23 * time.Hour, true},
		"bounded for a day":   {bounded("2 workers would take too much"), 25 * time.Hour, false},
		"by an option":        {bounded("0 workers weren't tried: WithTimeout holds only with workers"), 25 * time.Hour, true},
	} {
		var file map[string]any
		require.NoError(t, json.Unmarshal(data, &file))
		entry := file["entries"].([]any)[0].(map[string]any)
		c.change(entry["value"].(map[string]any))
		entry["saved"] = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(-c.age) // now, in the bubble
		changed, err := json.Marshal(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, changed, 0o644))
		require.Equal(t, c.cached, kept(t, path, "a", ds).Cached, name)
	}
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
		var log kit.Journal
		ds, path := kit.Sleeping(1000, time.Millisecond), filepath.Join(t.TempDir(), "tuning.json")
		kept(t, path, "a", ds)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, damage(data), 0o644))
		require.False(t, kept(t, path, "a", ds, log.Option()).Cached, name)
		require.Equal(t, 1, strings.Count(log.String(), "ignoring"), "%s: %s", name, &log) // it is looked at before and after waiting for others that tune
		require.True(t, kept(t, path, "a", ds).Cached, name)
	}
}

func TestATunedLoaderHasTheCountThatWasFoundAndTellsHow(t *testing.T) {
	for name, value := range map[string]string{"RANK": "0", "WORLD_SIZE": "1"} {
		t.Setenv(name, value)
	}
	var log kit.Journal
	var steps atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	l, err := nwt.NewTunedLoader(ctx, kit.Numbers(0, 1000), nwt.WithBatchSize(10), nwt.WithShuffle(1), nwt.WithWorkers(9),
		nwt.WithMaxWorkers(1), nwt.WithIterations(3), nwt.WithRankFromEnv(), log.Option(),
		nwt.WithStep(func(context.Context, *nwt.Batch) error { steps.Add(1); return nil }))
	require.NoError(t, err)
	defer l.Close()
	cancel() // the loader outlives the context of tuning
	r := l.Result()
	require.NotNil(t, r)
	require.Equal(t, r.Workers, l.Workers())
	require.LessOrEqual(t, l.Workers(), 1)
	require.True(t, r.Step)
	require.Positive(t, steps.Load())
	require.Equal(t, 1, strings.Count(log.String(), "launcher: torchrun"))
	require.Len(t, kit.BatchesOf[int64](t, l), 100, "the epoch is whole: tuning took nothing of it")
	require.Same(t, r, l.Result())
}
