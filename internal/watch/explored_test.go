//go:build explore

package watch

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/exploretest"
)

type (
	atomicUint64 = exploretest.Uint64
	mutex        = exploretest.Mutex
)

// The owner makes two calls, with a pause in one of them. Two others look, one of which may give a
// call up, and the watchdog corrects when a call has begun.
func TestWhateverTheOrderACallThatIsLookedAtStandsStillAndIsGivenUpOnce(t *testing.T) {
	for _, c := range []struct{ pauses, corrects, gives bool }{{false, false, true}, {true, false, true}, {false, true, true}, {true, true, false}} {
		x := &exploretest.Explorer{Bound: -1, Needed: 1}
		x.World = func(x *exploretest.Explorer) {
			clock := exploretest.Share(x, &Clock{})
			seen := exploretest.Share(x, &struct{ between, looking, given, told exploretest.Int32 }{}) // between changes between calls only
			ended := exploretest.Share(x, &[1]exploretest.Tokens{exploretest.NewTokens(3)})
			spawned := 0
			spawn := func(name string, run func()) {
				spawned++
				x.Spawn(name, func() { run(); ended[0].Send() })
			}
			look := func(gives bool) {
				gave := clock.Look(func(call Call) bool {
					exploretest.Must(seen.looking.Add(1) == 1, "two look at once")
					was := seen.between.Load()
					exploretest.Must(seen.between.Load() == was, "a call that is looked at goes on")
					seen.looking.Add(-1)
					return gives
				})
				if gave {
					seen.given.Add(1)
				}
			}
			x.Spawn("judge", func() {
				for range spawned {
					ended[0].Receive()
				}
				given, told := seen.given.Load(), seen.told.Load()
				exploretest.Must(given <= 1 && told == given, "%d calls were given up, %d of which know it", given, told)
				_, ok := clock.Since()
				exploretest.Must(given > 0 || !ok, "a call is under way, though all have returned")
			})
			spawn("owner", func() {
				for n := range 2 {
					clock.Begin(10, 1)
					if c.pauses && n == 0 {
						clock.Pause(15)
						clock.Resume(20)
					}
					if !clock.End() {
						seen.told.Add(1)
						exploretest.Must(clock.Lost() && !clock.End() && !clock.Resume(30), "a call that was given up comes back")
						return
					}
					seen.between.Add(1)
				}
			})
			spawn("watchdog", func() {
				if c.corrects {
					clock.notAfter(8)
				}
				look(c.gives)
			})
			if !c.corrects {
				spawn("log", func() { look(false) })
			}
		}
		require.Empty(t, x.Explore(), fmt.Sprint(c))
		t.Logf("%+v: %d executions, %d states, %d steps", c, x.Executions, x.States(), x.Steps)
	}
}
