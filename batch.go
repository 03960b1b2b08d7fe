package nwt

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/devicecopy"
	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A Batch is the samples of one training step, in a slot of its loader. It is
// valid until the next iteration; after Retain, until Release.
type Batch struct {
	l      *engine
	*slot        // the batch's own slot; another one once the batch has been moved out
	refuge *slot // the watchdog's until the batch is loaded; nil: no LoadBatch was given up
	bad    faults

	// What follows describes the batch that the slot holds now. The run writes it
	// before it opens the slot to workers.
	run     *run
	epoch   int
	index   int
	from    int  // position of place 0 in its epoch, over all ranks, even if its sample was left out
	size    int  // places; once bad samples are left out, the samples that remain
	opened  int  // places when the batch was opened
	reached int  // position after the batches of all ranks
	known   bool // indices were set when the batch was opened
	state   State
	seq     uint64 // in the ring
	end     bool   // the stream is over: nothing in the batch is delivered
	left    int    // places that follow in the epoch on this rank; −1: not known

	last     atomic.Int32 // notLast until the batch is delivered: see Last
	admitted bool         // the consumer has left out bad samples; of no meaning with a stage
	goesOn   atomic.Bool  // the stage has left them out, and there are others

	failure error // why the stream ended too soon; nil if it ended as it should

	seeded bool       // pcg is seeded for this batch
	rand   *rand.Rand // over pcg
	pcg    rand.PCG

	// With WithBatchTransform. A worker takes a place off unfinished before it reports the
	// place to the ring. The worker that takes off the last place writes leftOut and
	// finishErr before it reports that place.
	unfinished atomic.Int32 // places that aren't loaded
	leftOut    bool         // bad samples are left out
	finishErr  error        // ends the epoch in place of this batch

	// If there is a stage, it writes these before it announces the batch.
	device               *devicecopy.Buffer
	copyBegan, copyEnded time.Time
	err                  error // ends the epoch in place of this batch

	// refs counts what keeps the slot in use. The loader's own hold counts as held: it lasts
	// from the opening of the slot until the loop body has let go of the batch. Each Retain
	// counts as 1. Whoever brings refs to 0 gives the slot back.
	refs atomic.Int32
}

// held is what the loader's own hold on a batch adds to refs.
const held = 1 << 28

// A State is how far an epoch has come: all that [Loader.Resume] needs.
type State struct {
	Epoch   int `json:"epoch"`
	Samples int `json:"samples"`         // how many of the epoch were delivered, over all ranks; −1 with WithUnordered
	World   int `json:"world,omitempty"` // how many ranks read a stream; 0: Resume doesn't check it; −1: any number may go on

	// Order identifies the order of the epoch: its length, seed and sampler, or a stream's
	// shards and options. 0: Resume doesn't check it.
	Order uint64 `json:"order,omitempty,string"` // a string: JSON's numbers may lose its last digits
}

// Len returns the number of samples.
func (b *Batch) Len() int { return b.size }

// Index returns the number of the batch in its epoch, from 0 to [Loader.Len] − 1.
func (b *Batch) Index() int { return b.index }

// Last reports whether the batch is the last of its epoch on this rank. It is false in
// [WithBatchTransform], and if the epoch then ends with an error. For a stream, with [WithUnordered] or
// [WithErrorBudget], it may block until the next batch is loaded.
func (b *Batch) Last() bool {
	if b.last.Load() == lastUnknown {
		b.run.findLast(b)
	}
	return b.last.Load() == isLast
}

// Whether a batch is the last of its epoch.
const (
	notLast int32 = iota
	isLast
	lastUnknown // only the batches that follow can tell
)

// setLast sets last.
func (b *Batch) setLast(last int32) {
	if b.last.Load() != last { // a load costs less than a store
		b.last.Store(last)
	}
}

// Epoch returns the epoch that the batch belongs to.
func (b *Batch) Epoch() int { return b.epoch }

