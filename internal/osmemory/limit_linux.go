package osmemory

import "golang.org/x/sys/unix"

// ulimit -v limits the address space.
func init() {
	addresses = func() uint64 {
		var r unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_AS, &r) != nil {
			return 1 << 63
		}
		return r.Cur
	}
}
