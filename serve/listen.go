package serve

import (
	"net"
	"slices"
	"sync"
	"time"
)

const (
	maxConns = 1024        // connections of a server
	idle     = time.Minute // how long a connection without a call lasts
)

// A listener bounds connections to maxConns, of which one host may have half. For one too many it closes the
// oldest without an authorised call, of the same host if that has half.
type listener struct {
	net.Listener
	mu    sync.Mutex
	conns []*conn // by age
}

// A conn can be found, and closed, by the address of its peer.
type conn struct {
	net.Conn
	of     *listener
	host   string
	queue  queue
	proven bool // by an authorised call
}

type peerAddr struct {
	net.Addr
	conn *conn
}

func (c *conn) RemoteAddr() net.Addr { return peerAddr{c.Conn.RemoteAddr(), c} }

func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: accepted, of: l, queue: newQueue()}
		c.host, _, _ = net.SplitHostPort(accepted.RemoteAddr().String())
		if l.admits(c) {
			return c, nil
		}
		_ = accepted.Close()
	}
}

func (l *listener) admits(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	same := 0
	for _, other := range l.conns {
		if other.host == c.host {
			same, c.queue.host = same+1, other.queue.host
		}
	}
	if same >= maxConns/2 || len(l.conns) >= maxConns {
		oldest := slices.IndexFunc(l.conns, func(other *conn) bool { return !other.proven && (other.host == c.host || same < maxConns/2) })
		if oldest < 0 {
			return false
		}
		_ = l.conns[oldest].Conn.Close()
		l.conns = slices.Delete(l.conns, oldest, oldest+1)
	}
	l.conns = append(l.conns, c)
	return true
}

// prove records an authorised call.
func (c *conn) prove() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.proven = true
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if i := slices.Index(c.of.conns, c); i >= 0 {
		c.of.conns = slices.Delete(c.of.conns, i, i+1)
	}
	return c.Conn.Close()
}
