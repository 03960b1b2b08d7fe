package nwt

import (
	"fmt"
	"sync"
)

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
