//go:build !((((linux || darwin) && !android && (cgo || nwt_purego)) || windows) && (amd64 || arm64))

package vision

import "errors"

// Turbo reports whether libjpeg-turbo was found, and if not, why. Without it JPEG
// files are decoded in Go.
func Turbo() (found bool, why error) { return false, turboError() }

// A program without cgo is static and can't open a library.
func newTurboDecoder() (*turboDecoder, error) { return nil, nil }

func turboError() error {
	return errors.New("vision: libjpeg-turbo is looked for on amd64 and arm64: on Windows, and on Linux and macOS in programs built with cgo or the tag nwt_purego")
}

type turboDecoder struct{}

func (*turboDecoder) close() {}

func (*turboDecoder) decode([]byte, *[3]plane, int, int, bool) (clean bool) { return false }
