package serve

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nwt-go/nwt/driver"
)

func makePrivate(fd uintptr) { _ = unix.Fchmod(int(fd), 0o600) } // listenUnix does so again

// share answers clients of this host until ctx ends, and finishes what it has begun; then wait returns.
func (s *Server) share(ctx context.Context, path string) (wait func(), err error) {
	l, err := listenUnix(path)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	var clients errgroup.Group
	clients.SetLimit(1 + maxConns)
	clients.Go(func() error {
		for {
			c, err := l.Accept()
			switch {
			case err == nil:
				clients.Go(func() error { s.shareWith(ctx, c.(*net.UnixConn)); return nil })
			case ctx.Err() != nil:
				return nil
			default:
				slog.Error("serve: accepting clients of this host fails; trying again", "error", err)
				time.Sleep(time.Second)
			}
		}
	})
	return func() { _ = clients.Wait() }, nil // none of them fails
}

// ours reports whether the other end of a socket is this user's, or root's.
func ours(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var other *unix.Ucred
	failed := raw.Control(func(fd uintptr) { other, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return errors.Join(failed, err) == nil && (other.Uid == 0 || int(other.Uid) == os.Geteuid())
}

// A localClient is a client in shared memory.
type localClient struct {
	s       *Server
	c       *net.UnixConn
	r       *bufio.Reader
	taking  context.Context // while it lasts, what is asked is begun
	ctx     context.Context // of what is begun
	writing sync.Mutex

	mu    sync.Mutex
	asked map[uint32]chan struct{} // by number of request: is closed when the client waits for it
	files []*file                  // number 1 is the first
	gone  bool
}

// A file is memory that a client has mapped too, enough for the largest batch; what is never written takes
// none. Nobody can make it shorter.
type file struct {
	number  int
	fd      int // −1 once the client has it
	mem     []byte
	idle    bool
	release func() // of the batch in it that the client has
}

func newFile(number, size int) (*file, error) {
	fd, err := unix.MemfdCreate("nwt", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	f := &file{number: number, fd: fd}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		f.mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("shared memory of %d bytes: %w", size, err)
	}
	return f, nil
}

func (f *file) close() {
	_ = unix.Munmap(f.mem) // it is its own
	f.mem = nil            // its address may be another's from now on
	if f.fd >= 0 {
		_ = unix.Close(f.fd)
	}
}

func (l *localClient) alloc(size int) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.gone: // it is loaded in vain
		return memory.DefaultAllocator.Allocate(size), nil
	case size > l.s.most:
		return nil, fmt.Errorf("a batch of %d bytes: at most %d were expected", size, l.s.most)
	}
	for _, f := range l.files {
		if f.idle {
			f.idle = false
			return f.mem[:size], nil
		}
	}
	if len(l.files) == maxFiles {
		return nil, fmt.Errorf("the client holds %d batches, the most it may: release some", maxFiles)
	}
	f, err := newFile(len(l.files)+1, l.s.most)
	if err != nil {
		return nil, err
	}
	l.files = append(l.files, f)
	return f.mem[:size], nil
}

func (l *localClient) free(mem []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.fileOf(mem); f != nil {
		if f.idle = true; l.gone {
			f.close()
		}
	}
	return nil
}

// fileOf returns the file that a batch lies in. The caller holds mu.
func (l *localClient) fileOf(mem []byte) *file {
	for _, f := range l.files {
		if unsafe.SliceData(f.mem) == unsafe.SliceData(mem) {
			return f
		}
	}
	return nil
}

// shareWith answers one client, until it goes or sends what it must not.
func (s *Server) shareWith(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	taking, stop := context.WithCancel(ctx)
	over, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	l := &localClient{s: s, c: c, r: bufio.NewReader(c), taking: taking, ctx: over, asked: make(map[uint32]chan struct{})}
	defer context.AfterFunc(ctx, func() {
		_ = c.CloseRead() // nothing new is taken
		time.AfterFunc(s.opts.grace, func() { cancel(); _ = c.Close() })
	})()
	var under sync.WaitGroup
	err := l.begin()
	if err == nil {
		err = l.listen(&under)
	}
	if ctx.Err() == nil {
		l.fail(0, err)
		cancel() // what it has asked for is of no use to it
	}
	stop()
	under.Wait()
	l.mu.Lock()
	l.gone = true
	for _, f := range l.files {
		if f.idle {
			f.close()
		}
	}
	l.mu.Unlock()
	for _, f := range l.files {
		if f.release != nil {
			f.release()
		}
	}
}

// begin finds out who the client is, and tells it what there is.
func (l *localClient) begin() error {
	_ = l.c.SetDeadline(time.Now().Add(handshake))
	defer func() { _ = l.c.SetDeadline(time.Time{}) }()
	var hello struct {
		Version     int
		Nonce       string
		Rank, World int
	}
	if err := l.hear(kindHello, &hello); err != nil {
		return err
	}
	if err := differs("the client", hello.Version); err != nil {
		return err
	}
	nonces := hello.Nonce + rand.Text()
	mine := map[string]any{"version": version, "nonce": nonces[len(hello.Nonce):], "proof": proof(l.s.opts.token, "server", nonces)}
	if err := l.send(kindChallenge, 0, jsonOf(mine)); err != nil {
		return err
	}
	var theirs struct{ Proof string }
	if err := l.hear(kindProof, &theirs); err != nil {
		return err
	}
	switch {
	case l.s.opts.token == "" && !ours(l.c):
		return errors.New("this server has no token, so it answers only its own user and root: give it and its clients a token")
	case l.s.opts.token != "" && !hmac.Equal([]byte(theirs.Proof), []byte(proof(l.s.opts.token, "client", nonces))):
		return errToken
	}
	about, err := l.s.describe(hello.Rank, hello.World)
	if err != nil {
		return err
	}
	return l.send(kindAbout, 0, jsonOf(about))
}

