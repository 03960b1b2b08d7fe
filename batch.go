package nwt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/devicecopy"
	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/osmemory"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A Batch holds the samples of one training step. It is valid until the next iteration. If it is retained, it
// is valid until Release. After that, its methods panic, and slices that it returned may hold other samples.
// [WithChecks] finds code that uses such slices.
type Batch struct {
	of            *batch
	number, epoch int // set when it is delivered

	// refs counts what keeps the batch's slot in use. The loader's own hold counts as held: it lasts from
	// the opening of the slot until the end of the loop body that got the batch. Each Retain counts as 1.
	// Whoever brings refs to 0 gives the slot back. From then on, of belongs to other Batches.
	refs atomic.Int32
}

// held is the number that the loader's own hold on a batch adds to refs.
const held = 1 << 28

// live returns what the loader knows of a batch. It panics if the batch has gone back.
func (b *Batch) live() *batch {
	if b == nil || b.refs.Load() == 0 {
		b.panicGone()
	}
	return b.of
}

//go:noinline
func (b *Batch) panicGone() {
	if b == nil {
		panic(nilBatch)
	}
	panic(fmt.Sprintf("nwt: batch %d of epoch %d was used after %s", b.number, b.epoch, goneBack))
}

// A batch is a slot, and what the loader knows of the samples in it. It is reused: each time it is opened,
// it gets another head.
type batch struct {
	head  *Batch // what the program sees of it
	l     *engine
	slot  *slot // its own slot; another slot once the batch has been moved there
	spare *slot // the watchdog's until the batch is loaded; nil if no LoadMany was given up
	bad   faults

	// Which part of an epoch the batch is. The run writes these fields before it opens the slot to
	// workers. For a stream, its reader writes the rest before the end of the batch is known.
	run     *run
	span    span
	number  int      // see Number
	size    int      // places; once bad samples are left out, the samples that remain
	opened  int      // places when the batch was opened
	reached int      // position after the batches that all ranks get in this step
	indexed bool     // indices were set when the batch was opened
	seq     uint64   // in the ring
	end     bool     // the stream has ended: nothing in the batch is delivered
	final   bool     // the last of its epoch, as far as positions tell
	request *request // what asked for the batch, if it is for another process
	failure error    // why the stream ended too soon; nil if it ended properly

	// With WithBatchTransform these belong to the workers. A worker subtracts a place from unfinished
	// before it reports the place to the ring. The worker that subtracts the last place writes the other
	// two fields before it reports that place. Without WithBatchTransform they belong to the goroutine
	// that applies the error budget to the batch.
	unfinished   atomic.Int32 // places that aren't loaded
	leftOut      bool         // bad samples have been left out
	transformErr error        // ends the epoch in place of this batch

	// The copy to the device. The stage writes these fields before it announces the batch.
	device               *devicecopy.Buffer
	copyBegan, copyEnded time.Time

	// How the loaded batch is delivered.
	last bool  // see Last; false until the consumer delivers the batch
	err  error // ends the epoch in place of this batch; written by the stage or, without one, by the consumer

	// The generator behind Batch.Rand. It belongs to the goroutine that has the batch.
	seeded bool       // pcg has been seeded for this batch
	rand   *rand.Rand // draws from pcg
	pcg    rand.PCG
}

// delivered returns what the program sees of the batch.
func (b *batch) delivered() *Batch {
	b.head.number, b.head.epoch = b.number, b.span.epoch
	return b.head
}

// Len returns the number of samples.
func (b *Batch) Len() int { return b.live().size }

// Number returns the number of the batch in its epoch, from 0.
func (b *Batch) Number() int { return b.live().number }

// Last reports whether the batch is the last of its epoch on this rank. It judges by positions, so it returns
// false if only bad samples follow. If a stream's length isn't known, Last returns true only for a short
// batch, and never with [WithUnordered]. In [WithBatchTransform], Last returns false.
func (b *Batch) Last() bool { return b.live().last }

// Epoch returns the epoch that the batch belongs to.
func (b *Batch) Epoch() int { return b.live().span.epoch }

// Fields returns the layout of one sample, as the dataset declares it.
func (b *Batch) Fields() []Field { return cloneFields(b.live().l.setup.layout.fields) }

// Indices returns the dataset index of each sample. Don't change the slice.
func (b *Batch) Indices() []int {
	of := b.live()
	return of.slot.indices[:of.size]
}

