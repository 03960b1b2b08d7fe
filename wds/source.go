package wds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/nwt-go/nwt/internal/retry"
)

// A source reads a shard's file ahead into a buffer. A call of the file system may take hours, and takes
// no context. So each call runs in its own goroutine. If the context ends first, the source abandons the
// call. The buffer and the file then belong to the call alone, and it closes the file when it returns.
type source struct {
	fsys fs.FS
	name string

	ctx     context.Context // for the call under way: when it ends, waiting ends
	file    fs.File
	info    fs.FileInfo // of the file when it was first opened; may be nil
	at      int64       // where in the file the next read begins
	failed  int         // failures of reading since data last came
	bufs    *sync.Pool  // of *[bufferSize]byte
	buf     *[bufferSize]byte
	from    int             // the data read ahead begins at buf[from] …
	to      int             // … and ends before buf[to]
	err     error           // the error that reading ended with
	skipped int64           // bytes that Seek has skipped in all
	far     int64           // up to this many bytes are read rather than skipped by seeking
	piece   int             // how much is read after a seek
	sought  bool            // nothing has been read since the last seek
	left    <-chan struct{} // set once a call was abandoned; closed when that call has returned
}

const (
	bufferSize = 256 << 10
	// farSkip bytes or fewer are read rather than skipped by seeking: in an object store a
	// seek costs another request.
	farSkip = 4 << 20
	// nearSkip is the same for a local file while records are skipped. After a seek only headSize bytes
	// are read then, which is enough for a header.
	nearSkip = 64 << 10
	headSize = 4 << 10
)

// openSource opens a file that has an end: a directory or a FIFO, for instance, is an error. If fsys can
// report this without opening the file, the file isn't opened.
func openSource(ctx context.Context, fsys fs.FS, name string, bufs *sync.Pool) (*source, error) {
	s := &source{fsys: fsys, name: name, ctx: ctx, bufs: bufs}
	if err := s.open(); err != nil {
		return nil, err
	}
	var ok bool
	if s.buf, ok = bufs.Get().(*[bufferSize]byte); !ok {
		s.buf = new([bufferSize]byte)
	}
	s.skipping(false)
	return s, nil
}

// open opens the file for reading from s.at. If the file was open before, the file that is there now must
// be the same.
func (s *source) open() error {
	at, before := s.at, s.info
	var file fs.File // belongs to the call if that is abandoned
	var info fs.FileInfo
	_, err := await(s.ctx, func() (err error) {
		if file, err = openRegular(s.fsys, s.name); err != nil {
			if before != nil && errors.Is(err, fs.ErrNotExist) { // a program's file system over a bucket also returns this if it can't find out
				err = retry.As(err, true)
			}
			return err
		}
		if info, _ = file.Stat(); before != nil && info != nil && (before.Size() != info.Size() || !before.ModTime().Equal(info.ModTime())) {
			err = retry.As(errors.New("it was replaced while it was read"), false)
		} else if seeker, ok := file.(io.Seeker); ok && at > 0 {
			_, err = seeker.Seek(at, io.SeekStart)
		} else if at > 0 {
			_, err = io.CopyN(io.Discard, file, at)
		}
		if err != nil {
			file.Close()
		}
		return noEnd(err)
	}, func(err error) {
		if err == nil {
			file.Close()
		}
	})
	if err != nil {
		return err
	}
	if s.file != nil {
		s.file.Close()
	}
	s.file, s.info = file, info
	return nil
}

// again reports whether reading continues after a temporary error. The file is then opened again at the
// place that reading had reached, so the code that unpacks it notices nothing.
func (s *source) again() bool {
	ctx := s.ctx
	policy := retry.Of(ctx)
	if s.err == io.EOF || s.left != nil || policy.Times == 0 {
		return false
	}
	s.failed++
	if err := policy.Again(ctx, s.failed, s.err); err != nil {
		s.err = retry.As(err, false)
		return false
	}
	s.err = s.open()
	return true
}

// judged returns err. If err says that the data ends too early, although all of the file was read, reading
// again would find the same: the error isn't temporary.
func (s *source) judged(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) && s.left == nil && s.err == io.EOF && s.info != nil && s.at >= s.info.Size() {
		return retry.As(err, false)
	}
	return err
}

// skipping sets whether only headers are read from now on.
func (s *source) skipping(on bool) {
	s.far, s.piece = farSkip, bufferSize
	if _, local := s.file.(syscall.Conn); on && local { // an *os.File, or what embeds one
		s.far, s.piece = nearSkip, headSize
	}
}