// Fields returns the layout of one sample, as the dataset told it.
func (b *Batch) Fields() []Field { return cloneFields(b.l.layout.fields) }

// Indices returns the dataset index of each sample. It must not be changed.
func (b *Batch) Indices() []int {
	if len(b.indices) < b.size {
		b.panicNoColumn(0)
	}
	return b.indices[:b.size]
}

// State lets [Loader.Resume] go on after this batch; not with [WithUnordered].
func (b *Batch) State() State {
	s := b.state
	s.Order = b.run.order()
	return s
}

// position returns the position of a place in the epoch, over all ranks.
func (b *Batch) position(place int) int {
	if b.records != nil {
		return b.indices[place]
	}
	return b.from + place
}

// Bytes returns the host memory of a field of all samples, row-major.
func (b *Batch) Bytes(field int) []byte {
	mem, _ := b.bytesOf(field)
	return mem
}

func (b *Batch) bytesOf(field int) ([]byte, *layout.Column) {
	c := b.column(field)
	from, n := b.places.Offsets[field], c.Size*b.size
	return b.places.Bytes[from : from+n : from+n], c
}

// column returns a field as memory. It panics if there is none.
func (b *Batch) column(field int) *layout.Column {
	if uint(field) >= uint(len(b.places.Columns)) {
		b.panicNoColumn(field)
	}
	return &b.places.Columns[field]
}

//go:noinline
func (b *Batch) panicNoColumn(field int) {
	if b.slot == gone {
		panic(fmt.Sprintf("nwt: batch %d of epoch %d was used after %s", b.index, b.epoch, goneBack))
	}
	panicOutOfRange(b.l.layout.Layout, field)
}

// Lens returns each sample's length of a ragged field. It panics for other fields.
func (b *Batch) Lens(field int) []int32 {
	c := b.column(field)
	if c.Free == 0 {
		panic(fmt.Sprintf("nwt: Lens(%d): field %q is not ragged (Field.Ragged is false)", field, c.Name))
	}
	return b.places.LensOf(c.Ragged)[:b.size]
}

// LensOf is Lens of ragged dimension dim, the first of which is 0.
func (b *Batch) LensOf(field, dim int) []int32 {
	c := b.column(field)
	checkRagged(c, "LensOf", field, dim)
	return b.places.LensOf(c.Ragged + dim)[:b.size]
}

// Retain keeps the batch valid until Release, past the next iteration and the loader's Close. If
// more than 64 are retained, the epoch may end with [ErrRetained]. It panics if the batch has
// gone back to the loader.
func (b *Batch) Retain() {
	if b.refs.Add(1) == 1 {
		b.refs.Add(-1)
		panic(fmt.Sprintf("nwt: Retain of batch %d of epoch %d after it had gone back to the loader", b.index, b.epoch))
	}
}

// Release takes back one Retain, from any goroutine; it panics without one.
func (b *Batch) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		b.l.slots.put(b, true)
	case (n+1)%held == 0:
		b.refs.Add(1)
		panic(fmt.Sprintf("nwt: Release of batch %d of epoch %d without a Retain", b.index, b.epoch))
	}
}

// letGo takes back the loader's own hold.
func (b *Batch) letGo() {
	if b.refs.Add(-held) == 0 {
		b.l.slots.put(b, false)
		return
	}
	b.l.slots.detach()
	if b.l.stage != nil {
		b.l.stage.Detach()
	}
}

// A tally counts bad samples against the error budget. It belongs to a run, and sees
// batches in the order of their delivery. With WithUnordered, batches of several
// epochs may alternate.
type tally struct {
	bad map[int]int // by epoch; those that are long over are deleted
}

// count adds a bad sample of an epoch and returns how many that makes.
func (t *tally) count(epoch int) int {
	if t.bad == nil {
		t.bad = make(map[int]int)
	}
	t.bad[epoch]++
	if len(t.bad) > 2*ring.Capacity { // no more batches, so no more epochs, are open at once
		maps.DeleteFunc(t.bad, func(e, _ int) bool { return e < epoch-ring.Capacity })
	}
	return t.bad[epoch]
}