// State returns the state from which [Loader.Resume] continues after this batch. With [WithUnordered], the
// state can't be resumed.
func (b *Batch) State() State {
	of := b.live()
	s := State{Epoch: of.span.epoch, Samples: of.reached, Order: of.run.identity()}
	if of.l.setup.opts.unordered {
		s.Samples = -1
	}
	if of.l.setup.counted {
		s.World = anyWorld
	} else if of.l.setup.streams() {
		s.World = of.l.setup.opts.world
	}
	return s
}

// context returns the context that Load gets for the batch.
func (b *batch) context() context.Context {
	if b.request != nil {
		return b.request.ctx
	}
	return b.run.ctx
}

// Bytes returns the host memory of a field of all samples, row-major.
func (b *Batch) Bytes(field int) []byte {
	mem, _ := b.bytesOf(field)
	return mem
}

func (b *Batch) bytesOf(field int) ([]byte, *layout.Column) { return b.live().bytesOf(field) }

func (b *batch) bytesOf(field int) ([]byte, *layout.Column) {
	c := b.column(field)
	from, n := b.slot.places.Offsets[field], c.Size*b.size
	return b.slot.places.Bytes[from : from+n : from+n], c
}

// column returns the memory of a field. It panics if there is no such field.
func (b *batch) column(field int) *layout.Column {
	if uint(field) >= uint(len(b.slot.places.Columns)) {
		panicOutOfRange(b.l.setup.layout.Layout, field)
	}
	return &b.slot.places.Columns[field]
}

// Lens returns the length of each sample in ragged dimension dim of a field. The first dimension has number
// 0. Lens panics if the dimension isn't ragged.
func (b *Batch) Lens(field, dim int) []int32 {
	of := b.live()
	c := of.column(field)
	checkRagged(c, "Lens", field, dim)
	return of.slot.places.LensOf(c.Ragged + dim)[:of.size]
}

// Retain keeps the batch valid until Release, even after the next iteration and after the loader's Close. If
// more than 64 batches are retained, the epoch may end with [ErrRetained].
func (b *Batch) Retain() {
	b.live()
	if b.refs.Add(1) == 1 { // it has gone back meanwhile
		b.refs.Add(-1)
		b.panicGone()
	}
}

// Release undoes one Retain. A surplus call panics. Any goroutine may call it.
func (b *Batch) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		b.of.l.slots.put(b.of, true)
	case (n+1)%held == 0:
		b.refs.Add(1)
		panic(fmt.Sprintf("nwt: Release of batch %d of epoch %d without a Retain", b.number, b.epoch))
	}
}

// letGo ends the loader's own hold.
func (b *batch) letGo() {
	if b.head.refs.Add(-held) == 0 {
		b.l.slots.put(b, false)
		return
	}
	b.l.slots.detach()
	if b.l.stage != nil {
		b.l.stage.Detach()
	}
}

// batchRand makes Batch.Rand differ from Sample.Rand. Like that one's constant, it comes from the
// fractional part of π.
const batchRand = 0x13198a2e03707344

// Rand returns a generator of random numbers that are drawn once per batch, such as mixup's λ. Its seed
// depends only on the loader's seed, the epoch, and the position of the batch's first sample.
func (b *Batch) Rand() *rand.Rand { return b.live().random() }

func (b *batch) random() *rand.Rand {
	if b.rand == nil {
		b.rand = rand.New(&b.pcg)
	}
	if !b.seeded {
		b.seeded = true
		key := permute.EpochKey(b.span.key, b.span.epoch) ^ batchRand + uint64(b.span.from)*permute.Golden
		b.pcg.Seed(permute.Mix64(key), permute.Mix64(key^permute.Golden))
	}
	return b.rand
}

// resize sets how many samples the batch has.
func (b *batch) resize(n int) {
	b.size = n
	b.slot.places.Resize(n)
}

// Shape returns a field's shape in the batch: Len, then a sample's shape. A ragged dimension is as long as
// the field allows. With a [SizedDataset], it is as long as the batch's longest sample. Don't change the
// slice.
func (b *Batch) Shape(field int) []int {
	of := b.live()
	of.column(field)
	return of.slot.places.Shapes[field]
}

// DevicePtr returns the address of a field on the device. The layout is that of Bytes. On the host, it
// returns 0. Finish the device's work on a batch before the next iteration, or before Release if it is
// retained.
func (b *Batch) DevicePtr(field int) uintptr {
	of := b.live()
	of.column(field)
	if of.device == nil {
		return 0
	}
	return of.device.Ptr + uintptr(of.slot.places.Offsets[field])
}

