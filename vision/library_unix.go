//go:build (linux || darwin) && !android && (amd64 || arm64) && (cgo || nwt_purego)

package vision

import (
	"runtime"

	"github.com/ebitengine/purego"
)

var turboNames = map[string][]string{
	"linux":  {"libturbojpeg.so.0", "libturbojpeg.so"},
	"darwin": {"libturbojpeg.0.dylib", "/opt/homebrew/lib/libturbojpeg.0.dylib", "/usr/local/lib/libturbojpeg.0.dylib"},
}[runtime.GOOS]

func openLibrary(name string) (uintptr, error) {
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func symbolOf(lib uintptr, name string) (uintptr, error) { return purego.Dlsym(lib, name) }
