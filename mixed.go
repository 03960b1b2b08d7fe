package nwt

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nwt-go/nwt/internal/mix"
)

// A Mix says how the sampler Mixed of package sampler mixes the parts of a [Concat], and
// [MixedStreams] streams.
type Mix struct {
	Parts  []int   // samples of each part, in the order of Concat; nil for MixedStreams
	Phases []Phase // phases of training, one after the other; the last one never ends
	Block  int     // positions per block, within which the shares are exact; 0 = 1000
}

// A Phase is a stretch of training in which the shares of a [Mix] stay the same.
type Phase struct {
	Samples int       // how many positions it lasts, over all epochs and ranks; of no meaning for the last phase
	Weights []float64 // one per part, in any unit; 0 leaves a part out
}

// MixedStreams makes a dataset of several streams of the same fields, mixed by weights:
// what sampler.Mixed is for samples that have an index. It needs [WithEpochSamples], since an
// epoch of it has no other end.
//
// Phases and blocks are those of Mixed, except that each rank has its own blocks: each
// Mix.Block samples of a rank, counted on from epoch to epoch, have exactly the share of
// every part. A phase's Samples are counted over all ranks. The order in a block depends
// on the seed. If the number of ranks changes between two epochs, the phases stay where
// they are, but the blocks of the new ranks may have begun before that epoch.
//
// Each stream is read as [Streamed] says, as if it were alone: every rank needs a shard
// of each, WithInterleave of these are read at once, and WithShuffle mixes each stream
// within a window of its own. The bound of what is read ahead is for all together: each
// stream that the epoch needs has an equal share, whether it is drawn often or seldom.
// An epoch begins every stream anew; with WithShuffle, in another order of its shards.
// A stream that ends before the epoch does is read again. So nothing of a stream comes
// again in an epoch before all of the rank's part of it has come. But a stream of which
// an epoch takes only a little is never read to its end, and without WithShuffle each
// epoch takes the same: make epochs long. A stream that has no weight in any phase of
// an epoch isn't opened. A resume that skips must compute the positions that come before it
// in its block: if a block has millions, it begins late.
//
// [ShardError] counts the shards of all streams, one stream after the other.
func MixedStreams(m Mix, seed uint64, streams ...Stream) (Dataset, error) {
	var errs []error
	bad := func(value any, format string, args ...any) {
		errs = append(errs, optionError("MixedStreams", value, format, args...))
	}
	if len(m.Parts) > 0 {
		bad(m.Parts, "Mix.Parts must be nil: a stream has no number of samples")
	}
	if len(streams) == 0 {
		bad(streams, "needs at least one stream")
	}
	var first *layout
	for k, s := range streams {
		_, l, err := checkDataset(Streamed(s))
		if err != nil {
			errs = append(errs, within(fmt.Sprintf("MixedStreams: stream %d", k), err))
			continue
		}
		if first == nil {
			first = l
		}
		if diff := difference(first.fields, l.fields); diff != "" {
			bad(k, "stream %d differs from those before: %s", k, diff)
		}
	}
	checked := mix.New(m.Phases, m.Block)
	checked.Check(len(streams), bad)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &streamDataset{streams: slices.Clone(streams), mix: &checked, seed: seed}, nil
}
