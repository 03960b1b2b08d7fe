package osmemory_test

import (
	"os"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/osmemory"
)

func TestSealedMemoryCantBeReadAndIsKnown(t *testing.T) {
	mem, err := osmemory.Map(10_000)
	require.NoError(t, err)
	mem[9999] = 7
	addr := uintptr(unsafe.Pointer(&mem[0]))
	require.Empty(t, osmemory.SealedAs(addr))
	require.NoError(t, osmemory.Seal(mem, "the first"))
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	func() {
		defer func() {
			if fault, ok := recover().(interface{ Addr() uintptr }); ok {
				page := uintptr(os.Getpagesize()) // all that s390x tells
				require.Equal(t, (addr+9999)/page, fault.Addr()/page)
				return
			}
			require.EqualValues(t, 0xDB, mem[0], "where memory can't be made unreadable")
		}()
		require.EqualValues(t, 0xDB, mem[9999])
	}()
	require.Equal(t, "the first", osmemory.SealedAs(addr+9999))
	sealMany := func(n, size int) {
		for range n {
			other, err := osmemory.Map(size)
			require.NoError(t, err)
			require.NoError(t, osmemory.Seal(other, "another"))
		}
	}
	sealMany(1023, 10)
	require.Equal(t, "the first", osmemory.SealedAs(addr))
	sealMany(1, 10)
	require.NotEqual(t, "the first", osmemory.SealedAs(addr), "sealed memory is bounded")

	// Addresses of 32 bits are scarce.
	large, err := osmemory.Map(64 << 20)
	require.NoError(t, err)
	addr = uintptr(unsafe.Pointer(&large[0]))
	require.NoError(t, osmemory.Seal(large, "large"))
	require.Equal(t, "large", osmemory.SealedAs(addr))
	sealMany(16, 64<<20)
	require.NotEqual(t, "large", osmemory.SealedAs(addr), "so are its addresses")
}