// admit leaves the bad samples out of a loaded batch. If they exceed the error budget, it
// returns the error of the first sample beyond it.
func (t *tally) admit(b *Batch) error {
	if b.failure != nil {
		return b.failure
	}
	list := b.bad.sorted()
	budget := b.l.opts.maxBad
	for _, f := range list {
		bad := t.count(b.epoch)
		f.err.origin = origin(b.l.ds, f.err.Index)
		if bad <= budget {
			b.l.leftOut(f.err, bad)
			b.l.counters.faulty.add(f.err)
			continue
		}
		if budget == 0 {
			return f.err
		}
		return fmt.Errorf("nwt: %d bad samples in epoch %d, WithErrorBudget allows %d; the last: %w", bad, b.epoch, budget, usercall.Cause(f.err))
	}
	if b.finishErr != nil {
		return b.finishErr
	}
	if err := b.leaveOutBad(); err != nil {
		return err
	}
	if len(list) > 0 && b.size == 0 && b.l.opts.world > 1 {
		return fmt.Errorf("nwt: no sample of batch %d is left, and the other ranks would wait for it; the last: %w", b.index, usercall.Cause(list[len(list)-1].err))
	}
	return nil
}

// leaveOutBad leaves the bad samples out, and moves the batch to memory that calls which
// were given up can't write to. The batch must be loaded.
func (b *Batch) leaveOutBad() error {
	if b.leftOut {
		return nil
	}
	b.leftOut = true
	list := b.bad.sorted()
	if b.shared() || b.refuge != nil {
		if err := b.moveOut(); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		b.leaveOut(list)
	}
	return nil
}

// leaveOut closes the gaps that bad samples leave, given in order.
func (b *Batch) leaveOut(list []fault) {
	kept := list[0].place
	for i, f := range list {
		end := b.size
		if i+1 < len(list) {
			end = list[i+1].place
		}
		from := f.place + 1
		b.slot.copyPlaces(kept, b.slot, from, end)
		kept += end - from
	}
	b.resize(kept)
}

// expect says how many places loadedPlaces is to count.
func (b *Batch) expect(n int) {
	if b.l.opts.finish != nil {
		b.unfinished.Store(int32(n))
	}
}

// loadedPlaces counts n more places of the batch as loaded. Whoever counts the last
// of them finishes the batch, before it is reported to the ring.
func (b *Batch) loadedPlaces(n, worker int) {
	if b.l.opts.finish != nil && b.unfinished.Add(-int32(n)) == 0 {
		b.finish(worker)
	}
}

// finish calls the function of WithBatchTransform. Before that, it leaves out bad samples as
// far as the budget may allow; admit counts them later.
func (b *Batch) finish(worker int) {
	if b.l.ring.Stopped() || b.l.opts.maxBad == 0 && b.bad.any() {
		return // nobody will see it
	}
	if b.finishErr = b.leaveOutBad(); b.finishErr != nil || b.size == 0 {
		return
	}
	fail := func(stack []byte, err error) {
		b.finishErr = &LoadError{
			Index: -1, Position: -1, Epoch: b.epoch, Worker: worker,
			Err: finishError{fmt.Errorf("WithBatchTransform of batch %d: %w", b.index, err)}, Stack: stack,
		}
	}
	usercall.Call(func() error {
		if err := b.l.opts.finish(b.run.ctx, b); err != nil || b.places.Ragged == 0 {
			return err
		}
		return b.places.ClearRests(b.size)
	}, fail)
}

// A finishError is what the function of WithBatchTransform failed with.
type finishError struct{ error }

func (e finishError) Unwrap() error { return errors.Unwrap(e.error) }

// batchRand keeps Batch.Rand apart from Sample.Rand. It too is taken from the
// fractional part of π.
const batchRand = 0x13198a2e03707344

