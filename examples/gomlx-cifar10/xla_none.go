//go:build !cgo || !(linux || darwin)

package main

import "github.com/gomlx/compute"

func installedXLA() (compute.Backend, bool) { return nil, false }
