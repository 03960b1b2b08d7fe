package nwt_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// megabytes is counted shelves whose records have a megabyte each.
type megabytes struct{ nwt.CountedStream }

func (s megabytes) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.CountedStream.Open(ctx, shard)
	return megabyteReader{r}, err
}

type megabyteReader struct{ nwt.ShardReader }

func (r megabyteReader) Next(ctx context.Context, rec *nwt.Record) error {
	if cap(rec.Data) == 0 {
		rec.Data = make([]byte, 8, 1<<20)
	}
	return r.ShardReader.Next(ctx, rec)
}

// The records that a shuffle window holds are memory: 1024 of 4 MB take 4 GB.
func TestAShuffleWindowThatTakesMuchOfTheMemoryIsToldOnce(t *testing.T) {
	for name, test := range map[string]struct {
		counted bool
		left    uint64
		warned  int
	}{"plain, much": {false, 160 << 20, 1}, "plain, little": {false, 1 << 30, 0}, "counted, much": {true, 160 << 20, 1}, "counted, little": {true, 1 << 30, 0}} {
		for _, workers := range []int{0, 2} {
			t.Run(name, func(t *testing.T) {
				var log journal
				m := nwt.NewVirtualMachine(1)
				m.Left = test.left
				var s nwt.Stream = megabytes{newCounted(50, 50, 50, 50)}
				if !test.counted {
					s = struct{ nwt.Stream }{s}
				}
				l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithShuffle(1), nwt.WithShuffleWindow(60), m.Option(), log.option())
				most := 0
				for epoch := range 2 {
					for _, err := range l.Epoch(t.Context(), epoch) {
						require.NoError(t, err)
						most = max(most, l.Stats().WindowBytes)
					}
					require.Zero(t, l.Stats().WindowBytes, "between epochs")
				}
				for b := range l.Resume(t.Context(), nwt.State{Samples: 80}) {
					most = max(most, l.Stats().WindowBytes)
					if b.Index() > 30 {
						break
					}
				}
				require.Zero(t, l.Stats().WindowBytes, "after a loop that is left")
				require.Greater(t, most, 30<<20)
				require.LessOrEqual(t, most, 60<<20)
				require.Equal(t, test.warned, strings.Count(log.String(), "more than an eighth of the memory left: lower WithShuffleWindow"))
				require.NoError(t, l.Close())
			})
		}
	}
}

// Each epoch of WithEpochSamples begins its shards anew.
func TestAnEpochThatEndsBeforeItsShardsIsToldOnce(t *testing.T) {
	told := func(samples int, workers int, ds nwt.Dataset, opts ...nwt.Option) int {
		var log journal
		l := newLoader(t, ds, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithEpochSamples(samples), log.option())...)
		for b, err := range l.Epochs(t.Context(), 0, 4) {
			require.NoError(t, err)
			require.LessOrEqual(t, b.Index(), samples/4)
		}
		return strings.Count(log.String(), "before any of its shards did")
	}
	for _, workers := range []int{0, 2} {
		for _, opts := range [][]nwt.Option{nil, {nwt.WithShuffle(1), nwt.WithShuffleWindow(10)}, {nwt.WithInterleave(2)}, {nwt.WithDropLast()}} {
			s := newShelves(50, 50, 50, 50)
			require.Equal(t, 1, told(40, workers, nwt.Streamed(s), opts...))
			require.Equal(t, 1, told(70, workers, nwt.Streamed(s), opts...))
			require.Zero(t, told(200, workers, nwt.Streamed(s), opts...), "all are read")
			require.Zero(t, told(300, workers, nwt.Streamed(s), opts...))
			require.Zero(t, told(180, workers, nwt.Streamed(newShelves(50, 20, 50, 60)), opts...), "one has ended")
			require.Zero(t, told(40, workers, nwt.Streamed(newCounted(50, 50, 50, 50)), opts...))
		}
		m := nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{9, 1}}}}
		ds, err := nwt.MixedStreams(m, 1, newShelves(10, 10), newShelves(50, 50))
		require.NoError(t, err)
		require.Equal(t, 1, told(100, workers, ds))
		ds, err = nwt.MixedStreams(m, 1, newShelves(10, 10), newShelves(3, 4))
		require.NoError(t, err)
		require.Zero(t, told(100, workers, ds))
	}
}
