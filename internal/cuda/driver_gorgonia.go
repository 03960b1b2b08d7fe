//go:build linux && cgo && cuda

package cuda

/*
#cgo CFLAGS: -I/usr/local/cuda/include -I/opt/cuda/include
#cgo LDFLAGS: -L/usr/local/cuda/lib64 -L/opt/cuda/lib64 -lcuda
#include <cuda.h>
*/
import "C"

import (
	"reflect"
	"unsafe"

	"gorgonia.org/cu"
)

// Backend names the way in which this binary calls the driver.
const Backend = "gorgonia.org/cu"

// gorgonia is the driver that the linker found, called through gorgonia.org/cu. That package starts the
// driver when the program starts, and ends the program if the driver doesn't start. Three calls don't go
// through it, because it lacks cuMemHostAlloc, starts the driver only once, and allocates for
// cuCtxPopCurrent.
type gorgonia struct{}

func load(string) (library, error) { return gorgonia{}, nil }

// resultOf turns an error of gorgonia.org/cu, which has an unexported integer type, back into a CUresult.
func resultOf(err error) Result {
	if err == nil {
		return Success
	}
	return Result(reflect.ValueOf(err).Int())
}

// The handles of gorgonia.org/cu are structs around one C pointer; ours are that pointer as a number.
type handle interface {
	cu.CUContext | cu.Stream | cu.Event | C.CUevent
}

func number[T handle](h T) uintptr  { return *(*uintptr)(unsafe.Pointer(&h)) }
func as[T handle](number uintptr) T { return *(*T)(unsafe.Pointer(&number)) }

func (gorgonia) init() Result { return Result(C.cuInit(0)) }

func (gorgonia) deviceCount() (int, Result) {
	n, err := cu.NumDevices()
	return n, resultOf(err)
}

func (gorgonia) device(ordinal int) (int, Result) {
	gpu, err := cu.GetDevice(ordinal)
	return int(gpu), resultOf(err)
}

func (gorgonia) deviceName(gpu int) (string, Result) {
	name, err := cu.Device(gpu).Name()
	return name, resultOf(err)
}

func (gorgonia) retainPrimary(gpu int) (uintptr, Result) {
	ctx, err := cu.Device(gpu).RetainPrimaryCtx()
	return number(ctx), resultOf(err)
}

func (gorgonia) releasePrimary(gpu int) Result {
	return resultOf(cu.Device(gpu).ReleasePrimaryCtx())
}

func (gorgonia) push(ctx uintptr) Result { return resultOf(cu.PushCurrentCtx(as[cu.CUContext](ctx))) }

func (gorgonia) pop() Result { return Result(C.cuCtxPopCurrent_v2(nil)) }

func (gorgonia) memInfo() (free, total uint64, r Result) {
	f, t, err := cu.MemInfo()
	return uint64(f), uint64(t), resultOf(err)
}

func (gorgonia) alloc(size int) (uintptr, Result) {
	ptr, err := cu.MemAlloc(int64(size))
	return uintptr(ptr), resultOf(err)
}

func (gorgonia) free(ptr uintptr) Result { return resultOf(cu.MemFree(cu.DevicePtr(ptr))) }

func (gorgonia) allocHost(size int) (unsafe.Pointer, Result) {
	var p unsafe.Pointer
	r := C.cuMemHostAlloc(&p, C.size_t(size), C.CU_MEMHOSTALLOC_PORTABLE)
	return p, Result(r)
}

func (gorgonia) freeHost(p unsafe.Pointer) Result { return resultOf(cu.MemFreeHost(p)) }

func (gorgonia) copyAsync(dst uintptr, src []byte, stream uintptr) Result {
	return resultOf(cu.MemcpyHtoDAsync(cu.DevicePtr(dst), unsafe.Pointer(unsafe.SliceData(src)), int64(len(src)), as[cu.Stream](stream)))
}

func (gorgonia) newStream() (uintptr, Result) {
	s, err := cu.MakeStream(cu.NonBlocking)
	return number(s), resultOf(err)
}

func (gorgonia) destroyStream(stream uintptr) Result {
	s := as[cu.Stream](stream)
	return resultOf(s.Destroy())
}

func (gorgonia) syncStream(stream uintptr) Result {
	return resultOf(as[cu.Stream](stream).Synchronize())
}

func (gorgonia) newEvent() (uintptr, Result) {
	ev, err := cu.MakeEvent(cu.DisableTiming | cu.BlockingSyncEvent)
	return number(ev), resultOf(err)
}

func (gorgonia) destroyEvent(ev uintptr) Result {
	e := as[cu.Event](ev)
	return resultOf(cu.DestroyEvent(&e))
}

func (gorgonia) record(ev, stream uintptr) Result {
	return resultOf(as[cu.Event](ev).Record(as[cu.Stream](stream)))
}

func (gorgonia) syncEvent(ev uintptr) Result { return resultOf(as[cu.Event](ev).Synchronize()) }
