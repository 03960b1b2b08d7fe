package vision

import (
	"context"
	"io/fs"
	"slices"
	"syscall"
	"unsafe"
)

// A fileReader reads files into memory that it reuses. It makes the system calls itself, because os.Open
// allocates for each file.
type fileReader struct {
	path []byte
	data []byte
	stat syscall.Stat_t
}

func newFileReader() (*fileReader, error) { return new(fileReader), nil }

// read returns the content of a file, which stays valid until the next call.
func (r *fileReader) read(ctx context.Context, dir string, name []byte) ([]byte, error) {
	r.path = append(append(append(append(r.path[:0], dir...), '/'), name...), 0)
	failed := func(call string, err error) ([]byte, error) {
		return nil, &fs.PathError{Op: call, Path: string(r.path[:len(r.path)-1]), Err: err}
	}
	const atWorkingDirectory = -100 // AT_FDCWD
	var fd uintptr
	for {
		at := atWorkingDirectory
		// O_NONBLOCK keeps the call from waiting for a pipe.
		n, _, e := syscall.Syscall6(syscall.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(&r.path[0])),
			syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0, 0, 0)
		if e == 0 {
			fd = n
			break
		}
		if e != syscall.EINTR {
			return failed("open", e)
		}
	}
	defer syscall.Close(int(fd))
	if err := syscall.Fstat(int(fd), &r.stat); err != nil {
		return failed("stat", err)
	}
	if r.stat.Mode&syscall.S_IFMT != syscall.S_IFREG || r.stat.Size > maxFile {
		return nil, checkFile(string(r.path[:len(r.path)-1]), r.stat.Mode&syscall.S_IFMT == syscall.S_IFREG, r.stat.Size)
	}
	if cap(r.data) > maxKept {
		r.data = nil
	}
	r.data = slices.Grow(r.data[:0], int(r.stat.Size)+1)
	for len(r.data) <= maxFile {
		if err := ended(ctx); err != nil {
			return failed("read", err)
		}
		r.data = slices.Grow(r.data, 1) // the file may have grown
		n, err := syscall.Read(int(fd), r.data[len(r.data):min(cap(r.data), len(r.data)+maxRead)])
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return failed("read", err)
		case n == 0:
			return r.data, nil
		default:
			r.data = r.data[:len(r.data)+n]
		}
	}
	return nil, checkFile(string(r.path[:len(r.path)-1]), true, int64(len(r.data)))
}
