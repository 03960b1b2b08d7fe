package osmemory

import (
	"errors"
	"sync"
	"unsafe"
)

// These bound what stays sealed: address space is scarce if addresses have 32 bits, or if ulimit -v
// limits it.
const (
	mostSealed  = 1024
	bytesSealed = 1 << (27 + 3*(^uint(0)>>63)) // 128 MiB with 32 bits, 1 GiB with 64 bits
)

// addresses returns the size of the address space that the process may use.
var addresses = func() uint64 { return 1 << 63 }

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
	// If the runtime itself gets no addresses, it ends the program, so most are left to it.
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

// Map returns size bytes of zeroed memory, aligned for every element type. Pages of it take no memory
// until they are written. If the system refuses, sealed addresses are given back first.
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
