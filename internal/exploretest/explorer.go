// Package exploretest runs goroutines that share data, in a test, in every order of their steps. The code
// under test reaches shared data through types of its own: aliases of sync/atomic's or, with the build tag
// explore, of this package's, each access to which is a step. It is for tests.
package exploretest

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unsafe"
)

// An Explorer runs a small world in every order of its threads' steps. Orders
// that differ only in steps which don't touch each other are one (sleep sets),
// and a state that was seen before isn't gone through again. A state is what
// the cells hold and what each thread has seen since it last forgot.
type Explorer struct {
	World func(x *Explorer) // makes the threads and what they share
	// Bound is how often an execution may turn from a thread that could go on, or
	// −1: as often as it likes. Where there is a bound, no orders count as one.
	Bound int

	Needed uint16 // threads that an execution doesn't end before
	Alike  [2]int // from … to−1: threads of which it doesn't matter which is which

	threads []*thread
	running *thread
	memory  uint64 // hash of all cells
	areas   []area // where the cells lie
	path    []node
	order   []int
	seen    map[uint64]uint16 // by state: the threads that sleep there, whatever came after
	failure string

	Executions, Steps int
}

// A node is a state on the path that is being explored.
type node struct {
	state uint64
	todo  uint16 // threads whose next step is still to be tried first
	done  uint16 // threads whose next step has been tried
	sleep uint16 // threads whose next step would lead to what was seen
	next  int    // the thread whose step is taken

	// Where there is a bound:
	was   int  // the thread whose step led here
	could bool // that thread could go on
	turns int  // from threads that could have gone on, until here
}

// A thread runs until it is about to take a step, then waits to be picked.
type thread struct {
	name   string
	next   step
	seen   uint64 // what the last step returned
	memory uint64 // hash of what it has seen, from which follows what it does next
	done   bool

	resume func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool
}

// longest is more steps than any execution should have.
const longest = 2000

type abandoned struct{}
type violation string

// mix64 is SplitMix64's finalizer.
func mix64(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

const golden = 0x9e3779b97f4a7c15

// Spawn makes a thread of the world.
func (x *Explorer) Spawn(name string, run func()) {
	t := &thread{name: name, memory: golden}
	t.resume, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer func() {
			switch p := recover().(type) {
			case nil, abandoned:
			case violation:
				x.failure = t.name + ": " + string(p)
			default:
				x.failure = fmt.Sprintf("%s: panic: %v", t.name, p)
			}
		}()
		run()
	})
	x.threads = append(x.threads, t)
}

// Must ends the exploration unless ok.
func Must(ok bool, format string, args ...any) {
	if !ok {
		panic(violation(fmt.Sprintf(format, args...)))
	}
}

// Forget says that what the running thread does next depends on nothing but
// what is given here.
func (x *Explorer) Forget(what ...uint64) {
	t := x.running
	t.memory = golden
	for _, w := range what {
		t.memory = mix64(t.memory*golden + w + 1)
	}
}

func (x *Explorer) perform(s step) uint64 {
	t := x.running
	if len(x.areas) == 0 { // the world is being made
		return s.perform()
	}
	if t == nil {
		return x.change(s)
	}
	t.next = s
	if !t.yield(struct{}{}) {
		panic(abandoned{})
	}
	return t.seen
}

func (x *Explorer) change(s step) uint64 {
	old := s.cell.V
	seen := s.perform()
	if s.cell.V != old {
		if s.cell.id == 0 {
			s.cell.id = x.number(s.cell)
		}
		x.memory ^= s.cell.hash(old) ^ s.cell.hash(s.cell.V)
	}
	return seen
}

// Set changes what no two threads touch at once, or in whatever order.
func (x *Explorer) Set(c *Cell, v uint64) { x.change(step{store, c, v, 0, bits64}) }

// States returns how many states were seen.
func (x *Explorer) States() int { return len(x.seen) }

// An area is memory with cells in it. A cell has the same number in every
// execution: that of the area, and where it lies there.
type area struct{ from, to uintptr }

