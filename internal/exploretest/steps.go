package exploretest

// A Cell is one thing that threads share.
type Cell struct {
	V  uint64
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
	lock    // becomes 1; can't be while it is 1
)

// A step is what a thread does next.
type step struct {
	do   action
	cell *Cell
	a, b uint64 // of compareAndSwap: a becomes b
	wide uint64 // the bits of the cell that count
}

// perform takes a step, at once or when the explorer says so.
var perform = func(s step) uint64 { return s.perform() }

// perform changes the cell and is what the thread sees.
func (s step) perform() (seen uint64) {
	old := s.cell.V
	switch s.do {
	case load:
		return old
	case store:
		s.cell.V = s.a & s.wide
	case swap:
		s.cell.V = s.a & s.wide
		return old
	case add:
		s.cell.V = (old + s.a) & s.wide
		return s.cell.V
	case compareAndSwap:
		if old != s.a&s.wide {
			return 0
		}
		s.cell.V = s.b & s.wide
		return 1
	case send:
		s.cell.V++
	case receive:
		s.cell.V--
	case lock:
		s.cell.V = 1
	}
	return 0
}

const (
	bits32 = 1<<32 - 1
	bits64 = 1<<64 - 1
)

type Uint64 struct{ cell Cell }

func (u *Uint64) Load() uint64         { return perform(step{load, &u.cell, 0, 0, bits64}) }
func (u *Uint64) Store(v uint64)       { perform(step{store, &u.cell, v, 0, bits64}) }
func (u *Uint64) Swap(v uint64) uint64 { return perform(step{swap, &u.cell, v, 0, bits64}) }
func (u *Uint64) CompareAndSwap(a, b uint64) bool {
	return perform(step{compareAndSwap, &u.cell, a, b, bits64}) == 1
}

type Int32 struct{ cell Cell }

func (i *Int32) Load() int32   { return int32(perform(step{load, &i.cell, 0, 0, bits32})) }
func (i *Int32) Store(v int32) { perform(step{store, &i.cell, uint64(v), 0, bits32}) }
func (i *Int32) Add(v int32) int32 {
	return int32(perform(step{add, &i.cell, uint64(v), 0, bits32}))
}
func (i *Int32) Swap(v int32) int32 {
	return int32(perform(step{swap, &i.cell, uint64(v), 0, bits32}))
}
func (i *Int32) CompareAndSwap(a, b int32) bool {
	return perform(step{compareAndSwap, &i.cell, uint64(a), uint64(b), bits32}) == 1
}

type Bool struct{ cell Cell }

func (b *Bool) Load() bool       { return perform(step{load, &b.cell, 0, 0, 1}) == 1 }
func (b *Bool) Store(v bool)     { perform(step{store, &b.cell, bit(v), 0, 1}) }
func (b *Bool) Swap(v bool) bool { return perform(step{swap, &b.cell, bit(v), 0, 1}) == 1 }

func bit(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}

// Tokens counts those that are in a channel.
type Tokens struct {
	cell Cell
	most uint64
}

func NewTokens(n int) Tokens { return Tokens{most: uint64(n)} }

func (t *Tokens) Send()    { perform(step{send, &t.cell, t.most, 0, bits64}) }
func (t *Tokens) Receive() { perform(step{receive, &t.cell, 0, 0, bits64}) }

type Mutex struct{ cell Cell }

func (m *Mutex) Lock()   { perform(step{lock, &m.cell, 0, 0, bits64}) }
func (m *Mutex) Unlock() { perform(step{store, &m.cell, 0, 0, bits64}) }
