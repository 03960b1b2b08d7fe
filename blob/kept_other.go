//go:build !unix

package blob

import "io/fs"

func onDisk(info fs.FileInfo) int64 { return info.Size() }
