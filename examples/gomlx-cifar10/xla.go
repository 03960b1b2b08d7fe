//go:build cgo && (linux || darwin)

package main

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/go-xla/compute/xla"
)

// installedXLA returns XLA on the CPU if a plugin is installed; it downloads none.
func installedXLA() (compute.Backend, bool) {
	xla.EnableAutoInstall(false)
	b, err := xla.New("cpu")
	return b, err == nil
}
