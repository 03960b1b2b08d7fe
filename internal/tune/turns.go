package tune

import "sync"

// turns let a loop run in a goroutine of its own, but only while another goroutine waits for it. They do what
// iter.Pull does, and more: goroutines that are locked to different threads may give the turn, and the loop may be
// stopped while it has it.
type turns struct {
	begin sync.Once     // the goroutine begins with the first turn, unless it is stopped before
	end   sync.Once     // it is stopped once
	to    chan bool     // gives the turn, and says whether a batch was delivered
	back  chan struct{} // gives it back
	quit  chan struct{} // closed by stop
	ended chan struct{} // closed when the loop has ended
	taken bool          // the loop has had a turn; only the loop uses it
}

func newTurns() *turns {
	return &turns{to: make(chan bool), back: make(chan struct{}), quit: make(chan struct{}), ended: make(chan struct{})}
}

// give gives the loop a turn, and waits until it is given back or the loop has ended. Only one goroutine at a
// time may call it.
func (t *turns) give(delivered bool, loop func()) {
	t.begin.Do(func() {
		go func() {
			defer close(t.ended)
			loop()
		}()
	})
	select {
	case t.to <- delivered:
	case <-t.ended:
		return
	}
	select {
	case <-t.back:
	case <-t.ended:
	}
}

// take gives the turn back, and waits for the next one. It returns false once the loop is to end.
func (t *turns) take() (delivered, ok bool) {
	if t.taken {
		select {
		case t.back <- struct{}{}:
		case <-t.quit:
			return false, false
		}
	}
	t.taken = true
	select {
	case delivered = <-t.to:
		return delivered, true
	case <-t.quit:
		return false, false
	}
}

// stop ends the loop and waits for it.
func (t *turns) stop() {
	t.begin.Do(func() { close(t.ended) })
	t.end.Do(func() { close(t.quit) })
	<-t.ended
}

// over reports whether the loop has ended.
func (t *turns) over() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}
