//go:build unix

package main

import (
	"os"
	"syscall"
)

// Open MPI kills its ranks a second or two after SIGTERM, but passes SIGUSR1 on.
var stopSignals = []os.Signal{syscall.SIGTERM, syscall.SIGUSR1, os.Interrupt}
