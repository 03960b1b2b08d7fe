package nwt

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A Sampler defines the order of an epoch. Package sampler has more samplers. A Sampler may also be a
// [BatchSampler], a [SamplerFiller] or a [BoundedSampler].
type Sampler interface {
	Len() int            // the number of positions in an epoch, which must not change
	At(epoch, i int) int // returns the dataset index at position i, 0 ≤ i < Len(). The index must not change. Many goroutines call it at once
}

// A BatchSampler is a [Sampler] that also decides where batches end. Its methods must be pure. Batch k of
// rank r is batch k × world + r of the epoch. If the last step has fewer batches than ranks, several ranks
// share a batch.
type BatchSampler interface {
	Sampler
	Batches() int               // the number of batches in an epoch, 1 … Len(), which must not change
	Start(epoch, batch int) int // returns the position at which a batch begins, 0 < batch < Batches(). Many goroutines call it at once
	Largest() int               // the number of samples in the largest batch, or 1 if it isn't known. WithBatchSize must be at least this number
}

// A BoundedSampler is a [Sampler] that knows the highest index it visits. If the dataset lacks that index,
// the loader fails before it loads a sample. With any other sampler, the loader finds a missing index only
// while loading.
type BoundedSampler interface {
	Sampler
	LastIndex() int // returns the highest index that any epoch visits, or −1 if it isn't known
}

// nameOfSampler returns the name that a sampler gives itself, or its type. Its content would be too long
// for a message.
func nameOfSampler(s Sampler) string {
	if named, ok := s.(fmt.Stringer); ok {
		return fmt.Sprint(named) // Sprint recovers if String panics
	}
	return fmt.Sprintf("%T", s)
}

// ask returns the result of a sampler's method; the sampler may be the program's.
func ask(option string, s Sampler, method string, asked func() int) (n int, err error) {
	defer panicked(&err, option, s, method)
	return asked(), nil
}

// epochLen returns the length of a sampler.
func epochLen(option string, s Sampler) (int, error) {
	n, err := ask(option, s, "Len", s.Len)
	if err == nil && (n < 1 || n > maxSamples) {
		err = optionError(option, nameOfSampler(s), "its Len is %d: must be 1 … %d", n, maxSamples)
	}
	return n, err
}

// checkIndices returns an error if a sampler visits an index that a dataset of n samples doesn't have.
func checkIndices(option string, s Sampler, n int) error {
	bounded, ok := s.(BoundedSampler)
	if !ok {
		return nil
	}
	last, err := ask(option, s, "LastIndex", bounded.LastIndex)
	if last >= n {
		return optionError(option, nameOfSampler(s), "visits index %d, but the dataset has only %d samples", last, n)
	}
	return err
}

// Sequential visits 0 … n−1 in that order in every epoch.
func Sequential(n int) Sampler { return sequential(n) }

type sequential int

func (s sequential) Len() int       { return int(s) }
func (s sequential) LastIndex() int { return int(s) - 1 }
func (s sequential) String() string { return fmt.Sprintf("Sequential(%d)", int(s)) }

// Fingerprint leaves out the length: if the dataset has grown, only its length has changed.
func (s sequential) Fingerprint() string { return "Sequential" }

func (s sequential) At(_, i int) int {
	permute.CheckPosition(i, int(s))
	return i
}

// Shuffled visits 0 … n−1 once per epoch. The order is computed from n, seed and epoch, and isn't stored.
// Orders of different n have nothing in common. Shuffled is for statistics, not for secrets.
func Shuffled(n int, seed uint64) Sampler {
	s := &shuffled{n: n, seed: seed, key: permute.SeedKey(seed), perm: permute.New(n)}
	s.rounds = permute.NewOrders(2, 1, func(epoch, _ int) []uint16 { return s.perm.Tabulate(permute.EpochKey(s.key, epoch)) })
	return s
}

