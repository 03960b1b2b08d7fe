package nwt

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/search"
)

func TestTuningLeavesNothingBehind(t *testing.T) {
	ds := NewDataset(1000, []Field{{Name: "x", Type: Uint8, Shape: []int{1 << 20}}}, func(_ context.Context, _ int, s *Sample) error {
		clear(s.Bytes(0))
		return nil
	})
	tune := func() {
		_, err := Tune(t.Context(), ds, WithBatchSize(4), WithMaxWorkers(4), WithIterations(10))
		require.NoError(t, err)
	}
	tune() // what is loaded once stays
	percent := debug.SetGCPercent(50)
	defer debug.SetGCPercent(percent)
	limit := debug.SetMemoryLimit(1 << 40)
	defer debug.SetMemoryLimit(limit)
	goroutines, procs, threads := runtime.NumGoroutine(), runtime.GOMAXPROCS(0), maxThreads()
	debug.FreeOSMemory()
	rss := ResidentMemory()

	tune()
	for range 1000 { // a goroutine that was joined may not have quite ended
		if runtime.NumGoroutine() <= goroutines {
			break
		}
		time.Sleep(time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	require.Equal(t, procs, runtime.GOMAXPROCS(0))
	require.Equal(t, 50, debug.SetGCPercent(50))
	require.Equal(t, int64(1<<40), debug.SetMemoryLimit(-1))
	require.Equal(t, threads, maxThreads())
	debug.FreeOSMemory()
	const batches = 4 * 4 << 20 // of the smallest loader
	require.Less(t, ResidentMemory(), rss+batches/2)
}

func maxThreads() int {
	n := debug.SetMaxThreads(math.MaxInt32)
	debug.SetMaxThreads(n)
	return n
}

// What the tuner's clocks add to a batch: the difference between these two.
func BenchmarkIterationMeasured(b *testing.B) {
	for _, measured := range []bool{false, true} {
		name := "plain"
		if measured {
			name = "measured"
		}
		b.Run(name, func(b *testing.B) {
			l := costLoader(b)
			for range 3 { // starts workers, settles the machine
				m := measurement{visit: search.Visit{Wanted: 1000}}
				if err := m.run(b.Context(), l, nil, State{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			if measured {
				m := measurement{visit: search.Visit{Wanted: b.N}}
				if err := m.run(b.Context(), l, nil, State{}); err != nil {
					b.Fatal(err)
				}
				return
			}
			n := 0
			for _, err := range l.Epochs(b.Context(), 0, math.MaxInt32) {
				if err != nil {
					b.Fatal(err)
				}
				if n++; n == b.N {
					return
				}
			}
		})
	}
}

// What a settled loader pays for tuning itself: the difference between these two.
func BenchmarkIterationWatched(b *testing.B) {
	for _, watched := range []bool{false, true} {
		name := "plain"
		if watched {
			name = "watched"
		}
		b.Run(name, func(b *testing.B) {
			l := costLoader(b)
			if watched {
				l.auto = newAuto(l)
				l.auto.settled, l.auto.watch.expected, l.auto.watch.patience = true, 1, math.MaxInt
			}
			n := 0
			b.ResetTimer()
			for _, err := range l.Epochs(b.Context(), 0, math.MaxInt32) {
				if err != nil {
					b.Fatal(err)
				}
				if n++; n == b.N {
					return
				}
			}
		})
	}
}

// costLoader loads batches of no cost without workers: what is added to them shows.
func costLoader(b *testing.B) *Loader {
	ds := NewDataset(1<<30, []Field{{Name: "x", Type: Uint8}}, func(context.Context, int, *Sample) error { return nil })
	l, err := NewLoader(ds, WithBatchSize(1), WithWorkers(0))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	return l
}

// 0.1 ms a batch, default settings.
func BenchmarkTuneOfACheapDataset(b *testing.B) {
	ds := NewDataset(1_000_000, []Field{{Name: "x", Type: Float32}}, func(context.Context, int, *Sample) error {
		for began := time.Now(); time.Since(began) < 3*time.Microsecond; {
		}
		return nil
	})
	visits := 0
	for b.Loop() {
		_, err := Tune(b.Context(), ds, WithProgress(func(p Progress) {
			if p.Trial != nil {
				visits++
			}
		}))
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(visits)/float64(b.N), "visits/op")
}
