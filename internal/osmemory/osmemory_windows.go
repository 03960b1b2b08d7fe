package osmemory

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// Map returns size bytes of zeroed memory, aligned for every element type. Pages of it take no memory until
// they are written.
func Map(size int) ([]byte, error) {
	addr, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_COMMIT|windows.MEM_RESERVE, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), size), nil
}

// Unmap frees what Map returned.
func Unmap(mem []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), 0, windows.MEM_RELEASE)
}

// Lock keeps mem in physical memory until it is unmapped.
func Lock(mem []byte) error {
	return windows.VirtualLock(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)))
}

// LockLimit names the limit of locked memory.
func LockLimit() string { return "the process's minimum working set" }

// hide gives the memory of mem back to the system and makes it unreadable.
func hide(mem []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), windows.MEM_DECOMMIT)
}