// Share says that threads share the cells in what p points to.
func Share[T any](x *Explorer, p *T) *T {
	from := uintptr(unsafe.Pointer(p))
	x.areas = append(x.areas, area{from, from + unsafe.Sizeof(*p)})
	return p
}

func (x *Explorer) number(c *Cell) uint64 {
	at := uintptr(unsafe.Pointer(c))
	for i, a := range x.areas {
		if a.from <= at && at < a.to {
			return uint64(i)<<32 + uint64(at-a.from) + 1
		}
	}
	panic("a cell that isn't shared")
}

func (c *Cell) hash(v uint64) uint64 {
	if v == 0 {
		return 0
	}
	return mix64(mix64(c.id*golden) + v)
}

// writes reports whether the step would change its cell now.
func (s step) writes() bool {
	switch s.do {
	case load:
		return false
	case store, swap:
		return s.cell.V != s.a&s.wide
	case compareAndSwap:
		return s.cell.V == s.a&s.wide
	}
	return true
}

func (s step) possible() bool {
	switch s.do {
	case receive:
		return s.cell.V > 0
	case lock:
		return s.cell.V == 0
	}
	return true
}

// step lets thread i take its step and go on to the next.
func (x *Explorer) step(i int) {
	t := x.threads[i]
	if t.next.do == send && t.next.cell.V == t.next.a {
		x.failure = t.name + ": a token more than there is room for"
		return
	}
	t.seen = x.change(t.next)
	t.memory = mix64(t.memory*golden + t.seen + 1)
	x.goOn(t)
	x.Steps++
}

func (x *Explorer) goOn(t *thread) {
	x.running = t
	_, ok := t.resume()
	x.running = nil
	if !ok {
		t.done, t.memory = true, 0
	}
}

// state returns a number for the present state, and the threads in an order that is
// the same in states between which there is no difference.
func (x *Explorer) state() (uint64, []int) {
	order := x.order[:0]
	for i := range x.threads {
		order = append(order, i)
	}
	slices.SortFunc(order[x.Alike[0]:x.Alike[1]], func(i, k int) int { return cmp.Compare(x.threads[i].memory, x.threads[k].memory) })
	h := x.memory
	for _, i := range order {
		h = mix64(h*golden + x.threads[i].memory)
	}
	x.order = order
	return h, order
}

// inOrder returns a set of threads as one of places in an order, back the reverse.
func inOrder(set uint16, order []int) (places uint16) {
	for place, i := range order {
		places |= set >> i & 1 << place
	}
	return places
}

func back(places uint16, order []int) (set uint16) {
	for place, i := range order {
		set |= places >> place & 1 << i
	}
	return set
}

// Explore goes through all executions, and returns what went wrong in the first
// bad one, with its steps.
func (x *Explorer) Explore() string {
	x.seen = map[uint64]uint16{}
	defer func(p func(step) uint64) { perform = p }(perform)
	perform = x.perform
	for {
		x.execute()
		if x.failure != "" {
			failure := x.failure
			return failure + "\n" + x.story()
		}
		x.Executions++
		for n := len(x.path) - 1; n >= 0 && x.path[n].todo == 0; n-- {
			x.path = x.path[:n]
		}
		if len(x.path) == 0 {
			return ""
		}
		n := &x.path[len(x.path)-1]
		n.done |= 1 << n.next
		n.take(lowest(n.todo))
	}
}

func (n *node) take(thread int) {
	n.next = thread
	n.todo &^= 1 << thread
}

func lowest(set uint16) int {
	for i := range 16 {
		if set&(1<<i) != 0 {
			return i
		}
	}
	panic("empty")
}

// begin makes the world anew and takes every thread to its first step.
func (x *Explorer) begin() {
	x.threads, x.memory, x.areas, x.failure = x.threads[:0], 0, x.areas[:0], ""
	x.World(x)
	for _, t := range x.threads {
		x.goOn(t)
	}
}

