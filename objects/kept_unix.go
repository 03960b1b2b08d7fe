//go:build unix

package objects

import (
	"io/fs"
	"syscall"
)

// onDisk returns how much space a file takes on its disk, which is less than its size if the file has
// holes.
func onDisk(info fs.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(stat.Blocks) * 512
	}
	return info.Size()
}
