package serve

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nwt-go/nwt/driver"
)

// A client on this host and its server speak in messages of 12 bytes and a body: the body's length, a kind
// and a number, 4 bytes each. The client begins with kindHello, and then asks for as many batches at a time
// as it likes, under growing numbers.
//
// A batch lies in memory that both have mapped: the file's descriptor comes with the first answer that names
// the file. A connection that can't pass descriptors carries the batch's bytes.
const (
	kindHello   = 1 + iota // {"version", "rank", "world"}; a program's first one to its own server says what to load
	kindDrop               // [request, …]: these aren't answered any more
	kindMore               // the name of a longer text, and its answer
	kindAbout              // a description, the answer to kindHello
	kindAsk                // a ticket
	kindBatch              // FILE LEFT SIZE, a layout, the state after it, bad samples. If FILE is 0, SIZE bytes follow
	kindError              // {"error", "temporary"}; number 0: of the connection
	kindRelease            // the batch in the file of this number is of no use any more
	kindWaiting            // the client can do nothing before this request is answered
	kindIndices            // a ticket, and its answer: the samples of that batch, which isn't loaded
)

const (
	maxAsked    = 1 << 16 // bytes of a client's message
	maxDocument = 1 << 30 // bytes of the first one to a program's own server
	maxAnswer   = 1 << 24 // bytes that describe a batch
	maxPending  = 64      // requests of a client at a time
)

type frame struct {
	kind, number uint32
	body         []byte
}

func (f frame) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 12+len(f.body)), uint32(len(f.body)))
	b = binary.LittleEndian.AppendUint32(b, f.kind)
	return append(binary.LittleEndian.AppendUint32(b, f.number), f.body...)
}

func readFrame(r io.Reader, most int) (f frame, err error) {
	var head [12]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	f.kind, f.number = binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[8:])
	if int64(n) > int64(most) {
		return f, fmt.Errorf("a message of %d bytes: at most %d", n, most)
	}
	f.body = make([]byte, n)
	_, err = io.ReadFull(r, f.body)
	return f, err
}

// Own makes a server for one program, the one that has started this process, and answers its requests. They
// come through c, until c or ctx ends. The first message says what to load. Own passes it to open, which makes
// the server. If open fails, Own returns its error. The context that is passed to open ends when Own returns.
// Experimental: for nwt-serve; may change.
func Own(ctx context.Context, c io.ReadWriteCloser, open func(ctx context.Context, document []byte) (*Server, error)) (err error) {
	l := &local{c: c, queue: newQueue()}
	l.open = func(ctx context.Context, document []byte) (s *Server, failed error) {
		if s, err = open(ctx, document); err != nil {
			_ = c.Close() // the caller of Own tells the error
		}
		return s, err
	}
	l.serve(ctx)
	if l.s != nil {
		err = l.s.source.Close()
	}
	return err
}

// A local is a client on this host.
type local struct {
	c       io.ReadWriteCloser
	queue   queue
	open    func(ctx context.Context, document []byte) (*Server, error) // of Own
	ctx     context.Context                                             // ends with the client
	under   sync.WaitGroup                                              // answering
	sending sync.Mutex                                                  // a batch that the client waits for, as bytes
	writing sync.Mutex

	mu    sync.Mutex
	s     *Server // nil until open has returned
	asked map[uint32]*asked
	files []*file // number 1 is the first
	gone  bool
}

// An asked is a request without an answer.
type asked struct {
	frame
	ctx    context.Context
	drop   context.CancelFunc
	wanted chan struct{} // closed when the client waits for it
	waits  sync.Once
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

// serve answers the client until it goes, says what it must not, or ctx ends.
func (l *local) serve(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = l.c.Close() })()
	ctx, cancel := context.WithCancel(ctx)
	l.ctx, l.asked = ctx, make(map[uint32]*asked)
	if err := l.listen(); err != io.EOF {
		l.fail(0, err)
	}
	_ = l.c.Close()
	cancel() // what it has asked for is of no use to it
	l.under.Wait()
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

