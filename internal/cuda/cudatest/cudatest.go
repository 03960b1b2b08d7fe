// Package cudatest gives tests a CUDA driver without a GPU: a library in C that the real code loads. The
// library's streams run late, it checks calls strictly, and it fails on demand; fakecuda/fakecuda.c
// begins with its rules.
package cudatest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/nwt-go/nwt/internal/cuda"
)

//go:embed fakecuda/fakecuda.c
var source []byte

// fake holds the functions that the fake exports in addition to the driver's own.
var fake struct {
	reset    func()
	gpus     func(n int32)
	limit    func(kind int32, bytes uint64)
	delay    func(us int32)
	hold     func(on int32)
	fail     func(names string, n, code int32)
	breaks   func(ctx uintptr, code, copies int32)
	outer    func(ctx uintptr)
	live     func(kind int32) int32
	calls    func() int32
	failed   func() string
	misuses  func() int32
	primary  func(gpu int32) uintptr
	retained func(gpu int32) int32
	context  func(gpu int32) uintptr
	read     func(dst unsafe.Pointer, src uintptr, size uint64) int32
}

// errAbsent says that there can be no fake driver here, which is a reason to skip the test.
var errAbsent = errors.New("no fake CUDA driver")

// library is the path of the fake: the driver that was linked or, if the backend loads its driver at run
// time, a fake built for it.
var library = sync.OnceValues(func() (string, error) {
	file := "libcuda.so.1"
	if cuda.Backend == "purego" {
		dir, err := os.MkdirTemp("", "fakecuda")
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(dir) // once it is loaded, its file isn't needed
		file = filepath.Join(dir, file)
		if err := build(file); err != nil {
			return "", err
		}
	}
	err := bind(file, map[string]any{
		"fake_reset":    &fake.reset,
		"fake_gpus":     &fake.gpus,
		"fake_limit":    &fake.limit,
		"fake_delay":    &fake.delay,
		"fake_hold":     &fake.hold,
		"fake_fail":     &fake.fail,
		"fake_break":    &fake.breaks,
		"fake_outer":    &fake.outer,
		"fake_live":     &fake.live,
		"fake_calls":    &fake.calls,
		"fake_failed":   &fake.failed,
		"fake_misuses":  &fake.misuses,
		"fake_primary":  &fake.primary,
		"fake_retained": &fake.retained,
		"fake_context":  &fake.context,
		"fake_read":     &fake.read,
	})
	if err != nil {
		return "", err
	}
	defer use(file)()
	_, err = cuda.Open(0) // loads it while its file still exists
	return file, err
})

func build(file string) error {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		return fmt.Errorf("%w: it is built with gcc: %w", errAbsent, err)
	}
	c := filepath.Join(filepath.Dir(file), "fakecuda.c")
	if err := os.WriteFile(c, source, 0o600); err != nil {
		return err
	}
	out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", file, c).CombinedOutput()
	if err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return nil
}

func use(file string) (restore func()) {
	before := cuda.Library
	cuda.Library = file
	return func() { cuda.Library = before }
}

// Kind is something that the driver counts.
type Kind int32

const (
	HostMemory   Kind = iota // page-locked buffers
	DeviceMemory             // buffers on a GPU
	Streams
	Events
	RetainedContext // references to primary contexts
	CurrentContext  // contexts pushed on threads
)

func (k Kind) String() string {
	return [...]string{"page-locked buffers", "device buffers", "streams", "events", "retained contexts", "current contexts"}[k]
}

// Driver is the fake driver while a test has it.
type Driver struct{}

