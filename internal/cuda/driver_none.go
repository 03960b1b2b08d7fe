//go:build !(linux && cgo && cuda) && !(linux && !android && (amd64 || arm64) && (cgo || nwt_purego) && !cuda)

package cuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
)

// Backend names the way in which this binary calls the driver; "" means that it can't.
const Backend = ""

// deviceFiles exist if a process may use a GPU: on a PC or server, on a Jetson, and in WSL.
var deviceFiles = []string{"/dev/nvidiactl", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu", "/usr/lib/wsl/lib/libcuda.so.1"}

func load(string) (library, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return nil, fmt.Errorf("%w: GPUs work on linux/amd64 and linux/arm64, and this is %s/%s", ErrNoDevice, runtime.GOOS, runtime.GOARCH)
	}
	const static = "this binary was built without cgo, so that it is static; build it with CGO_ENABLED=1, or with -tags nwt_purego and it needs glibc to run"
	visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	hidden := set && (visible == "" || visible == "-1")
	if !hidden && slices.ContainsFunc(deviceFiles, isThere) {
		return nil, errors.New("there seems to be a GPU, but " + static)
	}
	return nil, fmt.Errorf("%w: %s", ErrNoDevice, static)
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
