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
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nwt-go/nwt/batchserver"
)

func makePrivate(fd uintptr) { _ = unix.Fchmod(int(fd), 0o600) } // listenUnix does so again

// share answers clients of this host until ctx ends, and finishes what it has begun; then wait returns.
func (s *Server) share(ctx context.Context, path string) (wait func(), err error) {
	l, err := listenUnix(path)
	if err != nil {
		return nil, err
	}
	all := &listener{Listener: l, conns: make(map[*conn]bool)}
	var clients sync.WaitGroup
	context.AfterFunc(ctx, func() { _ = l.Close() })
	clients.Go(func() {
		for pause := time.Duration(0); ; {
			c, err := all.Accept()
			switch {
			case err == nil:
				pause = 0
				clients.Go(func() { s.shareWith(ctx, c.(*conn)) })
				continue
			case ctx.Err() != nil:
				return
			case pause == 0:
				slog.Error("nwt/serve: accepting clients of this host fails; trying again", "error", err)
			}
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	})
	return clients.Wait, nil
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
	held  map[uint32]func()        // by number of file: releases the batch that lies in it
	files map[*byte]*file
	idle  []*file
	last  uint32 // number of a file
	gone  bool
}

// A file is memory that a client has mapped too, enough for the largest batch; what is never written takes
// none. Nobody can make it shorter.
type file struct {
	number uint32
	fd     int // −1 once the client has it
	mem    []byte
}

func newFile(number uint32, size int) (*file, error) {
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
	if f.fd >= 0 {
		_ = unix.Close(f.fd)
	}
}

func (l *localClient) alloc(size int) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.gone: // it is loaded in vain
		return newMemory(size), nil
	case size > l.s.most:
		return nil, fmt.Errorf("a batch of %d bytes: at most %d were expected", size, l.s.most)
	}
	if n := len(l.idle); n > 0 {
		f := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return f.mem[:size], nil
	}
	if len(l.files) == maxFiles {
		return nil, fmt.Errorf("the client holds %d batches", maxFiles)
	}
	l.last++
	f, err := newFile(l.last, l.s.most)
	if err != nil {
		return nil, err
	}
	l.files[unsafe.SliceData(f.mem)] = f
	return f.mem[:size], nil
}

func (l *localClient) free(mem []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch f := l.files[unsafe.SliceData(mem)]; {
	case f == nil:
	case l.gone:
		f.close()
	default:
		l.idle = append(l.idle, f)
	}
	return nil
}

// shareWith answers one client, until it goes or sends what it must not.
func (s *Server) shareWith(ctx context.Context, outer *conn) {
	defer outer.Close()
	l := &localClient{
		s: s, c: outer.Conn.(*net.UnixConn), asked: make(map[uint32]chan struct{}), held: make(map[uint32]func()), files: make(map[*byte]*file),
	}
	l.r = bufio.NewReader(l.c)
	over, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	l.taking, l.ctx = ctx, over
	defer context.AfterFunc(ctx, func() {
		_ = l.c.CloseRead() // nothing new is taken
		time.AfterFunc(s.opts.grace, func() { cancel(); _ = l.c.Close() })
	})()
	if err := l.begin(); err != nil {
		l.fail(0, err)
		return
	}
	var under sync.WaitGroup
	err := l.listen(&under)
	if ctx.Err() == nil {
		l.fail(0, err)
		cancel() // what it has asked for is of no use to it
	}
	under.Wait()
	l.mu.Lock()
	l.gone = true
	for _, f := range l.idle {
		f.close()
	}
	l.mu.Unlock()
	for _, release := range l.held {
		release()
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
	if err := l.send(frame{kind: kindChallenge, body: jsonOf(mine)}, nil); err != nil {
		return err
	}
	var theirs struct{ Proof string }
	if err := l.hear(kindProof, &theirs); err != nil {
		return err
	}
	switch {
	case l.s.opts.token == "" && !ours(l.c):
		return errors.New("this server has no token: it answers its own user and root alone")
	case l.s.opts.token != "" && !hmac.Equal([]byte(theirs.Proof), []byte(proof(l.s.opts.token, "client", nonces))):
		return errToken
	}
	t, err := parseTicket(jsonOf(Ticket{Rank: hello.Rank, World: hello.World}))
	if err != nil {
		return err
	}
	about, err := l.s.describe(t.Rank, t.World)
	if err != nil {
		return err
	}
	return l.send(frame{kind: kindAbout, body: jsonOf(about)}, nil)
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
		l.mu.Lock()
		wanted, known := l.asked[f.number]
		release := l.held[f.number]
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
			delete(l.held, f.number)
			if release == nil {
				err = fmt.Errorf("there is no batch in file %d", f.number)
			}
		case kindWaiting:
			if known && wanted != nil {
				l.asked[f.number] = nil
				close(wanted)
			}
		default:
			err = fmt.Errorf("a message of kind %d", f.kind)
		}
		l.mu.Unlock()
		switch {
		case err != nil:
			return err
		case f.kind == kindRelease:
			release()
		case f.kind == kindWaiting:
			if err := l.send(frame{kind: kindAlive, number: f.number}, nil); err != nil {
				return err
			}
		}
	}
}

