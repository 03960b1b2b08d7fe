//go:build amd64 || arm64

package vision

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// These are the names of the official builds by Visual C++ and by MinGW, and the places where their
// installers put them.
var turboNames = []string{
	"turbojpeg.dll", "libturbojpeg.dll",
	`C:\libjpeg-turbo64\bin\turbojpeg.dll`, `C:\libjpeg-turbo-gcc64\bin\libturbojpeg.dll`,
}

// openLibrary looks in the program's folder, in the Windows folders, and along PATH, but never in the
// working directory, because anybody may have put a file there.
func openLibrary(name string) (uintptr, error) {
	lib, err := windows.LoadLibraryEx(name, 0, windows.LOAD_LIBRARY_SEARCH_DEFAULT_DIRS)
	if err == nil {
		return uintptr(lib), nil
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if filepath.IsAbs(name) || !filepath.IsAbs(path) {
			continue
		}
		lib, found := windows.LoadLibraryEx(path, 0, windows.LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR|windows.LOAD_LIBRARY_SEARCH_DEFAULT_DIRS)
		if found == nil {
			return uintptr(lib), nil
		}
		if !errors.Is(found, os.ErrNotExist) { // it is there, but built for another kind of CPU, for example
			err = found
		}
	}
	return 0, fmt.Errorf("%s: %w", name, err)
}

func symbolOf(lib uintptr, name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(lib), name)
}
