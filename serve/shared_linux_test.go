package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A caller is a client of this host that says what a test wants.
type caller struct {
	*net.UnixConn
	r *bufio.Reader
}

func call(t testing.TB, path string) *caller {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // or the test has closed it
	return &caller{c, bufio.NewReader(c)}
}

func (c *caller) say(t testing.TB, kind, number uint32, body string) {
	_, err := c.Write(frame{kind, number, []byte(body)}.encode())
	require.NoError(t, err)
}

func (c *caller) hear(t testing.TB) frame {
	f, err := readFrame(c.r, maxAnswer)
	require.NoError(t, err)
	return f
}

// begin says hello, and returns the answer to the proof.
func (c *caller) begin(t testing.TB, token string) frame {
	c.say(t, kindHello, 0, `{"version": 2, "nonce": "1", "rank": 0, "world": 1}`)
	var challenge struct{ Nonce, Proof string }
	require.NoError(t, json.Unmarshal(c.hear(t).body, &challenge))
	if token != "" {
		require.Equal(t, proof(token, "server", "1"+challenge.Nonce), challenge.Proof)
	}
	c.say(t, kindProof, 0, `{"proof": "`+proof(token, "client", "1"+challenge.Nonce)+`"}`)
	return c.hear(t)
}

func shares(f testing.TB, opts ...ServerOption) (s *Server, path string) {
	s = served(f, opts...)
	ctx, cancel := context.WithCancel(context.Background())
	path = filepath.Join(f.TempDir(), "socket")
	wait, err := s.share(ctx, path)
	require.NoError(f, err)
	f.Cleanup(func() { cancel(); wait() })
	return s, path
}

// Whatever a client of this host says, the others are answered.
func FuzzMessages(f *testing.F) {
	_, path := shares(f)
	f.Add(uint32(kindAsk), uint32(1), []byte(`{"epoch": 3, "batch": 1, "world": 2}`))
	f.Add(uint32(kindAsk), uint32(0), []byte(`{"batch": 1000}`))
	f.Add(uint32(kindRelease), uint32(7), []byte(nil))
	f.Add(uint32(kindWaiting), uint32(7), []byte(nil))
	f.Add(uint32(kindHello), uint32(0), []byte(`{"version": 3}`))
	f.Fuzz(func(t *testing.T, kind, number uint32, body []byte) {
		said := frame{kind, number, body}.encode()
		c := call(t, path)
		_, _ = c.Write(said) // as the first message; the server may have gone
		c = call(t, path)
		require.EqualValues(t, kindAbout, c.begin(t, "").kind)
		_, _ = c.Write(said) // as a later one
		_, _ = c.Write(body) // and as it is
		c = call(t, path)
		require.EqualValues(t, kindAbout, c.begin(t, "").kind)
		c.say(t, kindAsk, 1, `{"batch": 4}`)
		c.say(t, kindWaiting, 1, "")
		got := c.hear(t)
		if got.kind == kindAlive {
			got = c.hear(t)
		}
		require.Regexp(t, `^1 0\n{"at":\[0,\d+\],"samples":8,"shapes":\[\[\],\[3\]\]}\n{"epoch":0,"samples":40,.*}\n\[\]$`, string(got.body))
	})
}

func TestSharedMemoryCannotBeMadeShorter(t *testing.T) {
	f, err := newFile(1, 10_000)
	require.NoError(t, err)
	file := os.NewFile(uintptr(f.fd), "memory")
	require.Error(t, file.Truncate(0))
	require.Error(t, file.Truncate(1<<20))
	require.NoError(t, file.Close())
	require.NoError(t, unix.Munmap(f.mem))
}
