package serve

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An end is a connection from a host.
type end struct {
	net.Conn
	host string
}

func (e *end) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(e.host), Port: 1} }

// next accepts the connection that a test has set.
type next struct {
	net.Listener
	conn *end
}

func (n *next) Accept() (net.Conn, error) { return n.conn, nil }

func TestConnectionsThatOnlyPingLockNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &next{}
		l := &listener{Listener: from}
		connect := func(host string) (client net.Conn, c *conn) {
			client, server := net.Pipe()
			from.conn = &end{server, host}
			accepted, err := l.Accept()
			require.NoError(t, err)
			return client, accepted.(*conn)
		}
		open := func(c net.Conn) bool {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := c.Read(make([]byte, 1))
			wrong, is := err.(net.Error)
			return is && wrong.Timeout()
		}
		right, c := connect("10.0.0.2")
		c.prove()
		var first net.Conn
		for n := range 3 * maxConns {
			client, _ := connect("10.0.0.1")
			if n == 0 {
				first = client
			}
		}
		require.Len(t, l.conns, maxConns/2+1, "one host has half")
		require.False(t, open(first))
		same, c := connect("10.0.0.1") // a right client on that host
		c.prove()
		for range maxConns/2 - 1 {
			connect("10.0.0.1")
		}
		for n := range 2 * maxConns {
			connect(fmt.Sprintf("10.1.%d.%d", n/200, n%200))
		}
		require.Len(t, l.conns, maxConns)
		require.True(t, open(right))
		require.True(t, open(same))
		require.NoError(t, c.Close())
		require.Len(t, l.conns, maxConns-1)
	})
}
