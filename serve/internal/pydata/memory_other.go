//go:build unix && !linux

package pydata

import "os"

// newMemory makes a file that has no name any more.
func newMemory() (*os.File, error) {
	f, err := os.CreateTemp("", "nwt-sample")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}
