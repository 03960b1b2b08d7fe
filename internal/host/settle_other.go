//go:build unix && !linux

package host

// settle does nothing: other systems aren't known to need it.
func settle() {}
