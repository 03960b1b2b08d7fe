package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/cuda"
)

// ErrNoDevice is every reason why there is no GPU to use: no driver, no GPU, an
// ordinal that none has, or a binary that can't load the driver. The error that
// wraps it says which.
var ErrNoDevice = cuda.ErrNoDevice

// CUDA is a GPU of NVIDIA's by its number, from 0. It needs NVIDIA's driver on
// the machine and nothing else, neither a build tag nor the toolkit; where there
// is no such GPU the error is [ErrNoDevice] and says why. Work goes to the GPU's
// primary context, which other CUDA libraries in the process use too.
//
// Without cgo the driver can be loaded only in programs built with the tag
// nwt_purego. With the tag cuda, gorgonia.org/cu is linked instead, which needs
// the toolkit.
func CUDA(ordinal int) (Device, error) {
	dev, err := cuda.Open(ordinal)
	if err != nil {
		return nil, fmt.Errorf("nwt: CUDA(%d): %w", ordinal, err)
	}
	return cudaDevice{dev, fmt.Sprintf("cuda:%d (%s)", ordinal, dev.Name())}, nil
}

// CUDAContext is the GPU of a context that the program has already, a
// CUcontext: Gorgonia's, for one. The context must outlive the loaders that use
// the device.
func CUDAContext(handle uintptr) (Device, error) {
	dev, err := cuda.FromContext(handle)
	if err != nil {
		return nil, fmt.Errorf("nwt: CUDAContext(%#x): %w", handle, err)
	}
	return cudaDevice{dev, fmt.Sprintf("cuda (%s)", dev.Name())}, nil
}

type cudaDevice struct {
	*cuda.Device
	name string
}

func (d cudaDevice) String() string { return d.name }

func (d cudaDevice) Open() (Session, error) {
	s, err := d.Session()
	if err != nil {
		return nil, err
	}
	return s, nil
}
