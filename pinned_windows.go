package nwt

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

func mapPages(size int) ([]byte, error) {
	addr, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_COMMIT|windows.MEM_RESERVE, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), size), nil
}

func unmapPages(mem []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), 0, windows.MEM_RELEASE)
}

// lockPages locks mem into memory until it is freed.
func lockPages(mem []byte) error {
	return windows.VirtualLock(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)))
}

// lockLimit says what bounds locked memory.
func lockLimit() string { return "the process's minimum working set" }
