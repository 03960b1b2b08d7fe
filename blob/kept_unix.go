//go:build unix

package blob

import (
	"io/fs"
	"syscall"
)

// onDisk returns what a file takes on its disk: less than its size if it has holes.
func onDisk(info fs.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(stat.Blocks) * 512
	}
	return info.Size()
}
