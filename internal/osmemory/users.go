package osmemory

import "sync"

// Users lets workers use memory until it is freed. Up to 32 workers have their own lock, each on its own
// cache line.
type Users [32]struct {
	sync.RWMutex
	_ [40]byte
}

// Enter keeps the memory from being freed until the caller calls RUnlock on the lock.
func (u *Users) Enter(worker int) *sync.RWMutex {
	lock := &u[worker%len(u)].RWMutex
	lock.RLock()
	return lock
}

// Alone runs f while nobody has entered.
func (u *Users) Alone(f func()) {
	for i := range u {
		u[i].Lock()
		defer u[i].Unlock()
	}
	f()
}
