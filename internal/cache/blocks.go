package cache

import (
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/nwt-go/nwt/internal/osmemory"
)

// blocks is memory outside the Go heap, in few large pieces, for the bytes of items. A place is the
// number of its block and, in the low bits, the offset in it. Only Cache knows who may use which place,
// and when.
type blocks struct {
	book  []byte // the memory of states
	list  [maxBlocks][]byte
	count atomic.Int32 // stored after an entry of list, and loaded before the entry is read: see at
	size  int64        // of a block
	end   int64        // end of what is reserved in the last block
}

const (
	minBlock   = 32 << 20 // its pages take no memory until they are written
	maxBlock   = 4 << 30  // or eight items, if these are more; the kernel refuses what it doesn't have
	maxBlocks  = 1200
	offsetBits = 44
)

// init chooses the size of a block for n items, which take at most limit bytes; most is the size of the
// largest. A block holds several items, so that less than an eighth of it stays empty, and is large
// enough that maxBlocks blocks are enough for terabytes.
func (b *blocks) init(n int, most, limit int64) {
	if n > 0 && most <= limit/int64(n) {
		limit = most * int64(n)
	}
	b.size = max(minBlock, 8*most, min(limit/1024, maxBlock))
}

// reserve finds a place of size bytes. It may take at most left more bytes from the system.
func (b *blocks) reserve(size int, left int64) (place uint64, err error) {
	count := int(b.count.Load())
	if count == 0 || int64(len(b.list[count-1]))-b.end < int64(size) {
		if count == maxBlocks {
			return 0, fmt.Errorf("all %d blocks are in use", maxBlocks)
		}
		mem, err := osmemory.Map(int(max(int64(size), min(b.size, left, math.MaxInt/2))))
		if err != nil {
			return 0, err
		}
		b.list[count] = mem
		count++
		b.count.Store(int32(count))
		b.end = 0
	}
	place = uint64(count-1)<<offsetBits | uint64(b.end)
	b.end += int64(size)
	return place, nil
}

// at returns the memory that begins at a place.
func (b *blocks) at(place uint64) []byte {
	b.count.Load() // for the race detector, which doesn't see states, because they aren't on the Go heap
	return b.list[place>>offsetBits][place&(1<<offsetBits-1):]
}

// states returns the states of n items or, if the system refuses that much memory, of half of them, a
// quarter, and so on. Pages that aren't written take no memory.
func (b *blocks) states(n int64) []atomic.Uint64 {
	for n = min(n, math.MaxInt/2/stateBytes); n > 0; n /= 2 {
		if mem, err := osmemory.Map(int(n) * stateBytes); err == nil {
			b.book = mem
			return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem))), n)
		}
	}
	return nil
}

func (b *blocks) free() error {
	var first error
	if b.book != nil {
		first = osmemory.Unmap(b.book)
		b.book = nil
	}
	for i := range b.count.Load() {
		if err := osmemory.Unmap(b.list[i]); err != nil && first == nil {
			first = err
		}
		b.list[i] = nil
	}
	b.count.Store(0)
	return first
}
