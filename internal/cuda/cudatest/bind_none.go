//go:build !(linux && !android && (amd64 || arm64) && (cgo || nwt_purego))

package cudatest

import "fmt"

func bind(string, map[string]any) error {
	return fmt.Errorf("%w: this binary was built without cgo", errAbsent)
}
