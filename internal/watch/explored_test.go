//go:build explore

package watch

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Here every access to what goroutines share of a Clock is a step of a thread, and the explorer
// takes the steps in every order.

type atomicUint64 struct{ v uint64 }

func (u *atomicUint64) Load() uint64   { step("load", nil); return u.v }
func (u *atomicUint64) Store(v uint64) { step("store", nil); u.v = v }
func (u *atomicUint64) CompareAndSwap(a, b uint64) bool {
	step("compareAndSwap", nil)
	if u.v != a {
		return false
	}
	u.v = b
	return true
}

type mutex struct{ locked bool }

func (m *mutex) Lock()   { step("lock", func() bool { return !m.locked }); m.locked = true }
func (m *mutex) Unlock() { step("unlock", nil); m.locked = false }

// A thread waits before each of its steps until it is picked.
type thread struct {
	name     string
	next     string
	possible func() bool // the next step can be taken; nil: always
	yield    func(struct{}) bool
	resume   func() (struct{}, bool)
	stop     func()
	done     bool
}

var current *thread // nil: the world is being made

func step(name string, possible func() bool) {
	t := current
	if t == nil {
		return
	}
	t.next, t.possible = name, possible
	if !t.yield(struct{}{}) {
		panic("abandoned")
	}
	current = t
}

// explore runs the threads of a world in all orders of their steps. It returns how many these are, and
// the first that ends with a failure: of check, or because everybody waits.
func explore(world func(spawn func(name string, run func()), fail func(format string, args ...any)) (check func())) (orders int, failure string) {
	var path, width []int // the choices of this order, and among how many each was
	for {
		var threads []*thread
		var story []string
		fail := func(format string, args ...any) {
			if failure == "" {
				failure = fmt.Sprintf(format, args...)
			}
		}
		check := world(func(name string, run func()) {
			t := &thread{name: name}
			t.resume, t.stop = iter.Pull(func(yield func(struct{}) bool) {
				defer func() {
					if p := recover(); p != nil && p != "abandoned" {
						fail("%s: %v", name, p)
					}
				}()
				t.yield, current = yield, t
				run()
			})
			threads = append(threads, t)
		}, fail)
		goOn := func(t *thread) {
			current = t
			_, more := t.resume()
			current, t.done = nil, !more
		}
		for _, t := range threads {
			goOn(t)
		}
		for depth := 0; failure == ""; depth++ {
			can := slices.DeleteFunc(slices.Clone(threads), func(t *thread) bool { return t.done || t.possible != nil && !t.possible() })
			if len(can) == 0 {
				if !slices.ContainsFunc(threads, func(t *thread) bool { return !t.done }) {
					check()
				} else {
					fail("everybody waits")
				}
				break
			}
			if depth == 200 {
				fail("it goes on for ever")
				break
			}
			if depth == len(path) {
				path, width = append(path, 0), append(width, len(can))
			}
			t := can[path[depth]]
			story = append(story, t.name+" "+t.next)
			goOn(t)
		}
		for _, t := range threads {
			t.stop()
		}
		if orders++; failure != "" {
			return orders, failure + "\n" + strings.Join(story, "\n")
		}
		for n := len(path); n > 0 && path[n-1]+1 == width[n-1]; n-- {
			path, width = path[:n-1], width[:n-1]
		}
		if len(path) == 0 {
			return orders, ""
		}
		path[len(path)-1]++
	}
}

// The owner makes two calls, with a pause in one of them. Two others look, one of which may give a
// call up, and the watchdog corrects when a call has begun.
func TestWhateverTheOrderACallThatIsLookedAtStandsStillAndIsGivenUpOnce(t *testing.T) {
	for _, c := range []struct{ pauses, corrects, gives bool }{{false, false, true}, {true, false, true}, {false, true, true}, {true, true, false}} {
		orders, failure := explore(func(spawn func(string, func()), fail func(string, ...any)) func() {
			clock := &Clock{}
			between, looking, given, told := 0, 0, 0, 0 // between changes between calls only
			look := func(gives bool) {
				gave := clock.Look(func(call Call) bool {
					if looking++; looking > 1 {
						fail("two look at once")
					}
					was := between
					step("look", nil)
					if between != was {
						fail("a call that is looked at goes on")
					}
					looking--
					return gives
				})
				if gave {
					given++
				}
			}
			spawn("owner", func() {
				for n := range 2 {
					clock.Begin(10, 1)
					if c.pauses && n == 0 {
						clock.Pause(15)
						clock.Resume(20)
					}
					if !clock.End() {
						told++
						if !clock.Lost() || clock.End() || clock.Resume(30) {
							fail("a call that was given up comes back")
						}
						return
					}
					between++
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
			return func() {
				if given > 1 || told != given {
					fail("%d calls were given up, %d of which know it", given, told)
				}
				if _, ok := clock.Since(); given == 0 && ok {
					fail("a call is under way, though all have returned")
				}
			}
		})
		require.Empty(t, failure)
		t.Logf("%+v: %d orders", c, orders)
	}
}