// openRegular opens a file that has an end. A gocloud.dev/blob.Bucket that isn't wrapped in objects.FS says that
// a file doesn't exist, or that it is a folder, whenever it can't find out. So it is asked why.
func openRegular(fsys fs.FS, name string) (fs.File, error) {
	file, err := openIfRegular(fsys, name)
	bucket, ok := fsys.(interface {
		Exists(ctx context.Context, key string) (bool, error)
	})
	if !ok || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errIrregular) {
		return file, err
	}
	switch exists, why := bucket.Exists(context.Background(), name); {
	case why != nil:
		may, known := retry.MayPass(why)
		return nil, retry.As(fmt.Errorf("open %s: %w", name, why), may || !known)
	case exists:
		return nil, retry.As(fmt.Errorf("open %s: the store couldn't say for a moment whether it exists", name), true)
	}
	return nil, err
}

func openIfRegular(fsys fs.FS, name string) (fs.File, error) {
	if f, ok := fsys.(fs.StatFS); ok {
		info, err := f.Stat(name)
		if err == nil {
			err = checkType(info)
		}
		if err != nil {
			return nil, err
		}
	}
	file, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err == nil { // if it fails, reading will report the error
		if err := checkType(info); err != nil {
			file.Close()
			return nil, err
		}
	}
	return file, nil
}

// checkType returns an error for a file that has no end. It allows fs.ModeIrregular, which buckets set
// for their objects.
func checkType(info fs.FileInfo) error {
	if mode := info.Mode(); mode.Type()&^fs.ModeIrregular != 0 {
		return fmt.Errorf("%w: %v", errIrregular, mode)
	}
	return nil
}

var errIrregular = errors.New("not a regular file")

// peek returns the next n bytes, or fewer if the file ends before.
func (s *source) peek(n int) ([]byte, error) {
	for s.to-s.from < n {
		if err := s.more(); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
	}
	return s.buf[s.from:min(s.from+n, s.to)], nil
}

func (s *source) Read(p []byte) (int, error) {
	if err := s.fill(); err != nil {
		return 0, err
	}
	n := copy(p, s.buf[s.from:s.to])
	s.from += n
	return n, nil
}

// ReadByte saves package gzip its own buffer.
func (s *source) ReadByte() (byte, error) {
	if s.from == s.to {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	s.from++
	return s.buf[s.from-1], nil
}

// fill makes sure that the buffer isn't empty.
func (s *source) fill() error {
	if s.from < s.to {
		return nil
	}
	s.from, s.to = 0, 0
	return s.more()
}

// more reads more into the buffer.
func (s *source) more() error {
	for range 100 {
		for s.err != nil {
			if !s.again() {
				return s.err
			}
		}
		room := s.buf[s.to:]
		if s.sought {
			room = room[:s.piece]
		}
		var n int // belongs to the call if that is abandoned
		err := s.call(func() (err error) {
			n, err = s.file.Read(room)
			return err
		})
		if s.left != nil {
			return err
		}
		if s.err = err; n > 0 {
			s.to, s.at, s.sought, s.failed = s.to+n, s.at+int64(n), false, 0
			return nil
		}
	}
	return cmp.Or(s.err, io.ErrNoProgress)
}

// Seek skips ahead from the place that reading has reached.
func (s *source) Seek(offset int64, whence int) (int64, error) {
	file, ok := s.file.(io.Seeker)
	if !ok || whence != io.SeekCurrent || offset < 0 {
		return 0, errors.ErrUnsupported
	}
	beyond := offset - int64(s.to-s.from)
	if beyond <= s.far {
		_, err := io.CopyN(io.Discard, s, offset)
		s.skipped += offset
		return s.skipped, err
	}
	s.from, s.sought = s.to, true
	s.skipped += offset
	s.at += beyond
	err := s.call(func() error {
		_, err := file.Seek(beyond, io.SeekCurrent)
		return err
	})
	if s.left == nil {
		s.err, err = err, nil // the next read returns it
	}
	return s.skipped, err
}

// position returns where in the file the next byte of Read lies.
func (s *source) position() int64 { return s.at - int64(s.to-s.from) }

// Close closes the file. If a call was abandoned, that call closes the file when it
// returns; if it is about to return, Close waits for it.
func (s *source) Close() error {
	if s.left != nil {
		select {
		case <-s.left:
		case <-time.After(100 * time.Millisecond):
		}
		return nil
	}
	s.bufs.Put(s.buf)
	return s.file.Close()
}

// call runs a call of the file. If the context ends first, the file and the buffer belong to the call.
func (s *source) call(f func() error) error {
	if s.left != nil {
		return fs.ErrClosed
	}
	file := s.file
	left, err := await(s.ctx, f, func(error) { file.Close() })
	if left != nil {
		s.left = left
	}
	return err
}

// await returns the result of f. If the context ends first, f continues alone: late gets its result, and
// then left is closed.
func await(ctx context.Context, f func() error, late func(error)) (left <-chan struct{}, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	returned, gone, done := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		err := errors.New("it ended its goroutine")
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
			select {
			case returned <- err:
			case <-gone:
				defer func() { _ = recover() }() // nobody is left to report it to
				late(err)
			}
		}()
		err = f()
	}()
	select {
	case err := <-returned:
		return nil, err
	case <-ctx.Done():
		close(gone)
		return done, ctx.Err()
	}
}
