//go:build linux && !android && (amd64 || arm64) && (cgo || nwt_purego) && !cuda

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Backend names the way in which this binary calls the driver.
const Backend = "purego"

// loaded is the driver library, found at run time. Each field is a uintptr: the address of the function
// that the field is named after.
type loaded struct {
	cuInit                       uintptr
	cuDeviceGetCount             uintptr
	cuDeviceGet                  uintptr
	cuDeviceGetName              uintptr
	cuDevicePrimaryCtxRetain     uintptr
	cuDevicePrimaryCtxRelease_v2 uintptr
	cuCtxPushCurrent_v2          uintptr
	cuCtxPopCurrent_v2           uintptr
	cuMemGetInfo_v2              uintptr
	cuMemAlloc_v2                uintptr
	cuMemFree_v2                 uintptr
	cuMemHostAlloc               uintptr
	cuMemFreeHost                uintptr
	cuMemcpyHtoDAsync_v2         uintptr
	cuStreamCreate               uintptr
	cuStreamDestroy_v2           uintptr
	cuStreamSynchronize          uintptr
	cuEventCreate                uintptr
	cuEventDestroy_v2            uintptr
	cuEventRecord                uintptr
	cuEventSynchronize           uintptr
}

func load(path string) (library, error) {
	// dlerror reports a failure only to the thread on which dlopen failed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: NVIDIA's driver library can't be loaded: %w", ErrNoDevice, err)
	}
	d := new(loaded)
	var missing []error
	functions := reflect.TypeFor[loaded]()
	addresses := unsafe.Slice((*uintptr)(unsafe.Pointer(d)), functions.NumField())
	for i := range addresses {
		if addresses[i], err = purego.Dlsym(lib, functions.Field(i).Name); err != nil {
			missing = append(missing, err)
		}
	}
	if missing != nil {
		return nil, fmt.Errorf("%w: NVIDIA's driver is older than CUDA 11: %w", ErrNoDevice, errors.Join(missing...))
	}
	return d, nil
}

// arguments are reused, because a slice of arguments always escapes to SyscallN.
var arguments = sync.Pool{New: func() any { return new([4]uintptr) }}

// call calls a C function with up to four arguments. An argument that is written as
// uintptr(unsafe.Pointer(p)) keeps p alive and in place until call returns.
//
//go:uintptrescapes
func call(fn, a, b, c, d uintptr) Result {
	args := arguments.Get().(*[4]uintptr)
	*args = [4]uintptr{a, b, c, d}
	r, _, _ := purego.SyscallN(fn, args[:]...)
	arguments.Put(args)
	return Result(int32(r))
}

func (d *loaded) init() Result { return call(d.cuInit, 0, 0, 0, 0) }

func (d *loaded) deviceCount() (int, Result) {
	var n int32
	r := call(d.cuDeviceGetCount, uintptr(unsafe.Pointer(&n)), 0, 0, 0)
	return int(n), r
}

func (d *loaded) device(ordinal int) (int, Result) {
	var gpu int32
	r := call(d.cuDeviceGet, uintptr(unsafe.Pointer(&gpu)), uintptr(ordinal), 0, 0)
	return int(gpu), r
}

func (d *loaded) deviceName(gpu int) (string, Result) {
	name := make([]byte, 256)
	r := call(d.cuDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(gpu), 0)
	name, _, _ = bytes.Cut(name, []byte{0})
	return string(name), r
}

func (d *loaded) retainPrimary(gpu int) (ctx uintptr, r Result) {
	r = call(d.cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&ctx)), uintptr(gpu), 0, 0)
	return ctx, r
}

func (d *loaded) releasePrimary(gpu int) Result {
	return call(d.cuDevicePrimaryCtxRelease_v2, uintptr(gpu), 0, 0, 0)
}

func (d *loaded) push(ctx uintptr) Result { return call(d.cuCtxPushCurrent_v2, ctx, 0, 0, 0) }

func (d *loaded) pop() Result { return call(d.cuCtxPopCurrent_v2, 0, 0, 0, 0) }

func (d *loaded) memInfo() (free, total uint64, r Result) {
	r = call(d.cuMemGetInfo_v2, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)), 0, 0)
	return free, total, r
}

func (d *loaded) alloc(size int) (ptr uintptr, r Result) {
	r = call(d.cuMemAlloc_v2, uintptr(unsafe.Pointer(&ptr)), uintptr(size), 0, 0)
	return ptr, r
}

func (d *loaded) free(ptr uintptr) Result { return call(d.cuMemFree_v2, ptr, 0, 0, 0) }

func (d *loaded) allocHost(size int) (p unsafe.Pointer, r Result) {
	const portable = 1 // CU_MEMHOSTALLOC_PORTABLE
	r = call(d.cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(size), portable, 0)
	return p, r
}

func (d *loaded) freeHost(p unsafe.Pointer) Result { return call(d.cuMemFreeHost, uintptr(p), 0, 0, 0) }

func (d *loaded) copyAsync(dst uintptr, src []byte, stream uintptr) Result {
	return call(d.cuMemcpyHtoDAsync_v2, dst, uintptr(unsafe.Pointer(unsafe.SliceData(src))), uintptr(len(src)), stream)
}

func (d *loaded) newStream() (stream uintptr, r Result) {
	const nonBlocking = 1 // CU_STREAM_NON_BLOCKING
	r = call(d.cuStreamCreate, uintptr(unsafe.Pointer(&stream)), nonBlocking, 0, 0)
	return stream, r
}

func (d *loaded) destroyStream(stream uintptr) Result {
	return call(d.cuStreamDestroy_v2, stream, 0, 0, 0)
}

func (d *loaded) syncStream(stream uintptr) Result {
	return call(d.cuStreamSynchronize, stream, 0, 0, 0)
}

func (d *loaded) newEvent() (ev uintptr, r Result) {
	const flags = 1 | 2 // CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING
	r = call(d.cuEventCreate, uintptr(unsafe.Pointer(&ev)), flags, 0, 0)
	return ev, r
}

func (d *loaded) destroyEvent(ev uintptr) Result { return call(d.cuEventDestroy_v2, ev, 0, 0, 0) }

func (d *loaded) record(ev, stream uintptr) Result { return call(d.cuEventRecord, ev, stream, 0, 0) }

func (d *loaded) syncEvent(ev uintptr) Result { return call(d.cuEventSynchronize, ev, 0, 0, 0) }
