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
// what sampler.Mixed is for samples that have an index. It needs [WithEpochSamples].
// Each [Mix].Block samples of a rank, counted on from epoch to epoch, have exactly the
// share of every part. A phase's Samples are counted over all ranks.
//
// Each stream is read as [Streamed] says: every rank needs a shard of each. An epoch
// begins every stream anew, and a stream that ends before the epoch does is read again.
// If an epoch takes only a little of a stream, its end is never read: make epochs long.
// A stream without weight in an epoch isn't opened. [ShardError] counts the shards of
// all streams, one stream after the other.
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
