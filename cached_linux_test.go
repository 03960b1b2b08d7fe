package nwt

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestAForgottenCacheGivesItsMemoryBack(t *testing.T) {
	mem := func() []byte {
		c := Cached(lines(100), 1<<20).(*cached)
		_, err := LoadSample(t.Context(), c, 3)
		require.NoError(t, err)
		return c.blocks.list[0]
	}()
	mapped := func() bool { return unix.Madvise(mem, unix.MADV_NORMAL) == nil }
	require.True(t, mapped())
	require.Eventually(t, func() bool { runtime.GC(); return !mapped() }, time.Minute, time.Millisecond)
}

func TestAClosedCacheHasGivenItsMemoryBack(t *testing.T) {
	c := Cached(lines(100), 1<<20).(*cached)
	_, err := LoadSample(context.Background(), c, 3)
	require.NoError(t, err)
	mem := c.blocks.list[0]
	require.NoError(t, c.Close())
	require.Error(t, unix.Madvise(mem, unix.MADV_NORMAL))
	require.Zero(t, c.bytes())
}
