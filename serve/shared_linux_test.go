package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nwt-go/nwt"
)

// A guest is a client on this host that says what a test wants.
type guest struct {
	net.Conn
	r *bufio.Reader
}

func call(t testing.TB, path string) *guest {
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // or the test has closed it
	return &guest{c, bufio.NewReader(c)}
}

func (c *guest) say(t testing.TB, kind, number uint32, body string) {
	_, err := c.Write(frame{kind, number, []byte(body)}.encode())
	require.NoError(t, err)
}

func (c *guest) hear(t testing.TB) frame {
	f, err := readFrame(c.r, maxAnswer)
	require.NoError(t, err)
	return f
}

const hello = `{"version": 3, "rank": 0, "world": 1}`

// begin says hello, and returns the client.
func (c *guest) begin(t testing.TB) *guest {
	c.say(t, kindHello, 1000, hello)
	require.EqualValues(t, kindAbout, c.hear(t).kind)
	return c
}

func shares(f testing.TB, opts ...ServerOption) (s *Server, path string) {
	s = served(f, opts...)
	return s, share(f, s)
}

// share has a server answer clients of this host at a path.
func share(t testing.TB, s *Server) (path string) {
	ctx, cancel := context.WithCancel(context.Background())
	path = filepath.Join(t.TempDir(), "socket")
	ended := make(chan error, 1)
	go func() { ended <- s.serveShared(ctx, path) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	require.Eventually(t, func() bool {
		c, err := net.Dial("unix", path)
		return err == nil && c.Close() == nil
	}, time.Minute, time.Millisecond)
	return path
}

// Whatever a client of this host says, the others are answered.
func FuzzMessages(f *testing.F) {
	_, path := shares(f)
	f.Add(uint32(kindAsk), uint32(1), []byte(`{"epoch": 3, "batch": 1, "world": 2}`))
	f.Add(uint32(kindAsk), uint32(0), []byte(`{"batch": 1000}`))
	f.Add(uint32(kindRelease), uint32(7), []byte(nil))
	f.Add(uint32(kindWaiting), uint32(7), []byte(nil))
	f.Add(uint32(kindDrop), uint32(0), []byte("[1, 7]"))
	f.Add(uint32(kindMore), uint32(7), []byte("files"))
	f.Add(uint32(kindHello), uint32(1), []byte(`{"version": 4}`))
	f.Fuzz(func(t *testing.T, kind, number uint32, body []byte) {
		said := frame{kind, number, body}.encode()
		c := call(t, path)
		_, _ = c.Write(said) // as the first message; the server may have gone
		c = call(t, path).begin(t)
		_, _ = c.Write(said) // as a later one
		_, _ = c.Write(body) // and as it is
		c = call(t, path).begin(t)
		c.say(t, kindAsk, 1, `{"batch": 4}`)
		require.Regexp(t, `^1 0 \d+\n{"at":\[0,\d+\],"samples":8,"shapes":\[\[\],\[3\]\]}\n{"epoch":0,"samples":40,.*}\n\[\]$`, string(c.hear(t).body))
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

// As runs f on a thread of another user.
func As(user int, f func()) {
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

// However many of them there are, and even if the socket's mode lets them in.
func TestConnectionsOfAnotherUserAreRefusedAndDoNotCount(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	_, path := shares(t)
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	for _, user := range []int{1001, 65534} {
		var err error
		As(user, func() { _, err = net.Dial("unix", path) })
		require.ErrorIs(t, err, os.ErrPermission)
		require.NoError(t, os.Chmod(path, 0o666))
		refused, let := 0, 0
		As(user, func() {
			for range 3000 {
				c, err := net.Dial("unix", path)
				if err != nil {
					continue
				}
				_, _ = c.Write(frame{kindHello, 1, []byte(hello)}.encode())
				if _, err := c.Read(make([]byte, 1)); err != nil {
					refused++
				} else {
					let++
				}
				_ = c.Close()
			}
		})
		require.Equal(t, []int{3000, 0}, []int{refused, let})
		call(t, path).begin(t)
		require.NoError(t, os.Chmod(path, 0o600))
	}
}

// In a user namespace, the overflow user stands for all others.
func TestTheOverflowUserIsNobody(t *testing.T) {
	require.True(t, isOurs(0, 1001))
	require.True(t, isOurs(1001, 1001))
	require.False(t, isOurs(1002, 1001))
	require.False(t, isOurs(65534, 65534))
}

func TestOneServerAtATimeHasASocket(t *testing.T) {
	dir := t.TempDir()
	for round := range 80 {
		path := filepath.Join(dir, fmt.Sprint(round))
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		require.NoError(t, err)
		dead.SetUnlinkOnClose(false)
		require.NoError(t, dead.Close())
		var mu sync.Mutex
		var got []net.Listener
		var starting sync.WaitGroup
		for range 3 {
			starting.Go(func() {
				if l, err := listenShared(path); err == nil {
					mu.Lock()
					got = append(got, l)
					mu.Unlock()
				}
			})
		}
		starting.Wait()
		require.Len(t, got, 1)
		about, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), about.Mode().Perm())
		require.NoError(t, got[0].Close())
	}
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err := listenShared(path)
	require.Error(t, err, "it is a file")
	path = filepath.Join(dir, "cleaned")
	before, err := listenShared(path)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path+".lock"))
	after, err := listenShared(path)
	require.NoError(t, err)
	require.NoError(t, before.Close())
	c, err := net.Dial("unix", path)
	require.NoError(t, err, "the first server's end isn't the second's")
	require.NoError(t, errors.Join(c.Close(), after.Close()))
}

func TestClientsAreAcceptedAgainOnceThereAreFiles(t *testing.T) {
	_, path := shares(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	time.Sleep(50 * time.Millisecond) // the server can't accept it
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, err)
	file := os.NewFile(uintptr(fd), path)
	conn, err := net.FileConn(file)
	require.NoError(t, errors.Join(err, file.Close()))
	defer conn.Close()
	(&guest{conn, bufio.NewReader(conn)}).begin(t)
}

// A client that keeps all holds the slots, and no more; another gets the bytes of those that it waits for.
func TestClientsOfThisHostHoldAsManyBatchesAsThereAreSlots(t *testing.T) {
	s, path := shares(t, WithSlots(4))
	var clients []*guest
	for range 6 {
		c := call(t, path).begin(t)
		for n := range uint32(40) {
			c.say(t, kindAsk, n+1, `{"batch": 0}`)
		}
		clients = append(clients, c)
	}
	require.Eventually(t, func() bool { return len(s.held) == 4 }, time.Minute, time.Millisecond)
	for _, c := range clients { // each can go on, and none holds more
		for n := range uint32(40) {
			c.say(t, kindWaiting, n+1, "")
		}
		for range 40 {
			got := c.hear(t)
			require.EqualValues(t, kindBatch, got.kind, "%s", got.body)
			var file, left, size int
			_, err := fmt.Sscan(string(got.body), &file, &left, &size)
			require.NoError(t, err)
			if file == 0 {
				_, err = c.r.Discard(size)
				require.NoError(t, err)
			}
		}
		require.LessOrEqual(t, len(s.held), 4)
	}
	for _, c := range clients {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool { return len(s.held) == 0 && s.Loading() == 0 }, time.Minute, time.Millisecond)
}

func TestAClientThatWaitsForAllIsSentOneAtATime(t *testing.T) {
	var samples atomic.Int32
	ds := nwt.NewDataset(4, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{1 << 20}}}, func(context.Context, int, *nwt.Sample) error { samples.Add(1); return nil })
	s, err := New(t.Context(), ds, WithSlots(1), WithLoader(nwt.WithBatchSize(4)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.source.Close()) })
	s.held <- struct{}{} // others hold all
	c := call(t, share(t, s)).begin(t)
	for n := range uint32(40) {
		c.say(t, kindAsk, n+1, `{"batch": 0}`)
		c.say(t, kindWaiting, n+1, "")
	}
	require.Eventually(t, func() bool { return samples.Load() == 4 }, time.Minute, time.Millisecond)
	time.Sleep(100 * time.Millisecond) // the time for more of them
	require.EqualValues(t, 4, samples.Load())
	for range 40 {
		require.EqualValues(t, kindBatch, c.hear(t).kind)
		_, err = c.r.Discard(4 << 20)
		require.NoError(t, err)
	}
}

