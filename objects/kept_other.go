//go:build !unix

package objects

import "io/fs"

func onDisk(info fs.FileInfo) int64 { return info.Size() }
