package serve

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

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

// as runs f on a thread of another user.
func as(user int, f func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // and the thread ends with this goroutine
		defer close(done)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user)); errno == 0 {
			f()
		}
	}()
	<-done
}

func TestAnotherUserIsLetInByTheTokenAlone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	for _, token := range []string{"", "secret"} {
		opts := []ServerOption{}
		if token != "" {
			opts = append(opts, WithToken(token))
		}
		s := served(t, opts...)
		ctx, cancel := context.WithCancel(context.Background())
		name := "@nwt-test-" + rand.Text()
		wait, err := s.share(ctx, name)
		require.NoError(t, err)
		as(65534, func() {
			got := call(t, name).begin(t, token)
			if token != "" {
				require.EqualValues(t, kindAbout, got.kind)
				got = call(t, name).begin(t, "")
				require.Contains(t, string(got.body), "the token is missing or wrong")
				return
			}
			require.EqualValues(t, kindError, got.kind)
			require.Contains(t, string(got.body), "only its own user and root")
		})
		cancel()
		wait()
	}
}

func TestClientsAreAcceptedAgainOnceThereAreFiles(t *testing.T) {
	_, path := shares(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(fd), Max: was.Max}))
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	time.Sleep(50 * time.Millisecond) // the server can't accept it
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, err)
	file := os.NewFile(uintptr(fd), path)
	conn, err := net.FileConn(file)
	require.NoError(t, errors.Join(err, file.Close()))
	defer conn.Close()
	c := &caller{conn.(*net.UnixConn), bufio.NewReader(conn)}
	require.EqualValues(t, kindAbout, c.begin(t, "").kind)
}

func TestClientsOfThisHostHoldAsManyBatchesAsThereAreSlotsAndOneThatTheyWaitFor(t *testing.T) {
	s, path := shares(t, WithSlots(4))
	var clients []*caller
	for range 6 {
		c := call(t, path)
		require.EqualValues(t, kindAbout, c.begin(t, "").kind)
		for n := range uint32(4) {
			c.say(t, kindAsk, n+1, `{"batch": 0}`)
		}
		clients = append(clients, c)
	}
	require.Eventually(t, func() bool { return s.Stats().Held == 4 }, time.Minute, time.Millisecond)
	for _, c := range clients { // each can go on
		for {
			c.say(t, kindWaiting, 1, "")
			if got := c.hear(t); got.kind == kindBatch && got.number == 1 {
				break
			}
		}
	}
	require.LessOrEqual(t, s.Stats().Held, 4+6)
	for _, c := range clients {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool {
		return s.Stats() == Stats{Batches: s.batches.Load(), Samples: s.samples.Load(), Bytes: s.bytes.Load()}
	}, time.Minute, time.Millisecond)
}

func TestABatchThatIsReleasedGivesItsMemoryToTheNext(t *testing.T) {
	_, path := shares(t)
	c := call(t, path)
	require.EqualValues(t, kindAbout, c.begin(t, "").kind)
	for n := uint32(1); n < 1000; n++ {
		c.say(t, kindAsk, n, `{"batch": 0}`)
		got := c.hear(t)
		require.EqualValues(t, kindBatch, got.kind, "%s", got.body)
		require.Equal(t, "1", strings.Fields(string(got.body))[0])
		c.say(t, kindRelease, 1, "")
	}
	c.say(t, kindRelease, 1, "")
	require.Contains(t, string(c.hear(t).body), "there is no batch in file 1")
}

func TestAClientOfThisHostIsToldWhatItMayNotSay(t *testing.T) {
	_, path := shares(t)
	for want, say := range map[string]func(c *caller){
		"at most 65536":               func(c *caller) { _, _ = c.Write(frame{kindHello, 0, make([]byte, maxAsked+1)}.encode()) },
		"speaks version 3, this is 2": func(c *caller) { c.say(t, kindHello, 0, `{"version": 3}`) },
		"a message of kind 9, not 1":  func(c *caller) { c.say(t, kindWaiting, 0, "") },
		"64 are pending, at most 64": func(c *caller) {
			c.begin(t, "")
			for n := range uint32(200) {
				_, _ = c.Write(frame{kindAsk, n + 1, []byte(`{}`)}.encode())
			}
		},
		"rank 3 of 2: the world must be": func(c *caller) {
			c.say(t, kindHello, 0, `{"version": 2, "rank": 3, "world": 2}`)
			c.hear(t)
			c.say(t, kindProof, 0, `{}`)
		},
	} {
		c := call(t, path)
		say(c)
		for f := c.hear(t); ; f = c.hear(t) {
			if f.kind == kindError && f.number == 0 {
				require.Contains(t, string(f.body), want)
				break
			}
		}
	}
}

func TestTheMemoryOfAClientThatHasGoneIsFreed(t *testing.T) {
	for _, take := range []bool{true, false} {
		s, path := shares(t, WithSlots(1))
		s.held <- struct{}{} // another client keeps its batch
		c := call(t, path)
		require.EqualValues(t, kindAbout, c.begin(t, "").kind)
		for n := range uint32(4) {
			c.say(t, kindAsk, n+1, `{"batch": 0}`)
		}
		if take {
			c.say(t, kindWaiting, 1, "")
			for c.hear(t).kind != kindBatch {
			}
		}
		require.NoError(t, c.Close())
		require.Eventually(t, func() bool {
			maps, err := os.ReadFile("/proc/self/maps")
			require.NoError(t, err)
			return !strings.Contains(string(maps), "memfd:nwt")
		}, 10*time.Second, 10*time.Millisecond, "taken: %v", take)
	}
}
