//go:build !unix

package main

import (
	"os"
	"syscall"
)

var stopSignals = []os.Signal{syscall.SIGTERM, os.Interrupt}
