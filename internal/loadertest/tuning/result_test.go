//go:build !race

package tuning_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
	"github.com/stretchr/testify/require"
)

// paperResult is Table 2 of the paper, with figures made up where it has none.
func paperResult() *nwt.Result {
	r := &nwt.Result{
		Workers: 14, Fastest: 16, Alpha: 141 * time.Millisecond, Iterations: 100, Repeatability: 0.976,
		Strategy: "greedy", Device: "cuda:0 (GeForce RTX 3090)", BatchSize: 128, BatchBytes: 128 * (3*32*32*4 + 8),
		Hardware: nwt.Hardware{CPU: "AMD EPYC 7502", Logical: 128, Physical: 64, Affinity: 64, GOMAXPROCS: 64, Memory: 270e9},
		Reason:   "14 workers: 5.7 % slower than 16, the fastest; 8 workers take 42 % longer.",
		Elapsed:  41300 * time.Millisecond,
		RuledOut: []nwt.RuledOut{
			{Workers: 96, Code: "memory", Reason: "96 workers would take about 3.4 GB (63 took 2.8 GB): over the limit of 3.0 GB (set by WithMemoryLimit)"},
			{Workers: 128, Code: "memory", Reason: "128 workers would take about 3.9 GB (63 took 2.8 GB): over the limit of 3.0 GB (set by WithMemoryLimit)"},
		},
		Warnings: []string{"other processes kept 12 % of the CPUs busy meanwhile: on a quiet machine the choice may be another"},
		Advice:   []string{"Loading takes 14.9 ms per batch."},
	}
	for _, row := range []struct {
		workers            int
		total, memory, cpu float64
	}{
		{0, 14.25, 2757.84, 0.016}, {1, 14.01, 2101.2, 0.016}, {8, 2.12, 2010.5, 0.125}, {14, 1.49, 2025.32, 0.21}, {16, 1.41, 2055.37, 0.24},
		{32, 1.55, 2275.36, 0.48}, {63, 2.21, 2773.60, 0.93},
	} {
		total := time.Duration(row.total * 1e9)
		mean := total / 100
		r.Trials = append(r.Trials, nwt.Trial{
			Workers: row.workers, Iterations: 100, Mean: mean, Low: mean - mean/50, High: mean + mean/50, Median: mean, P99: 2 * mean,
			Total: total, Wait: mean - 300*time.Microsecond, Transfer: 300 * time.Microsecond, FirstBatch: 3 * mean,
			Prefetch: 2, Memory: int64(row.memory * 5e5), PeakRSS: int64(row.memory * 1e6), PeakExact: true, SystemUsed: 9e9, CPU: row.cpu, OtherCPU: 0.12,
		})
	}
	r.Trials[1].Low, r.Trials[1].High = r.Trials[1].Mean, r.Trials[1].Mean // measured once
	return r
}

func TestTheReportIsReadAtAGlance(t *testing.T) {
	r := paperResult()
	require.Equal(t, strings.TrimPrefix(`
14 workers: 5.7 % slower than 16, the fastest; 8 workers take 42 % longer.

   workers   per batch       ±   samples   CPUs busy   memory
                    ms             per s                   GB
         0       142.5   2.0 %       898       1.6 %     1.38
         1       140.1    once       914       1.6 %     1.05
         8        21.2   2.0 %      6038        12 %     1.01
        14        14.9   2.0 %      8591        21 %     1.01 ◄ chosen
        16        14.1   2.0 %      9078        24 %     1.03 ◄ fastest
        32        15.5   2.0 %      8258        48 %     1.14
        63        22.1   2.0 %      5792        93 %     1.39

repeatability  98 % of tunings would choose the same
      batches  128 samples, 1.57 MB, to cuda:0 (GeForce RTX 3090)
      machine  64 CPUs of 128, AMD EPYC 7502, 270 GB
        tuned  by greedy search in 41.3 s
    ruled out  96 workers would take about 3.4 GB (63 took 2.8 GB): over the limit of 3.0 GB (set by WithMemoryLimit), 128 too
      warning  other processes kept 12 % of the CPUs busy meanwhile: on a quiet machine the choice may be another
       advice  Loading takes 14.9 ms per batch.
`, "\n"), r.String())

	r.Trials = r.Trials[3:4]
	r.Trials[0].CollectorCPU, r.Trials[0].Memory = 0.06, 0 // then the peak is shown
	r.Fastest, r.Step, r.Floor, r.Cached, r.BatchSize, r.Repeatability = 14, true, 12*time.Millisecond, true, 1, 0
	r.RuledOut, r.Warnings, r.Advice = nil, nil, nil
	require.Equal(t, strings.TrimPrefix(`
14 workers: 5.7 % slower than 16, the fastest; 8 workers take 42 % longer.

   workers   per batch       ±   waiting   CPUs busy   collector   memory
                    ms                ms                               GB
        14        14.9   2.0 %      14.9        21 %       6.0 %     2.03 ◄ chosen, fastest

        floor  12 ms per batch, if training never waited for data
      batches  1 sample, 1.57 MB, to cuda:0 (GeForce RTX 3090)
      machine  64 CPUs of 128, AMD EPYC 7502, 270 GB
        tuned  earlier, by greedy search in 41.3 s
`, "\n"), r.String())
}

