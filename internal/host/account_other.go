//go:build unix && !linux

package host

// accountNow does nothing: other systems aren't known to need it.
func accountNow() {}
