package nwt

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// A slot is a reusable batch buffer: everything that a call of Load may touch.
// It belongs to one batch. A call that is given up keeps the whole slot, and the
// batch moves to another slot: nothing that the call does later can reach the batch.
type slot struct {
	mem     []byte    // the fields
	lens    []int32   // of ragged dimensions: ragged × batch size, dimension by dimension
	indices []int     // dataset index of each place
	records []*record // of each place, for a stream
	geometry

	// holders counts the batch, the calls in the slot that were given up and haven't
	// returned, and a copy of which nobody can know whether it is over. The last holder
	// frees mem.
	holders atomic.Int32
	free    func(mem []byte) error
}

// newSlot makes a slot in the given memory, held by the batch that it is for.
func (l *Loader) newSlot(mem slotMemory) (*slot, error) {
	s := &slot{free: mem.free, geometry: l.newGeometry(l.ownShapes())}
	var err error
	if s.mem, err = mem.alloc(l.slotBytes); err != nil {
		return nil, fmt.Errorf("nwt: %d bytes of host memory for a batch: %w (a smaller WithBatchSize or WithPrefetch needs less)", l.slotBytes, err)
	}
	n := l.opts.batchSize
	s.lens, s.indices = make([]int32, n*l.layout.ragged), make([]int, n)
	if l.order.n == endless {
		s.records = make([]*record, n)
		for i := range s.records {
			s.records[i] = &record{}
		}
	}
	s.holders.Store(1)
	return s, nil
}

// shared tells whether others than the batch may still use the slot.
func (s *slot) shared() bool { return s.holders.Load() > 1 }

// release ends one holder's use of the slot.
func (s *slot) release() error {
	if s.holders.Add(-1) > 0 {
		return nil
	}
	return s.free(s.mem)
}

// slots is the batches that no run has open.
type slots struct {
	mu     sync.Mutex
	free   []*Batch
	total  int // batches with memory, wherever they are
	loose  int // how many of total are retained past their iteration
	closed bool
	ended  sync.Once

	// keep says how many batches to keep, besides the loose ones. It is asked anew each
	// time: it follows from workers and depth, which change without a common lock.
	keep func() int
}

// maxRetained bounds the batches that are retained past their iteration.
const maxRetained = 64

// take finds or makes a batch with a slot.
func (s *slots) take(l *Loader) (*Batch, error) {
	b, err := s.pop()
	if b != nil || err != nil {
		return b, err
	}
	slot, err := l.newSlot(l.slotMem)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.total--
		return nil, err
	}
	return &Batch{l: l, slot: slot}, nil
}

// pop takes a free batch; if there is none, it counts one that the caller makes.
func (s *slots) pop() (*Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free) - 1; n >= 0 {
		b := s.free[n]
		s.free = s.free[:n]
		return b, nil
	}
	if s.loose > maxRetained {
		return nil, fmt.Errorf("%w: %d are, the bound is %d: call Release on each", ErrRetained, s.loose, maxRetained)
	}
	s.total++
	return nil, nil
}

// put takes back a batch that nobody uses.
func (s *slots) put(b *Batch, loose bool) {
	b.leaveRefuge()
	if d := b.device; d != nil {
		if d.lost() {
			b.holders.Add(1) // the copy
		}
		b.device = nil
		b.l.stage.buffers.put(d, loose)
	}
	if !s.kept(b, loose) {
		b.drop()
	}
}

// kept makes the batch free for another use. It reports false if the batch is surplus or
// others may still use its slot: then the caller drops the batch.
func (s *slots) kept(b *Batch, loose bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if loose {
		s.loose--
	}
	if b.shared() || s.closed || s.total-s.loose > s.keep() {
		s.total--
		return false
	}
	s.free = append(s.free, b)
	return true
}

// detach counts a batch that is retained past its iteration.
func (s *slots) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loose++
}

// trim drops surplus batches. It is called after keep has become less.
func (s *slots) trim() {
	s.mu.Lock()
	tooMany := max(0, s.total-s.loose-s.keep())
	kept := max(0, len(s.free)-tooMany)
	surplus := append([]*Batch(nil), s.free[kept:]...)
	s.free, s.total = s.free[:kept], s.total-len(surplus)
	s.mu.Unlock()
	for _, b := range surplus {
		b.drop()
	}
}

// close gives the memory back. The memory of batches in use is given back when they
// come back. A second call waits for the first.
func (s *slots) close() { s.ended.Do(s.giveBack) }

func (s *slots) giveBack() {
	s.mu.Lock()
	s.closed = true
	free := s.free
	s.free, s.total = nil, s.total-len(free)
	s.mu.Unlock()
	for _, b := range free {
		b.drop()
	}
}

// drop gives up the batch's slot. No lock is held: freeing page-locked memory
// waits for the driver.
func (b *Batch) drop() {
	b.giveUp(b.slot)
	b.slot = nil
}

// leaveRefuge gives up the batch's refuge, whatever is in it.
func (b *Batch) leaveRefuge() {
	if b.refuge != nil {
		b.giveUp(b.refuge)
		b.refuge = nil
	}
}

// giveUp ends the batch's use of a slot.
func (b *Batch) giveUp(s *slot) {
	if err := s.release(); err != nil {
		b.l.opts.log.Warn("nwt: the memory of a batch could not be freed", "error", err)
	}
}