// Rand is for what is drawn once per batch, such as mixup's share. Its seed is (seed, epoch,
// position of the batch's first sample) alone.
func (b *Batch) Rand() *rand.Rand {
	if b.rand == nil {
		b.rand = rand.New(&b.pcg)
	}
	if !b.seeded {
		b.seeded = true
		key := permute.EpochKey(b.l.opts.seedKey(), b.epoch) ^ batchRand + uint64(b.from)*permute.Golden
		b.pcg.Seed(permute.Mix64(key), permute.Mix64(key^permute.Golden))
	}
	return b.rand
}

// resize notes how many samples the batch has.
func (b *Batch) resize(n int) {
	b.size = n
	b.places.Resize(n)
}

// Shape returns the shape of a field of the whole batch: Len, then that of one sample. A ragged
// dimension is as long as the field allows or, with a [SizedDataset], as the batch's longest
// sample. It must not be changed.
func (b *Batch) Shape(field int) []int {
	b.column(field)
	return b.places.Shapes[field]
}

// badSizes notes that a sample is bad because its sizes can't be used.
func (b *Batch) badSizes(place int, err error, stack []byte) {
	b.places.Told[place] = layout.Untold
	b.bad.add(place, &LoadError{Index: b.indices[place], Position: b.position(place), Epoch: b.epoch, Err: err, Stack: stack})
}

// DevicePtr returns the address of a field on the device, laid out as in Bytes; 0 on the host. Finish
// device work on a batch before you let go of it.
func (b *Batch) DevicePtr(field int) uintptr {
	b.column(field)
	if b.device == nil {
		return 0
	}
	return b.device.Ptr + uintptr(b.places.Offsets[field])
}

// anyWorld is State.World of a CountedStream: any number of ranks may go on.
const anyWorld = -1

// layOut finds out which samples a batch of a SizedDataset has and how large they are,
// and makes the batch as long as the longest of them.
func (r *run) layOut(b *Batch) {
	l := r.l
	if b.known = r.ordering.indicesOf(b); b.known {
		for place := 0; place < b.size; {
			place = r.askSizes(b, place)
		}
	} else {
		l.layout.Longest(r.sizes)
		for place := range b.size {
			b.places.Tell(place, r.sizes)
		}
	}
	b.places.Arrange(b.size)
}

// indicesOf sets which samples a batch has. It reports false if the sampler panics: then the worker
// that comes to the sample asks it again, and reports the panic.
func (o *ordering) indicesOf(b *Batch) (known bool) {
	defer func() {
		if !known {
			_ = recover()
		}
	}()
	indices := b.indices[:b.size]
	if s, ok := o.sampler.(SamplerFiller); ok {
		s.Fill(b.epoch, b.from, indices)
		return true
	}
	for place := range indices {
		indices[place] = o.sampler.At(b.epoch, b.from+place)
	}
	return true
}

// askSizes asks for the sizes of a batch's samples, from a place on. It ends after a
// sample for which Sizes panics, and returns the place after the last one asked for. A
// sample whose sizes can't be used is bad.
func (r *run) askSizes(b *Batch, from int) (next int) {
	l := r.l
	next = from
	finished := false
	defer func() {
		if !finished {
			stack, err := usercall.Recovered(recover())
			b.badSizes(next, err, stack)
			next++
		}
	}()
	for ; next < b.size; next++ {
		clear(r.sizes)
		b.places.Tell(next, r.sizes)
		index := b.indices[next]
		if uint(index) >= uint(r.ordering.n) {
			continue // a bad sample in any case
		}
		if err := l.askSize(index, r.sizes); err != nil {
			b.badSizes(next, err, nil)
			continue
		}
		b.places.Tell(next, r.sizes)
	}
	finished = true
	return next
}

// askSize asks the dataset for the sizes of a sample.
func (l *engine) askSize(index int, sizes []int) error {
	for dim := range sizes {
		sizes[dim] = layout.Untold
	}
	l.load.sizes(index, sizes)
	return l.layout.checkSizes(index, sizes)
}
