package cache

import (
	"math"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nwt-go/nwt/internal/osmemory"
)

func TestAForgottenCacheGivesItsMemoryBack(t *testing.T) {
	mem := func() []byte {
		c := New(100, 8, 1<<20)
		get(t, c, 3)
		return c.blocks.list[0]
	}()
	const mark = "forgotten"
	copy(mem, mark)
	require.True(t, holds(t, mem, mark))
	require.Eventually(t, func() bool { runtime.GC(); return !holds(t, mem, mark) }, time.Minute, time.Millisecond)
}

// holds reports whether what is mapped where mem lies begins with mark. mem may have been
// given back, and something else may be mapped there.
func holds(t *testing.T, mem []byte, mark string) bool {
	memory, err := os.Open("/proc/self/mem")
	require.NoError(t, err)
	defer memory.Close()
	got := make([]byte, len(mark))
	_, err = memory.ReadAt(got, int64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))))
	return err == nil && string(got) == mark
}

func TestAClosedCacheHasGivenItsMemoryBack(t *testing.T) {
	given := func() bool {
		c := New(100, 8, 1<<20)
		get(t, c, 3)
		mem, book := c.blocks.list[0], c.blocks.book
		require.NoError(t, c.Close())
		require.Zero(t, c.Bytes())
		return unix.Madvise(mem, unix.MADV_NORMAL) != nil && unix.Madvise(book, unix.MADV_NORMAL) != nil
	}
	for range 100 { // Go's runtime may take the addresses at once
		if given() {
			return
		}
	}
	t.Fatal("both are mapped after Close")
}

func TestACacheThatCannotGiveItsMemoryBackSaysSoAndGivesBackTheRest(t *testing.T) {
	const mark = "kept"
	notMapped := func(mem *[]byte) (mapped []byte) {
		mapped, *mem = *mem, make([]byte, 8)
		return mapped
	}
	for _, blocks := range [][]int{{-1}, {0}, {2}, {0, 1, 2}, {-1, 1}} { // −1: the bookkeeping
		c := New(100, 8, 1<<20)
		c.blocks.size = 1
		for i := range 100 {
			get(t, c, i)
		}
		all := append([][]byte{c.blocks.book}, c.blocks.list[:c.blocks.count.Load()]...)
		require.Greater(t, len(all), 4)
		var kept [][]byte
		for _, i := range blocks {
			if i < 0 {
				kept = append(kept, notMapped(&c.blocks.book))
			} else {
				kept = append(kept, notMapped(&c.blocks.list[i]))
			}
		}
		for _, mem := range all {
			copy(mem, mark)
		}
		require.ErrorIs(t, c.Close(), unix.EINVAL)
		left := 0
		for _, mem := range all {
			if holds(t, mem, mark) {
				left++
			}
		}
		require.Equal(t, len(blocks), left)
		require.NoError(t, c.Close(), "the second time there is nothing to give back")
		for _, mem := range kept {
			require.NoError(t, osmemory.Unmap(mem))
		}
	}
}

func TestItemsForWhichThereIsNoMemoryAreLoadedAnewAndThatIsSaidOnce(t *testing.T) {
	for _, c := range []struct {
		size int64 // of a block
		kept int
		says string
	}{
		{math.MaxInt64, 0, "0 bytes are cached: cannot allocate memory"},
		{1, maxBlocks, "bytes are cached: all 1200 blocks are in use"},
	} {
		if c.size > math.MaxInt32 && math.MaxInt == math.MaxInt32 {
			continue // there all of the address space is less than memory
		}
		const n = maxBlocks + 100
		cache := New(n, 8, math.MaxInt64)
		cache.blocks.size = c.size
		before := cache.Bytes()
		var said []error
		loads := 0
		for range 2 {
			for i := range n {
				loaded, full := get(t, cache, i)
				if full != nil {
					said = append(said, full)
				}
				if loaded {
					loads++
				}
			}
		}
		require.Equal(t, 2*n-c.kept, loads)
		require.Len(t, said, 1)
		if c.kept > 0 {
			require.ErrorContains(t, said[0], c.says)
		}
		require.EqualValues(t, 8*c.kept, cache.Bytes()-before)
		require.NoError(t, cache.Close())
	}
}
