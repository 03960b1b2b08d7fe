package nwt

import (
	"fmt"
	"strings"

	"github.com/nwt-go/nwt/internal/order"
)

// A beginning is where a run begins.
type beginning struct {
	*ordering           // of the epoch
	known     *ordering // what the loader had before
	epoch     int
	base      int  // the position in the epoch; with a BatchSampler, the number of a batch
	over      bool // nothing is left of the epoch, whatever has changed since
}

// beginning returns where a state begins, or why nothing can begin there: for an epoch, for Resume, and
// for servers.
func (l *engine) beginning(s State) (at beginning, err error) {
	switch {
	case s.Epoch < 0:
		return at, optionError("State.Epoch", s.Epoch, "must be at least 0")
	case s.Samples == -1:
		return at, optionError("State.Samples", s.Samples, "the state is of a loader WithUnordered, which can't be resumed")
	case s.Samples < 0:
		return at, optionError("State.Samples", s.Samples, "must be at least 0")
	case s.World < anyWorld:
		return at, optionError("State.World", s.World, "must be at least −1")
	}
	at.epoch, at.base, at.known = s.Epoch, s.Samples, l.ordering.Load()
	if at.ordering, err = l.followDataset(at.known); err != nil {
		return at, err
	}
	if at.over, err = l.checkOrder(s, at.ordering); err != nil || at.over {
		return at, err
	}
	if l.streams() {
		at.base, err = l.baseOfStream(s)
	}
	n := l.samplesOfEpoch(at.ordering)
	switch {
	case err != nil:
	case at.base > n:
		err = optionError("State.Samples", at.base, "must be 0 … %d, the samples of an epoch", n)
	case at.order.Batches > 0:
		at.base, err = at.order.BatchAt(at.epoch, at.base)
		err = orderError(err)
	}
	return at, err
}

// baseOfStream returns at which position of a stream's epoch a state is.
func (l *engine) baseOfStream(s State) (int, error) {
	switch {
	case l.counted && s.Samples > 0 && s.World > 0:
		return 0, optionError("State.World", s.World, "the state is of an epoch whose order depended on the number of ranks: now the stream's records are counted, and it doesn't. Begin the next epoch, State{Epoch: %d}", s.Epoch+1)
	case l.counted || s.Samples == 0:
	case s.World == anyWorld:
		return 0, optionError("State.World", s.World, "the state is of a CountedStream, and this stream's counts are missing: its order is another one. Begin the next epoch, State{Epoch: %d}", s.Epoch+1)
	case s.World != 0 && s.World != l.opts.world:
		if !l.opts.endsEpoch(s.Samples, s.World) {
			return 0, optionError("State.World", s.World, "of a stream: must be the number of ranks, %d, in the middle of an epoch, since each rank reads shards of its own: "+
				"resume with %d ranks, or begin the next epoch, State{Epoch: %d}, with any number. "+
				"It could go on with any number if the stream told the counts of its records (CountedStream, without MixedStreams)", l.opts.world, s.World, s.Epoch+1)
		}
		return l.samplesOfEpoch(l.first), nil // the end of that epoch
	case s.Samples%l.opts.world != 0:
		return 0, optionError("State.Samples", s.Samples, "of a stream: must be a multiple of the number of ranks, %d", l.opts.world)
	}
	return s.Samples, nil
}

// followDataset asks the dataset for its length. If the length has changed, the loader's own order
// follows it.
func (s *source) followDataset(known *ordering) (*ordering, error) {
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
		return s.orderingOf("Dataset.Len", nil, n)
	}
	return s.orderingOf("Dataset.Len", known.sampler, n)
}

// checkOrder returns an error if the state's positions now stand for other samples than before. over
// reports that nothing was left of the state's epoch, whatever has changed since.
func (l *engine) checkOrder(s State, o *ordering) (over bool, err error) {
	if s.Order == 0 || s.Samples < 1 {
		return false, nil
	}
	sampler := o.sampler
	then, now := order.Identity(s.Order), l.identity(sampler, o.order.N)
	names := []string{order.Length: "another length", order.Seed: "another seed", order.Sampler: "another sampler, or other arguments of it", order.Data: "another fingerprint of the dataset"}
	is := "the sampler is " + nameOfSampler(sampler)
	if l.streams() {
		names = []string{order.Length: "other shards", order.Seed: "another seed", order.Sampler: "another WithInterleave, WithShuffle, WithShuffleWindow, WithEpochSamples or mixture", order.Data: "another fingerprint of the stream"}
		is = "the stream has " + strings.ReplaceAll(strings.Trim(fmt.Sprint(l.shards), "[]"), " ", " + ") + " shards"
	}
	var differ []string
	for kind, name := range names {
		if now.Differs(then, kind) {
			differ = append(differ, name)
		}
	}
	switch {
	case len(differ) > 0 && !order.Identify(fmt.Sprint(s.Samples), "", "", "").Differs(then, order.Length):
		return true, nil
	case len(differ) > 0:
		return false, optionError("State.Order", s.Order, "the state was taken with %s; now %s, so the rest of the epoch would be other samples. "+
			"Resume as the state was taken, or begin the next epoch, State{Epoch: %d}. If every index still means the same sample, set Order to 0, which isn't checked", strings.Join(differ, " and "), is, s.Epoch+1)
	}
	return false, nil
}
