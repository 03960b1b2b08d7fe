package vision

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// maxFile bounds the size of a picture's file, and maxRead bounds how much is read between two checks of
// the context, both in bytes.
const (
	maxFile = 1 << 30
	maxRead = 1 << 24
)

// A fileReader reads files into memory that it reuses.
type fileReader struct{ data []byte }

func newFileReader() (*fileReader, error) { return new(fileReader), nil }

// read returns the content of a file, which stays valid until the next call.
func (r *fileReader) read(ctx context.Context, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("vision: %s is not a regular file", path)
	}
	if cap(r.data) > maxKept {
		r.data = nil
	}
	r.data = slices.Grow(r.data[:0], int(min(info.Size(), maxFile))+1)
	for len(r.data) <= maxFile {
		if err := ended(ctx); err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		r.data = slices.Grow(r.data, 1) // the file may have grown
		n, err := f.Read(r.data[len(r.data):min(cap(r.data), len(r.data)+maxRead)])
		r.data = r.data[:len(r.data)+n]
		if err == io.EOF {
			return r.data, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("vision: %s has %d bytes or more: must be at most %d", path, maxFile+1, maxFile)
}