// Load makes the fake the driver that package cuda finds, until the test ends: one GPU with 1 GiB of
// memory, 1 GiB of page-locked memory, streams that are up to 0.1 ms late, no failures. By the end, the
// test must have given everything back and made no call that a driver would refuse; otherwise it fails.
// There is one fake per process, so tests that load it don't run in parallel. Without gcc they skip.
func Load(t testing.TB) Driver {
	t.Helper()
	file, err := library()
	if errors.Is(err, errAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	fake.reset()
	restore := use(file)
	d := Driver{}
	t.Cleanup(func() {
		t.Helper()
		restore()
		if left := d.Left(); len(left) > 0 && !t.Failed() {
			t.Errorf("left on the CUDA driver: %v", left)
		}
		if n := d.Misuses(); n > 0 && !t.Failed() {
			t.Errorf("%d calls that the CUDA driver had to refuse", n)
		}
		fake.reset()
	})
	return d
}

// Reset frees everything and forgets every setting, as Load does.
func (Driver) Reset() { fake.reset() }

// GPUs sets how many GPUs there are, 0 to 8.
func (Driver) GPUs(n int) { fake.gpus(int32(n)) }

// Limit bounds each GPU's memory (DeviceMemory), or the total page-locked memory (HostMemory), in bytes.
func (Driver) Limit(kind Kind, bytes uint64) { fake.limit(int32(kind), bytes) }

// Delay sets how late, at most, a stream begins each piece of its work.
func (Driver) Delay(d time.Duration) { fake.delay(int32(d.Microseconds())) }

// Hold keeps streams from beginning a piece of work, until Release.
func (Driver) Hold() { fake.hold(1) }

// Release lets streams go on.
func (Driver) Release() { fake.hold(0) }

// Inline makes the calling thread do the work of streams at once. It is for measuring what calls cost.
func (Driver) Inline() { fake.delay(-1) }

// Fail makes the n-th call from now return code; the next call is the first. It counts all calls or, if
// calls isn't empty, those whose names it lists, separated by spaces. If n is −1, all of them return
// code.
func (Driver) Fail(calls string, n int, code cuda.Result) {
	fake.fail(calls, int32(n), int32(code))
}

// Lost is the result of a call in a context that was destroyed: the context can't be made current any
// more, and its contents are gone.
const Lost = cuda.Result(709)

// Break makes every call in a context fail from now on. If copies isn't 0, calls begin to fail later:
// when the context's streams have done that many copies and begin another one.
func (Driver) Break(context uintptr, code cuda.Result, copies int) {
	fake.breaks(context, int32(code), int32(copies))
}

// Outer makes a context current on every thread that has pushed none, as another
// library in the process may have left it.
func (Driver) Outer(context uintptr) { fake.outer(context) }

// Calls returns how many calls the driver has had.
func (Driver) Calls() int { return int(fake.calls()) }

// Failed returns the call that Fail made fail; "" if none has failed yet.
func (Driver) Failed() string { return fake.failed() }

// Misuses returns how many calls were the caller's mistake since Misuses was last called: a wrong
// context, an invalid handle or address, or a second free.
func (Driver) Misuses() int { return int(fake.misuses()) }

// Left returns what is still allocated, open or retained.
func (Driver) Left() map[Kind]int {
	left := map[Kind]int{}
	for kind := HostMemory; kind <= CurrentContext; kind++ {
		if n := fake.live(int32(kind)); n != 0 {
			left[kind] = int(n)
		}
	}
	return left
}

// Read returns what n bytes of device memory hold now, even if copies to them aren't done.
func (Driver) Read(t testing.TB, address uintptr, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if fake.read(unsafe.Pointer(unsafe.SliceData(b)), address, uint64(n)) == 0 {
		t.Fatalf("no device memory at %#x with %d bytes", address, n)
	}
	return b
}

// Primary returns the primary context of a GPU. Something else must retain it.
func (Driver) Primary(gpu int) uintptr { return fake.primary(int32(gpu)) }

// Retained returns how often the primary context of a GPU is retained.
func (Driver) Retained(gpu int) int { return int(fake.retained(int32(gpu))) }

// Context returns a context that the program itself made on a GPU, a CUcontext.
func (Driver) Context(gpu int) uintptr { return fake.context(int32(gpu)) }

// ReadBack copies device memory back through the driver that package cuda finds, which may be the real
// one. Only tests make such calls.
func ReadBack(t testing.TB, gpu int, address uintptr, n int) []byte {
	t.Helper()
	var d struct {
		retain  func(ctx *uintptr, gpu int32) cuda.Result
		push    func(ctx uintptr) cuda.Result
		read    func(dst unsafe.Pointer, src uintptr, n uint64) cuda.Result
		pop     func(ctx *uintptr) cuda.Result
		release func(gpu int32) cuda.Result
	}
	err := bind(cuda.Library, map[string]any{
		"cuDevicePrimaryCtxRetain":     &d.retain,
		"cuCtxPushCurrent_v2":          &d.push,
		"cuMemcpyDtoH_v2":              &d.read,
		"cuCtxPopCurrent_v2":           &d.pop,
		"cuDevicePrimaryCtxRelease_v2": &d.release,
	})
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ctx uintptr
	b := make([]byte, n)
	for _, r := range []cuda.Result{
		d.retain(&ctx, int32(gpu)),
		d.push(ctx),
		d.read(unsafe.Pointer(unsafe.SliceData(b)), address, uint64(n)),
		d.pop(&ctx),
		d.release(int32(gpu)),
	} {
		if r != cuda.Success {
			t.Fatal(r)
		}
	}
	return b
}
