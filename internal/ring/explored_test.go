//go:build explore

package ring

// Here every access to what goroutines share is a step of a thread, and the
// explorer of explore_test.go decides whose step comes next. A ring that is built with this
// tag is of no use elsewhere.

// Capacity is so small that entries are used again.
const Capacity = 4

// A cell is one thing that threads share.
type cell struct {
	v  uint64
	id uint64 // 0 until its first change
}

type action uint8

const (
	load action = iota
	store
	swap
	add
	compareAndSwap
	send    // one more
	receive // one less; can't be while there is none
)

// A step is what a thread does next.
type step struct {
	do   action
	cell *cell
	a, b uint64 // of compareAndSwap: a becomes b
	wide uint64 // the bits of the cell that count
}

// perform takes a step, at once or when the explorer says so.
var perform = func(s step) uint64 { return s.perform() }

// perform changes the cell and is what the thread sees.
func (s step) perform() (seen uint64) {
	old := s.cell.v
	switch s.do {
	case load:
		return old
	case store:
		s.cell.v = s.a & s.wide
	case swap:
		s.cell.v = s.a & s.wide
		return old
	case add:
		s.cell.v = (old + s.a) & s.wide
		return s.cell.v
	case compareAndSwap:
		if old != s.a&s.wide {
			return 0
		}
		s.cell.v = s.b & s.wide
		return 1
	case send:
		s.cell.v++
	case receive:
		s.cell.v--
	}
	return 0
}

const (
	bits32 = 1<<32 - 1
	bits64 = 1<<64 - 1
)

type atomicUint64 struct{ cell }

func (u *atomicUint64) Load() uint64         { return perform(step{load, &u.cell, 0, 0, bits64}) }
func (u *atomicUint64) Store(v uint64)       { perform(step{store, &u.cell, v, 0, bits64}) }
func (u *atomicUint64) Swap(v uint64) uint64 { return perform(step{swap, &u.cell, v, 0, bits64}) }
func (u *atomicUint64) CompareAndSwap(a, b uint64) bool {
	return perform(step{compareAndSwap, &u.cell, a, b, bits64}) == 1
}

type atomicInt32 struct{ cell }

func (i *atomicInt32) Load() int32   { return int32(perform(step{load, &i.cell, 0, 0, bits32})) }
func (i *atomicInt32) Store(v int32) { perform(step{store, &i.cell, uint64(v), 0, bits32}) }
func (i *atomicInt32) Add(v int32) int32 {
	return int32(perform(step{add, &i.cell, uint64(v), 0, bits32}))
}
func (i *atomicInt32) Swap(v int32) int32 {
	return int32(perform(step{swap, &i.cell, uint64(v), 0, bits32}))
}
func (i *atomicInt32) CompareAndSwap(a, b int32) bool {
	return perform(step{compareAndSwap, &i.cell, uint64(a), uint64(b), bits32}) == 1
}

type atomicBool struct{ cell }

func (b *atomicBool) Load() bool       { return perform(step{load, &b.cell, 0, 0, 1}) == 1 }
func (b *atomicBool) Store(v bool)     { perform(step{store, &b.cell, bit(v), 0, 1}) }
func (b *atomicBool) Swap(v bool) bool { return perform(step{swap, &b.cell, bit(v), 0, 1}) == 1 }

func bit(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}

// tokens counts those that are in a channel.
type tokens struct {
	cell
	most uint64
}

func newTokens(n int) tokens { return tokens{most: uint64(n)} }

func (t *tokens) send()    { perform(step{send, &t.cell, t.most, 0, bits64}) }
func (t *tokens) receive() { perform(step{receive, &t.cell, 0, 0, bits64}) }
