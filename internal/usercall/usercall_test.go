package usercall_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/usercall"
)

// called calls f in a goroutine of its own, and returns what becomes of it.
func called(f func() error) (ok, ended bool, stack []byte, err error) {
	var all sync.WaitGroup
	all.Go(func() {
		ended = true
		ok = usercall.Call(f, func(s []byte, e error) { stack, err = s, e })
		ended = false
	})
	all.Wait()
	return ok, ended, stack, err
}

// line returns the place n lines below its caller, as an error names it.
func line(n int) string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf(" (%s:%d)", file, line+n)
}

func TestWhateverAFunctionDoesIsAnErrorThatNamesItsLine(t *testing.T) {
	ok, ended, stack, err := called(func() error { return nil })
	require.True(t, ok)
	require.False(t, ended)
	require.NoError(t, err)
	require.Empty(t, stack)

	ok, _, stack, err = called(func() error { return io.EOF })
	require.False(t, ok)
	require.Equal(t, io.EOF, err, "as it is")
	require.Empty(t, stack)

	at := line(1)
	ok, ended, stack, err = called(func() error { panic("no such sample") })
	require.False(t, ok)
	require.False(t, ended)
	require.EqualError(t, err, "panic: no such sample"+at)
	require.Contains(t, string(stack), "usercall_test.go")

	at = line(1)
	_, _, _, err = called(func() error { panic(fmt.Errorf("nwt: field 3: %w", io.ErrUnexpectedEOF)) })
	require.EqualError(t, err, "panic: field 3: unexpected EOF"+at)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)

	at = line(1)
	ok, ended, stack, err = called(func() error { runtime.Goexit(); return nil })
	require.False(t, ok)
	require.True(t, ended)
	require.ErrorIs(t, err, usercall.ErrGoexit)
	require.EqualError(t, err, "runtime.Goexit was called"+at+", as by t.FailNow")
	require.Contains(t, string(stack), "usercall_test.go")
}

func TestThePlaceOfAFaultInTheRuntimeOrInSyncIsItsCallers(t *testing.T) {
	at := line(1)
	_, _, _, err := called(func() error { _ = make([]int, 2)[len(t.Name())]; return nil })
	require.ErrorContains(t, err, "index out of range")
	require.ErrorContains(t, err, at)
	at = line(1)
	_, _, _, err = called(func() error { new(sync.WaitGroup).Add(-1); return nil })
	require.EqualError(t, err, "panic: sync: negative WaitGroup counter"+at)
}

func TestACauseSaysWhatItIsWithoutTheModulesName(t *testing.T) {
	named := fmt.Errorf("nwt: %w", io.EOF)
	require.EqualError(t, usercall.Cause(named), "EOF")
	require.ErrorIs(t, usercall.Cause(named), io.EOF)
	require.EqualError(t, usercall.Cause(errors.New("it is nwt: yes")), "it is nwt: yes")
}
