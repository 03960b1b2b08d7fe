package nwt

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/search"
)

func TestWarningsNameWhatMakesAResultDoubtful(t *testing.T) {
	quiet := func() (*tuner, *Result) {
		blocks := make([]search.Block, 4)
		for i := range blocks {
			blocks[i] = search.Block{Round: i, Iterations: 25, Mean: 4 * time.Millisecond}
		}
		o := &options{machine: host.Real}
		return &tuner{source: &source{opts: o}, cpus: host.CPUFacts{Affinity: 4, GOMAXPROCS: 4}, counts: []*count{{Trial: Trial{Workers: 1}, blocks: blocks}}},
			&Result{Workers: 1, Confidence: 0.99, Trials: []Trial{{}, {Workers: 1, Iterations: 100}}}
	}
	tun, r := quiet()
	require.Empty(t, tun.warnings(r, 0.05, false))

	for want, disturb := range map[string]func(t *tuner, r *Result){
		"GOMAXPROCS is 8, but the container may use 1.5 CPUs only": func(t *tuner, r *Result) { t.cpus = host.CPUFacts{Affinity: 16, Quota: 1.5, GOMAXPROCS: 8} },
		"GOMAXPROCS is 8, but the process may run on 1 CPU only":   func(t *tuner, r *Result) { t.cpus = host.CPUFacts{Affinity: 1, GOMAXPROCS: 8} },
		"CPU affinity unknown":                    func(t *tuner, r *Result) { t.cpus.Note = "CPU affinity unknown: no such call" },
		"CPU time of other processes unknown: no": func(t *tuner, r *Result) { t.unseen = "CPU time of other processes unknown: no /proc/stat" },
		"memory bounds no worker count: none: no /proc": func(t *tuner, r *Result) {
			t.limit = memoryLimit{bytes: math.MaxUint64, from: "none: no /proc"}
		},
		"only 9 batches were measured at the choice":                func(t *tuner, r *Result) { r.Trials[1].Iterations = 9 },
		"nothing was measured twice":                                func(t *tuner, r *Result) { r.Confidence = 0 },
		"another run would make it in 62 % of cases":                func(t *tuner, r *Result) { r.Confidence = 0.62 },
		"peak memory is sampled every 10ms: no clear_refs; it may":  func(t *tuner, r *Result) { t.sampled = "peak memory is sampled every 10ms: no clear_refs" },
		"batches took 50 % longer at the end than at the beginning": func(t *tuner, r *Result) { t.counts[0].blocks[2].Mean, t.counts[0].blocks[3].Mean = 6e6, 6e6 },
		"batches took 50 % less at the end than at the beginning":   func(t *tuner, r *Result) { t.counts[0].blocks[2].Mean, t.counts[0].blocks[3].Mean = 2e6, 2e6 },
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

func TestATableThatContradictsTheChoiceNamesMoreIterationsThanWereMeasured(t *testing.T) {
	for _, tt := range []struct {
		asked, chosen, quickest int
		want                    string // empty: there can't be more
	}{
		{100, 100, 40, "WithIterations(1000) would"},
		{1000, 1000, 1000, "WithIterations(10000) would"},
		{100, 1433, 31, "WithIterations(2866) would"},
		{100, 31, 1433, "WithIterations(2866) would"},
		{400_000, 400_000, 9, "WithIterations(1000000) would"},
		{1_000_000, 1_000_000, 9, ""},
	} {
		r := &Result{Workers: 8, Confidence: 0.99, Iterations: tt.asked, Trials: []Trial{{Workers: 4, Iterations: tt.quickest, Total: time.Second}, {Workers: 8, Iterations: tt.chosen, Total: 2 * time.Second}}}
		tun := &tuner{source: &source{opts: &options{machine: host.Real}}, cpus: host.CPUFacts{Affinity: 4, GOMAXPROCS: 4}}
		w := strings.Join(tun.warnings(r, 0, false), "\n")
		require.Contains(t, w, "the table has 4 workers at 50 % less than the choice")
		require.Contains(t, w, tt.want)
		require.Equal(t, tt.want != "", strings.Contains(w, "WithIterations"), w)
	}
}

func TestAdviceSaysWhatToWorkOn(t *testing.T) {
	for _, tt := range []struct {
		name       string
		workers    int
		wait, step time.Duration
		want       string
	}{
		{"step-bound", 1, 100 * time.Microsecond, 5 * time.Millisecond, "Work on the model"},
		{"waits", 4, 5 * time.Millisecond, 5 * time.Millisecond, "Training waits for data"},
		{"no step", 4, 10 * time.Millisecond, 0, "A training step that takes longer than 10 ms hides loading"},
		{"no step, no workers", 0, 10 * time.Millisecond, 0, "Without workers, loading adds 10 ms to every training step"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &source{opts: &options{machine: host.Real, batchSize: 32}, order: order{n: 1000, batch: 32, world: 1}}
			r := &Result{Workers: tt.workers, Step: tt.step > 0, Floor: tt.step, Trials: []Trial{
				{Workers: tt.workers, Mean: tt.wait + tt.step, Wait: tt.wait, Step: tt.step, CPU: 0.6}, {Workers: 64}}}
			advice := s.advice(r, memoryLimit{bytes: math.MaxUint64}, 0, false)
			require.Len(t, advice, 1)
			require.Contains(t, advice[0], tt.want)
		})
	}
}

// The depth follows need: what batches take is what was loaded ahead in the trial.
func TestAdviceCountsTheBatchesThatWereLoadedAhead(t *testing.T) {
	s := &source{opts: &options{machine: host.Real, batchSize: 32}, order: order{n: 1000, batch: 32, world: 1}}
	r := &Result{Workers: 4, BatchBytes: 10e6, Trials: []Trial{{Workers: 4, Mean: time.Second, Wait: time.Second, CPU: 0.6, Memory: 900e6, Prefetch: 60}, {Workers: 64}}}
	advice := s.advice(r, memoryLimit{bytes: 1e9}, 0, false)
	require.Contains(t, advice, "Memory is nearly used up (900 MB of 1 GB), 600 MB of it by batches: a smaller batch or less prefetch (now 60) frees most.")
}

// What others use is known of fewer visits than what this process uses.
func TestSharesOfTheSameCPUsAreNoMoreThanAll(t *testing.T) {
	s := &source{opts: &options{machine: host.Real, batchSize: 32}, order: order{n: 1000, batch: 32, world: 1}}
	r := &Result{Workers: 4, Trials: []Trial{{Workers: 4, Mean: time.Second, Wait: time.Second, CPU: 0.4, OtherCPU: 0.86}, {Workers: 64}}}
	advice := s.advice(r, memoryLimit{bytes: math.MaxUint64}, 0, false)
	require.Contains(t, advice, "The CPUs are saturated, 60 % by other processes and 40 % by this one: without those, loading may be faster.")
}

// Visits may be too short to tell what others use meanwhile.
func TestCPUsThatOthersHaveAreNotCalledIdle(t *testing.T) {
	s := &source{opts: &options{machine: host.Real, batchSize: 32}, order: order{n: 1000, batch: 32, world: 1}}
	for other, want := range map[float64]string{-1: "61 % by other processes and 39 % by this one", 0.02: "CPUs idle (41 % of"} {
		r := &Result{Workers: 1, Trials: []Trial{{Workers: 1, Mean: time.Second, Wait: time.Second, CPU: 0.39, OtherCPU: other}, {Workers: 64}}}
		advice := s.advice(r, memoryLimit{bytes: math.MaxUint64}, 0.75, false)
		require.Contains(t, strings.Join(advice, "\n"), want)
	}
}

// A quota of 1.5 CPUs is what shares of the CPUs refer to, divided by the ranks.
func TestAdviceNamesTheCPUsThatTheProcessMayUse(t *testing.T) {
	for _, tt := range []struct {
		hardware Hardware
		ranks    int
		want     string
	}{
		{Hardware{Affinity: 8}, 1, "40 % of 8 in use"},
		{Hardware{Affinity: 6}, 1, "40 % of 6 in use"},
		{Hardware{Affinity: 1536}, 1, "40 % of 1536 in use"},
		{Hardware{Affinity: 8, Quota: 2.5}, 1, "40 % of 2.5 in use"},
		{Hardware{Affinity: 8, Quota: 5}, 2, "40 % of 2.5 in use"},
		{Hardware{Affinity: 8, Quota: 1.5}, 1, "(it uses 40 % of 1.5 CPUs), so 2 workers, more than CPUs, pay off."},
	} {
		s := &source{opts: &options{machine: NewVirtualMachine(max(8, tt.hardware.Affinity) * tt.ranks), batchSize: 32, launcher: &Rank{LocalWorld: tt.ranks}}, order: order{n: 1000, batch: 32, world: 1}}
		r := &Result{Workers: 2, Hardware: tt.hardware, Trials: []Trial{{Workers: 2, Mean: time.Second, Wait: time.Second, CPU: 0.4}, {Workers: 64}}}
		advice := s.advice(r, memoryLimit{bytes: math.MaxUint64}, 0, false)
		require.Contains(t, strings.Join(advice, "\n"), tt.want)
	}
}