// expect sets how many places loadedPlaces has to count.
func (b *batch) expect(n int) {
	if b.l.setup.opts.transform != nil {
		b.unfinished.Store(int32(n))
	}
}

// loadedPlaces counts n more places of the batch as loaded. The worker that counts the last of them
// finishes the batch before it reports the batch to the ring.
func (b *batch) loadedPlaces(n, worker int) {
	if b.l.setup.opts.transform != nil && b.unfinished.Add(-int32(n)) == 0 {
		b.transform(worker)
	}
}

// transform calls the function of WithBatchTransform. Before that, it leaves out bad samples as
// far as the budget may allow; applyBudget counts them later.
func (b *batch) transform(worker int) {
	if b.isDropped() {
		return
	}
	if b.transformErr = b.leaveOutBad(); b.transformErr != nil || b.size == 0 {
		return
	}
	fail := func(stack []byte, err error) {
		b.transformErr = &LoadError{
			Index: -1, Position: -1, Epoch: b.span.epoch, Worker: worker,
			Err: transformError{fmt.Errorf("WithBatchTransform of batch %d: %w", b.number, usercall.Cause(err))}, Stack: stack,
		}
	}
	usercall.Call(func() error {
		if err := b.l.setup.opts.transform(b.context(), b.delivered()); err != nil || b.slot.places.Ragged == 0 {
			return err
		}
		return b.slot.places.ClearRests(b.size)
	}, fail)
}

// isDropped reports whether the batch will not be delivered.
func (b *batch) isDropped() bool { return b.run.isOver() || b.l.setup.opts.maxBad == 0 && b.bad.any() }

// A transformError is the error of WithBatchTransform's function.
type transformError struct{ error }

func (e transformError) Unwrap() error { return errors.Unwrap(e.error) }

// askSampler asks the sampler which samples the places from … to−1 are. A place for which it panics is
// bad, and its error has index −1.
func (b *batch) askSampler(from, to, worker int) {
	for from < to {
		from = b.askUntilPanic(from, to, worker)
	}
}

// askUntilPanic returns the place after the one for which the sampler panics.
func (b *batch) askUntilPanic(from, to, worker int) (next int) {
	next = from
	defer func() {
		if next == to {
			return
		}
		if p := recover(); p != nil { // else the goroutine ends
			stack, err := usercall.Recovered(p)
			b.slot.indices[next] = -1
			b.fail(next, worker, err, stack)
			b.slot.indices[next] = noIndex
			next++
		}
	}()
	sampler := b.run.epochOrder.sampler
	if s, ok := sampler.(SamplerFiller); ok {
		s.Fill(b.span.epoch, b.span.from+from, b.slot.indices[from:to])
		return to
	}
	for ; next < to; next++ {
		b.slot.indices[next] = sampler.At(b.span.epoch, b.span.from+next)
	}
	return next
}

// layOut asks a SizedDataset of n samples how large those of the batch are, and makes the batch as long
// as the longest of them.
func (b *batch) layOut(n int) {
	for place := 0; place < b.size; {
		place = b.askSizes(n, place)
	}
	b.slot.places.Arrange(b.size)
}

// askSizes asks for the sizes of the batch's samples, beginning at a place. It ends after a sample for
// which Sizes panics, and returns the place after the last one asked for. A sample with invalid sizes is
// bad.
func (b *batch) askSizes(n, from int) (next int) {
	next = from
	finished, sizes := false, b.run.sizes
	defer func() {
		if !finished {
			stack, err := usercall.Recovered(recover())
			b.badSizes(next, err, stack)
			next++
		}
	}()
	for ; next < b.size; next++ {
		clear(sizes)
		b.slot.places.Tell(next, sizes)
		index := b.slot.indices[next]
		if uint(index) >= uint(n) {
			continue // it is a bad sample in any case
		}
		if err := b.l.askSize(index, sizes); err != nil {
			b.badSizes(next, err, nil)
			continue
		}
		b.slot.places.Tell(next, sizes)
	}
	finished = true
	return next
}

// askSize asks the dataset for the sizes of a sample.
func (l *engine) askSize(index int, sizes []int) error {
	for dim := range sizes {
		sizes[dim] = layout.Untold
	}
	l.sizes(index, sizes)
	if err := l.setup.layout.Check(sizes); err != nil {
		return fmt.Errorf("nwt: Sizes(%d) gives %w", index, err)
	}
	return nil
}

// badSizes records that a sample is bad because its sizes are invalid.
func (b *batch) badSizes(place int, err error, stack []byte) {
	b.slot.places.Told[place] = layout.Untold
	b.fail(place, 0, err, stack)
}

