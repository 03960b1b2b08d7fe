//go:build !unix && !windows

package osmemory

import (
	"errors"
	"unsafe"
)

// Map returns size bytes of zeroed memory from the Go heap.
func Map(size int) ([]byte, error) {
	if size < 1 {
		return nil, errors.New("a mapping needs at least 1 byte")
	}
	words := make([]uint64, (size-1)/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size), nil
}

// Unmap leaves mem to the garbage collector.
func Unmap([]byte) error { return nil }

// Lock fails: this system can't lock memory.
func Lock([]byte) error { return errors.ErrUnsupported }

// LockLimit names the limit of locked memory.
func LockLimit() string { return "none is possible on this system" }

// hide fills mem with 0xDB: this system can't make memory unreadable.
func hide(mem []byte) error {
	for i := range mem {
		mem[i] = 0xDB
	}
	return nil
}
