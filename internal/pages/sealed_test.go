package pages_test

import (
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/pages"
)

func TestSealedMemoryCantBeReadAndIsKnown(t *testing.T) {
	mem, err := pages.Map(10_000)
	require.NoError(t, err)
	mem[9999] = 7
	addr := uintptr(unsafe.Pointer(&mem[0]))
	require.Empty(t, pages.SealedAs(addr))
	require.NoError(t, pages.Seal(mem, "the first"))
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	func() {
		defer func() {
			if fault, ok := recover().(interface{ Addr() uintptr }); ok {
				require.Equal(t, addr+9999, fault.Addr())
				return
			}
			require.EqualValues(t, 0xDB, mem[0], "where memory can't be made unreadable")
		}()
		require.EqualValues(t, 0xDB, mem[9999])
	}()
	require.Equal(t, "the first", pages.SealedAs(addr+9999))
	for range 1024 {
		other, err := pages.Map(10)
		require.NoError(t, err)
		require.NoError(t, pages.Seal(other, "another"))
	}
	require.NotEqual(t, "the first", pages.SealedAs(addr), "sealed memory is bounded")
}
