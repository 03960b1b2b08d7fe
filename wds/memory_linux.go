package wds

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// memory reads the part of a local file that is in the system's memory. It never waits for a disk or a
// network, so its calls need never be abandoned.
type memory struct {
	file   syscall.RawConn
	vector [1][]byte
	call   func(fd uintptr) bool
	n      int
	err    error
}

// newMemory returns nil if the file can't be read in this way.
func newMemory(file fs.File) *memory {
	f, ok := file.(*os.File) // exactly this type, because a file that embeds one may read something else
	if !ok {
		return nil
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	m := &memory{file: conn}
	m.call = func(fd uintptr) bool {
		m.n, m.err = unix.Preadv2(int(fd), m.vector[:], -1, unix.RWF_NOWAIT)
		return true
	}
	return m
}

// read reads into p. It returns 0 if nothing is in memory, or if the file has ended.
func (m *memory) read(p []byte) int {
	if m == nil || m.file == nil {
		return 0
	}
	m.vector[0] = p
	err := m.file.Read(m.call)
	m.vector[0] = nil
	switch {
	case err == nil && m.err == nil:
		return m.n
	case err == nil && (errors.Is(m.err, unix.EAGAIN) || errors.Is(m.err, unix.EINTR)):
	default: // the file system doesn't support this, or the file is bad, which an ordinary read reports
		m.file = nil
	}
	return 0
}
