package nwt

import "sync"

// inUse lets workers use memory until somebody frees it. Up to 32 workers have their
// own lock, each on its own cache line.
type inUse [32]struct {
	sync.RWMutex
	_ [40]byte
}

// enter keeps the memory from being freed until the caller calls RUnlock on the lock.
func (u *inUse) enter(worker int) *sync.RWMutex {
	lock := &u[worker%len(u)].RWMutex
	lock.RLock()
	return lock
}

// alone runs f while nobody is in.
func (u *inUse) alone(f func()) {
	for i := range u {
		u[i].Lock()
		defer u[i].Unlock()
	}
	f()
}
