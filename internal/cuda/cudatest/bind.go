//go:build linux && !android && (amd64 || arm64) && (cgo || nwt_purego)

package cudatest

import (
	"fmt"

	"github.com/ebitengine/purego"
)

// bind loads a library and sets each function variable to its symbol.
func bind(library string, functions map[string]any) error {
	lib, err := purego.Dlopen(library, purego.RTLD_NOW)
	if err != nil {
		return err
	}
	for name, f := range functions {
		symbol, err := purego.Dlsym(lib, name)
		if err != nil {
			return fmt.Errorf("%w: this binary was linked with another driver: %w", errAbsent, err)
		}
		purego.RegisterFunc(f, symbol)
	}
	return nil
}
