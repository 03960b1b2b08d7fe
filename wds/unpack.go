package wds

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// maxWindow is how far back a Zstandard frame may refer, and so how much memory a shard takes: zstd's own
// tool allows the same.
const maxWindow = 128 << 20

func unpackGzip(r io.Reader) (io.ReadCloser, error) {
	unpacked, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(unpacked), nil // its Close would return the error of Read again
}

func unpackZstd(r io.Reader) (io.ReadCloser, error) {
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// shown is how much of a file's beginning is examined, and shown in the error if it isn't a tar file.
const shown = 48

// An ended reads a tar file, unpacked, and knows whether it has ended. Tar's reader returns io.EOF after
// two blocks of zeros, but also if it gets io.EOF here: over says which.
type ended struct {
	r      io.Reader
	packed *source // what r unpacks; nil: nothing is unpacked
	close  func() error
	head   []byte // the beginning of what it unpacks to
	n      int64  // bytes read
	over   bool
}

func newEnded(r *source) (*ended, error) {
	e := &ended{r: r, close: func() error { return nil }}
	head, err := r.peek(shown)
	if err != nil {
		return e, noEnd(err)
	}
	var open func(io.Reader) (io.ReadCloser, error)
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		open = unpackGzip
	case bytes.HasPrefix(head, []byte("\x28\xb5\x2f\xfd")), len(head) > 4 && head[0]>>4 == 5 && string(head[1:4]) == "\x2a\x4d\x18": // a frame, or one that is skipped
		open = unpackZstd
	default:
		return e, nil
	}
	e.packed = r
	unpacked, err := open(r)
	if err != nil {
		return e, noEnd(err)
	}
	e.r, e.close = unpacked, unpacked.Close
	return e, nil
}

func (e *ended) Read(p []byte) (int, error) {
	if e.packed != nil { // its buffered data may unpack to a thousand times as much
		if err := e.packed.ctx.Err(); err != nil {
			return 0, err
		}
	}
	n, err := e.r.Read(p)
	e.n += int64(n)
	if more := shown - len(e.head); more > 0 {
		e.head = append(e.head, p[:min(n, more)]...)
	}
	if err == io.EOF && n > 0 {
		err = nil // the next Read returns the error again
	}
	e.over = err == io.EOF
	return n, err
}

// Seek lets tar's reader skip the content of a file that isn't compressed. If the content is cut, Seek
// doesn't mistake that for the shard's end.
func (e *ended) Seek(offset int64, whence int) (int64, error) {
	s, ok := e.r.(*source)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	at, err := s.Seek(offset, whence)
	return at, noEnd(err)
}

func (e *ended) Close() error { return e.close() }

// explain adds to an error before the first header what kind of file it is instead.
func (e *ended) explain(err error) error {
	err = noEnd(err)
	cut := errors.Is(err, io.ErrUnexpectedEOF)
	if e.packed != nil && (len(e.head) == 0 || cut && !e.over) || !cut && !errors.Is(err, tar.ErrHeader) {
		return err
	}
	it := "it"
	if e.packed != nil {
		it = "what it unpacks to"
	}
	if what := kind(e.head); what != "" {
		return fmt.Errorf("%s is %s: %w", it, what, err)
	}
	return fmt.Errorf("%s isn't a tar file, or its first header is damaged: it begins with %q: %w", it, bytes.Trim(e.head, around+"\x00"), err)
}

const around = "\ufeff \t\r\n" // what may precede a page

// kind says what a file that isn't a tar file is, judging by its beginning. It returns "" if that isn't
// known.
func kind(head []byte) string {
	for _, k := range []struct{ magic, name string }{
		{"\x1f\x8b", "gzip"}, {"\x28\xb5\x2f\xfd", "Zstandard"}, {"\xfd7zXZ\x00", "xz"}, {"BZh", "bzip2"}, {"\x04\x22\x4d\x18", "lz4"},
	} {
		if bytes.HasPrefix(head, []byte(k.magic)) {
			return fmt.Sprintf("compressed by %s: a shard may be compressed once, by gzip or Zstandard", k.name)
		}
	}
	text := bytes.TrimLeft(head, around)
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		return "a zip archive"
	case bytes.HasPrefix(head, []byte("version https://git-lfs")):
		return "a Git LFS pointer, not the file: fetch the file by git lfs pull"
	case bytes.HasPrefix(text, []byte("<")):
		return fmt.Sprintf("an HTML or XML page, perhaps an error message of a server: it begins with %q", text)
	}
	return ""
}
