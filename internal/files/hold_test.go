package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"
	"github.com/stretchr/testify/require"
)

// withoutLocks makes file systems refuse locks, as some of Lustre do, in virtual time.
func withoutLocks(t *testing.T, test func(t *testing.T, path string)) {
	was := tryLock
	defer func() { tryLock = was }()
	tryLock = func(*flock.Flock) (bool, error) { return false, errors.ErrUnsupported }
	path := filepath.Join(t.TempDir(), "lock")
	synctest.Test(t, func(t *testing.T) { test(t, path) })
	left, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	require.Equal(t, []string{path}, left)
}

func TestWhereThereAreNoLocksOneHoldsAndTheOthersWait(t *testing.T) {
	withoutLocks(t, func(t *testing.T, path string) {
		var holders, most, times int
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				held, err := Hold(t.Context(), path)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				holders, times = holders+1, times+1
				most = max(most, holders)
				mu.Unlock()
				for range 60 {
					time.Sleep(time.Minute)
					if !held.Still() {
						t.Error("lost")
					}
				}
				mu.Lock()
				holders--
				mu.Unlock()
				held.Release()
			})
		}
		all.Wait()
		require.Equal(t, 6, times)
		require.Equal(t, 1, most)
	})
}

func TestWaitingWhereThereAreNoLocksEndsWithTheContext(t *testing.T) {
	withoutLocks(t, func(t *testing.T, path string) {
		held, err := Hold(t.Context(), path)
		require.NoError(t, err)
		for _, patience := range []time.Duration{0, time.Minute} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			_, err = Hold(ctx, path)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		require.True(t, held.Still())
		held.Release()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = Hold(ctx, path)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// A process that was killed renews nothing. One that stood still sees that it has lost the lock.
func TestAHolderThatRenewsNothingIsReplaced(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there the file of a process that lives, as the test's does, can't be removed")
	}
	withoutLocks(t, func(t *testing.T, path string) {
		f, err := os.Create(path + ".held")
		require.NoError(t, err)
		dead := &Held{file: f, path: path + ".held"}
		began := time.Now()
		var holders []*Held
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				held, err := Hold(t.Context(), path)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				holders = append(holders, held)
				mu.Unlock()
				for range 60 {
					time.Sleep(time.Minute)
					if !held.Still() {
						t.Error("lost")
					}
				}
				held.Release()
			})
		}
		time.Sleep(15 * time.Minute)
		require.False(t, dead.Still())
		mu.Lock()
		require.Len(t, holders, 1)
		mu.Unlock()
		require.NoError(t, f.Close())
		all.Wait()
		require.Len(t, holders, 3)
		require.Less(t, time.Since(began), 4*time.Hour)
	})
}

func TestALockWhoseFileIsRemovedIsLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := Hold(t.Context(), path)
	require.NoError(t, err)
	require.True(t, held.Still())
	if err := os.Remove(path); err != nil {
		held.Release()
		t.Skip("a lock that is held can't be removed here:", err)
	}
	require.False(t, held.Still())
	other, err := Hold(t.Context(), path)
	require.NoError(t, err)
	require.False(t, held.Still())
	held.Release()
	require.True(t, other.Still())
	other.Release()
}
