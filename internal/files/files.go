// Package files opens, locks and replaces files at paths that somebody gave: what
// lies there may be anything, of anybody, and several processes may want it.
package files

import (
	"errors"
	"syscall"
)

// TooMany tells whether a file couldn't be opened only since too many are open in
// this process or on this machine, so that it is worth while to wait for one to
// be closed.
func TooMany(err error) bool {
	for _, known := range tooMany {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

var tooMany = []syscall.Errno{syscall.EMFILE, syscall.ENFILE}