// Its answers are none any more, and its memory is the next iteration's.
func TestWhatIsDroppedIsNotAnswered(t *testing.T) {
	s, path := shares(t, WithSlots(2))
	s.held <- struct{}{}
	s.held <- struct{}{} // others hold all
	c := call(t, path).begin(t)
	for n := range uint32(60) {
		c.say(t, kindAsk, n+1, `{"batch": 0}`)
	}
	numbers := make([]int, 60)
	for n := range numbers {
		numbers[n] = n + 1
	}
	c.say(t, kindDrop, 0, string(jsonOf(numbers)))
	for n := uint32(61); n < 120; n++ { // 64 may be pending
		c.say(t, kindAsk, n, `{"batch": 1}`)
	}
	c.say(t, kindMore, 120, "")
	require.EqualValues(t, 120, c.hear(t).number, "all is heard")
	<-s.held
	<-s.held
	for range 2 {
		require.Greater(t, c.hear(t).number, uint32(60))
	}
}

func TestABatchThatIsReleasedGivesItsMemoryToTheNext(t *testing.T) {
	_, path := shares(t)
	c := call(t, path).begin(t)
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
	for want, say := range map[string]func(c *guest){
		"at most 65536":                     func(c *guest) { _, _ = c.Write(frame{kindHello, 1, make([]byte, maxAsked+1)}.encode()) },
		"the client speaks version 4, the ": func(c *guest) { c.say(t, kindHello, 1, `{"version": 4}`) },
		"version 3: update nwt where":       func(c *guest) { c.say(t, kindHello, 1, `{"version": 2}`) },
		"a message of kind 9, not 1":        func(c *guest) { c.say(t, kindWaiting, 0, "") },
		"there is no text":                  func(c *guest) { c.begin(t).say(t, kindMore, 1, "files") },
		"64 are pending, at most 64": func(c *guest) {
			c.begin(t)
			for n := range uint32(200) {
				_, _ = c.Write(frame{kindAsk, n + 1, []byte(`{}`)}.encode())
			}
		},
		"rank 3 of 2: the world must be": func(c *guest) { c.say(t, kindHello, 1, `{"version": 3, "rank": 3, "world": 2}`) },
	} {
		c := call(t, path)
		say(c)
		f := c.hear(t)
		for f.kind != kindError {
			f = c.hear(t)
		}
		require.Contains(t, string(f.body), want)
	}
}