// listen takes what the client says, until it has gone.
func (l *local) listen() error {
	r, most := bufio.NewReader(l.c), maxAsked
	if l.open != nil {
		most = maxDocument
	}
	for first := true; ; first, most = false, maxAsked {
		f, err := readFrame(r, most)
		if err == nil && first && f.kind != kindHello {
			err = fmt.Errorf("a message of kind %d, not %d", f.kind, kindHello)
		}
		if err == nil {
			err = l.take(f, first)
		}
		if err != nil {
			return err
		}
	}
}

// take begins what a message asks for.
func (l *local) take(f frame, first bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.asked[f.number]
	switch n := int(f.number); f.kind {
	case kindHello, kindAsk, kindMore, kindIndices:
		if a != nil || len(l.asked) >= maxPending || n == 0 || l.s == nil && !first {
			return fmt.Errorf("request %d: %d are pending, at most %d, after the first is answered, each with a number above 0 of its own", n, len(l.asked), maxPending)
		}
		a = &asked{frame: f, wanted: make(chan struct{})}
		a.ctx, a.drop = context.WithCancel(l.ctx)
		l.asked[f.number] = a
		l.under.Go(func() { l.answer(a) })
	case kindDrop:
		var numbers []uint32
		if err := json.Unmarshal(f.body, &numbers); err != nil {
			return err
		}
		for _, number := range numbers {
			if a := l.asked[number]; a != nil {
				a.drop()
				delete(l.asked, number)
			}
		}
	case kindRelease:
		if n < 1 || n > len(l.files) || l.files[n-1].release == nil {
			return fmt.Errorf("there is no batch in file %d", n)
		}
		release := l.files[n-1].release
		l.files[n-1].release = nil
		l.mu.Unlock() // which it takes
		release()
		l.mu.Lock()
	case kindWaiting:
		if a != nil {
			a.waits.Do(func() { close(a.wanted) })
		}
	default:
		return fmt.Errorf("a message of kind %d", f.kind)
	}
	return nil
}

// answer answers a request.
func (l *local) answer(a *asked) {
	defer a.drop()
	how := map[uint32]func(*asked) error{kindHello: l.hello, kindMore: l.more, kindAsk: l.batch, kindIndices: l.indices}[a.kind]
	if err := how(a); l.ends(a) && err != nil {
		l.fail(a.number, err)
	}
}

// ends ends a request, and reports whether it hadn't ended before: it was neither answered nor dropped.
func (l *local) ends(a *asked) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	is := l.asked[a.number] == a
	if is {
		delete(l.asked, a.number)
	}
	return is
}

// hello tells what there is, which the first hello of a program to its own server has decided.
func (l *local) hello(a *asked) error {
	var said struct{ Version, Rank, World int }
	if err := json.Unmarshal(a.body, &said); err != nil {
		return err
	}
	s, err := l.s, differs("the server", version, said.Version)
	if s == nil && err == nil {
		if s, err = l.open(l.ctx, a.body); err == nil {
			l.mu.Lock()
			l.s = s
			l.mu.Unlock()
		}
	}
	if err != nil {
		return err
	}
	about, err := s.describe(said.Rank, said.World)
	if err == nil {
		err = l.send(frame{kindAbout, a.number, jsonOf(about)}, -1)
	}
	return err
}

// more tells a longer text.
func (l *local) more(a *asked) error {
	text, ok := l.s.opts.more[string(a.body)]
	if !ok {
		return fmt.Errorf("there is no text %.100q", a.body)
	}
	return l.send(frame{kindMore, a.number, text()}, -1)
}

func (l *local) indices(a *asked) error {
	text, err := l.s.indices(a.body)
	if err == nil {
		err = l.send(frame{kindIndices, a.number, text}, -1)
	}
	return err
}

