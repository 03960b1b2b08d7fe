package nwt

import (
	"context"
	"fmt"
	"strings"

	"github.com/nwt-go/nwt/internal/order"
)

// resume is like iterate, but begins at a state.
func (l *engine) resume(ctx context.Context, s State, last int, yield func(*Batch, error) bool) {
	over, err := l.checkOrder(s)
	switch {
	case s.Epoch < 0:
		yield(nil, optionError("State.Epoch", s.Epoch, "must be at least 0"))
	case s.Samples == -1:
		yield(nil, optionError("State.Samples", s.Samples, "the state is of a loader WithUnordered, which can't be resumed"))
	case l.opts.unordered:
		yield(nil, optionError("WithUnordered", true, "a loader without order can't resume"))
	case s.Samples < 0:
		yield(nil, optionError("State.Samples", s.Samples, "must be at least 0"))
	case err != nil:
		yield(nil, err)
	case over && s.Epoch == last:
	case over:
		l.iterate(ctx, s.Epoch+1, last, 0, yield)
	case s.World < anyWorld:
		yield(nil, optionError("State.World", s.World, "must be at least −1"))
	case l.counted && s.Samples > 0 && s.World > 0:
		yield(nil, optionError("State.World", s.World, "the state is of an epoch whose order depended on the number of ranks: now the stream's records are counted, and it doesn't. Begin the next epoch, State{Epoch: %d}", s.Epoch+1))
	case l.counted:
		l.iterate(ctx, s.Epoch, last, s.Samples, yield)
	case l.streams() && s.Samples > 0 && s.World == anyWorld:
		yield(nil, optionError("State.World", s.World, "the state is of a CountedStream, and this stream's counts are missing: its order is another one. Begin the next epoch, State{Epoch: %d}", s.Epoch+1))
	case l.streams() && s.Samples > 0 && s.World != 0 && s.World != l.opts.world:
		if !l.opts.endsEpoch(s.Samples, s.World) {
			yield(nil, optionError("State.World", s.World, "of a stream: must be the number of ranks, %d, in the middle of an epoch, since each rank reads shards of its own: "+
				"resume with %d ranks, or begin the next epoch, State{Epoch: %d}, with any number. "+
				"It could go on with any number if the stream told the counts of its records (CountedStream, without MixedStreams)", l.opts.world, s.World, s.Epoch+1))
			return
		}
		l.iterate(ctx, s.Epoch, last, l.samplesOfEpoch(l.first), yield) // yields the end of that epoch
	case l.streams() && s.Samples%l.opts.world != 0:
		yield(nil, optionError("State.Samples", s.Samples, "of a stream: must be a multiple of the number of ranks, %d", l.opts.world))
	default:
		l.iterate(ctx, s.Epoch, last, s.Samples, yield)
	}
}

// checkOrder returns an error if the state's positions now stand for other samples than before. over
// reports that nothing was left of the state's epoch, whatever has changed since.
func (l *engine) checkOrder(s State) (over bool, err error) {
	if s.Order == 0 || s.Samples < 1 {
		return false, nil
	}
	known := l.ordering.Load()
	sampler, n := known.sampler, known.order.N
	if known.own {
		if now, err := lengthNow(l.ds); err == nil { // else the run will report the error
			n = now
		}
	}
	then, now := order.Identity(s.Order), l.identity(sampler, n)
	names := []string{order.Length: "another length", order.Seed: "another seed", order.Sampler: "another sampler, or other arguments of it"}
	is := "the sampler is " + nameOfSampler(sampler)
	if l.streams() {
		names = []string{order.Length: "other shards", order.Seed: "another seed", order.Sampler: "another WithInterleave, WithShuffle, WithShuffleWindow, WithEpochSamples or mixture"}
		is = "the stream has " + strings.ReplaceAll(strings.Trim(fmt.Sprint(l.shards), "[]"), " ", " + ") + " shards"
	}
	var differ []string
	for kind, name := range names {
		if now.Differs(then, kind) {
			differ = append(differ, name)
		}
	}
	switch {
	case len(differ) == 0 && now.Differs(then, order.Data):
		l.opts.log.Warn("nwt: the dataset's fingerprint isn't the one of the state: if an index stands for another sample now, samples come twice or never", "epoch", s.Epoch)
	case len(differ) > 0 && !order.Identify(fmt.Sprint(s.Samples), "", "", "").Differs(then, order.Length):
		return true, nil
	case len(differ) > 0:
		return false, optionError("State.Order", s.Order, "the state was taken with %s; now %s, so the rest of the epoch would be other samples. "+
			"Resume as the state was taken, or begin the next epoch, State{Epoch: %d}. Order 0 isn't checked", strings.Join(differ, " and "), is, s.Epoch+1)
	}
	return false, nil
}
