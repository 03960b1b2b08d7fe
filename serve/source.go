package serve

import (
	"cmp"
	"context"
	"sync"
	"unsafe"

	"github.com/nwt-go/nwt"
)

type place = nwt.Place

// A source has the batches of a loader, and loads samples by their places.
type source interface {
	Places(dst []place, rank, world int, s nwt.State, number int) (places []place, after nwt.State, left int, err error)
	Load(ctx context.Context, places []place, alloc func(size int) ([]byte, error), free func(mem []byte) error) (b batch, bad []error, err error)
	BatchSize() int
	Close() error
}

type batchMemory struct {
	Alloc func(size int) ([]byte, error)
	Free  func([]byte) error
}

type batch interface {
	Len() int
	Memory() []byte
	Bytes(field int) []byte
	Shape(field int) []int
	Lens(field, dim int) []int32
	Release()
}

type handSource struct {
	ds      nwt.Dataset
	opts    []nwt.Option
	base    *nwt.Loader
	workers int
	jobs    chan job
	turn    sync.Mutex
	group   sync.WaitGroup
	mu      sync.Mutex
	plans   map[[2]int]*nwt.Loader
}

type job struct {
	ctx      context.Context
	batch    *nwt.PlacedBatch
	from, to int
	done     chan<- error
}

func newSource(ds nwt.Dataset, base *nwt.Loader, opts []nwt.Option) source {
	s := &handSource{ds: ds, opts: opts, base: base, workers: max(1, base.Workers()), jobs: make(chan job), plans: map[[2]int]*nwt.Loader{}}
	for i := range s.workers {
		s.group.Go(func() {
			hand := base.NewHand(i)
			defer hand.Close()
			for j := range s.jobs {
				j.done <- hand.Load(j.ctx, j.batch, j.from, j.to)
			}
		})
	}
	return s
}

func (s *handSource) BatchSize() int { return s.base.NewPlacedBatch().Cap() }

func (s *handSource) Close() error {
	close(s.jobs)
	s.group.Wait()
	return s.base.Close()
}

func (s *handSource) Places(dst []place, rank, world int, st nwt.State, number int) ([]place, nwt.State, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := [2]int{rank, world}
	l := s.plans[key]
	if l == nil {
		var err error
		if l, err = nwt.NewLoader(s.ds, append(s.opts, nwt.WithRank(rank, world), nwt.WithWorkers(0))...); err != nil {
			return dst, st, 0, err
		}
		if len(s.plans) == 64 {
			clear(s.plans)
		}
		s.plans[key] = l
	}
	dst, after, err := l.Places(dst, st, number)
	if err != nil {
		return dst, st, 0, err
	}
	left, err := l.BatchesFrom(after)
	return dst, after, left, err
}

func (s *handSource) Load(ctx context.Context, places []place, alloc func(size int) ([]byte, error), free func(mem []byte) error) (batch, []error, error) {
	mem := batchMemory{alloc, free}
	b := &handBatch{PlacedBatch: s.base.NewPlacedBatch(), mem: mem}
	for {
		size, err := b.Set(places)
		if err != nil {
			return nil, nil, err
		}
		if b.bytes == nil || len(b.bytes) < size {
			if mem.Alloc == nil {
				words := make([]uint64, size/8+1)
				b.bytes = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
			} else if b.bytes, err = mem.Alloc(size); err != nil {
				return nil, nil, err
			}
		}
		b.bytes = b.bytes[:size]
		b.In(b.bytes)
		if err := s.load(ctx, b.PlacedBatch, len(places)); err != nil {
			b.Release()
			return nil, nil, err
		}
		var good []place
		for i, p := range places {
			if err := b.Err(i); err != nil {
				b.bad = append(b.bad, err)
			} else {
				good = append(good, p)
			}
		}
		if b.n = len(places); len(good) == len(places) {
			return b, b.bad, nil
		}
		places = good
	}
}

func (s *handSource) load(ctx context.Context, b *nwt.PlacedBatch, n int) (err error) {
	size := max(1, n/(4*s.workers))
	jobs := (n + size - 1) / size
	done := make(chan error, jobs)
	s.turn.Lock()
	for from := 0; from < n; from += size {
		s.jobs <- job{ctx, b, from, min(n, from+size), done}
	}
	s.turn.Unlock()
	for range jobs {
		err = cmp.Or(<-done, err)
	}
	return err
}

type handBatch struct {
	*nwt.PlacedBatch
	mem   batchMemory
	bytes []byte
	bad   []error
	n     int
}

func (b *handBatch) Len() int       { return b.n }
func (b *handBatch) Memory() []byte { return b.bytes }
func (b *handBatch) Bytes(field int) []byte {
	from, to, _ := b.Field(field)
	return b.bytes[from:to]
}
func (b *handBatch) Shape(field int) []int {
	_, _, shape := b.Field(field)
	return shape
}
func (b *handBatch) Lens(field, dim int) []int32 { return b.LensOf(field, dim) }
func (b *handBatch) Release() {
	if b.mem.Free != nil {
		_ = b.mem.Free(b.bytes)
	}
}
