// Package usercall calls code of the program. If this code panics or ends its goroutine, the caller gets
// an error.
package usercall

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"runtime/debug"
	"strings"
)

// ErrGoexit is the error of code that ends its goroutine.
var ErrGoexit = errors.New("runtime.Goexit was called")

// Call calls a function of the program. If the function returns an error, failed gets that error. If it
// panics or ends its goroutine, failed gets an error that says so, with the stack. A goroutine that is
// being ended still ends.
func Call(f func() error, failed func(stack []byte, err error)) (ok bool) {
	returned := false
	defer func() {
		if !returned {
			failed(Recovered(recover()))
		}
	}()
	err := f()
	returned = true
	if err != nil {
		failed(nil, err)
	}
	return err == nil
}

// Recovered makes an error of what recover returned in a deferred call, if the function didn't return
// normally. If p is nil, runtime.Goexit has ended the goroutine.
func Recovered(p any) (stack []byte, err error) {
	switch p := p.(type) {
	case passed:
		return p.stack, p.error
	case nil:
		return debug.Stack(), fmt.Errorf("%w%s, as by t.FailNow", ErrGoexit, unwoundFrom("runtime.Goexit"))
	case error:
		return debug.Stack(), fmt.Errorf("panic: %w%s", Cause(p), unwoundFrom("runtime.gopanic"))
	default:
		return debug.Stack(), fmt.Errorf("panic: %s%s", withoutPrefix(p), unwoundFrom("runtime.gopanic"))
	}
}

// Pass is deferred where a coroutine of [iter.Pull] calls the program. If that panics, whoever resumed the
// coroutine panics in its place, on another stack: Recovered then returns what stood on this one.
func Pass() {
	if p := recover(); p != nil {
		stack, err := Recovered(p)
		panic(passed{err, stack})
	}
}

type passed struct {
	error
	stack []byte
}

// Naming is deferred around a call of the program. If that panics, the panic goes on, and says in front
// what the call was about: "document 3".
func Naming(thing func() string) {
	switch p := recover().(type) {
	case nil:
	case error:
		panic(fmt.Errorf("%s: %w", thing(), Cause(p)))
	default:
		panic(thing() + ": " + withoutPrefix(p))
	}
}

// Cause returns an error for a message that already begins with the module's name: its text is that of
// err without the name, and it unwraps to err.
func Cause(err error) error { return cause{err} }

type cause struct{ err error }

func (c cause) Error() string { return withoutPrefix(c.err) }
func (c cause) Unwrap() error { return c.err }

// withoutPrefix returns the message of an error or a panic without the module's name.
func withoutPrefix(said any) string { return strings.TrimPrefix(fmt.Sprint(said), "nwt: ") }

// unwoundFrom returns the file and line of the program's call that made the runtime unwind the
// goroutine's stack. A panic of Sample.SetLen is reported with the line that called SetLen.
func unwoundFrom(unwinder string) string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for unwinding, more := false, true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		switch {
		case f.Function == unwinder:
			unwinding = true
		case unwinding && !strings.HasPrefix(f.Function, "runtime.") && path.Base(path.Dir(f.File)) != "sync" && !isOurs(f.File):
			return fmt.Sprintf(" (%s:%d)", f.File, f.Line)
		}
	}
	return ""
}

// isOurs reports whether a file belongs to this module's loader. The name of the function doesn't show
// it: a loop over an epoch may be inlined into the program's function.
func isOurs(file string) bool {
	_, here, _, _ := runtime.Caller(0)
	internal := path.Dir(path.Dir(here))
	root := path.Dir(internal)
	dir := path.Dir(file)
	ours := dir == root || dir == root+"/sampler" || strings.HasPrefix(dir, internal+"/")
	return ours && !strings.HasSuffix(file, "_test.go")
}