// answer loads a batch once the server may hold one more, or the client can't go on without it.
func (l *localClient) answer(number uint32, ticket []byte, wanted <-chan struct{}) {
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
	select {
	case s.loading <- struct{}{}:
	case <-l.taking.Done():
		release()
		return
	}
	b, a, err := s.load(l.ctx, ticket, l.alloc, l.free)
	var text []byte
	var in *file
	if err == nil {
		l.mu.Lock()
		in = l.files[unsafe.SliceData(b.Memory())]
		l.mu.Unlock()
		if in == nil {
			b.Release()
			err = errors.New("the batch doesn't lie in the client's memory")
		}
	}
	if err == nil {
		text = fmt.Appendf(nil, "%d %d\n%s\n%s\n%s", in.number, a.Left, jsonOf(map[string]any{"samples": a.Samples, "shapes": a.Shapes, "at": l.lay(b, in)}), jsonOf(a.After), jsonOf(append([]badSample{}, a.Bad...)))
		if len(text) > maxAnswer {
			b.Release()
			err = fmt.Errorf("an answer of %d bytes: at most %d", len(text), maxAnswer)
		}
	}
	<-s.loading
	fd := -1
	l.mu.Lock()
	delete(l.asked, number)
	if err == nil {
		l.held[in.number] = func() { b.Release(); release() }
		fd, in.fd = in.fd, -1
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
	_ = l.send(frame{kindBatch, number, text}, rights) // if it fails, so does reading
}

// lay copies the lengths behind a batch's fields, and returns where in its file each column begins.
func (l *localClient) lay(b batchserver.Batch, in *file) (at []int) {
	columns, lens := l.s.columns(b)
	for _, column := range columns {
		from := 0
		if len(column) > 0 {
			from = int(uintptr(unsafe.Pointer(unsafe.SliceData(column))) - uintptr(unsafe.Pointer(unsafe.SliceData(in.mem))))
		}
		at = append(at, from)
	}
	end := (len(b.Memory()) + 7) &^ 7
	for _, column := range lens {
		at = append(at, end)
		end += copy(in.mem[end:], column)
	}
	return at
}

// fail tells the client of an error.
func (l *localClient) fail(number uint32, err error) {
	text := said(errors.New(status.Convert(err).Message()), maxSaid)
	_ = l.send(frame{kindError, number, jsonOf(map[string]any{"error": text, "temporary": status.Code(err) == codes.Unavailable})}, nil)
}

// send sends a message, with the rights to a file if there are some. If that takes long or fails, the
// connection ends.
func (l *localClient) send(f frame, rights []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	b := f.encode()
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
