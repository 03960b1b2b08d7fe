package main

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// bound is the batches a second of goroutines that load and do nothing else:
// each fills a buffer of its own, again and again, and nobody waits for it.
func bound[T float32 | uint8](w *workload[T], workers int, seconds time.Duration) float64 {
	if photos, ok := any(w).(*workload[float32]); ok && w.name == "photos" {
		return decodingAlone(photos, workers, seconds)
	}
	if w.name == "wait" {
		return float64(workers) / (float64(w.batch) * realSleep().Seconds())
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

// realSleep is how long a sleep of a millisecond takes here.
func realSleep() time.Duration {
	const n = 300
	began := time.Now()
	for range n {
		time.Sleep(time.Millisecond)
	}
	return time.Since(began) / n
}
