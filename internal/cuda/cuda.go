// Package cuda provides what a data loader needs from CUDA: page-locked memory, memory on a GPU, and
// asynchronous copies from one to the other.
//
// It calls NVIDIA's driver, which need only be there at run time. How it calls the driver depends on the
// build:
//
//	with cgo            purego loads libcuda.so.1 when the first device is opened
//	-tags cuda          gorgonia.org/cu, linked to the driver: for programs that
//	                    use Gorgonia. Needs the CUDA toolkit (11 or 12), and
//	                    doesn't start if there is no GPU
//	CGO_ENABLED=0       not at all: the binary stays static and every Open fails
//	  -tags nwt_purego  as with cgo, in a binary that needs glibc
//
// The code above the driver interface doesn't depend on this.
package cuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"
)

// Library is the file from which the driver is loaded. Only tests change it, while
// no device is in use.
var Library = "libcuda.so.1"

// drivers holds the libraries loaded so far, by file. They stay loaded.
var drivers sync.Map

// start loads the driver, once, and initializes it.
func start() (library, error) {
	drv, ok := drivers.Load(Library)
	if !ok {
		d, err := load(Library)
		if err != nil {
			return nil, err
		}
		drv, _ = drivers.LoadOrStore(Library, d)
	}
	d := drv.(library)
	switch err := check("cuInit", d.init()); {
	case errors.Is(err, NoDevice):
		return nil, noGPU(err)
	case errors.Is(err, StubLibrary):
		return nil, fmt.Errorf("%w: %s is the stub of the CUDA toolkit and not the driver: %w", ErrNoDevice, Library, err)
	default:
		return d, err
	}
}

func noGPU(err error) error {
	only := ""
	if v, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok {
		only = fmt.Sprintf(" with CUDA_VISIBLE_DEVICES=%q", v)
	}
	return fmt.Errorf("%w: NVIDIA's driver is here but sees no GPU%s: %w", ErrNoDevice, only, err)
}

// Device is a GPU, used through its primary context. A Device holds nothing that the driver must free;
// only its sessions and page-locked buffers do. Any goroutine may use it.
type Device struct {
	drv  library
	gpu  int
	name string
}

// Count returns the number of GPUs, at least 1. Without any, the error says why and is
// ErrNoDevice.
func Count() (int, error) {
	drv, err := start()
	if err != nil {
		return 0, err
	}
	return count(drv)
}

func count(drv library) (int, error) {
	n, r := drv.deviceCount()
	if r == Success && n == 0 {
		return 0, noGPU(check("cuDeviceGetCount", NoDevice))
	}
	return n, check("cuDeviceGetCount", r)
}

// Open finds a GPU by its number, from 0. Work on it goes to its primary
// context, which other CUDA libraries in this process use too. If there is no such
// GPU, the error says why and is ErrNoDevice.
func Open(ordinal int) (*Device, error) {
	drv, err := start()
	if err != nil {
		return nil, err
	}
	n, err := count(drv)
	switch {
	case err != nil:
		return nil, err
	case ordinal < 0 || ordinal >= n:
		return nil, fmt.Errorf("%w: GPU %d asked for, and the driver has GPUs 0 to %d", ErrNoDevice, ordinal, n-1)
	}
	gpu, r := drv.device(ordinal)
	if r != Success {
		return nil, check("cuDeviceGet", r)
	}
	name, r := drv.deviceName(gpu)
	if r != Success {
		return nil, check("cuDeviceGetName", r)
	}
	return &Device{drv: drv, gpu: gpu, name: name}, nil
}

// Name returns the GPU's name, such as "NVIDIA H100 80GB HBM3".
func (d *Device) Name() string { return d.name }

// AllocHost returns page-locked memory, from which every context copies at full speed. Its content is
// undefined. It stays in place until FreeHost, whatever is closed before, because the buffer itself
// retains the primary context.
func (d *Device) AllocHost(size int) (b []byte, err error) {
	err = d.borrow(func() error {
		if _, err := d.retain(); err != nil {
			return err
		}
		p, r := d.drv.allocHost(size)
		if r != Success {
			err := &Error{Call: "cuMemHostAlloc", Result: r, Asked: fmt.Sprintf("%d bytes of page-locked memory asked for", size)}
			return errors.Join(err, d.release())
		}
		b = unsafe.Slice((*byte)(p), size)
		return nil
	})
	if err != nil && b != nil {
		return nil, errors.Join(err, d.FreeHost(b))
	}
	return b, err
}

