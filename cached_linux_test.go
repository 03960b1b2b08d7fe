package nwt

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nwt-go/nwt/internal/pages"
)

func TestAForgottenCacheGivesItsMemoryBack(t *testing.T) {
	mem := func() []byte {
		c := Cached(lines(100), 1<<20).(*cached)
		_, err := LoadSample(t.Context(), c, 3)
		require.NoError(t, err)
		return c.blocks.list[0]
	}()
	const mark = "forgotten"
	copy(mem, mark)
	require.True(t, holds(t, mem, mark))
	require.Eventually(t, func() bool { runtime.GC(); return !holds(t, mem, mark) }, time.Minute, time.Millisecond)
}

// holds tells whether what is mapped where mem lies begins with mark. mem may have been
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
	c := Cached(lines(100), 1<<20).(*cached)
	_, err := LoadSample(context.Background(), c, 3)
	require.NoError(t, err)
	mem, book := c.blocks.list[0], c.blocks.book
	require.NoError(t, c.Close())
	require.Error(t, unix.Madvise(mem, unix.MADV_NORMAL))
	require.Error(t, unix.Madvise(book, unix.MADV_NORMAL))
	require.Zero(t, c.bytes())
}

func TestACacheThatCannotGiveItsMemoryBackSaysSoAndGivesBackTheRest(t *testing.T) {
	const mark = "kept"
	notMapped := func(mem *[]byte) (mapped []byte) {
		mapped, *mem = *mem, make([]byte, 8)
		return mapped
	}
	for _, blocks := range [][]int{{-1}, {0}, {2}, {0, 1, 2}, {-1, 1}} { // −1: the bookkeeping
		c := Cached(lines(100), 1<<20).(*cached)
		c.blocks.size = 1
		requireLines(t, c)
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
			require.NoError(t, pages.Unmap(mem))
		}
		requireLines(t, c)
	}
}

func TestSamplesForWhichThereIsNoMemoryAreLoadedAnewAndThatIsLogged(t *testing.T) {
	for _, c := range []struct {
		size int64 // of a block
		kept int32
		says string
	}{
		{math.MaxInt64, 0, "cannot allocate memory"},
		{1, maxBlocks, "nwt: all 1200 blocks are in use"},
	} {
		if c.size > math.MaxInt32 && math.MaxInt == math.MaxInt32 {
			continue // there all of the address space is less than memory
		}
		const n = maxBlocks + 100
		var loads atomic.Int32
		ds := Cached(NewDataset(n, []Field{{Name: "i", Type: Int64}}, func(_ context.Context, i int, dst *Sample) error {
			loads.Add(1)
			Values[int64](dst, 0)[0] = int64(i)
			return nil
		}), math.MaxInt64).(*cached)
		ds.blocks.size = c.size
		var log bytes.Buffer
		l, err := NewLoader(ds, WithWorkers(0), WithBatchSize(n), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		for epoch := range 2 {
			for b, err := range l.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
				for i, value := range Values[int64](b, 0) {
					require.EqualValues(t, i, value)
				}
			}
		}
		require.Equal(t, 2*n-c.kept, loads.Load())
		require.Equal(t, 1, strings.Count(log.String(), "there is no memory for more cached samples; the others are loaded anew"))
		require.Contains(t, log.String(), c.says)
		require.Equal(t, (n+int(c.kept))*8, l.Stats().DatasetBytes)
		require.NoError(t, l.Close())
		require.NoError(t, ds.Close())
	}
}
