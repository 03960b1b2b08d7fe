//go:build !explore

package watch

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An owner makes calls that a Watchdog looks at.
type owner struct {
	clock   Clock
	givenUp time.Duration // when, since the test began; 0: not yet
}

func (o *owner) watchedBy(d *Watchdog, began time.Time) {
	d.Watch(&o.clock, func() bool { o.givenUp = time.Since(began); return true })
}

// served has a Watchdog look while f runs.
func served(t *testing.T, f func(d *Watchdog, began time.Time)) {
	synctest.Test(t, func(t *testing.T) {
		d, done := New(time.Second), make(chan struct{})
		var serving sync.WaitGroup
		serving.Go(func() { d.Serve(done) })
		f(d, time.Now())
		close(done)
		serving.Wait()
	})
}

func TestACallIsGivenUpOnceItsTimeIsOver(t *testing.T) {
	for name, c := range map[string]struct {
		parts        int
		begin, pause time.Duration // how long it works before a pause, and how long that takes; -1: for ever
		resumes      bool
		at           time.Duration
	}{
		"a call":                      {1, time.Hour, 0, false, time.Second},
		"of eight":                    {8, time.Hour, 0, false, 8 * time.Second},
		"in a pause":                  {1, 500 * time.Millisecond, time.Hour, false, 10500 * time.Millisecond},
		"of eight, in a pause":        {8, 500 * time.Millisecond, time.Hour, false, 10500 * time.Millisecond},
		"after a pause":               {1, 500 * time.Millisecond, 9 * time.Second, true, 10 * time.Second},
		"of eight, after the pause":   {8, 500 * time.Millisecond, 9 * time.Second, true, 17 * time.Second},
		"one that returns":            {1, 999 * time.Millisecond, 0, true, 0},
		"one that returns in a while": {8, 7 * time.Second, 9 * time.Second, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			served(t, func(d *Watchdog, began time.Time) {
				var o owner
				o.watchedBy(d, began)
				o.clock.Begin(d.Now(), c.parts)
				time.Sleep(c.begin)
				if c.pause > 0 {
					o.clock.Pause(d.Now())
					time.Sleep(c.pause)
				}
				if c.resumes && c.pause > 0 {
					o.clock.Resume(d.Now())
				}
				if c.at > 0 {
					time.Sleep(time.Hour)
				}
				require.Equal(t, c.at == 0, o.clock.End())
				require.Equal(t, c.at > 0, o.clock.Lost())
				require.Equal(t, c.at, o.givenUp.Truncate(time.Second/2))
				if c.at > 0 {
					require.Equal(t, 1, d.Away())
					d.Back()
				}
				require.Zero(t, d.Away())
			})
		})
	}
}

func TestACallThatMayGoOnIsLookedAtAgain(t *testing.T) {
	served(t, func(d *Watchdog, began time.Time) {
		var clock Clock
		var looks atomic.Int32
		clock.Begin(d.Now(), 1)
		time.Sleep(time.Minute)
		d.Watch(&clock, func() bool { looks.Add(1); return false })
		require.EqualValues(t, 1, looks.Load(), "at once")
		time.Sleep(time.Second)
		require.InDelta(t, 1+8, looks.Load(), 1)
		require.True(t, clock.End())
		time.Sleep(time.Minute)
		require.InDelta(t, 1+8, looks.Load(), 1)
		clock.Begin(d.Now(), 1)
		d.Unwatch(&clock)
		time.Sleep(time.Minute)
		require.InDelta(t, 1+8, looks.Load(), 1)
	})
}

// What the process didn't run, its calls couldn't use, whether they began before it was stopped or
// right after it went on.
func TestTimeInWhichTheProcessWasStoppedIsNoCallsTime(t *testing.T) {
	for _, before := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			d := New(time.Second)
			rounds := func(n int) {
				for range n {
					d.looked.Store(int64(time.Since(d.began)))
					time.Sleep(d.tick)
					d.lookAtAll()
				}
			}
			var o owner
			o.watchedBy(d, began)
			rounds(3)
			if before {
				o.clock.Begin(d.Now(), 1)
			}
			rounds(4)
			time.Sleep(time.Hour)
			if !before {
				o.clock.Begin(d.Now(), 1)
			}
			var late owner
			late.clock.Begin(d.Now(), 1)
			late.watchedBy(d, began) // Serve hasn't noticed yet
			d.lookAtAll()
			rounds(3)
			require.Zero(t, o.givenUp)
			rounds(5)
			require.NotZero(t, o.givenUp)
			require.NotZero(t, late.givenUp)
		})
	}
}
