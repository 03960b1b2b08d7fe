//go:build (((linux || darwin) && !android && (cgo || nwt_purego)) || windows) && (amd64 || arm64)

package vision

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// turbo is libjpeg-turbo's TurboJPEG library, found at run time. The functions
// are those of its API 2, which 3.x has too (turbojpeg.h).
type turbo struct {
	initDecompress        uintptr
	destroy               uintptr
	decompressToYUVPlanes uintptr
	decompress2           uintptr
	getErrorCode          uintptr
	getErrorStr2          uintptr
}

// openTurbo finds the library, once.
var openTurbo = sync.OnceValues(func() (*turbo, error) {
	// dlerror tells only the thread on which dlopen failed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var errs []error
	for _, name := range turboNames {
		lib, err := openLibrary(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t := new(turbo)
		for symbol, fn := range map[string]*uintptr{
			"tjInitDecompress":        &t.initDecompress,
			"tjDestroy":               &t.destroy,
			"tjDecompressToYUVPlanes": &t.decompressToYUVPlanes,
			"tjDecompress2":           &t.decompress2,
			"tjGetErrorCode":          &t.getErrorCode,
			"tjGetErrorStr2":          &t.getErrorStr2,
		} {
			if *fn, err = symbolOf(lib, symbol); err != nil {
				return nil, fmt.Errorf("vision: %s is older than libjpeg-turbo 2.0: %w", name, err)
			}
		}
		return t, nil
	}
	return nil, fmt.Errorf("vision: libjpeg-turbo can't be loaded: %w", errors.Join(errs...))
})

// Turbo tells whether libjpeg-turbo was found, and if not, why. Without it JPEG
// files are decoded in Go.
func Turbo() (found bool, why error) {
	_, err := openTurbo()
	return err == nil, err
}

// A turboDecoder is a decompressor of the library. One goroutine at a time uses
// it.
type turboDecoder struct {
	lib    *turbo
	handle uintptr

	// What C reads and writes lies on the heap: there nothing moves it.
	args    [9]uintptr
	planes  [3]*byte
	strides [3]int32
}

// newTurboDecoder makes a decompressor; nil, nil: there is no library.
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

// close gives the decompressor back.
func (d *turboDecoder) close() {
	if d != nil {
		purego.SyscallN(d.lib.destroy, d.handle)
	}
}

// TJFLAG_ACCURATEDCT and TJFLAG_LIMITSCANS.
const turboFlags = 4096 | 32768

// decode decodes data to planes of width × height pixels, a size that the library
// can scale to. damaged tells what is wrong with a picture that could be decoded
// nonetheless.
func (d *turboDecoder) decode(data []byte, planes *[3]plane, width, height int) (damaged, err error) {
	for i := range planes {
		d.planes[i], d.strides[i] = unsafe.SliceData(planes[i].pix), int32(planes[i].stride)
	}
	d.args = [9]uintptr{
		d.handle, uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(len(data)),
		uintptr(unsafe.Pointer(&d.planes)), uintptr(width), uintptr(unsafe.Pointer(&d.strides)), uintptr(height),
		turboFlags,
	}
	damaged, err = d.call(d.lib.decompressToYUVPlanes, 8)
	runtime.KeepAlive(data)
	runtime.KeepAlive(planes)
	return damaged, err
}

// decodePacked decodes data to pixels, one after the other: of RGB if there are three
// channels, of CMYK if there are four.
func (d *turboDecoder) decodePacked(data, pixels []byte, width, height, channels int) (damaged, err error) {
	format := 0 // TJPF_RGB
	if channels == 4 {
		format = 11 // TJPF_CMYK
	}
	d.args = [9]uintptr{
		d.handle, uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(len(data)),
		uintptr(unsafe.Pointer(unsafe.SliceData(pixels))), uintptr(width), 0, uintptr(height), uintptr(format), turboFlags,
	}
	damaged, err = d.call(d.lib.decompress2, 9)
	runtime.KeepAlive(data)
	runtime.KeepAlive(pixels)
	return damaged, err
}

// call calls a function with the first n of d.args.
func (d *turboDecoder) call(function uintptr, n int) (damaged, err error) {
	// The library tells a warning only to the thread that met it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	status, _, _ := purego.SyscallN(function, d.args[:n]...)
	if int32(status) == 0 {
		return nil, nil
	}
	d.args[0] = d.handle
	text, _, _ := purego.SyscallN(d.lib.getErrorStr2, d.args[:1]...)
	d.args[0] = d.handle
	fatal, _, _ := purego.SyscallN(d.lib.getErrorCode, d.args[:1]...)
	if int32(fatal) == 0 && surplus(text) {
		return nil, nil
	}
	message := errors.New(strings.Clone(cString(text)))
	if int32(fatal) != 0 {
		return nil, message
	}
	return message, nil
}

// surplus tells whether a warning is only about data between the last row and
// the next marker: "Corrupt JPEG data: 123 extraneous bytes before marker 0xd9".
// Many cameras leave some such bytes, and there are more if the picture's height was
// cut. Nothing before them was wrong, since the library keeps the first warning.
// An intact file has none before a restart marker, 0xd0 … 0xd7: if there are some,
// codes were damaged.
func surplus(text uintptr) bool {
	_, marker, found := strings.Cut(cString(text), "extraneous bytes before marker ")
	return found && (marker < "0xd0" || marker > "0xd7")
}

// cString returns a C string, which stays in C's memory.
func cString(p uintptr) string {
	if p == 0 {
		return ""
	}
	start := *(**byte)(unsafe.Pointer(&p)) // vet can't know that it is C's
	n := 0
	for n < 1024 && *(*byte)(unsafe.Add(unsafe.Pointer(start), n)) != 0 {
		n++
	}
	return unsafe.String(start, n)
}
