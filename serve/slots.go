package serve

import (
	"context"
	"sync/atomic"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/layout"
)

// A slot is a batch that is being answered, with its memory.
type slot struct {
	*nwt.PlacedBatch
	mem    []byte
	places []nwt.Place
}

// slots bounds how many batches are loaded or on their way at a time. Those that are free keep
// their memory.
type slots struct {
	free chan *slot // as many as there may be; nil stands for one that isn't made yet
	make func() *slot
}

func newSlots(n int, make_ func() *slot) slots {
	s := slots{free: make(chan *slot, n), make: make_}
	for range n {
		s.free <- nil
	}
	return s
}

// take waits for a slot.
func (s slots) take(ctx context.Context) (*slot, error) {
	select {
	case one := <-s.free:
		if one == nil {
			one = s.make()
		}
		return one, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s slots) put(one *slot) { s.free <- one }

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

// counted is a pool of gRPC's that counts the pieces of a body which the connection still needs.
type counted struct {
	n    atomic.Int32
	sent func()
}

func (c *counted) Get(int) *[]byte { panic("nothing is taken from here") }

func (c *counted) Put(*[]byte) {
	if c.n.Add(-1) == 0 && c.sent != nil {
		c.sent()
	}
}
