package nwt

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/search"
)

// paperResult is Table 2 of the paper, with figures made up where it has none.
func paperResult() *Result {
	r := &Result{
		Workers: 14, Fastest: 16, Alpha: 141 * time.Millisecond, Iterations: 100, Confidence: 0.976, Slower: 0.075, Floor: 1200 * time.Nanosecond,
		Strategy: "greedy", Device: "cuda:0 (GeForce RTX 3090)", BatchSize: 128, BatchBytes: 128 * (3*32*32*4 + 8),
		Hardware: Hardware{CPU: "AMD EPYC 7502", Logical: 128, Physical: 64, Affinity: 64, GOMAXPROCS: 64, Memory: 270e9},
		Elapsed:  41300 * time.Millisecond,
		RuledOut: []RuledOut{{96, "96 workers would take about 3.4 GB (63 took 2.8 GB): over the limit of 3.0 GB (set by WithMemoryLimit)"},
			{128, "128 workers would take about 3.9 GB (63 took 2.8 GB): over the limit of 3.0 GB (set by WithMemoryLimit)"}},
		Warnings: []string{"other processes kept 12 % of the CPUs busy meanwhile: on a quiet machine the choice may be another"},
		Advice:   []string{"A training step that takes longer than 14.9 ms hides loading."},
	}
	for _, row := range []struct {
		workers int
		total   float64
		memory  float64
		cpu     float64
	}{{0, 14.25, 2757.84, 0.016}, {1, 14.01, 2101.2, 0.016}, {8, 2.12, 2010.5, 0.125}, {14, 1.49, 2025.32, 0.21}, {16, 1.41, 2055.37, 0.24},
		{32, 1.55, 2275.36, 0.48}, {63, 2.21, 2773.60, 0.93}} {
		total := time.Duration(row.total * 1e9)
		mean := total / 100
		r.Trials = append(r.Trials, Trial{
			Workers: row.workers, Iterations: 100, Mean: mean, Low: mean - mean/50, High: mean + mean/50, Median: mean, P99: 2 * mean,
			Total: total, Wait: mean - 300*time.Microsecond, Transfer: 300 * time.Microsecond, FirstBatch: 3 * mean,
			Prefetch: 2, Memory: uint64(row.memory * 5e5), PeakRSS: uint64(row.memory * 1e6), PeakExact: true, SystemUsed: 9e9, CPU: row.cpu, OtherCPU: 0.12,
		})
	}
	r.Trials[1].Low, r.Trials[1].High = r.Trials[1].Mean, r.Trials[1].Mean
	r.Reason = r.reason(search.Choice{})
	return r
}

func TestTheReportIsReadAtAGlance(t *testing.T) {
	require.Equal(t, strings.TrimPrefix(`
14 workers: the fewest tried within 141 ms, over 100 batches, of the fastest (16).

   workers   100 batches   per batch   ± 95 %   waiting   transfer   CPUs busy   by others   ahead   own memory   peak memory
                       s          ms                 ms         ms                                           GB            GB
         0         14.25       142.5    2.0 %     142.2        0.3       1.6 %        12 %       2         1.38          2.76
         1         14.01       140.1        ?     139.8        0.3       1.6 %        12 %       2         1.05          2.10
         8          2.12        21.2    2.0 %      20.9        0.3        12 %        12 %       2         1.01          2.01
        14          1.49        14.9    2.0 %      14.6        0.3        21 %        12 %       2         1.01          2.03 ◄ chosen
        16          1.41        14.1    2.0 %      13.8        0.3        24 %        12 %       2         1.03          2.06 ◄ fastest
        32          1.55        15.5    2.0 %      15.2        0.3        48 %        12 %       2         1.14          2.28
        63          2.21        22.1    2.0 %      21.8        0.3        93 %        12 %       2         1.39          2.77

 confidence  another run would choose the same in 98 % of cases; at most 7.5 % slower than the best count tried, at 95 %
      floor  1.2 µs per batch, if loading were perfect
    batches  128 samples, 1.57 MB, to cuda:0 (GeForce RTX 3090)
    machine  64 CPUs of 128, AMD EPYC 7502, 270 GB
      tuned  by greedy search in 41.3 s
  ruled out  96 workers would take about 3.4 GB (63 took 2.8 GB): over the limit of 3.0 GB (set by WithMemoryLimit), 128 too
    warning  other processes kept 12 % of the CPUs busy meanwhile: on a quiet machine the choice may be another
     advice  A training step that takes longer than 14.9 ms hides loading.
`, "\n"), paperResult().String())
}

