package host

import "github.com/shirou/gopsutil/v3/disk"

// DiskLeft returns how many bytes the disk of a folder has left for this user. It is false where
// that isn't known, as where files are compressed: then more fits than is left.
func DiskLeft(folder string) (bytes uint64, known bool) {
	u, err := disk.Usage(folder)
	if err != nil || u.Fstype == "zfs" || u.Fstype == "btrfs" {
		return 0, false
	}
	return u.Free, true
}