// FreeHost frees what AllocHost returned; it must get the whole slice. No copy from it may be under way.
func (d *Device) FreeHost(b []byte) error {
	return d.insist(func() error {
		r := d.drv.freeHost(unsafe.Pointer(unsafe.SliceData(b)))
		if r == InvalidValue { // it isn't page-locked memory, so it retains nothing
			return check("cuMemFreeHost", r)
		}
		return errors.Join(check("cuMemFreeHost", r), d.release())
	})
}

// Alloc returns the address of new memory on the device, aligned for every type.
// Its content is undefined. It stays until Free, whatever is closed before.
func (d *Device) Alloc(size int) (ptr uintptr, err error) {
	return d.keep(func() (uintptr, error) {
		p, r := d.drv.alloc(size)
		if r == Success {
			return p, nil
		}
		asked := fmt.Sprintf("%d bytes of device memory asked for", size)
		if free, total, r := d.drv.memInfo(); r == Success {
			asked += fmt.Sprintf(", %d of %d are free", free, total)
		}
		return 0, &Error{Call: "cuMemAlloc_v2", Result: r, Asked: asked}
	}, d.Free)
}

// Free frees what Alloc returned. No copy to it may be under way.
func (d *Device) Free(ptr uintptr) error {
	err := d.insist(func() error { return check("cuMemFree_v2", d.drv.free(ptr)) })
	return errors.Join(err, d.release())
}

// NewEvent returns an event that measures no time. It stays until FreeEvent, whatever
// is closed before. An event that was never recorded counts as done.
func (d *Device) NewEvent() (ev uintptr, err error) {
	return d.keep(func() (uintptr, error) {
		ev, r := d.drv.newEvent()
		return ev, check("cuEventCreate", r)
	}, d.FreeEvent)
}

// FreeEvent frees what NewEvent returned.
func (d *Device) FreeEvent(ev uintptr) error {
	err := d.insist(func() error { return check("cuEventDestroy_v2", d.drv.destroyEvent(ev)) })
	return errors.Join(err, d.release())
}

// keep makes something that retains the device's context until it is freed.
func (d *Device) keep(make func() (uintptr, error), free func(uintptr) error) (made uintptr, err error) {
	if _, err := d.retain(); err != nil {
		return 0, err
	}
	err = d.borrow(func() (err error) {
		made, err = make()
		return err
	})
	switch {
	case made == 0:
		return 0, errors.Join(err, d.release())
	case err != nil:
		return 0, errors.Join(err, free(made))
	}
	return made, nil
}

// borrow calls f on one thread, with the device's context current on that thread.
func (d *Device) borrow(f func() error) error {
	ctx, err := d.retain()
	if err != nil {
		return err
	}
	return errors.Join(within(d.drv, ctx, f), d.release())
}

// insist does what borrow does, for calls that free something. If it fails before it calls f, it tries
// once more, since a call may only report an earlier failure.
func (d *Device) insist(f func() error) error {
	called := false
	free := func() error {
		called = true
		return f()
	}
	err := d.borrow(free)
	if !called {
		err = errors.Join(err, d.borrow(free))
	}
	return err
}

// retain returns the device's primary context, which the caller may use until release. The driver counts
// these calls: the context exists from the first retain to the last release.
func (d *Device) retain() (uintptr, error) {
	ctx, r := d.drv.retainPrimary(d.gpu)
	return ctx, check("cuDevicePrimaryCtxRetain", r)
}

func (d *Device) release() error {
	return check("cuDevicePrimaryCtxRelease_v2", d.drv.releasePrimary(d.gpu))
}

// within calls f on one thread with ctx as its current context.
func within(drv library, ctx uintptr, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := check("cuCtxPushCurrent_v2", drv.push(ctx)); err != nil {
		return err
	}
	return errors.Join(f(), check("cuCtxPopCurrent_v2", drv.pop()))
}
