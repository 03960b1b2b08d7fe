package nwt

import (
	"context"
	"fmt"

	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A Place is all that Load may depend on, apart from the dataset: which sample it loads, and for which
// position of which epoch. A sample may therefore be loaded elsewhere, by another process, and is the
// same.
type Place struct {
	Index    int // of the sample in its dataset
	Position int // in the epoch, over all ranks
	Epoch    int
	Key      uint64 // seeds Sample.Rand; it stands for the seed
}

// Place returns the place of the sample.
func (s *Sample) Place() Place {
	outer := s
	for outer.outer != nil {
		outer = outer.outer
	}
	return Place{Index: s.index, Position: s.Position(), Epoch: s.epoch, Key: outer.seedKey}
}

// BatchesFrom returns how many batches this rank has from a state to the end of its epoch. The number is
// the same on every rank.
func (l *Loader) BatchesFrom(s State) (int, error) {
	o, _, base, _, err := l.from(s)
	if err != nil {
		return 0, err
	}
	return o.Steps(base), nil
}

// Places appends to dst the places of one of the batches that [Loader.Resume] would yield on this rank;
// batch is its number, from 0. It loads nothing. It also returns the state after that batch. It fails for
// a stream, for a state that Resume refuses, and if batch is out of range.
func (l *Loader) Places(dst []Place, s State, batch int) (_ []Place, after State, err error) {
	o, sampler, base, n, err := l.from(s)
	switch {
	case err != nil:
		return dst, s, err
	case uint(batch) >= uint(o.Steps(base)):
		return dst, s, optionError("Places", batch, "the batch must be 0 … %d", o.Steps(base)-1)
	}
	from, to := 0, 0
	if after = s; o.Batches == 0 {
		from, to, after.Samples = o.Part(base, batch)
	} else if from, to, after.Samples, err = o.PartOf(s.Epoch, base, batch); err != nil {
		return dst, s, orderError(err)
	}
	after.Order = uint64(l.identity(sampler, o.N))
	ask := func() error {
		for i := from; i < to; i++ {
			index := sampler.At(s.Epoch, i)
			if uint(index) >= uint(n) {
				return fmt.Errorf("the sampler's index %d for position %d is out of range 0 … %d", index, i, n-1)
			}
			dst = append(dst, Place{Index: index, Position: i, Epoch: s.Epoch, Key: l.opts.seedKey()})
		}
		return nil
	}
	usercall.Call(ask, func(stack []byte, cause error) {
		err = &LoadError{Index: -1, Position: from, Epoch: s.Epoch, Err: cause, Stack: stack}
	})
	return dst, after, err
}

// from returns the order of a state's epoch, where in it the state is, and the dataset's length.
func (l *Loader) from(s State) (o order.Order, sampler Sampler, base, n int, err error) {
	switch {
	case l.streams():
		err = optionError("Places", nil, "must not be a stream, which has no sample by index")
	case s.Epoch < 0:
		err = optionError("State.Epoch", s.Epoch, "must be at least 0")
	default:
		_, err = l.checkOrder(s)
	}
	if err != nil {
		return
	}
	known := l.ordering.Load()
	o, sampler, n = known.order, known.sampler, known.n
	switch base = s.Samples; {
	case base < 0 || base > o.N:
		err = optionError("State.Samples", base, "must be 0 … %d, the samples of an epoch", o.N)
	case o.Batches > 0:
		base, err = o.BatchAt(s.Epoch, base)
	}
	return o, sampler, base, n, orderError(err)
}

// A PlacedBatch is a batch of samples from any places, in memory of the program. Several [Hand]s may load
// different samples of it at once.
type PlacedBatch struct {
	places []Place
	errs   []error
	sizes  []int
	geo    layout.Geometry
	l      *Loader
}

// NewPlacedBatch makes a batch of at most WithBatchSize samples, which can be used again and again.
func (l *Loader) NewPlacedBatch() *PlacedBatch {
	n := l.opts.batchSize
	b := &PlacedBatch{l: l, errs: make([]error, n), sizes: make([]int, l.layout.Ragged)}
	b.geo = layout.NewGeometry(l.layout.Layout, n, l.offsets, l.slotBytes, true)
	return b
}

// Cap returns how many samples the batch may have.
func (b *PlacedBatch) Cap() int { return len(b.errs) }

// Set sets which samples the batch has, and returns how many bytes they take. For a [SizedDataset], every
// sample takes as much memory as the longest. b keeps the slice places.
func (b *PlacedBatch) Set(places []Place) (size int, err error) {
	l := b.l
	if len(places) > len(b.errs) {
		return 0, optionError("PlacedBatch", len(places), "must be at most %d places, WithBatchSize", len(b.errs))
	}
	n, err := lengthNow(l.ds)
	if err != nil {
		return 0, err
	}
	b.places = places
	clear(b.errs)
	for i, p := range places {
		l.layout.Longest(b.sizes)
		switch {
		case uint(p.Index) >= uint(n):
			b.fail(i, nil, fmt.Errorf("the index is out of range 0 … %d", n-1))
		case l.ownShapes():
			usercall.Call(func() error { return l.askSize(p.Index, b.sizes) }, func(stack []byte, err error) { b.fail(i, stack, err) })
		}
		if b.errs[i] != nil {
			clear(b.sizes)
		}
		b.geo.Tell(i, b.sizes)
	}
	b.geo.Arrange(len(places))
	b.geo.Resize(len(places))
	return b.geo.Used, nil
}

// In sets the memory of the batch: at least as many bytes as Set returned, aligned to 8.
func (b *PlacedBatch) In(mem []byte) { b.geo.Bytes = mem[:b.geo.Used] }

func (b *PlacedBatch) fail(i int, stack []byte, err error) {
	p := b.places[i]
	b.errs[i] = &LoadError{Index: p.Index, Position: p.Position, Epoch: p.Epoch, Err: err, Stack: stack}
}

// Err returns why a sample could not be loaded, as a *[LoadError], or nil if it was loaded.
func (b *PlacedBatch) Err(place int) error { return b.errs[place] }

// Field returns where a field lies in the batch's memory, and its shape, whose first dimension is the
// number of samples.
func (b *PlacedBatch) Field(field int) (from, to int, shape []int) {
	from = b.geo.Offsets[field]
	return from, from + len(b.places)*b.geo.Columns[field].Size, b.geo.Shapes[field]
}

// LensOf returns the length of each sample in a ragged dimension of a field.
func (b *PlacedBatch) LensOf(field, dim int) []int32 {
	return b.geo.LensOf(b.geo.Columns[field].Ragged + dim)[:len(b.places)]
}

// A Hand loads samples of placed batches, as a loader's worker does: with its own values of [Scratch],
// and with WithRetry. It ignores WithTimeout. Only one goroutine may use it at a time.
type Hand struct {
	l       *Loader
	s       Sample
	samples []*Sample
	indices []int
	ready   bool
}

// NewHand makes a hand. number is what [Sample.Worker] returns.
func (l *Loader) NewHand(number int) *Hand {
	h := &Hand{l: l, ready: l.opts.init == nil}
	h.s.common = &common{worker: number, locals: &locals{}, log: l.opts.log}
	return h
}

// Close closes the values that Scratch has kept for the hand.
func (h *Hand) Close() { h.s.locals.close(h.l.opts.log) }

// Load loads the samples from … to−1 of a batch. [PlacedBatch.Err] returns the error of each sample. Load
// itself returns only an error of WithWorkerInit or of ctx.
func (h *Hand) Load(ctx context.Context, b *PlacedBatch, from, to int) (err error) {
	if !h.ready {
		usercall.Call(func() error { return h.l.opts.init(ctx, h.s.worker) }, func(stack []byte, cause error) {
			err = &LoadError{Index: -1, Position: -1, Worker: h.s.worker, Err: fmt.Errorf("WithWorkerInit: %w", cause), Stack: stack}
		})
		if err != nil {
			return err
		}
		h.ready = true
	}
	h.s.mem, h.s.locals.ctx = b.geo.Memory, ctx
	for from < to && ctx.Err() == nil {
		end := from + 1
		for h.l.load.together != nil && end < to && follows(b.places[end-1], b.places[end]) {
			end++
		}
		if end-from == 1 || !h.together(ctx, b, from, end) {
			for i := from; i < end; i++ {
				h.alone(ctx, b, i)
			}
		}
		from = end
	}
	return ctx.Err()
}

// follows reports whether the samples may be loaded in one call of LoadBatch.
func follows(p, q Place) bool {
	return q.Position == p.Position+1 && q.Epoch == p.Epoch && q.Key == p.Key
}

// turnTo prepares the hand's sample for a place of a batch.
func (h *Hand) turnTo(b *PlacedBatch, i int) {
	p := b.places[i]
	h.s.epoch, h.s.seedKey, h.s.from = p.Epoch, p.Key, p.Position-i
	h.s.begin(i, p.Index)
}

func (h *Hand) alone(ctx context.Context, b *PlacedBatch, i int) {
	if b.errs[i] != nil {
		return
	}
	load := func() error {
		h.turnTo(b, i)
		if err := h.l.load.sample(ctx, h.s.index, &h.s); err != nil {
			return err
		}
		return h.s.end()
	}
	retry := func() error {
		err := load()
		if err != nil {
			err = h.l.opts.retry.Do(ctx, err, load)
		}
		return err
	}
	usercall.Call(retry, func(stack []byte, err error) {
		if stack != nil {
			h.Close() // a call that panicked may have left it half done
		}
		b.errs[i] = h.s.failure(err, stack)
	})
}

// together loads samples by LoadBatch. It returns false if that fails; then each sample is loaded alone.
func (h *Hand) together(ctx context.Context, b *PlacedBatch, from, to int) bool {
	h.turnTo(b, from)
	n := to - from
	if len(h.samples) < n {
		h.samples = newSamples(h.s.common, n)
	}
	h.indices = h.indices[:0]
	for i, s := range h.samples[:n] {
		if b.errs[from+i] != nil {
			return false
		}
		s.begin(from+i, b.places[from+i].Index)
		h.indices = append(h.indices, s.index)
	}
	load := func() error {
		if err := h.l.load.together(ctx, h.indices, h.samples[:n]); err != nil {
			return err
		}
		for i := range n {
			h.s.place = from + i
			if err := h.s.end(); err != nil {
				return err
			}
		}
		return nil
	}
	return usercall.Call(load, func(stack []byte, err error) {
		if stack != nil {
			h.Close()
		}
		if ctx.Err() == nil {
			h.l.failedTogether(err)
		}
	})
}
