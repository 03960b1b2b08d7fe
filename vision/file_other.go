//go:build !linux

package vision

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
)

// A fileReader reads files into memory that it reuses.
type fileReader struct {
	data  bytes.Buffer
	until untilEnd
}

// An untilEnd reads a file until a context ends.
type untilEnd struct {
	ctx  context.Context
	file *os.File
}

func (r *untilEnd) Read(p []byte) (int, error) {
	if err := ended(r.ctx); err != nil {
		return 0, &os.PathError{Op: "read", Path: r.file.Name(), Err: err}
	}
	return r.file.Read(p[:min(len(p), maxRead)])
}

func newFileReader() (*fileReader, error) { return new(fileReader), nil }

// read returns the content of a file, which stays valid until the next call.
func (r *fileReader) read(ctx context.Context, dir string, name []byte) ([]byte, error) {
	path := filepath.Join(dir, string(name))
	info, err := os.Stat(path) // before opening, because opening a pipe would block
	if err != nil {
		return nil, err
	}
	if err := checkFile(path, info.Mode().IsRegular(), info.Size()); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if r.data.Cap() > maxKept {
		r.data = bytes.Buffer{}
	}
	r.data.Reset()
	r.data.Grow(int(info.Size()) + bytes.MinRead)
	r.until = untilEnd{ctx, f}
	defer func() { r.until = untilEnd{} }()
	if _, err := r.data.ReadFrom(io.LimitReader(&r.until, maxFile+1)); err != nil {
		return nil, err
	}
	if err := checkFile(path, true, int64(r.data.Len())); err != nil {
		return nil, err
	}
	return r.data.Bytes(), nil
}