func TestTrialsOfAStreamShowHowLongItWasRead(t *testing.T) {
	r := paperResult()
	r.Trials = r.Trials[3:5]
	r.Trials[0].Reading, r.Trials[1].Reading = 0.0215, 0.976
	table, _, _ := strings.Cut(r.String(), "\n\n confidence")
	require.Equal(t, strings.TrimPrefix(`
14 workers: the fewest tried within 141 ms, over 100 batches, of the fastest (16).

   workers   100 batches   per batch   ± 95 %   waiting   transfer   reading   CPUs busy   by others   ahead   own memory   peak memory
                       s          ms                 ms         ms                                                     GB            GB
        14          1.49        14.9    2.0 %      14.6        0.3     2.1 %        21 %        12 %       2         1.01          2.03 ◄ chosen
        16          1.41        14.1    2.0 %      13.8        0.3      98 %        24 %        12 %       2         1.03          2.06 ◄ fastest
`, "\n"), table+"\n")

	var b strings.Builder
	require.NoError(t, r.WriteCSV(&b))
	require.Equal(t, `workers,iterations,total_s,mean_s,low_s,high_s,median_s,p99_s,wait_s,transfer_s,copy_s,bandwidth,step_s,first_batch_s,prefetch,memory,peak_rss,peak_exact,system_used,cpu,collector_cpu,other_cpu,chosen,fastest,reading
14,100,1.49,0.0149,0.014602,0.015198,0.0149,0.0298,0.0146,0.0003,0,0,0,0.0447,2,1012660000,2025320000,true,9000000000,0.2100,0.0000,0.1200,true,false,0.0215
16,100,1.41,0.0141,0.013818,0.014382,0.0141,0.0282,0.0138,0.0003,0,0,0,0.0423,2,1027685000,2055370000,true,9000000000,0.2400,0.0000,0.1200,false,true,0.9760
`, b.String())
}

func TestColumnsShowWhatWasMeasured(t *testing.T) {
	r := &Result{Iterations: 100, Step: true, Cached: true, Trials: []Trial{{Mean: 900, Total: 90 * time.Microsecond, Step: 600}}}
	s := r.String()
	require.NotContains(t, s, "transfer")
	require.NotContains(t, s, "peak memory")
	require.NotContains(t, s, "reading")
	require.Contains(t, s, "step")
	require.Contains(t, s, "earlier, by")
	require.NotContains(t, s, "confidence")
}

func TestNoCountIsMarkedTheFastestBesideAFasterOne(t *testing.T) {
	r := &Result{Workers: 2, Iterations: 100, Trials: []Trial{{Mean: 3 * time.Millisecond}, {Workers: 2, Mean: 2 * time.Millisecond}}}
	require.Contains(t, r.String(), " ◄ none surely faster\n")
	require.Contains(t, r.String(), " ◄ chosen\n")
	r.Fastest = 2
	require.Contains(t, r.String(), " ◄ chosen, fastest\n")
}

func TestABoundThatSaysNothingIsNotPrinted(t *testing.T) {
	r := &Result{Workers: 2, Confidence: 0.29, Slower: 1042.27, Trials: []Trial{{}, {Workers: 2}}}
	require.Contains(t, r.String(), "in 29 % of cases; how much slower than the best count tried can't be told\n")
	r.Slower = 3.17
	require.Contains(t, r.String(), "in 29 % of cases; at most 317 % slower than the best count tried, at 95 %\n")
}

