package osmemory

import (
	"errors"
	"sync"
	"unsafe"
)

// These bound what stays sealed: address space is scarce if addresses have 32 bits.
const (
	mostSealed  = 1024
	bytesSealed = 1 << (27 + 3*(^uint(0)>>63)) // 128 MiB with 32 bits, 1 GiB with 64 bits
)

// sealed holds the memory that was sealed last, in that order.
var sealed struct {
	sync.Mutex
	all   []seal
	bytes int
}

type seal struct {
	mem []byte
	was string
}

// Seal gives memory that Map returned back to the system, and makes it unreadable; SealedAs returns what
// it was. Only its addresses stay in use, until enough other memory is sealed.
func Seal(mem []byte, was string) (err error) {
	if err := hide(mem); err != nil {
		return errors.Join(err, Unmap(mem))
	}
	sealed.Lock()
	defer sealed.Unlock()
	sealed.all, sealed.bytes = append(sealed.all, seal{mem, was}), sealed.bytes+len(mem)
	for len(sealed.all) > 1 && (len(sealed.all) > mostSealed || sealed.bytes > bytesSealed) {
		old := sealed.all[0].mem
		sealed.all, sealed.bytes = sealed.all[1:], sealed.bytes-len(old)
		err = errors.Join(err, Unmap(old))
	}
	return err
}

// SealedAs returns what the memory at an address was, or "" if it isn't sealed.
func SealedAs(addr uintptr) string {
	sealed.Lock()
	defer sealed.Unlock()
	for _, s := range sealed.all {
		if addr-uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))) < uintptr(len(s.mem)) {
			return s.was
		}
	}
	return ""
}
