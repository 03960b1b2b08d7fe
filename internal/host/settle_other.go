//go:build unix && !linux

package host

// settle isn't known to be needed elsewhere.
func settle() {}
