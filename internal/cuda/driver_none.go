//go:build !(linux && cgo && cuda) && !(linux && !android && (amd64 || arm64) && (cgo || nwt_purego) && !cuda)

package cuda

import (
	"fmt"
	"runtime"
)

// Backend says how this binary talks to the driver: not at all.
const Backend = ""

func load(string) (driver, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return nil, fmt.Errorf("%w: GPUs work on linux/amd64 and linux/arm64, and this is %s/%s", ErrNoDevice, runtime.GOOS, runtime.GOARCH)
	}
	return nil, fmt.Errorf("%w: this binary was built without cgo, so that it is static; build it with CGO_ENABLED=1, or with -tags nwt_purego and it needs glibc to run", ErrNoDevice)
}