func (x *Explorer) end() {
	for _, t := range x.threads {
		t.stop()
	}
}

// execute follows the path and then goes on to where nothing is left to try.
func (x *Explorer) execute() {
	x.begin()
	defer x.end()
	var sleep uint16
	for n := range x.path {
		sleep = x.follow(&x.path[n])
		if x.failure != "" {
			return
		}
	}
	for x.failure == "" {
		if len(x.path) == longest {
			x.failure = x.threads[x.path[len(x.path)-1].next].name + " goes on for ever"
			return
		}
		state, order := x.state()
		n := node{state: state, sleep: sleep}
		var can, left uint16
		for i, t := range x.threads {
			if !t.done {
				left |= 1 << i
				if t.next.possible() {
					can |= 1 << i
				}
			}
		}
		switch {
		case left&x.Needed == 0:
			return
		case can == 0:
			x.failure = "everybody sleeps, and nobody is left to wake them"
			return
		case len(x.path) > 0 && x.spins(n.state):
			x.failure = x.threads[x.path[len(x.path)-1].next].name + " spins instead of sleeping"
			return
		}
		n.todo = can &^ sleep
		last := -1
		if len(x.path) > 0 {
			last = x.path[len(x.path)-1].next
		}
		if x.Bound >= 0 {
			x.curb(&n, last, order)
		} else if asleep, ok := x.seen[n.state]; ok {
			n.todo &= back(asleep, order)
			x.seen[n.state] = asleep & inOrder(sleep, order)
		} else {
			x.seen[n.state] = inOrder(sleep, order)
		}
		if n.todo == 0 {
			return
		}
		if last < 0 || n.todo&(1<<last) == 0 {
			last = lowest(n.todo)
		}
		n.take(last)
		x.path = append(x.path, n)
		sleep = x.follow(&x.path[len(x.path)-1])
	}
}

// curb leaves in n.todo what the bound allows after a step of thread last, and
// nothing if the state was seen with as few turns.
func (x *Explorer) curb(n *node, last int, order []int) {
	if last < 0 {
		return
	}
	before := x.path[len(x.path)-1]
	n.turns = before.turns
	if before.was >= 0 && before.was != last && before.could {
		n.turns++
	}
	n.was, n.could = last, n.todo&(1<<last) != 0
	if n.could && n.turns == x.Bound {
		n.todo = 1 << last
	}
	key := mix64(n.state*golden + uint64(slices.Index(order, last)))
	if turns, ok := x.seen[key]; ok && int(turns) <= n.turns {
		n.todo = 0
		return
	}
	x.seen[key] = uint16(n.turns)
}

// follow takes the step of a node and returns who sleeps after it: those whose
// next step was tried before, or slept, and doesn't touch what this one does.
func (x *Explorer) follow(n *node) (sleep uint16) {
	s := x.threads[n.next].next
	if x.Bound >= 0 {
		x.step(n.next)
		return 0
	}
	for i, t := range x.threads {
		if (n.sleep|n.done)&(1<<i) != 0 && i != n.next && (t.next.cell != s.cell || !t.next.writes() && !s.writes()) {
			sleep |= 1 << i
		}
	}
	x.step(n.next)
	return sleep
}

// spins reports whether one thread alone has come back to a state.
func (x *Explorer) spins(state uint64) bool {
	last := x.path[len(x.path)-1].next
	for _, n := range slices.Backward(x.path) {
		if n.next != last {
			return false
		}
		if n.state == state {
			return true
		}
	}
	return false
}

// story returns the steps of the path.
func (x *Explorer) story() string {
	var s strings.Builder
	x.begin()
	defer x.end()
	for _, n := range x.path {
		t := x.threads[n.next]
		what := t.next
		old := what.cell.V
		x.step(n.next)
		fmt.Fprintf(&s, "%-8s %-14s %x -> %x, sees %x\n", t.name, [...]string{"load", "store", "swap", "add", "compareAndSwap", "send", "receive", "lock"}[what.do], old, what.cell.V, t.seen)
	}
	return s.String()
}
