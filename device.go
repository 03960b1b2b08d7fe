package nwt

import (
	"errors"
	"fmt"

	"github.com/nwt-go/nwt/device"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/osmemory"
)

// CUDA returns the NVIDIA GPU with the given number, from 0, or [ErrNoDevice] if there is none. It needs
// NVIDIA's driver. A build without cgo needs the tag nwt_purego; a build with the tag cuda needs the
// toolkit. If there is a GPU but the build had neither cgo nor nwt_purego, another error says so.
func CUDA(ordinal int) (Device, error) {
	dev, err := cuda.Open(ordinal)
	if err != nil {
		return nil, fmt.Errorf("nwt: CUDA(%d): %w", ordinal, err)
	}
	return cudaDevice{dev, fmt.Sprintf("cuda:%d (%s)", ordinal, dev.Name())}, nil
}

type cudaDevice struct {
	*cuda.Device
	name string
}

func (d cudaDevice) String() string { return d.name }

// A Device says where batches must end up: [Host], [CUDA], or the program's own, for which see package
// device. Any goroutine may call it. The interface is experimental: it may change once it has run on a
// real GPU.
type Device interface {
	String() string                     // for reports; devices of different speeds must have different names
	AllocHost(size int) ([]byte, error) // returns memory from which the device copies at full speed, aligned for every type
	FreeHost(mem []byte) error
	Alloc(size int) (uintptr, error) // returns memory on the device
	Free(ptr uintptr) error
	NewEvent() (uintptr, error) // returns a handle for a point in a session's queue
	FreeEvent(event uintptr) error
	Open() (device.Session, error) // opens a loader's session, its queue of copies
}

// Host returns the default device: batches stay where they were loaded.
func Host() Device { return hostDevice{} }

type hostDevice struct{}

func onHost(d Device) bool {
	_, ok := d.(hostDevice)
	return ok
}

func (hostDevice) String() string                  { return "host" }
func (hostDevice) AllocHost(n int) ([]byte, error) { return osmemory.Map(n) }
func (hostDevice) FreeHost(mem []byte) error       { return osmemory.Unmap(mem) }
func (hostDevice) Alloc(int) (uintptr, error)      { return 0, errors.ErrUnsupported }
func (hostDevice) Free(uintptr) error              { return errors.ErrUnsupported }
func (hostDevice) NewEvent() (uintptr, error)      { return 0, errors.ErrUnsupported }
func (hostDevice) FreeEvent(uintptr) error         { return errors.ErrUnsupported }
func (hostDevice) Open() (device.Session, error)   { return nil, errors.ErrUnsupported }
