package nwt

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/host"
)

func TestWarningsNameWhatMakesAResultDoubtful(t *testing.T) {
	quiet := func() (*tuner, *Result) {
		blocks := make([]block, 4)
		for i := range blocks {
			blocks[i] = block{round: i, iterations: 25, mean: 4 * time.Millisecond}
		}
		o := &options{}
		return &tuner{source: &source{opts: o}, cpus: host.CPUFacts{Affinity: 4, GOMAXPROCS: 4}, series: []series{{workers: 1, blocks: blocks}}},
			&Result{Workers: 1, Confidence: 0.99, Trials: []Trial{{}, {Workers: 1, Iterations: 100}}}
	}
	tun, r := quiet()
	require.Empty(t, tun.warnings(r, 0.05, false))

	for want, disturb := range map[string]func(t *tuner, r *Result){
		"GOMAXPROCS is 8, but the container may use 1.5 CPUs only":  func(t *tuner, r *Result) { t.cpus = host.CPUFacts{Affinity: 16, Quota: 1.5, GOMAXPROCS: 8} },
		"GOMAXPROCS is 8, but the process may run on 1 CPU only":    func(t *tuner, r *Result) { t.cpus = host.CPUFacts{Affinity: 1, GOMAXPROCS: 8} },
		"the budget of 300ms ended the search":                      func(t *tuner, r *Result) { t.opts.budget = 300 * time.Millisecond },
		"only 9 batches were measured at the choice":                func(t *tuner, r *Result) { r.Trials[1].Iterations = 9 },
		"nothing was measured twice":                                func(t *tuner, r *Result) { r.Confidence = 0 },
		"another run would make it in 62 % of cases":                func(t *tuner, r *Result) { r.Confidence = 0.62 },
		"peak memory is sampled every 10ms: no clear_refs; it may":  func(t *tuner, r *Result) { t.sampled = "peak memory is sampled every 10ms: no clear_refs" },
		"batches took 50 % longer at the end than at the beginning": func(t *tuner, r *Result) { t.series[0].blocks[2].mean, t.series[0].blocks[3].mean = 6e6, 6e6 },
		"batches took 50 % less at the end than at the beginning":   func(t *tuner, r *Result) { t.series[0].blocks[2].mean, t.series[0].blocks[3].mean = 2e6, 2e6 },
	} {
		t.Run(want, func(t *testing.T) {
			tun, r := quiet()
			disturb(tun, r)
			w := tun.warnings(r, 0, false)
			require.Len(t, w, 1)
			require.Contains(t, w[0], want)
		})
	}
	require.Contains(t, tun.warnings(r, 0.35, false)[0], "other processes kept 35 % of the CPUs busy")
}

func TestTheVerdictSaysWhatToWorkOn(t *testing.T) {
	for _, tt := range []struct {
		name  string
		step  bool
		count int
		mean  time.Duration
		floor time.Duration
		want  string
	}{
		{"step-bound", true, 1, 5100 * time.Microsecond, 5 * time.Millisecond,
			"Work on the model: with perfect loading an iteration would still take 5 ms of 5.1 ms."},
		{"waits", true, 4, 10 * time.Millisecond, 5 * time.Millisecond,
			"Work on loading: it costs 50 % of every iteration, 5 ms of 10 ms."},
		{"no step", false, 4, 10 * time.Millisecond, time.Microsecond,
			"A training step that takes longer than 10 ms hides loading: then work on the model, else on loading. WithStep measures which."},
		{"no step, no workers", false, 0, 10 * time.Millisecond, time.Microsecond,
			"Without workers, loading adds 10 ms to every training step; WithStep measures whether a worker would hide it."},
		{"faster than its floor", true, 1, 5 * time.Millisecond, 6 * time.Millisecond,
			"Work on the model: with perfect loading an iteration would still take 5 ms of 5 ms."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &Result{Workers: tt.count, Step: tt.step, Floor: tt.floor, Trials: []Trial{{Workers: tt.count, Mean: tt.mean}}}
			require.Equal(t, tt.want, r.verdict())
		})
	}
}
