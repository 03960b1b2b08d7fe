//go:build unix && !linux

package host

// accountNow does nothing: as far as is known, other systems don't need it.
func accountNow() {}
