package serve

import (
	"cmp"
	"context"
	"sync"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/layout"
)

// A slot is a batch that is being answered, with its memory.
type slot struct {
	*nwt.PlacedBatch
	mem    []byte
	places []nwt.Place
}

// set gives the slot's batch its samples, and memory for them.
func (s *slot) set() error {
	size, err := s.Set(s.places)
	if err != nil {
		return err
	}
	if size > cap(s.mem) {
		s.mem = layout.Heap(size)
	}
	s.mem = s.mem[:size]
	s.In(s.mem)
	return nil
}

// A pool is the goroutines that load. Several load one batch side by side.
type pool struct {
	workers int
	jobs    chan job
	turn    sync.Mutex // of who hands out jobs
	group   sync.WaitGroup
}

// A job is some samples of a batch.
type job struct {
	ctx      context.Context
	batch    *nwt.PlacedBatch
	from, to int
	done     chan<- error
}

func newPool(l *nwt.Loader) *pool {
	p := &pool{workers: max(1, l.Workers()), jobs: make(chan job)}
	for i := range p.workers {
		p.group.Go(func() {
			hand := l.NewHand(i)
			defer hand.Close()
			for j := range p.jobs {
				j.done <- hand.Load(j.ctx, j.batch, j.from, j.to)
			}
		})
	}
	return p
}

// close waits for the workers. No load is under way any more.
func (p *pool) close() {
	close(p.jobs)
	p.group.Wait()
}

// load loads the n samples of a batch, and returns once no worker touches it. Batches begin one
// after another, so that the first is ready first.
func (p *pool) load(ctx context.Context, b *nwt.PlacedBatch, n int) (err error) {
	size := max(1, n/(4*p.workers))
	jobs := (n + size - 1) / size
	done := make(chan error, jobs)
	p.turn.Lock()
	for from := 0; from < n; from += size {
		p.jobs <- job{ctx, b, from, min(n, from+size), done}
	}
	p.turn.Unlock()
	for range jobs {
		err = cmp.Or(<-done, err)
	}
	return err
}