// A slot is a reusable batch buffer: everything that a call of Load may touch. It belongs to one batch. A
// call that is given up keeps the whole slot, and the batch moves to another slot: nothing that the call
// still does can reach the batch.
type slot struct {
	places  layout.Geometry
	indices []int     // dataset index of each place
	records []*record // of each place, for a stream: blank until its reader sets it

	// holders counts the batch, the calls in the slot that were given up and haven't returned, and a copy
	// if nobody can know whether it has ended. The last holder frees the slot's memory.
	holders atomic.Int32
	free    func(mem []byte) error
	was     string // with checks: names the batch that the slot belonged to
}

// newSlot makes a slot in the given memory. The batch that it is made for holds it.
func (l *engine) newSlot(mem slotMemory) (*slot, error) {
	n := l.setup.opts.batchSize
	s := &slot{free: mem.free, indices: make([]int, n), places: layout.NewGeometry(l.setup.layout.Layout, n, l.setup.offsets, l.setup.slotBytes, l.ownShapes())}
	var err error
	if s.places.Bytes, err = mem.alloc(l.setup.slotBytes); err != nil {
		return nil, fmt.Errorf("nwt: %d bytes of host memory for a batch: %w (a smaller WithBatchSize or WithPrefetch needs less)", l.setup.slotBytes, err)
	}
	if l.setup.streams() {
		s.records = make([]*record, n)
		for i := range s.records {
			s.records[i] = &record{}
		}
	}
	s.holders.Store(1)
	return s, nil
}

// shared reports whether others than the batch may still use the slot.
func (s *slot) shared() bool { return s.holders.Load() > 1 }

// release ends one holder's use of the slot.
func (s *slot) release() error {
	if s.holders.Add(-1) > 0 {
		return nil
	}
	if s.was != "" {
		return s.seal()
	}
	return s.free(s.places.Bytes)
}

// slots holds the batches that no run has open, and counts all batches.
type slots struct {
	mu       sync.Mutex
	free     []*batch
	total    int // all batches that have memory
	retained int // how many of total are retained past their iteration
	closed   bool

	heads []Batch // heads for the next batches, made many at a time; they belong to the running epoch
}

// maxRetained bounds how many batches are retained past their iteration.
const maxRetained = 64

// take finds or makes a batch with a slot. If memory is given, it makes one there.
func (s *slots) take(l *engine, memory slotMemory) (*batch, error) {
	given := memory.alloc != nil
	if b, err := s.pop(given); b != nil || err != nil {
		return b, err
	}
	if !given {
		memory = l.setup.slotMem
	}
	slot, err := l.newSlot(memory)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.total--
		return nil, err
	}
	return &batch{l: l, slot: slot}, nil
}

// newHead returns another head for a batch that is opened.
func (s *slots) newHead(b *batch) *Batch {
	if len(s.heads) == 0 {
		s.heads = make([]Batch, 32)
	}
	h := &s.heads[0]
	s.heads = s.heads[1:]
	h.of = b
	h.refs.Store(held)
	return h
}

// pop takes a free batch. If there is none, or if a new one is wanted, it counts a batch that the caller
// must make.
func (s *slots) pop(wantsNew bool) (*batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := len(s.free) - 1; {
	case wantsNew:
	case n >= 0:
		b := s.free[n]
		s.free = s.free[:n]
		return b, nil
	case s.retained > maxRetained:
		return nil, fmt.Errorf("%w: %d are, the bound is %d: call Release on each", ErrRetained, s.retained, maxRetained)
	}
	s.total++
	return nil, nil
}

// put takes back a batch that is no longer used.
func (s *slots) put(b *batch, retained bool) {
	b.leaveSpare()
	if d := b.device; d != nil {
		b.device = nil
		b.l.stage.Return(d, retained)
	}
	if !s.keep(b, retained) {
		b.drop()
	}
}

// keep makes the batch available for another use. It returns false if the batch is surplus or if others
// may still use its slot; then the caller drops the batch.
func (s *slots) keep(b *batch, retained bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if retained {
		s.retained--
	}
	if b.slot.shared() || s.closed || b.request != nil && b.request.memory.alloc != nil || b.l.setup.opts.checks || s.total-s.retained > b.l.depth() {
		s.total--
		return false
	}
	s.free = append(s.free, b)
	return true
}

// detach counts a batch that is retained past its iteration.
func (s *slots) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retained++
}

