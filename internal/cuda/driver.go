package cuda

import "unsafe"

// library is the part of CUDA's driver API that is needed here. Each method makes the one call that its
// comment names; the caller turns the Result into an error with that name. Handles (contexts, streams,
// events) and addresses on the device are plain numbers.
type library interface {
	init() Result                                  // cuInit
	deviceCount() (int, Result)                    // cuDeviceGetCount
	device(ordinal int) (int, Result)              // cuDeviceGet
	deviceName(gpu int) (string, Result)           // cuDeviceGetName
	retainPrimary(gpu int) (ctx uintptr, _ Result) // cuDevicePrimaryCtxRetain
	releasePrimary(gpu int) Result                 // cuDevicePrimaryCtxRelease_v2
	push(ctx uintptr) Result                       // cuCtxPushCurrent_v2
	pop() Result                                   // cuCtxPopCurrent_v2

	memInfo() (free, total uint64, _ Result)                  // cuMemGetInfo_v2
	alloc(size int) (ptr uintptr, _ Result)                   // cuMemAlloc_v2
	free(ptr uintptr) Result                                  // cuMemFree_v2
	allocHost(size int) (unsafe.Pointer, Result)              // cuMemHostAlloc, portable
	freeHost(p unsafe.Pointer) Result                         // cuMemFreeHost
	copyAsync(dst uintptr, src []byte, stream uintptr) Result // cuMemcpyHtoDAsync_v2

	newStream() (stream uintptr, _ Result) // cuStreamCreate, non-blocking
	destroyStream(stream uintptr) Result   // cuStreamDestroy_v2
	syncStream(stream uintptr) Result      // cuStreamSynchronize

	newEvent() (ev uintptr, _ Result) // cuEventCreate, without timing, waits without spinning
	destroyEvent(ev uintptr) Result   // cuEventDestroy_v2
	record(ev, stream uintptr) Result // cuEventRecord
	syncEvent(ev uintptr) Result      // cuEventSynchronize
}
