//go:build !unix

package osmemory

import (
	"errors"
	"os"
)

// MapFile fails: on this system files are read, not mapped.
func MapFile(*os.File, int64) ([]byte, error) { return nil, errors.ErrUnsupported }

// UnmapFile does nothing, since MapFile never succeeds.
func UnmapFile([]byte) error { return nil }