type shuffled struct {
	n    int
	seed uint64
	key  uint64 // derived from the seed
	perm permute.Permutation

	rounds *permute.Orders[uint16] // tables of the round functions of the latest epochs
}

func (s *shuffled) Len() int       { return s.n }
func (s *shuffled) LastIndex() int { return s.n - 1 }
func (s *shuffled) String() string { return fmt.Sprintf("Shuffled(%d, seed %d)", s.n, s.seed) }

func (s *shuffled) Fingerprint() string { return fmt.Sprintf("Shuffled, seed %d", s.seed) }

func (s *shuffled) At(epoch, i int) int {
	permute.CheckPosition(i, s.n)
	return s.perm.At(permute.EpochKey(s.key, epoch), i)
}

// A SamplerFiller is a [Sampler] that is faster at many positions at once.
type SamplerFiller interface {
	Sampler
	Fill(epoch, from int, indices []int) // sets indices[k] to At(epoch, from+k) for each k. Many goroutines call it at once
}

func (s sequential) Fill(_, from int, indices []int) {
	for i := range indices {
		indices[i] = from + i
	}
}

func (s *shuffled) Fill(epoch, from int, indices []int) {
	if !s.perm.Tabulates() {
		for i := range indices {
			indices[i] = s.At(epoch, from+i)
		}
		return
	}
	s.perm.Fill(s.rounds.Get(epoch, 0), from, indices)
}

// An epochOrder is the order of a loader's epochs, and the number of samples of its dataset. It doesn't
// change. If SetSampler or the length of the dataset requires another order, the loader gets a new
// one.
type epochOrder struct {
	sampler  Sampler // nil for a stream
	own      bool    // sampler is the loader's own, which follows n
	order    order.Order
	n        int // number of samples of the dataset; endless for a stream
	perBatch int // copied from order
}

// newOrder returns an order that follows no sampler yet.
func (o *options) newOrder() order.Order {
	return order.Order{N: endless, Batch: o.batchSize, Rank: o.rank, World: o.world, DropLast: o.dropLast}
}

// ownOrder returns the order of n samples if the program gives no sampler.
func (o *options) ownOrder(n int) Sampler {
	if o.shuffle {
		return Shuffled(n, o.shuffled)
	}
	return Sequential(n)
}

// follow sets the fields that depend on the sampler: how many positions and batches an epoch has.
func (o *epochOrder) follow(option string, s Sampler) (err error) {
	if o.order.N, err = epochLen(option, s); err != nil {
		return err
	}
	b, ok := s.(BatchSampler)
	if !ok {
		return nil
	}
	if o.order.Batches, err = ask(option, s, "Batches", b.Batches); err != nil {
		return err
	}
	o.order.Starts = startsOf(b)
	if o.order.Batches < 1 || o.order.Batches > o.order.N {
		return optionError(option, o.order.Batches, "an epoch of %d samples must have 1 … %d batches", o.order.N, o.order.N)
	}
	n, err := ask(option, s, "Largest", b.Largest)
	if n > o.order.Batch {
		return optionError("WithBatchSize", o.order.Batch, "must be at least %d, the samples of the largest batch of %s", n, nameOfSampler(s))
	}
	return err
}

// startsOf returns a function that asks a BatchSampler where batches begin.
func startsOf(b BatchSampler) func(epoch, batch int) (position int, err error) {
	return func(epoch, batch int) (position int, err error) {
		usercall.Call(func() error { position = b.Start(epoch, batch); return nil }, func(stack []byte, cause error) {
			err = &LoadError{Index: -1, Position: -1, Epoch: epoch, Err: fmt.Errorf("BatchSampler.Start of batch %d: %w", batch, usercall.Cause(cause)), Stack: stack}
		})
		return position, err
	}
}

