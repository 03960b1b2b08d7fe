package serve

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Whatever a client of this host sends, the others are answered.
func FuzzPackets(f *testing.F) {
	s := served(f)
	ctx, cancel := context.WithCancel(context.Background())
	path := filepath.Join(f.TempDir(), "socket")
	wait, err := s.share(ctx, path)
	require.NoError(f, err)
	f.Cleanup(func() { cancel(); wait() })
	dial := func(t *testing.T) *net.UnixConn {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() }) // or the test has closed it
		return c
	}
	ask := func(t *testing.T, c *net.UnixConn, packet string) []byte {
		_, err := c.Write([]byte(packet))
		require.NoError(t, err)
		b := make([]byte, maxPacket)
		n, err := c.Read(b)
		require.NoError(t, err)
		return b[:n]
	}
	f.Add([]byte(`{"slot": 63, "ticket": {"epoch": 3, "batch": 1, "world": 2}}`))
	f.Add([]byte(`{"slot": 64, "ticket": {"batch": 1000}}`))
	f.Add([]byte(`{"slot": -1}`))
	f.Fuzz(func(t *testing.T, packet []byte) {
		c := dial(t)
		for range 2 { // as the first packet, and as a later one
			if len(packet) > 0 && len(packet) < maxPacket {
				_, _ = c.Write(packet) // the server may have gone
			}
			c = dial(t)
			var about description
			require.NoError(t, json.Unmarshal(ask(t, c, `{"ticket": {}}`), &about))
			require.Equal(t, s.data, about.Data)
		}
		require.Regexp(t, `^1 0 {"at":\[0,\d+\],"samples":8,"shapes":\[\[\],\[3\]\]} {"epoch":0,"samples":40,.*}$`, string(ask(t, c, `{"slot": 1, "ticket": {"batch": 4}}`)))
	})
}

func TestSharedMemoryCannotBeMadeShorter(t *testing.T) {
	l := served(t).base
	var one sharedSlot
	require.NoError(t, one.make(l, 10_000))
	file := os.NewFile(uintptr(one.file), "memory")
	require.Error(t, file.Truncate(0))
	require.Error(t, file.Truncate(1<<20))
	require.NoError(t, file.Close())
	require.NoError(t, unix.Munmap(one.mem))
}
