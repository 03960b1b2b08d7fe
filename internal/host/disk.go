package host

import "github.com/shirou/gopsutil/v3/disk"

// DiskLeft returns how many bytes the disk of a folder has left for this user. known is false if that
// isn't known. That is so if the file system compresses files, because more fits on it than is left.
func DiskLeft(folder string) (bytes uint64, known bool) {
	u, err := disk.Usage(folder)
	if err != nil || u.Fstype == "zfs" || u.Fstype == "btrfs" {
		return 0, false
	}
	return u.Free, true
}