// batch loads a batch once clients may hold one more. A client that can't go on without it gets its bytes
// before that.
func (l *local) batch(a *asked) error {
	s, release, inFile := l.s, func() {}, false
	select {
	case s.held <- struct{}{}:
		release, inFile = func() { <-s.held }, passesMemory(l.c)
	case <-a.wanted:
		l.sending.Lock() // one at a time, for however many it says to wait
		defer l.sending.Unlock()
	case <-a.ctx.Done():
		return nil
	}
	alloc, free := s.alloc, s.recycle
	if inFile {
		alloc, free = l.alloc, l.free
	}
	leave, err := s.enter(a.ctx, l.queue)
	if err != nil {
		release()
		return nil
	}
	b, about, err := s.load(a.ctx, a.body, alloc, free)
	leave()
	if err != nil {
		release()
		return err
	}
	whole := func() { b.Release(); release() }
	text, body, in := l.lay(b, inFile, &about)
	switch {
	case len(text) > maxAnswer:
		err = fmt.Errorf("an answer of %d bytes: at most %d", len(text), maxAnswer)
	case !l.ends(a):
	case inFile:
		l.mu.Lock()
		in.release = whole
		fd := in.fd
		in.fd = -1
		l.mu.Unlock()
		return l.send(frame{kindBatch, a.number, text}, fd)
	default:
		err = l.send(frame{kindBatch, a.number, text}, -1, body...)
	}
	whole()
	return err
}

// lay says where in a batch's memory each column begins. Lengths follow the fields: copied there if the
// batch is in a file, otherwise as parts of the body that is to be sent.
func (l *local) lay(b driver.Batch, inFile bool, a *answer) (text []byte, body [][]byte, in *file) {
	whole, number := b.Memory(), 0
	if inFile {
		l.mu.Lock()
		in = l.fileOf(whole)
		l.mu.Unlock()
		number = in.number
	}
	end := (len(whole) + 7) &^ 7
	body = [][]byte{whole, make([]byte, end-len(whole))}
	for i, column := range l.s.columns(b) {
		at := int(uintptr(unsafe.Pointer(unsafe.SliceData(column))) - uintptr(unsafe.Pointer(unsafe.SliceData(whole))))
		if i >= len(l.s.about.Fields) {
			if at = end; inFile {
				copy(in.mem[at:], column)
			}
			body = append(body, column)
			end += len(column)
		}
		a.At = append(a.At, at)
	}
	layout := map[string]any{"samples": a.Samples, "shapes": a.Shapes, "at": a.At}
	text = fmt.Appendf(nil, "%d %d %d\n%s\n%s\n%s", number, a.Left, end, jsonOf(layout), jsonOf(a.After), jsonOf(append([]badSample{}, a.Bad...)))
	return text, body, in
}

func (l *local) alloc(size int) ([]byte, error) {
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
	f, err := newFile(len(l.files)+1, l.s.most)
	if err != nil {
		return nil, err
	}
	l.files = append(l.files, f)
	return f.mem[:size], nil
}

func (l *local) free(mem []byte) error {
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
func (l *local) fileOf(mem []byte) *file {
	for _, f := range l.files {
		if unsafe.SliceData(f.mem) == unsafe.SliceData(mem) {
			return f
		}
	}
	return nil
}

// fail tells the client of an error.
func (l *local) fail(number uint32, err error) {
	text := said(err, maxSaid)
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	_ = l.send(frame{kindError, number, jsonOf(map[string]any{"error": text, "temporary": status.Code(err) == codes.Unavailable})}, -1)
}

// send sends a message, with a descriptor unless that is −1, and what follows the message. If it fails, the
// connection ends, and with it reading.
func (l *local) send(f frame, fd int, more ...[]byte) (err error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	b, n := f.encode(), 0
	if fd >= 0 {
		n, err = pass(l.c, b, fd)
	}
	for _, piece := range append([][]byte{b[n:]}, more...) {
		if err == nil && len(piece) > 0 {
			_, err = l.c.Write(piece)
		}
	}
	if err != nil {
		_ = l.c.Close()
	}
	return err
}
