package serve

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/status"
)

// turns are places in loading. A place goes to the connection that has the fewest, among those of the
// address that has the fewest. A connection gets another one only while more than twice as many are free as
// it has: clients that ask for much and take nothing lock no other out. The last are for other addresses.
type turns struct {
	mu      sync.Mutex
	most    int
	used    int
	by      map[any]int // by address, by connection
	waiting []*turn
}

type turn struct {
	address, conn any
	got           chan struct{}
}

// enter waits for a place, which leave gives back. The error is a status.
func (t *turns) enter(ctx context.Context, address, conn any) (leave func(), err error) {
	w := &turn{address, conn, make(chan struct{})}
	t.mu.Lock()
	if t.waiting = append(t.waiting, w); t.may(w) {
		t.give(len(t.waiting) - 1)
	}
	t.mu.Unlock()
	select {
	case <-w.got:
		return func() { t.leave(w) }, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	at := slices.Index(t.waiting, w)
	if at >= 0 {
		t.waiting = slices.Delete(t.waiting, at, at+1)
	}
	t.mu.Unlock()
	if at < 0 { // it was given meanwhile
		t.leave(w)
	}
	return nil, status.FromContextError(ctx.Err()).Err()
}

// may reports whether there is a place. The caller holds mu, as that of give.
func (t *turns) may(w *turn) bool {
	keep := 2 * t.by[w.conn]
	if t.by[w.address] > 0 {
		keep = max(keep, t.most/16)
	}
	if w.address == w.conn { // on this host, where a client has few requests
		keep = 0
	}
	return t.most-t.used > keep
}

func (t *turns) give(at int) {
	w := t.waiting[at]
	t.waiting = slices.Delete(t.waiting, at, at+1)
	t.used++
	t.by[w.address]++
	t.by[w.conn]++
	close(w.got)
}

func (t *turns) leave(w *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used--
	for _, who := range []any{w.address, w.conn} {
		if t.by[who]--; t.by[who] == 0 {
			delete(t.by, who)
		}
	}
	best, least := -1, [2]int{}
	for i, w := range t.waiting {
		if has := [2]int{t.by[w.address], t.by[w.conn]}; t.may(w) && (best < 0 || slices.Compare(has[:], least[:]) < 0) {
			best, least = i, has
		}
	}
	if best >= 0 {
		t.give(best)
	}
}