// orderError turns an error of package order into one of this package.
func orderError(err error) error {
	if e, ok := err.(*order.Error); ok {
		err := &ArgumentError{Name: e.Option, Value: e.Value, Reason: e.Bound}
		if e.Option == "WithDropLast" {
			err.Code = codeFewSamples
		}
		return err
	}
	return err
}

const endless = order.Endless

// A State says how far an epoch has come. It is all that [Loader.Resume] needs.
type State struct {
	Epoch   int `json:"epoch"`
	Samples int `json:"samples"`         // samples of the epoch delivered so far, over all ranks; −1 with WithUnordered
	World   int `json:"world,omitempty"` // how many ranks have read a stream: as many must resume it; −1: a CountedStream, which any number of ranks may resume; 0: not checked

	// Order identifies the order of the epoch: its length, seed and sampler, or a stream's shards and
	// options. If Order is 0, Resume doesn't check the order.
	Order uint64 `json:"order,omitempty,string"` // a string, because JSON numbers may lose the last digits
}

// anyWorld is State.World for a CountedStream: any number of ranks may resume.
const anyWorld = -1

// A beginning is where a run begins.
type beginning struct {
	epochOrder  *epochOrder // of the epoch
	before      *epochOrder // what the loader had before
	epoch       int
	base        int  // the position in the epoch; with a BatchSampler, the number of a batch
	nothingLeft bool // of the epoch, whatever has changed since
}

// beginning returns where a state begins, or why nothing can begin there: for an epoch, for Resume, and
// for servers.
func (l *engine) beginning(s State) (at beginning, err error) {
	switch {
	case s.Epoch < 0:
		return at, optionError("State.Epoch", s.Epoch, "must be at least 0")
	case s.Samples == -1:
		return at, optionError("State.Samples", s.Samples, "the state was taken WithUnordered, and can't be resumed")
	case s.Samples < 0:
		return at, optionError("State.Samples", s.Samples, "must be at least 0")
	case s.World < anyWorld:
		return at, optionError("State.World", s.World, "must be at least −1")
	}
	at.epoch, at.base, at.before = s.Epoch, s.Samples, l.epochOrder.Load()
	if at.epochOrder, err = l.setup.followDataset(at.before); err != nil {
		return at, err
	}
	if at.nothingLeft, err = l.checkOrder(s, at.epochOrder); err != nil || at.nothingLeft {
		return at, err
	}
	if l.setup.streams() {
		at.base, err = l.baseOfStream(s)
	}
	n := l.setup.samplesOfEpoch(at.epochOrder)
	switch {
	case err != nil:
	case at.base > n:
		err = withCode(optionError("State.Samples", at.base, "an epoch has %d samples", n), codeBeyond)
	case at.epochOrder.order.Batches > 0:
		at.base, err = at.epochOrder.order.BatchAt(at.epoch, at.base)
		err = orderError(err)
	}
	return at, err
}

// each calls f for the samples of a batch, which has this number from the beginning on, in the order of one
// rank. It returns the position after those that all ranks get in this step.
func (at *beginning) each(o *order.Order, number int, f func(position, index int)) (after int, err error) {
	from, to, after, err := o.Positions(at.epoch, at.base, number)
	if err != nil {
		return after, orderError(err)
	}
	position := from
	usercall.Call(func() error {
		for ; position < to; position++ {
			f(position, at.epochOrder.sampler.At(at.epoch, position))
		}
		return nil
	}, func(stack []byte, cause error) {
		err = &LoadError{Index: -1, Position: position, Epoch: at.epoch, Err: cause, Stack: stack}
	})
	return after, err
}