func TestNamesInJSONStay(t *testing.T) {
	r := paperResult()
	r.Trials, r.RuledOut, r.Warnings, r.Advice = r.Trials[3:4], r.RuledOut[:1], []string{"w"}, []string{"a"}
	r.RuledOut[0].Reason, r.Hardware.Quota, r.Reason = "much", 1.5, "so"
	data, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"workers": 14, "fastest": 16, "alpha_ns": 141000000, "iterations": 100, "repeatability": 0.976, "floor_ns": 0,
		"trials": [{"workers": 14, "iterations": 100, "mean_ns": 14900000, "low_ns": 14602000, "high_ns": 15198000,
			"median_ns": 14900000, "p99_ns": 29800000, "total_ns": 1490000000, "wait_ns": 14600000, "transfer_ns": 300000, "step_ns": 0,
			"first_batch_ns": 44700000, "prefetch": 2, "memory": 1012660000, "peak_rss": 2025320000, "peak_exact": true, "system_used": 9000000000, "cpu": 0.21, "collector_cpu": 0, "other_cpu": 0.12}],
		"ruled_out": [{"workers": 96, "code": "memory", "reason": "much"}],
		"strategy": "greedy", "device": "cuda:0 (GeForce RTX 3090)", "batch_size": 128, "batch_bytes": 1573888, "batch_samples": 0, "step": false, "cached": false,
		"hardware": {"cpu": "AMD EPYC 7502", "logical": 128, "physical": 64, "affinity": 64, "quota": 1.5, "gomaxprocs": 64, "memory": 270000000000},
		"reason": "so", "warnings": ["w"], "advice": ["a"], "elapsed_ns": 41300000000
	}`, string(data))
	again := &nwt.Result{}
	require.NoError(t, json.Unmarshal(data, again))
	require.Equal(t, r, again)
}

func TestTheHeadlineSaysTheChoiceAndWhy(t *testing.T) {
	for want, c := range map[string]struct {
		load, step time.Duration // load: of a batch, by one worker
		most       int
		opt        nwt.Option
	}{
		`^4 workers: training hardly waits for data; .*the fastest; 3 workers take 3\d % longer\.$`: {20 * time.Millisecond, 5 * time.Millisecond, 16, kit.Silent},
		`^8 workers: the fastest; 6 workers take (3\d) % longer\.$`:                                 {20 * time.Millisecond, 0, 8, kit.Silent},
		`^1 worker: training hardly waits for data; .*; 0 workers take.* longer\.$`:                 {4 * time.Millisecond, 5 * time.Millisecond, 4, kit.Silent},
		`^6 workers: 3\d % slower than 8, the fastest; 4 workers take \d\d % longer\.$`:             {20 * time.Millisecond, 0, 8, nwt.WithRelativeAlpha(0.8)},
		`^0 workers: nothing else was measured\.$`:                                                  {4 * time.Millisecond, 0, 0, kit.Silent},
	} {
		synctest.Test(t, func(t *testing.T) {
			opts := []nwt.Option{nwt.WithMaxWorkers(c.most), c.opt}
			if c.step > 0 {
				opts = append(opts, stepOf(c.step))
			}
			r := tune(t, kit.Sleeping(1_000_000, c.load/32), opts...)
			require.Regexp(t, want, r.Reason, "%v", r)
		})
	}
}

func TestWarningsNameWhatMakesAResultDoubtful(t *testing.T) {
	const again = "tuning went through the dataset more than once"
	for _, tt := range []struct {
		name    string
		samples int
		load    func(began time.Time, s *nwt.Sample) time.Duration
		machine func(*kit.VirtualMachine)
		opts    []nwt.Option
		want    string
		never   string
	}{
		{"nothing", 1_000_000, nil, nil, nil, "", again},
		{"samples are loaded twice", 100, nil, nil, nil, "", again},
		{"the first pass is slower", 3000, func(_ time.Time, s *nwt.Sample) time.Duration {
			return time.Duration(max(1, 3-2*s.Epoch())) * time.Millisecond
		}, nil, nil, again + ", and batches took ", ""},
		{"time is over", 1_000_000, nil, nil, []nwt.Option{nwt.WithTuningTime(50 * time.Millisecond)}, "the time for tuning was over before the search was", ""},
		{"others are busy", 1_000_000, nil, func(m *kit.VirtualMachine) { m.Others = 0.5 }, nil, "other processes kept 50 % of the CPUs busy", ""},
		{"others aren't seen", 1_000_000, nil, func(m *kit.VirtualMachine) { m.OthersUnknown = true }, nil, "CPU time of other processes unknown: it isn't made up", ""},
		{"loading becomes slower", 1_000_000, func(began time.Time, _ *nwt.Sample) time.Duration {
			return time.Duration((1 + 3*time.Since(began).Seconds()) * float64(time.Millisecond))
		}, nil, nil, "longer at the end than at the beginning: the machine or its storage slowed down", ""},
		{"not sure", 1_000_000, func(_ time.Time, s *nwt.Sample) time.Duration {
			return time.Duration(s.Rand().ExpFloat64() * float64(20*time.Millisecond))
		}, nil, []nwt.Option{nwt.WithBatchSize(1), nwt.WithTuningTime(20 * time.Second)}, "other", ""}, // how often others choose the same: not told, or seldom
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, m, one := time.Now(), kit.NewVirtualMachine(virtualCPUs), make(chan struct{}, 1)
				if tt.machine != nil {
					tt.machine(m)
				}
				ds := nwt.NewDataset(tt.samples, kit.Scalar, func(ctx context.Context, _ int, s *nwt.Sample) error {
					if tt.name == "not sure" {
						one <- struct{}{} // workers don't matter
						defer func() { <-one }()
					}
					if tt.load != nil {
						return kit.Heed(ctx, tt.load(began, s))
					}
					return kit.Heed(ctx, time.Millisecond)
				})
				r := tune(t, ds, append(tt.opts, nwt.WithMaxWorkers(8), m.Option())...)
				said := strings.Join(r.Warnings, "\n")
				if tt.want == "" {
					require.NotContains(t, said, "the choice", "%v", r)
				}
				require.Contains(t, said, tt.want, "%v", r)
				if tt.never != "" {
					require.NotContains(t, said, tt.never, "%v", r)
				}
			})
		})
	}
}

func TestAdviceFollowsFromWhatWasMeasured(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name          string
		wait, compute time.Duration // of a sample
		atOnce        int           // a store serves so many samples at their full speed; 0: any number
		channel       bool
		step          time.Duration
		most          int
		machine       func(*kit.VirtualMachine)
		opts          []nwt.Option
		want          []string
		never         string
	}{
		{name: "the step sets the pace", compute: ms / 10, step: 20 * ms, most: 8, want: []string{"The step sets the pace: training hardly waits for data. Work on the model."}, never: "CPUs"},
		{name: "training waits", wait: 10 * ms, step: 5 * ms, most: 8, want: []string{"Training waits for data 8", " of the time: 3", " per batch."}},
		{name: "no step", wait: 10 * ms, most: 8, want: []string{"A batch is loaded every ", " ms. A step on a GPU that takes longer hides the loading"}},
		{name: "no workers", wait: 10 * ms, most: 0, want: []string{"Without workers, loading adds 320 ms to every training step"}},
		{name: "CPUs full", compute: ms, most: 8, want: []string{"The CPUs are full ("}},
		{name: "CPUs full of others too", compute: ms, most: 1, machine: func(m *kit.VirtualMachine) { m.Others = 0.75 }, want: []string{"The CPUs are full, 75 % of them used by other programs"}},
		{name: "CPUs idle", wait: ms, channel: true, step: 10 * ms, most: 8, want: []string{"More than 1 worker don't help, and they leave CPUs idle (0.0 % of 4 CPUs in use)"}},
		{name: "CPUs that others leave no time", wait: ms, channel: true, step: 10 * ms, most: 8, machine: func(m *kit.VirtualMachine) { m.Others, m.Queued = 0.96, 0.2 }, want: []string{"Training waits for data"}, never: "leave CPUs idle"},
		{name: "more workers than CPUs that don't help", wait: 10 * ms, step: 2 * ms, most: 32, atOnce: 12, want: []string{"More than 12 workers don't help", "so more workers than CPUs pay off"}},
		{name: "more workers than CPUs", wait: 10 * ms, most: 32, want: []string{"so more workers than CPUs pay off"}},
		{name: "the highest that was tried", wait: 10 * ms, most: 4, want: []string{"4 workers is the highest count that was tried (0.0 % of 4 CPUs in use): more workers may be faster (WithMaxWorkers)."}},
		{name: "the highest in the time", wait: 100 * ms, most: 16, opts: []nwt.Option{nwt.WithTuningTime(time.Second)}, want: []string{"4 workers is the highest count that there was time for"}},
		{name: "samples that wait beside others", wait: 10 * ms, most: 8, machine: func(m *kit.VirtualMachine) { m.Others, m.Queued = 0.96, 0.2 }, want: []string{"so more workers than CPUs pay off", "8 workers is the highest count that was tried"}, never: "other programs"},
		{name: "a worker that computes beside others", compute: ms, most: 1, machine: func(m *kit.VirtualMachine) { m.Others, m.Queued = 0.75, 0.2 }, want: []string{"The CPUs are full, 75 % of them used by other programs"}},
		{name: "samples that compute beside others", compute: ms, most: 8, machine: func(m *kit.VirtualMachine) { m.Others, m.Queued = 0.75, 3 }, want: []string{"The CPUs are full"}},
		{name: "the collector", wait: ms, most: 8, machine: func(m *kit.VirtualMachine) { m.Collector = 1 }, want: []string{"The garbage collector takes 25 % of the CPUs"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := kit.NewVirtualMachine(virtualCPUs)
				if tt.machine != nil {
					tt.machine(m)
				}
				ds := workload{compute: constant(tt.compute), sample: func(_ *rand.Rand, under int) time.Duration {
					if tt.atOnce > 0 && under > tt.atOnce {
						return tt.wait * time.Duration(under) / time.Duration(tt.atOnce)
					}
					return tt.wait
				}}.dataset(m, 1)
				if tt.channel {
					ds = channel(1_000_000, tt.wait)
				}
				opts := append(tt.opts, nwt.WithMaxWorkers(tt.most), m.Option())
				if tt.step > 0 {
					opts = append(opts, stepOf(tt.step))
				}
				r := tune(t, ds, opts...)
				for _, want := range tt.want {
					require.Contains(t, strings.Join(r.Advice, "\n"), want, "%v", r)
				}
				if tt.never != "" {
					require.NotContains(t, strings.Join(r.Advice, "\n"), tt.never, "%v", r)
				}
			})
		})
	}
}

func TestSamplesPerSecondAreThoseThatBatchesHave(t *testing.T) {
	tokens, err := sampler.TokenBatches(1_000_000, func(i int) int { return 1 + i%64 }, sampler.Tokens{Max: 256}, 1)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		n    int
		opts []nwt.Option
		mean float64
	}{
		"a sampler's batches": {1_000_000, []nwt.Option{nwt.WithSampler(tokens), nwt.WithBatchSize(256)}, 7},
		"fewer than a batch":  {3, []nwt.Option{nwt.WithBatchSize(16)}, 3},
		"whole batches":       {1_000_000, nil, 32},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := tune(t, kit.Sleeping(c.n, time.Millisecond), append(c.opts, nwt.WithMaxWorkers(4))...)
				require.InEpsilon(t, c.mean, r.BatchSamples, 0.5)
				require.Contains(t, r.String(), fmt.Sprintf(" %.0f ", r.BatchSamples/trialOf(t, r, r.Workers).Mean.Seconds()))
				require.Equal(t, len(c.opts) > 0, strings.Contains(r.String(), "at most"), "%v", r)
			})
		})
	}
}

// What advice says is waited for is what is waited for.
func TestTrainingWaitsForTheShareThatAdviceSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waited atomic.Int64
		const load, step = 40 * time.Millisecond, 6 * time.Millisecond
		r := tune(t, kit.Sleeping(1_000_000, load/32), nwt.WithMaxWorkers(4), stepOf(step))
		l := kit.NewLoader(t, kit.Sleeping(1_000_000, load/32), nwt.WithWorkers(r.Workers), kit.Silent, virtual)
		took := kit.Train(t, l, 2000, func() { waited.Add(int64(step)); time.Sleep(step) })
		share := 1 - float64(waited.Load())/float64(took)
		trial := trialOf(t, r, r.Workers)
		require.InDelta(t, share, float64(trial.Wait+trial.Transfer)/float64(trial.Mean), 0.02, "%v", r)
		require.InDelta(t, share, float64(l.Stats().Wait)/float64(took), 0.01)
	})
}

func TestTheReportMarksWhatIsChosenFastestAndRuledOut(t *testing.T) {
	r := &nwt.Result{
		Workers: 2, Fastest: 4,
		RuledOut: []nwt.RuledOut{
			{Workers: 16, Code: "cpus", Reason: "more workers only take CPUs from other programs"},
			{Workers: 24, Code: "cpus", Reason: "more workers only take CPUs from other programs"}, // and aren't even faster
		},
	}
	for _, row := range []struct {
		workers      int
		mean, margin time.Duration
	}{
		{1, 8000, 100}, {2, 4200, 100}, {3, 4100, 0}, {4, 4000, 100}, {6, 36, 0}, {8, 3500, 2000}, {16, 3000, 100}, {24, 5000, 100},
	} {
		r.Trials = append(r.Trials, nwt.Trial{Workers: row.workers, Mean: row.mean * us, Low: (row.mean - row.margin) * us, High: (row.mean + row.margin) * us})
	}
	for workers, mark := range map[int]string{1: "", 2: "◄ chosen", 3: "", 4: "◄ fastest that was measured well", 6: "◄ hardly measured", 8: "◄ hardly measured", 16: "", 24: ""} {
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^ *%d [^◄\n]*(.*)$`, workers)).FindStringSubmatch(r.String())
		require.Equal(t, mark, strings.TrimSpace(row[1]), "%v", r)
	}
	require.Regexp(t, `(?m)^ +8 .*\n   left out of the choice: more workers only take CPUs from other programs\n +16 .*\n +24 `, r.String())
}

