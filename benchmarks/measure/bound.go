package main

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// bound returns the batches a second of goroutines that load and do nothing else:
// each fills a buffer of its own, again and again, and nobody waits for it.
func bound[T float32 | uint8](w *workload[T], workers int, seconds time.Duration) float64 {
	if photos, ok := any(w).(*workload[float32]); ok && w.name == "photos" {
		return decodingAlone(photos, workers, seconds)
	}
	switch w.name {
	case "wait":
		return float64(workers) / (float64(w.batch) * slept(time.Sleep, time.Millisecond))
	case "tail":
		mean := 0.99*slept(block, time.Millisecond) + 0.01*slept(block, 100*time.Millisecond)
		return float64(workers) / (float64(w.batch) * mean)
	case "pauses": // what is loaded meanwhile hides behind the pauses, or the pauses behind it
		load := float64(w.batch) * slept(block, 2*time.Millisecond) / float64(workers)
		return 1 / max(load, w.pause.Seconds()/float64(w.pauses))
	}
	order := rand.Perm(w.samples)
	var stop atomic.Bool
	var batches atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for g := range workers {
		wg.Go(func() {
			buffer, r := make([]T, w.batch*w.size), newGenerator()
			for n := g; !stop.Load(); n += workers {
				first := n * w.batch % (w.samples - w.batch)
				w.fill(buffer, order[first:first+w.batch], r)
				batches.Add(1)
			}
		})
	}
	time.Sleep(seconds)
	stop.Store(true)
	wg.Wait()
	return float64(batches.Load()) / time.Since(began).Seconds()
}

// slept returns how many seconds a sleep really takes here.
func slept(sleep func(time.Duration), d time.Duration) float64 {
	n := max(5, 300*time.Millisecond/d)
	began := time.Now()
	for range n {
		sleep(d)
	}
	return time.Since(began).Seconds() / float64(n)
}
