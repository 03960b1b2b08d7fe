package nwt

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Batch is the samples of one training step, in a slot of its loader. It is
// valid until the next iteration, or until Release after a Retain.
type Batch struct {
	l       *Loader
	mem     []byte    // the slot
	lens    []int32   // ragged × batch size, field by field
	indices []int     // of the places
	records []*Record // of the places, for a stream
	bad     faults
	hung    *hungMemory // mem, where calls that were given up may write to it

	// What follows is of the batch that the slot holds now. The run writes it
	// before it opens the slot to workers.
	run   *run
	epoch int
	index int
	from  int // position of place 0 in its epoch
	size  int // places; once bad samples are left out, the samples that remain
	state State
	seq   uint64 // in the ring
	end   bool   // the stream is over: there is nothing in the batch

	// Written by the stage before it announces the batch, where there is one.
	device               *deviceBuffer
	copyBegan, copyEnded time.Time // zero with WithAsyncTransfer
	err                  error     // that ends the epoch instead of this batch
	queued               time.Time // of the copy; the stage's alone

	// refs is held from the opening of the slot until the loop body has let go
	// of the batch, and once more while a copy that it doesn't wait for is under
	// way, plus one for each Retain. Whoever takes the last one off gives the
	// slot back.
	refs atomic.Int32
}

// held is one of the loader's own holds on a batch in refs.
const held = 1 << 28

// State is how far an epoch has come: all that is needed to go on from there
// with [Loader.Resume], with another worker count, batch size or world size.
type State struct {
	Epoch   int `json:"epoch"`
	Samples int `json:"samples"` // of the epoch, delivered over all ranks
}

// Len is the number of samples.
func (b *Batch) Len() int { return b.size }

// Index is the position of the batch in its epoch, 0-based.
func (b *Batch) Index() int { return b.index }

// Epoch is the epoch that the batch belongs to.
func (b *Batch) Epoch() int { return b.epoch }

// Indices is the dataset index of each sample.
func (b *Batch) Indices() []int { return b.indices[:b.size] }

// State is where to resume after this batch.
func (b *Batch) State() State { return b.state }

// Bytes is a field of all samples, Len × the sample's shape, row-major, in host
// memory. See [Values] for its elements.
func (b *Batch) Bytes(field int) []byte {
	mem, _ := b.memory(field)
	return mem
}

func (b *Batch) memory(field int) ([]byte, *column) {
	c := b.l.layout.column(field)
	from, n := b.l.offsets[field], c.size*b.size
	return b.mem[from : from+n : from+n], c
}

// Lens is the length of each sample of a ragged field. It panics where the
// field isn't ragged.
func (b *Batch) Lens(field int) []int32 {
	c := b.l.layout.column(field)
	if c.ragged < 0 {
		panic(fmt.Sprintf("nwt: Lens(%d): field %q is not ragged (Field.Ragged is false)", field, c.name))
	}
	return b.lensOf(c)[:b.size]
}

func (b *Batch) lensOf(c *column) []int32 {
	from := c.ragged * b.l.opts.batchSize
	return b.lens[from : from+b.l.opts.batchSize]
}

// Retain keeps the batch valid past the next iteration, and past the loader's
// Close, until Release. The loader takes another slot meanwhile; so many
// batches retained at once end the epoch with [ErrRetained].
func (b *Batch) Retain() { b.refs.Add(1) }

// Release takes back one Retain. It may be called from any goroutine. One
// without a Retain before it panics.
func (b *Batch) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		b.l.slots.put(b, true)
	case (n+1)%held == 0:
		b.refs.Add(1)
		panic(fmt.Sprintf("nwt: Release of batch %d of epoch %d without a Retain", b.index, b.epoch))
	}
}

// letGo takes back one of the loader's own holds.
func (b *Batch) letGo() {
	switch n := b.refs.Add(-held); {
	case n == 0:
		b.l.slots.put(b, false)
	case n < held: // retained
		b.l.slots.detach()
		if b.l.stage != nil {
			b.l.stage.detach()
		}
	}
}

// slots is the batches that no run has open.
type slots struct {
	mu     sync.Mutex
	free   []*Batch
	total  int // with memory, wherever they are
	loose  int // of these, retained past their iteration
	keep   int // how many others to keep
	closed bool
}

// maxRetained bounds the batches that are retained past their iteration.
const maxRetained = 64

// take finds or makes a slot.
func (s *slots) take(l *Loader) (*Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free) - 1; n >= 0 {
		b := s.free[n]
		s.free = s.free[:n]
		return b, nil
	}
	if s.loose >= maxRetained {
		return nil, fmt.Errorf("%w: %d are, the bound is %d: call Release on each", ErrRetained, s.loose, maxRetained)
	}
	mem, err := l.slotMem.alloc(l.slotBytes)
	if err != nil {
		return nil, fmt.Errorf("nwt: %d bytes of host memory for a batch: %w (a smaller WithBatchSize or WithPrefetch needs less)", l.slotBytes, err)
	}
	s.total++
	n := l.opts.batchSize
	b := &Batch{l: l, mem: mem, lens: make([]int32, n*l.layout.ragged), indices: make([]int, n)}
	if l.order.n == endless {
		b.records = make([]*Record, n)
		for i := range b.records {
			b.records[i] = &Record{}
		}
	}
	return b, nil
}

// put takes back a slot that nobody uses.
func (s *slots) put(b *Batch, loose bool) {
	if b.device != nil {
		b.l.stage.put(b.device, loose)
		b.device = nil
	}
	disowned := b.disown()
	s.mu.Lock()
	defer s.mu.Unlock()
	if loose {
		s.loose--
	}
	if disowned {
		s.total--
		return
	}
	if s.closed || s.total-s.loose > s.keep {
		s.drop(b)
		return
	}
	s.free = append(s.free, b)
}

// detach counts a batch that is retained past its iteration.
func (s *slots) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loose++
}

// drop gives a slot's memory back. The caller holds mu.
func (s *slots) drop(b *Batch) {
	if err := b.l.slotMem.free(b.mem); err != nil {
		b.l.opts.log.Warn("nwt: the memory of a batch could not be freed", "error", err)
	}
	b.mem = nil
	s.total--
}

// limit sets how many slots to keep beside retained ones.
func (s *slots) limit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = n
	for len(s.free) > 0 && s.total-s.loose > n {
		s.drop(s.free[len(s.free)-1])
		s.free = s.free[:len(s.free)-1]
	}
}

// close gives the memory back, of slots in use once they come back.
func (s *slots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, b := range s.free {
		s.drop(b)
	}
	s.free = nil
}