// hear reads a message of the beginning.
func (l *localClient) hear(kind uint32, v any) error {
	f, err := readFrame(l.r, maxAsked)
	if err == nil && f.kind != kind {
		err = fmt.Errorf("a message of kind %d, not %d", f.kind, kind)
	}
	if err == nil {
		err = json.Unmarshal(f.body, v)
	}
	return err
}

// listen takes what the client says, until it has gone.
func (l *localClient) listen(under *sync.WaitGroup) error {
	for {
		if _, err := l.r.Peek(1); err != nil {
			return err
		}
		_ = l.c.SetReadDeadline(time.Now().Add(handshake)) // what is begun is ended
		f, err := readFrame(l.r, maxAsked)
		_ = l.c.SetReadDeadline(time.Time{})
		if err != nil {
			return err
		}
		then := func() {}
		l.mu.Lock()
		wanted, known := l.asked[f.number]
		switch f.kind {
		case kindAsk:
			if known || len(l.asked) >= maxPending || f.number == 0 {
				err = fmt.Errorf("request %d: %d are pending, at most %d, each with a number above 0 of its own", f.number, len(l.asked), maxPending)
				break
			}
			wanted = make(chan struct{})
			l.asked[f.number] = wanted
			under.Go(func() { l.answer(f.number, f.body, wanted) })
		case kindRelease:
			at := slices.IndexFunc(l.files, func(of *file) bool { return of.number == int(f.number) && of.release != nil })
			if at < 0 {
				err = fmt.Errorf("there is no batch in file %d", f.number)
				break
			}
			then, l.files[at].release = l.files[at].release, nil
		case kindWaiting:
			if wanted != nil {
				l.asked[f.number] = nil
				close(wanted)
			}
			then = func() { _ = l.send(kindAlive, f.number, nil) } // if it fails, so does reading
		default:
			err = fmt.Errorf("a message of kind %d", f.kind)
		}
		l.mu.Unlock()
		if then(); err != nil {
			return err
		}
	}
}

// answer loads a batch once the server may hold one more, or the client can't go on without it.
func (l *localClient) answer(number uint32, asked []byte, wanted <-chan struct{}) {
	s, counts := l.s, false
	select {
	case s.held <- struct{}{}:
		counts = true
	case <-wanted:
	case <-l.taking.Done():
		return
	}
	s.holding.Add(1)
	release := func() {
		if s.holding.Add(-1); counts {
			<-s.held
		}
	}
	if s.enter(l.taking) != nil {
		release()
		return
	}
	b, a, err := s.load(l.ctx, asked, l.alloc, l.free)
	s.leave()
	var in *file
	var text []byte
	if err == nil {
		in, text, err = l.lay(b, &a)
	}
	fd := -1
	l.mu.Lock()
	delete(l.asked, number)
	if err == nil {
		in.release = func() { b.Release(); release() }
		fd, in.fd = in.fd, fd
	}
	l.mu.Unlock()
	if err != nil {
		release()
		l.fail(number, err)
		return
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
		defer unix.Close(fd)
	}
	_ = l.send(kindBatch, number, text, rights...) // if it fails, so does reading
}

// lay copies the lengths behind a batch's fields, and says where in its file each column begins.
func (l *localClient) lay(b driver.Batch, a *answer) (in *file, text []byte, err error) {
	l.mu.Lock()
	in = l.fileOf(b.Memory())
	l.mu.Unlock()
	end := (len(b.Memory()) + 7) &^ 7
	for i, column := range l.s.columns(b) {
		at := int(uintptr(unsafe.Pointer(unsafe.SliceData(column))) - uintptr(unsafe.Pointer(unsafe.SliceData(in.mem))))
		if i >= len(l.s.about.Fields) {
			at = end
			end += copy(in.mem[end:], column)
		}
		a.At = append(a.At, at)
	}
	layout := map[string]any{"samples": a.Samples, "shapes": a.Shapes, "at": a.At}
	text = fmt.Appendf(nil, "%d %d\n%s\n%s\n%s", in.number, a.Left, jsonOf(layout), jsonOf(a.After), jsonOf(append([]badSample{}, a.Bad...)))
	if len(text) > maxAnswer {
		b.Release()
		err = fmt.Errorf("an answer of %d bytes: at most %d", len(text), maxAnswer)
	}
	return in, text, err
}

// fail tells the client of an error.
func (l *localClient) fail(number uint32, err error) {
	text := said(errors.New(status.Convert(err).Message()), maxSaid)
	_ = l.send(kindError, number, jsonOf(map[string]any{"error": text, "temporary": status.Code(err) == codes.Unavailable}))
}

// send sends a message, with the rights to a file if there are some. If that takes long or fails, the
// connection ends.
func (l *localClient) send(kind, number uint32, body []byte, rights ...byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	b := frame{kind, number, body}.encode()
	_ = l.c.SetWriteDeadline(time.Now().Add(stall))
	n, _, err := l.c.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = l.c.Write(b[n:])
	}
	if err != nil {
		_ = l.c.Close()
	}
	return err
}