func TestTheReasonSaysWhyInASentence(t *testing.T) {
	for want, r := range map[string]*Result{
		"0 workers: nothing else could be measured.":                                              {Trials: make([]Trial, 1)},
		"0 workers: no count tried is faster.":                                                    {Trials: make([]Trial, 2)},
		"2 workers: no count tried is faster, and fewer were not tried.":                          {Workers: 2, Fastest: 2, Trials: []Trial{{Workers: 2}, {Workers: 4}}},
		"1 worker: the fastest; with fewer, as far as tried, 100 batches take over 50 ms longer.": {Workers: 1, Fastest: 1, Trials: []Trial{{Mean: time.Second}, {Workers: 1}}},
		"1 worker: the fewest tried within 50 ms, over 100 batches, of the fastest (4).":          {Workers: 1, Fastest: 4, Trials: []Trial{{Mean: time.Second}, {Workers: 1}}},
		"14 workers: the fewest tried within 50 ms, over 100 batches, of the fastest (16).":       {Workers: 14, Fastest: 16, Trials: []Trial{{Mean: time.Second}, {Workers: 14}}},
	} {
		r.Alpha, r.Iterations = 50*time.Millisecond, 100
		require.Equal(t, want, r.reason(search.Choice{}))
	}
}

func TestABatchIsOne(t *testing.T) {
	r := &Result{Workers: 1, Fastest: 1, BatchSize: 1, Iterations: 1, Alpha: 50 * time.Millisecond, Trials: []Trial{{Mean: time.Second}, {Workers: 1, Iterations: 1}}}
	r.Reason = r.reason(search.Choice{})
	require.Equal(t, "1 worker: the fastest; with fewer, as far as tried, 1 batch takes over 50 ms longer.", r.Reason)
	r.Warnings = (&tuner{source: &source{opts: &options{}}}).warnings(r, 0, false)
	require.Contains(t, r.String(), "  1 sample, ")
	require.Contains(t, r.String(), "only 1 batch was measured at the choice")
	require.Contains(t, r.String(), "   1 batch   ")
	for _, c := range []search.Choice{{Rounded: true}, {}} {
		r.Fastest = 2
		require.Contains(t, r.reason(c), ", over 1 batch, ")
	}
}

func TestTheReasonDoesNotContradictTheTable(t *testing.T) {
	trials := func(means ...time.Duration) (ts []Trial) {
		for w, mean := range means {
			ts = append(ts, Trial{Workers: w, Mean: mean * time.Millisecond})
		}
		return ts
	}
	for want, r := range map[string]*Result{
		"0 workers: no count tried is surely faster.":                                                                                                                  {Trials: trials(20, 19)},
		"1 worker: none is surely faster; with fewer, as far as tried, 100 batches take over 50 ms longer.":                                                            {Workers: 1, Fastest: 1, Trials: trials(30, 20, 19)},
		"1 worker: the fewest tried that may be within 50 ms, over 100 batches, of the fastest (2).":                                                                   {Workers: 1, Fastest: 2, Trials: trials(30, 21, 20)},
		"0 workers: the fewest tried within 50 ms, over 100 batches, of the fastest (1).":                                                                              {Workers: 0, Fastest: 1, Trials: []Trial{{Mean: 20_500 * time.Microsecond}, {Workers: 1, Mean: 20 * time.Millisecond}}},
		"2 workers: none is surely faster; with fewer, as far as tried, 100 batches take over 50 ms longer, once drift that all counts share and chance are left out.": {Workers: 2, Fastest: 2, Trials: trials(30, 19, 20)},
		"2 workers: the fastest; with fewer, as far as tried, 100 batches take over 50 ms longer, once drift that all counts share and chance are left out.":           {Workers: 2, Fastest: 2, Trials: []Trial{{Workers: 1, Mean: 20_400 * time.Microsecond}, {Workers: 2, Mean: 20 * time.Millisecond}}},
		"1 worker: the fewest tried within 50 ms, over 100 batches, of the fastest (2), once drift that all counts share and chance are left out.":                     {Workers: 1, Fastest: 2, Trials: trials(20, 20, 20)},
	} {
		r.Alpha, r.Iterations = 50*time.Millisecond, 100
		require.Equal(t, want, r.reason(search.Choice{}))
	}
	r := &Result{Workers: 1, Fastest: 2, Iterations: 100, Alpha: 50 * time.Millisecond, Trials: trials(30, 21, 20)}
	require.Contains(t, r.reason(search.Choice{Rounded: true}), "1 worker: may be within 50 ms, over 100 batches, of the fastest (2); fewer may be too")
}

