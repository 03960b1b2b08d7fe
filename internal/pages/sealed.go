package pages

import (
	"errors"
	"sync"
	"unsafe"
)

// sealed is what was sealed last.
var sealed struct {
	sync.Mutex
	next   int
	places [1 << (4 + 6*(^uint(0)>>63))]struct { // 16 if addresses have 32 bits, else 1024
		mem []byte
		was string
	}
}

// Seal gives the memory of what Map returned back, and makes it unreadable; SealedAs tells
// what it was. Only its addresses stay in use, until enough others are sealed.
func Seal(mem []byte, was string) error {
	if err := hide(mem); err != nil {
		return errors.Join(err, Unmap(mem))
	}
	sealed.Lock()
	place := &sealed.places[sealed.next]
	sealed.next = (sealed.next + 1) % len(sealed.places)
	old := place.mem
	place.mem, place.was = mem, was
	sealed.Unlock()
	if old == nil {
		return nil
	}
	return Unmap(old)
}

// SealedAs is what the memory at an address was; "" if it isn't sealed.
func SealedAs(addr uintptr) string {
	sealed.Lock()
	defer sealed.Unlock()
	for _, s := range sealed.places {
		if addr-uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))) < uintptr(len(s.mem)) {
			return s.was
		}
	}
	return ""
}