// baseOfStream returns at which position of a stream's epoch a state is.
func (l *engine) baseOfStream(s State) (int, error) {
	switch {
	case l.setup.counted && s.Samples > 0 && s.World > 0:
		return 0, optionError("State.World", s.World, "the state was taken before the stream was a CountedStream, which has another order: begin the next epoch, State{Epoch: %d}", s.Epoch+1)
	case l.setup.counted || s.Samples == 0:
	case s.World == anyWorld:
		return 0, optionError("State.World", s.World, "the state was taken of a CountedStream, and this stream isn't one, so its order is another: begin the next epoch, State{Epoch: %d}", s.Epoch+1)
	case l.isWhole(s, l.setup.first):
		return l.setup.samplesOfEpoch(l.setup.first), nil // the end of that epoch, also for other numbers of ranks
	case s.World != 0 && s.World != l.setup.opts.world:
		return 0, optionError("State.World", s.World, "a stream's epoch can't go on with %d ranks, because each rank reads its own shards: "+
			"resume with %d, or begin the next epoch, State{Epoch: %d}. A CountedStream outside of MixedStreams can go on with any number", l.setup.opts.world, s.World, s.Epoch+1)
	case s.Samples%l.setup.opts.world != 0:
		return 0, optionError("State.Samples", s.Samples, "in a stream it must be a multiple of the number of ranks, %d", l.setup.opts.world)
	}
	return s.Samples, nil
}

// followDataset asks the dataset for its length. If the length has changed, the loader's own order
// follows it.
func (s *setup) followDataset(known *epochOrder) (*epochOrder, error) {
	if s.streams() {
		return known, nil
	}
	n, err := lengthNow(s.ds)
	switch {
	case err != nil:
		return nil, err
	case n == known.n:
		return known, nil
	case known.own:
		return s.epochOrderOf("Dataset.Len", nil, n)
	}
	return s.epochOrderOf("Dataset.Len", known.sampler, n)
}

// isWhole reports whether an epoch of an order ends with the samples of a state.
func (l *engine) isWhole(s State, o *epochOrder) bool {
	if l.setup.streams() && !l.setup.counted {
		return l.setup.opts.isWholeEpoch(s.Samples, cmp.Or(s.World, l.setup.opts.world))
	}
	return s.Samples == o.order.N || o.order.Batches == 0 && o.order.Steps(s.Samples) == 0
}

// checkOrder returns an error if the state's positions now stand for other samples than before.
// nothingLeft reports that nothing was left of the state's epoch, whatever has changed since.
func (l *engine) checkOrder(s State, o *epochOrder) (nothingLeft bool, err error) {
	if s.Order == 0 || s.Samples < 1 {
		return false, nil
	}
	sampler := o.sampler
	then, now := order.Identity(s.Order), l.setup.identity(sampler, o.order.N)
	names := []string{order.Length: "another number of samples", order.Seed: "another seed", order.Sampler: "another sampler or other arguments of it", order.Data: "another fingerprint of the dataset"}
	is := "the sampler is now " + nameOfSampler(sampler)
	if l.setup.streams() {
		names = []string{order.Length: "other shards", order.Seed: "another seed", order.Sampler: "another value of WithInterleave, WithShuffle, WithShuffleWindow or WithEpochSamples, or another mixture", order.Data: "another fingerprint of the stream"}
		is = "the stream now has " + strings.ReplaceAll(strings.Trim(fmt.Sprint(l.setup.shards), "[]"), " ", " + ") + " shards"
	}
	var differ []string
	code := ""
	for kind, name := range names {
		if now.Differs(then, kind) {
			differ, code = append(differ, name), cmp.Or(code, codesOfOrder[kind])
		}
	}
	was := order.Identify(fmt.Sprint(s.Samples), "", "", "") // an epoch of just these samples
	switch {
	case len(differ) > 0 && (!was.Differs(then, order.Length) || !now.Differs(then, order.Length) && l.isWhole(s, o)):
		return true, nil
	case len(differ) > 0:
		return false, withCode(optionError("State.Order", nil, "the state was taken with %s (%s), so the rest of the epoch would be other samples: "+
			"resume as it was taken, or begin the next epoch, State{Epoch: %d}", strings.Join(differ, " and "), is, s.Epoch+1), code)
	}
	return false, nil
}
