package nwt

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A Batch is the samples of one training step, in a slot of its loader. It is
// valid until the next iteration; after Retain, until Release.
type Batch struct {
	l      *Loader
	*slot        // the batch's own slot; another one once the batch has been moved out
	refuge *slot // guarded by Loader.mu until the batch is loaded; nil: no LoadBatch was given up
	bad    faults

	// What follows describes the batch that the slot holds now. The run writes it
	// before it opens the slot to workers.
	run     *run
	epoch   int
	index   int
	from    int  // position of place 0 in its epoch; for a stream, among the rank's own
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

	// skipped counts places that were reported to the ring but may not be loaded, because
	// the run was over by then.
	skipped atomic.Int32

	// With WithFinish. A worker takes a place off unfinished before it reports the
	// place to the ring. The worker that takes off the last place writes leftOut and
	// finishErr before it reports that place.
	unfinished atomic.Int32 // places that aren't loaded
	leftOut    bool         // bad samples are left out
	finishErr  error        // ends the epoch in place of this batch

	// If there is a stage, it writes these before it announces the batch.
	device               *deviceBuffer
	copyBegan, copyEnded time.Time
	err                  error     // ends the epoch in place of this batch
	queued               time.Time // when the copy was queued; only the stage uses it
	copied               int       // bytes of the copy; only the stage uses it

	// refs counts what keeps the slot in use. The loader's own hold counts as held: it lasts
	// from the opening of the slot until the loop body has let go of the batch. Each Retain
	// counts as 1. Whoever brings refs to 0 gives the slot back.
	refs atomic.Int32
}

// held is what the loader's own hold on a batch adds to refs.
const held = 1 << 28

// State is how far an epoch has come. [Loader.Resume] needs nothing else to go on from
// there. Only a stream must keep its world size to the end of the epoch.
type State struct {
	Epoch   int `json:"epoch"`
	Samples int `json:"samples"`         // how many of the epoch were delivered, over all ranks; −1 with WithUnordered
	World   int `json:"world,omitempty"` // how many ranks read a stream; 0: Resume doesn't check it
}

// Len is the number of samples.
func (b *Batch) Len() int { return b.size }

// Index is the position of the batch in its epoch, 0-based: the last is [Loader.Len] −
// 1, also after a resume with another batch size. A batch that is left out, since all
// its samples are bad, has an Index too.
func (b *Batch) Index() int { return b.index }

// Last tells whether no batch of the epoch follows on this rank. It is false if the
// epoch then ends with an error, and in the function of [WithFinish]. Call it in the
// loop: for a stream, with [WithUnordered] or [WithErrorBudget], it may wait for the
// next batch. What it tells stays true for a batch that is retained.
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

// tellLast sets last.
func (b *Batch) tellLast(last int32) {
	if b.last.Load() != last { // a load costs less than a store
		b.last.Store(last)
	}
}

// Epoch is the epoch that the batch belongs to.
func (b *Batch) Epoch() int { return b.epoch }

// Fields is the layout of one sample, as the dataset told it.
func (b *Batch) Fields() []Field { return b.l.Fields() }

// Indices is the dataset index of each sample. The slice is valid as long as the batch
// is, and must not be changed.
func (b *Batch) Indices() []int { return b.indices[:b.size] }

// State is where to resume after this batch. With [WithUnordered] it can't be resumed,
// and [Loader.Resume] refuses it.
func (b *Batch) State() State { return b.state }

// position is the position of a place in the epoch, over all ranks.
func (b *Batch) position(place int) int {
	if b.records != nil {
		return b.indices[place]
	}
	return b.from + place
}

// Bytes is the host memory of a field of all samples, row-major: see [Batch.Shape] for
// its shape and [Values] for its elements.
func (b *Batch) Bytes(field int) []byte {
	mem, _ := b.bytesOf(field)
	return mem
}

func (b *Batch) bytesOf(field int) ([]byte, *column) {
	b.l.layout.column(field) // panics if there is no such field
	c := &b.columns[field]
	from, n := b.offsets[field], c.size*b.size
	return b.mem[from : from+n : from+n], c
}

// Lens is the length of each sample of a ragged field: of its first dimension, if
// several are ragged. The slice is valid as long as the batch is. Lens panics if the
// field isn't ragged.
func (b *Batch) Lens(field int) []int32 {
	c := b.l.layout.column(field)
	if c.free == 0 {
		panic(fmt.Sprintf("nwt: Lens(%d): field %q is not ragged (Field.Ragged is false)", field, c.name))
	}
	return b.lensOf(c.ragged)[:b.size]
}

// LensOf is Lens for one of the ragged dimensions of a field, the first of which is 0:
// see [Field.RaggedDims].
func (b *Batch) LensOf(field, dim int) []int32 {
	c := b.l.layout.column(field)
	c.checkRagged("LensOf", field, dim)
	return b.lensOf(c.ragged + dim)[:b.size]
}

// lensOf is the lengths of a ragged dimension.
func (s *slot) lensOf(ragged int) []int32 {
	from := ragged * len(s.indices)
	return s.lens[from : from+len(s.indices)]
}

// Retain keeps the batch valid past the next iteration, and past the loader's Close,
// until Release. Up to 64 batches may be retained. If there are more, the loader loads
// fewer ahead, and ends the epoch with [ErrRetained] once no slot is left.
func (b *Batch) Retain() { b.refs.Add(1) }

// Release takes back one Retain. It may be called from any goroutine. It panics if
// there was no Retain before it.
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
		b.l.stage.buffers.detach()
	}
}
