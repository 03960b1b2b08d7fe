package nwt_test

import (
	"context"
	"flag"
	"maps"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// On real clocks, for a machine that has nothing else to do.
var tunings = flag.Int("tunings", 0, "tune real workloads so many times and report how often the choice is the same")

var calibration float64 // keeps the compiler from leaving out what it is of

// computing takes d of CPU time a sample.
func computing(n int, d time.Duration) nwt.Dataset {
	turns := func(k int) (x float64) {
		for i := range k {
			x += math.Sqrt(float64(i))
		}
		return x
	}
	const many = 1 << 20
	turns(many) // at the speed that the CPU comes to
	began := time.Now()
	calibration = turns(many)
	each := int(many * float64(d) / float64(time.Since(began)))
	return nwt.NewDataset(n, scalar, func(_ context.Context, _ int, s *nwt.Sample) error {
		nwt.Values[float32](s, 0)[0] = float32(turns(each))
		return nil
	})
}

func TestRealTuningsChooseTheSame(t *testing.T) {
	if *tunings == 0 {
		t.Skip("takes minutes of a quiet machine: -tunings 20")
	}
	for _, tt := range []struct {
		name string
		ds   nwt.Dataset
		opts []nwt.Option
	}{
		{"cpu", computing(1_000_000, 50*time.Microsecond), nil},
		{"cheap", computing(1_000_000, 1500*time.Nanosecond), []nwt.Option{nwt.WithBatchSize(128)}},
		{"latency", sleeping(1_000_000, time.Millisecond), []nwt.Option{
			nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(4 * time.Millisecond); return nil })}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			chosen, took := map[int]int{}, time.Duration(0)
			var last *nwt.Result
			for range *tunings {
				r, err := nwt.Tune(t.Context(), tt.ds, tt.opts...)
				require.NoError(t, err)
				chosen[r.Workers]++
				took += r.Elapsed
				last = r
			}
			t.Logf("choices (workers: times): %v, %v a tuning\n%v", chosen, took/time.Duration(*tunings), last)
			most := slices.Max(slices.Collect(maps.Values(chosen)))
			require.GreaterOrEqual(t, float64(most), 0.95*float64(*tunings), "%v", chosen)
		})
	}
}

// 2000 batches of 1 ms of CPU time, tuned while training, against the best
// fixed count: with -benchtime 3x or so.
func BenchmarkTuningWhileTrainingCPUBound(b *testing.B) {
	ds := computing(1_000_000, 31*time.Microsecond)
	run := func(opts ...nwt.Option) time.Duration {
		l, err := nwt.NewLoader(ds, append(opts, silent)...)
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		began, n := time.Now(), 0
		for _, err := range l.Epochs(b.Context(), 0, 1) {
			if err != nil {
				b.Fatal(err)
			}
			if n++; n == 2000 {
				break
			}
		}
		return time.Since(began)
	}
	var fixed, auto time.Duration
	for range b.N {
		best := time.Duration(math.MaxInt64)
		for w := range runtime.GOMAXPROCS(0) + 1 {
			best = min(best, run(nwt.WithWorkers(w)))
		}
		fixed += best
		auto += run(nwt.WithAutoWorkers())
	}
	b.ReportMetric(100*(float64(auto)/float64(fixed)-1), "%slower")
	b.ReportMetric(0, "ns/op")
}