// trim drops surplus batches. It is called after the loader's depth has become smaller, which happens
// without s.mu: batches that came back just before were still kept.
func (s *slots) trim(l *engine) {
	s.mu.Lock()
	tooMany := max(0, s.total-s.retained-l.depth())
	kept := max(0, len(s.free)-tooMany)
	surplus := slices.Clone(s.free[kept:])
	s.free, s.total = s.free[:kept], s.total-len(surplus)
	s.mu.Unlock()
	for _, b := range surplus {
		b.drop()
	}
}

// close frees the memory. The memory of batches in use is freed when they come back.
func (s *slots) close() {
	s.mu.Lock()
	s.closed = true
	free := s.free
	s.free, s.total = nil, s.total-len(free)
	s.mu.Unlock()
	for _, b := range free {
		b.drop()
	}
}

// drop gives up the batch's slot. slots.mu isn't held: freeing page-locked memory waits for the
// driver.
func (b *batch) drop() {
	b.giveUp(b.slot)
	b.slot, b.request = nil, nil // the ring's item keeps the batch for a while, but not what a client was sent
}

// leaveSpare gives up the batch's spare and its content.
func (b *batch) leaveSpare() {
	if b.spare != nil {
		b.giveUp(b.spare)
		b.spare = nil
	}
}

// giveUp ends the batch's use of a slot.
func (b *batch) giveUp(s *slot) {
	if b.l.setup.opts.checks {
		s.was = fmt.Sprintf("batch %d of epoch %d", b.number, b.span.epoch)
		b.l.setup.opts.log.Debug("nwt: "+s.was+" has gone back", "memory", fmt.Sprintf("%p", s.places.Bytes), "bytes", len(s.places.Bytes))
	}
	b.l.release(s)
}

// release ends one holder's use of a slot. If that can't free the memory, it logs a warning.
func (l *engine) release(s *slot) {
	if err := s.release(); err != nil {
		l.setup.opts.log.Warn("nwt: the memory of a batch could not be freed", "error", err)
	}
}

// openSpare prepares the batch's spare for the places from … to−1, which are then loaded one by one: a
// call of LoadMany that was given up may still write to these places in the batch's own slot. In the
// spare, the index of any other place is −1. Its memory is ordinary memory, since the places are moved
// to another slot afterwards.
func (b *batch) openSpare(from, to int) error {
	if b.spare == nil {
		s, err := b.slotLike(slotMemory{osmemory.Map, osmemory.Unmap})
		if err != nil {
			return err
		}
		for place := range s.indices {
			s.indices[place] = -1
		}
		b.spare = s
	}
	copy(b.spare.indices[from:to], b.slot.indices[from:to])
	return nil
}

// slotLike returns a slot in which the batch has the same shape as in its own slot.
func (b *batch) slotLike(mem slotMemory) (*slot, error) {
	s, err := b.l.newSlot(mem)
	if err == nil && b.l.ownShapes() {
		s.places.Like(&b.slot.places)
	}
	return s, err
}

// moveOut moves a loaded batch, except its bad places, to a slot that no call that was given up can write to.
func (b *batch) moveOut() error {
	memory := b.l.setup.slotMem
	if b.request != nil && b.request.memory.alloc != nil {
		memory = b.request.memory
	}
	to, err := b.slotLike(memory)
	if err != nil {
		return fmt.Errorf("out of the way of a Load that hangs: %w", err)
	}
	bad := b.bad.sorted()
	for place := range b.size {
		if len(bad) > 0 && bad[0].place == place {
			bad = bad[1:]
			continue
		}
		home := b.slot
		if b.spare != nil && b.spare.indices[place] >= 0 {
			home = b.spare
		}
		to.copyPlaces(place, home, place, place+1)
	}
	b.giveUp(b.slot)
	b.slot = to
	b.resize(b.size)
	b.leaveSpare()
	return nil
}

// copyPlaces copies places from … end−1 of src, a slot of the same geometry that may be s itself, to the
// places of s that begin at to.
func (s *slot) copyPlaces(to int, src *slot, from, end int) {
	s.places.CopyPlaces(to, &src.places.Memory, from, end)
	copy(s.indices[to:], src.indices[from:end])
}

// seal makes the contents of the slot useless, and its memory unreadable.
func (s *slot) seal() error {
	for i := range s.indices {
		s.indices[i] = -1
	}
	for i := range s.places.Lens {
		s.places.Lens[i] = layout.Unset
	}
	return osmemory.Seal(s.places.Bytes, s.was)
}
