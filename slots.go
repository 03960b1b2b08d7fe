package nwt

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/osmemory"
)

// A slot is a reusable batch buffer: everything that a call of Load may touch. It belongs to one batch. A
// call that is given up keeps the whole slot, and the batch moves to another slot: nothing that the call
// still does can reach the batch.
type slot struct {
	places  layout.Geometry
	indices []int     // dataset index of each place
	records []*record // of each place, for a stream: blank until its reader sets it

	// holders counts the batch, the calls in the slot that were given up and haven't returned, and a copy
	// if nobody can know whether it has ended. The last holder frees mem.
	holders atomic.Int32
	free    func(mem []byte) error
	was     string // with checks: names the batch that the slot belonged to
}

// newSlot makes a slot in the given memory. The batch that it is made for holds it.
func (l *engine) newSlot(mem slotMemory) (*slot, error) {
	n := l.places
	s := &slot{free: mem.free, indices: make([]int, n), places: layout.NewGeometry(l.layout.Layout, n, l.offsets, l.slotBytes, l.ownShapes())}
	var err error
	if s.places.Bytes, err = mem.alloc(l.slotBytes); err != nil {
		return nil, fmt.Errorf("nwt: %d bytes of host memory for a batch: %w (a smaller WithBatchSize or WithPrefetch needs less)", l.slotBytes, err)
	}
	if l.streams() {
		s.records = make([]*record, n)
		for i := range s.records {
			s.records[i] = &record{}
		}
	}
	s.holders.Store(1)
	return s, nil
}

// shared reports whether others than the batch may still use the slot.
func (s *slot) shared() bool { return s.holders.Load() > 1 }

// release ends one holder's use of the slot.
func (s *slot) release() error {
	if s.holders.Add(-1) > 0 {
		return nil
	}
	if s.was != "" {
		return s.seal()
	}
	return s.free(s.places.Bytes)
}

// slots holds the batches that no run has open, and counts all batches.
type slots struct {
	mu     sync.Mutex
	free   []*Batch
	total  int // all batches that have memory
	loose  int // how many of total are retained past their iteration
	closed bool
}

// maxRetained bounds how many batches are retained past their iteration.
const maxRetained = 64

// take finds or makes a batch with a slot. If memory is given, it makes one there.
func (s *slots) take(l *engine, memory slotMemory) (*Batch, error) {
	given := memory.alloc != nil
	if b, err := s.pop(given); b != nil || err != nil {
		return b, err
	}
	if !given {
		memory = l.slotMem
	}
	slot, err := l.newSlot(memory)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.total--
		return nil, err
	}
	return &Batch{l: l, slot: slot}, nil
}

// pop takes a free batch. If there is none, or if a new one is wanted, it counts a batch that the caller
// must make.
func (s *slots) pop(wantsNew bool) (*Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := len(s.free) - 1; {
	case wantsNew:
	case n >= 0:
		b := s.free[n]
		s.free = s.free[:n]
		return b, nil
	case s.loose > maxRetained:
		return nil, fmt.Errorf("%w: %d are, the bound is %d: call Release on each", ErrRetained, s.loose, maxRetained)
	}
	s.total++
	return nil, nil
}

// put takes back a batch that is no longer used.
func (s *slots) put(b *Batch, loose bool) {
	b.leaveSpare()
	if d := b.device; d != nil {
		b.device = nil
		b.l.stage.Return(d, loose)
	}
	if !s.keep(b, loose) {
		b.drop()
	}
}

// keep makes the batch available for another use. It returns false if the batch is surplus or if others
// may still use its slot; then the caller drops the batch.
func (s *slots) keep(b *Batch, loose bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if loose {
		s.loose--
	}
	if b.shared() || s.closed || b.request != nil && b.request.memory.alloc != nil || b.l.opts.checks || s.total-s.loose > b.l.depth() {
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

// trim drops surplus batches. It is called after the loader's depth has become smaller, which happens
// without s.mu: batches that came back just before were still kept.
func (s *slots) trim(l *engine) {
	s.mu.Lock()
	tooMany := max(0, s.total-s.loose-l.depth())
	kept := max(0, len(s.free)-tooMany)
	surplus := slices.Clone(s.free[kept:])
	s.free, s.total = s.free[:kept], s.total-len(surplus)
	s.mu.Unlock()
	for _, b := range surplus {
		b.drop()
	}
}

// close frees the memory. The memory of batches in use is freed when they come back.
func (s *slots) close() {
	s.mu.Lock()
	s.closed = true
	free := s.free
	s.free, s.total = nil, s.total-len(free)
	s.mu.Unlock()
	for _, b := range free {
		b.drop()
	}
}

// drop gives up the batch's slot. slots.mu isn't held: freeing page-locked memory waits for the
// driver.
func (b *Batch) drop() {
	b.giveUp(b.slot)
	b.slot = gone
}

// leaveSpare gives up the batch's spare and its content.
func (b *Batch) leaveSpare() {
	if b.spare != nil {
		b.giveUp(b.spare)
		b.spare = nil
	}
}

// giveUp ends the batch's use of a slot.
func (b *Batch) giveUp(s *slot) {
	if b.l.opts.checks {
		s.was = fmt.Sprintf("batch %d of epoch %d", b.number, b.epoch)
		b.l.opts.log.Debug("nwt: "+s.was+" has gone back", "memory", fmt.Sprintf("%p", s.places.Bytes), "bytes", len(s.places.Bytes))
	}
	b.l.release(s)
}

// release ends one holder's use of a slot. If that can't free the memory, it logs a warning.
func (l *engine) release(s *slot) {
	if err := s.release(); err != nil {
		l.opts.log.Warn("nwt: the memory of a batch could not be freed", "error", err)
	}
}

// copyPlaces copies places from … end−1 of src, a slot of the same geometry that may be s itself, to the
// places of s that begin at to.
func (s *slot) copyPlaces(to int, src *slot, from, end int) {
	s.places.CopyPlaces(to, &src.places.Memory, from, end)
	copy(s.indices[to:], src.indices[from:end])
}

// gone is the slot of batches whose memory the loader has freed.
var gone = new(slot)

// seal makes the contents of the slot useless, and its memory unreadable.
func (s *slot) seal() error {
	for i := range s.indices {
		s.indices[i] = -1
	}
	for i := range s.places.Lens {
		s.places.Lens[i] = layout.Unset
	}
	return osmemory.Seal(s.places.Bytes, s.was)
}
