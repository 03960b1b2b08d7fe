package osmemory

import (
	"errors"
	"sync"
	"unsafe"
)

// What stays sealed: addresses are scarce if they have 32 bits, or ulimit -v bounds them.
const (
	mostSealed  = 1024
	bytesSealed = 1 << (27 + 3*(^uint(0)>>63)) // 128 MiB, or 1 GiB of 64 bits
)

// addresses is how many bytes of addresses the process may have.
var addresses = func() uint64 { return 1 << 63 }

// sealed is what was sealed last, in that order.
var sealed struct {
	sync.Mutex
	all   []seal
	bytes int
}

type seal struct {
	mem []byte
	was string
}

// Seal gives the memory of what Map returned back, and makes it unreadable; SealedAs tells
// what it was. Only its addresses stay in use, until enough others are sealed.
func Seal(mem []byte, was string) (err error) {
	if err := hide(mem); err != nil {
		return errors.Join(err, Unmap(mem))
	}
	sealed.Lock()
	defer sealed.Unlock()
	sealed.all, sealed.bytes = append(sealed.all, seal{mem, was}), sealed.bytes+len(mem)
	// The runtime ends the program if it is refused addresses itself: most are left to it.
	most := int(min(bytesSealed, addresses()/16))
	for len(sealed.all) > 1 && (len(sealed.all) > mostSealed || sealed.bytes > most) {
		err = errors.Join(err, unseal())
	}
	return err
}

// unseal gives back the addresses that were sealed first. The caller holds the lock.
func unseal() error {
	old := sealed.all[0].mem
	sealed.all, sealed.bytes = sealed.all[1:], sealed.bytes-len(old)
	return Unmap(old)
}

// Map returns size bytes of zeroed memory, aligned for every element type. Pages of it take no
// memory until they are written. If the system refuses, what is sealed is given back first.
func Map(size int) (mem []byte, err error) {
	if mem, err = mapNew(size); err == nil {
		return mem, nil
	}
	sealed.Lock()
	defer sealed.Unlock()
	for len(sealed.all) > 0 {
		_ = unseal()
	}
	return mapNew(size)
}

// SealedAs returns what the memory at an address was; "" if it isn't sealed.
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