// Other programs keep more than half of the CPUs busy. Short windows don't tell.
func TestBesideHeavyNeighboursRepeatabilityIsNotClaimed(t *testing.T) {
	for others, claimed := range map[float64]bool{0.3: true, 0.6: false} {
		for _, tells := range []time.Duration{0, time.Second} {
			synctest.Test(t, func(t *testing.T) {
				m := kit.NewVirtualMachine(virtualCPUs)
				m.Others, m.Tells = others, tells
				r := tune(t, kit.Sleeping(1_000_000, time.Millisecond), nwt.WithMaxWorkers(8), m.Option())
				require.Contains(t, r.String(), "other processes kept")
				require.Equal(t, claimed, strings.Contains(r.String(), "of tunings would choose"), "%v", r)
				require.NotContains(t, r.String(), "of them would choose")
				require.InDelta(t, others, trialOf(t, r, r.Workers).OtherCPU, 0.001)
			})
		}
	}
}

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
	again := kept(t, path, "a", ds, nwt.WithBatchSize(40), nwt.WithStrategy(nwt.Exhaustive), nwt.WithRank(1, 2), counting)
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
		"page-locked": nwt.WithoutPinned(),
		"prefetch":    nwt.WithPrefetch(7),
		"step":        nwt.WithStep(step),
		"timeout":     nwt.WithTimeout(time.Hour),
		"unordered":   nwt.WithUnordered(),
		"worker init": nwt.WithWorkerInit(func(context.Context, int) error { return nil }),
		"machine":     kit.NewVirtualMachine(3).Option(),
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
		return kept(t, path, "a", kit.Sleeping(1000, time.Millisecond), nwt.WithRankFromEnv(), kit.NewVirtualMachine(procs).Option()).Cached
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
		m, path := kit.NewVirtualMachine(virtualCPUs), nwt.WithResultCache(filepath.Join(t.TempDir(), "tuning.json"), "a")
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
		require.Contains(t, r.String(), "by greedy search in 1h0m", "%v", r)
		require.Contains(t, r.String(), ", 1h0m0s of them waiting for another process", "%v", r)
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
	bounded := func(code string) func(map[string]any) {
		return func(r map[string]any) {
			r["repeatability"], r["ruled_out"] = 0.95, []any{map[string]any{"workers": 2, "code": code, "reason": "in words"}}
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
		"bounded":             {bounded("memory"), 23 * time.Hour, true},
		"bounded for a day":   {bounded("memory"), 25 * time.Hour, false},
		"by an option":        {bounded("timeout"), 25 * time.Hour, true},
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
	require.LessOrEqual(t, strings.Count(log.String(), "launcher: torchrun"), 1, "a process says it once")
	require.Len(t, kit.BatchesOf[int64](t, l), 100, "the epoch is whole: tuning took nothing of it")
	require.Same(t, r, l.Result())
}

// A step that hands its batch to a goroutine takes next to no time until it is handed the next one. How long it
// takes shows only where the next one is there.
func TestTheFloorIsThatOfACountAtWhichTrainingHardlyWaits(t *testing.T) {
	const step = 15 * time.Millisecond
	for most, floor := range map[int]time.Duration{16: step, 1: 0} {
		synctest.Test(t, func(t *testing.T) {
			busy := make(chan struct{}, 1)
			r := tune(t, kit.Sleeping(1_000_000, time.Millisecond), nwt.WithMaxWorkers(most), nwt.WithStep(func(context.Context, *nwt.Batch) error {
				busy <- struct{}{}
				go func() { time.Sleep(step); <-busy }()
				return nil
			}))
			busy <- struct{}{} // the last step has ended
			require.InDelta(t, floor, r.Floor, float64(step/10), "at most %d workers: %v", most, r)
			require.Equal(t, floor > 0, strings.Contains(r.String(), "if training never waited for data"), "%v", r)
		})
	}
}

// With workers a step takes longer than loading and the step without.
func TestNoFloorIsAboveTheChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loaded atomic.Int64
		ds := nwt.NewDataset(1_000_000, kit.Scalar, func(context.Context, int, *nwt.Sample) error {
			time.Sleep(time.Millisecond)
			loaded.Store(time.Now().UnixNano())
			return nil
		})
		r := tune(t, ds, nwt.WithMaxWorkers(2), nwt.WithStep(func(context.Context, *nwt.Batch) error {
			time.Sleep(10 * time.Millisecond)
			if beside := time.Now().UnixNano()-loaded.Load() != int64(10*time.Millisecond); beside {
				time.Sleep(40 * time.Millisecond)
			}
			return nil
		}))
		require.Zero(t, r.Workers, "%v", r)
		require.Zero(t, r.Floor, "%v", r)
		require.NotContains(t, r.String(), "if training never waited for data")
	})
}