func TestTheMemoryOfAClientThatHasGoneIsFreed(t *testing.T) {
	for _, take := range []bool{true, false} {
		s, path := shares(t, WithSlots(1))
		c := call(t, path).begin(t)
		for n := range uint32(4) {
			c.say(t, kindAsk, n+1, `{"batch": 0}`)
		}
		if take {
			require.EqualValues(t, kindBatch, c.hear(t).kind)
		}
		require.NoError(t, c.Close())
		require.Eventually(t, func() bool {
			maps, err := os.ReadFile("/proc/self/maps")
			require.NoError(t, err)
			return !strings.Contains(string(maps), "memfd:nwt") && len(s.held) == 0
		}, 10*time.Second, 10*time.Millisecond, "taken: %v", take)
	}
}

// Through pipes there is no shared memory: the bytes come, with the lengths behind them.
func TestAProgramsOwnServerNeedsNoSocket(t *testing.T) {
	there, to := io.Pipe()
	from, back := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- Own(t.Context(), struct {
			io.Reader
			io.WriteCloser
		}{there, back}, func(_ context.Context, document []byte) (*Server, error) {
			require.Equal(t, `{"version": 3, "world": 1, "data": {}}`, string(document))
			return served(t, WithMore("files", func() []byte { return []byte("a\x00") })), nil
		})
	}()
	say := func(kind, number uint32, body string) frame {
		_, err := to.Write(frame{kind, number, []byte(body)}.encode())
		require.NoError(t, err)
		f, err := readFrame(from, maxAnswer)
		require.NoError(t, err)
		return f
	}
	require.Contains(t, string(say(kindHello, 1, `{"version": 3, "world": 1, "data": {}}`).body), `"samples":40`)
	require.Equal(t, frame{kindMore, 2, []byte("a\x00")}, say(kindMore, 2, "files"))
	require.Regexp(t, `^\[\d+(,\d+){7}\]$`, string(say(kindIndices, 4, `{"batch": 4}`).body))
	require.Regexp(t, `^0 0 \d+\n`, string(say(kindAsk, 3, `{"batch": 4}`).body))
	go func() { _, _ = io.Copy(io.Discard, from) }()
	require.NoError(t, to.Close())
	require.NoError(t, <-ended)
}