func TestACountThatIsOnlyRounderIsNotCalledTheFewest(t *testing.T) {
	r := &Result{Workers: 8, Fastest: 16, Iterations: 100, Alpha: 50 * time.Millisecond, Trials: []Trial{{Workers: 7}, {Workers: 8}, {Workers: 16}}}
	require.Equal(t, "8 workers: within 50 ms, over 100 batches, of the fastest (16); fewer may be too, but this is the roundest of the counts that can't be told apart.",
		r.reason(search.Choice{Rounded: true}))
	r.Fastest = 8
	require.Equal(t, "8 workers: the fastest; fewer may do within 50 ms, over 100 batches, but this is the roundest of the counts that can't be told apart.",
		r.reason(search.Choice{Rounded: true}))
}

// Whatever the means: a heavy tail at one count doesn't make a choice training's own.
func TestOnlyACountThatWasKeptIsCalledSo(t *testing.T) {
	r := &Result{Workers: 4, Fastest: 8, Iterations: 100, Trials: []Trial{{Workers: 4, Mean: 3 * time.Second}, {Workers: 8, Mean: time.Second}}}
	require.NotContains(t, r.reason(search.Choice{}), "as without tuning")
	r.Fastest = 4
	require.Equal(t, "4 workers, as without tuning: measuring ended before another count was surely better.", r.reason(search.Choice{Kept: true}))
}

func TestTrialsAreWrittenAsCSV(t *testing.T) {
	var b strings.Builder
	r := paperResult()
	r.Trials = r.Trials[3:5]
	require.NoError(t, r.WriteCSV(&b))
	require.Equal(t, `workers,iterations,total_s,mean_s,low_s,high_s,median_s,p99_s,wait_s,transfer_s,copy_s,bandwidth,step_s,first_batch_s,prefetch,memory,peak_rss,peak_exact,system_used,cpu,collector_cpu,other_cpu,chosen,fastest
14,100,1.49,0.0149,0.014602,0.015198,0.0149,0.0298,0.0146,0.0003,0,0,0,0.0447,2,1012660000,2025320000,true,9000000000,0.2100,0.0000,0.1200,true,false
16,100,1.41,0.0141,0.013818,0.014382,0.0141,0.0282,0.0138,0.0003,0,0,0,0.0423,2,1027685000,2055370000,true,9000000000,0.2400,0.0000,0.1200,false,true
`, b.String())

	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	require.Error(t, r.WriteCSV(full))
}

func TestNamesInJSONStay(t *testing.T) {
	r := paperResult()
	r.Trials, r.RuledOut, r.Warnings, r.Advice = r.Trials[3:4], r.RuledOut[:1], []string{"w"}, []string{"a"}
	r.RuledOut[0].Reason, r.Hardware.Quota = "much", 1.5
	data, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"workers": 14, "fastest": 16, "alpha_ns": 141000000, "iterations": 100, "confidence": 0.976, "slower": 0.075, "floor_ns": 1200,
		"trials": [{"workers": 14, "iterations": 100, "mean_ns": 14900000, "low_ns": 14602000, "high_ns": 15198000,
			"median_ns": 14900000, "p99_ns": 29800000, "total_ns": 1490000000, "wait_ns": 14600000, "transfer_ns": 300000, "step_ns": 0,
			"first_batch_ns": 44700000, "prefetch": 2, "memory": 1012660000, "peak_rss": 2025320000, "peak_exact": true, "system_used": 9000000000, "cpu": 0.21, "collector_cpu": 0, "other_cpu": 0.12}],
		"ruled_out": [{"workers": 96, "reason": "much"}],
		"strategy": "greedy", "device": "cuda:0 (GeForce RTX 3090)", "batch_size": 128, "batch_bytes": 1573888, "step": false, "cached": false,
		"hardware": {"cpu": "AMD EPYC 7502", "logical": 128, "physical": 64, "affinity": 64, "quota": 1.5, "gomaxprocs": 64, "memory": 270000000000},
		"reason": "14 workers: the fewest tried within 141 ms, over 100 batches, of the fastest (16).",
		"warnings": ["w"], "advice": ["a"], "elapsed_ns": 41300000000
	}`, string(data))
	again := &Result{}
	require.NoError(t, json.Unmarshal(data, again))
	require.Equal(t, r, again)
}
