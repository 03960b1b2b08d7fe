//go:build (((linux || darwin) && !android && (cgo || nwt_purego)) || windows) && (amd64 || arm64)

package vision

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// turbo is libjpeg-turbo's TurboJPEG library, found at run time. The functions are those of its API 2,
// which version 3 also has (turbojpeg.h).
type turbo struct {
	initDecompress        uintptr
	destroy               uintptr
	decompressToYUVPlanes uintptr
}

// openTurbo finds the library, once.
var openTurbo = sync.OnceValues(func() (*turbo, error) {
	// dlerror reports a failure only to the thread on which dlopen failed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var errs []error
	for _, name := range turboNames {
		lib, err := openLibrary(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t, since2 := new(turbo), uintptr(0)
		for symbol, fn := range map[string]*uintptr{
			"tjInitDecompress":        &t.initDecompress,
			"tjDestroy":               &t.destroy,
			"tjDecompressToYUVPlanes": &t.decompressToYUVPlanes,
			"tjGetErrorCode":          &since2, // introduced together with TJFLAG_STOPONWARNING
		} {
			if *fn, err = symbolOf(lib, symbol); err != nil {
				return nil, fmt.Errorf("vision: %s is older than libjpeg-turbo 2.0: %w", name, err)
			}
		}
		return t, nil
	}
	return nil, fmt.Errorf("vision: libjpeg-turbo can't be loaded: %w", errors.Join(errs...))
})

// Turbo reports whether libjpeg-turbo was found, and if not, why. Without it JPEG
// files are decoded in Go.
func Turbo() (found bool, why error) {
	_, err := openTurbo()
	return err == nil, err
}

// A turboDecoder is a decompressor of the library. Only one goroutine may use it at a time.
type turboDecoder struct {
	lib    *turbo
	handle uintptr

	// The memory that C reads and writes is on the heap, because nothing moves it there.
	args    [8]uintptr
	planes  [3]*byte
	strides [3]int32
}

// newTurboDecoder makes a decompressor. It returns nil, nil if there is no library.
func newTurboDecoder() (*turboDecoder, error) {
	lib, err := openTurbo()
	if err != nil {
		return nil, nil
	}
	d := &turboDecoder{lib: lib}
	if d.handle, _, _ = purego.SyscallN(lib.initDecompress); d.handle == 0 {
		return nil, errors.New("vision: libjpeg-turbo has no memory for a decompressor")
	}
	return d, nil
}

// close frees the decompressor.
func (d *turboDecoder) close() {
	if d != nil {
		purego.SyscallN(d.lib.destroy, d.handle)
	}
}

// These are TJFLAG_ACCURATEDCT, TJFLAG_LIMITSCANS and TJFLAG_STOPONWARNING.
const (
	turboFlags  = 4096 | 32768
	stopAtFirst = 8192
)

// decode decodes data to planes of width × height pixels, a size that the library can scale to. clean
// reports whether the library gave no error and no warning. Otherwise it has stopped there or, if all is
// set, continued after what is only a warning.
func (d *turboDecoder) decode(data []byte, planes *[3]plane, width, height int, all bool) (clean bool) {
	for i := range planes {
		d.planes[i], d.strides[i] = unsafe.SliceData(planes[i].pix), int32(planes[i].stride)
	}
	flags := uintptr(turboFlags)
	if !all {
		flags |= stopAtFirst
	}
	d.args = [8]uintptr{
		d.handle, uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(len(data)),
		uintptr(unsafe.Pointer(&d.planes)), uintptr(width), uintptr(unsafe.Pointer(&d.strides)), uintptr(height), flags,
	}
	status, _, _ := purego.SyscallN(d.lib.decompressToYUVPlanes, d.args[:]...)
	runtime.KeepAlive(data)
	runtime.KeepAlive(planes)
	return int32(status) == 0
}
