package main

import (
	"iter"
	"math/rand/v2"
	"sync"
)

// handWritten returns the loop that a careful Go programmer writes without a
// library: a worker fills a batch, batches come in order, and everything is
// used again: buffers, channels, generators.
func handWritten[T float32 | uint8](w *workload[T], workers int) iter.Seq[[]T] {
	if workers == 0 {
		return func(yield func([]T) bool) {
			buffer, r := make([]T, w.batch*w.size), newGenerator()
			for indices := range w.orders() {
				w.fill(buffer, indices, r)
				if !yield(buffer[:len(indices)*w.size]) {
					return
				}
			}
		}
	}
	type job struct {
		indices []int
		buffer  []T
		done    chan struct{}
	}
	return func(yield func([]T) bool) {
		ahead := workers + 2 // a batch for each worker, one that is ready, one in use
		free, queue, work := make(chan *job, ahead), make(chan *job, ahead), make(chan *job, ahead)
		for range ahead {
			free <- &job{buffer: make([]T, w.batch*w.size), done: make(chan struct{}, 1)}
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		stop := make(chan struct{})
		defer close(stop)
		wg.Go(func() {
			defer close(work)
			for indices := range w.orders() {
				select {
				case j := <-free:
					j.indices = indices
					work <- j // neither can block: there are only as many jobs
					queue <- j
				case <-stop:
					return
				}
			}
		})
		for range workers {
			wg.Go(func() {
				r := newGenerator()
				for j := range work {
					w.fill(j.buffer, j.indices, r)
					j.done <- struct{}{}
				}
			})
		}
		for {
			j := <-queue
			<-j.done
			if !yield(j.buffer[:len(j.indices)*w.size]) {
				return
			}
			free <- j
		}
	}
}

// A generator is a goroutine's own.
type generator struct{ rng *rand.Rand }

func newGenerator() generator        { return generator{rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))} }
func (g generator) Rand() *rand.Rand { return g.rng }
