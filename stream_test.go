package nwt_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// shelves is a stream of numbered samples in shards of given lengths.
type shelves struct {
	lengths []int
	open    atomic.Int32
	failAt  int // number of a record that can't be read; −1: none
}

func (s *shelves) Fields() []nwt.Field {
	return []nwt.Field{{Name: "i", Type: nwt.Int64}, {Name: "noise", Type: nwt.Int64}}
}
func (s *shelves) Shards() int { return len(s.lengths) }

func (s *shelves) Open(_ context.Context, shard int) (nwt.ShardReader, error) {
	s.open.Add(1)
	first := 0
	for _, n := range s.lengths[:shard] {
		first += n
	}
	return &shelf{s: s, next: first, end: first + s.lengths[shard]}, nil
}

func (s *shelves) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) error {
	nwt.Values[int64](dst, 0)[0] = int64(binary.LittleEndian.Uint64(r.Data))
	nwt.Values[int64](dst, 1)[0] = dst.Rand().Int64()
	return nil
}

type shelf struct {
	s         *shelves
	next, end int
}

func (s *shelf) Next(_ context.Context, r *nwt.Record) error {
	if s.next == s.end {
		return io.EOF
	}
	if s.next++; s.next-1 == s.s.failAt {
		return errTorn
	}
	r.Data = binary.LittleEndian.AppendUint64(r.Data[:0], uint64(s.next-1))
	return nil
}

var errTorn = errors.New("torn")

func (s *shelf) Close() error { s.s.open.Add(-1); return nil }

func newShelves(lengths ...int) *shelves { return &shelves{lengths: lengths, failAt: -1} }

func TestAStreamIsReadInTheSameOrderWhateverTheWorkerCount(t *testing.T) {
	for _, opts := range [][]nwt.Option{
		nil,
		{nwt.WithInterleave(1)},
		{nwt.WithShuffle(5), nwt.WithShuffleWindow(16)},
		{nwt.WithShuffle(5), nwt.WithRank(1, 2), nwt.WithDropLast()},
	} {
		t.Run(fmt.Sprint(len(opts)), func(t *testing.T) {
			var want [][]int64
			for _, workers := range []int{0, 1, 2, 5} {
				s := newShelves(10, 0, 25, 7, 31, 1, 12)
				l := newLoader(t, nwt.Streamed(s), append(opts, nwt.WithBatchSize(8), nwt.WithWorkers(workers))...)
				require.Equal(t, -1, l.Len())
				var got [][]int64
				for epoch := range 3 {
					var all []int64
					for b, err := range l.Epoch(t.Context(), epoch) {
						require.NoError(t, err)
						all = append(append(all, nwt.Values[int64](b, 0)...), nwt.Values[int64](b, 1)...)
					}
					got = append(got, all)
				}
				require.Zero(t, s.open.Load(), "every shard is closed")
				if want == nil {
					want = got
				}
				require.Equal(t, want, got, "%d workers", workers)
			}
			if len(opts) > 1 {
				require.NotEqual(t, want[0], want[1])
			}
		})
	}
}

func TestAStreamsEpochHoldsEverySampleOnce(t *testing.T) {
	for _, shuffle := range []bool{false, true} {
		opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithWorkers(2)}
		if shuffle {
			opts = append(opts, nwt.WithShuffle(1))
		}
		var all []int64
		for rank := range 3 {
			l := newLoader(t, nwt.Streamed(newShelves(10, 25, 7, 31, 1, 12, 0)), append(opts, nwt.WithRank(rank, 3))...)
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				all = append(all, nwt.Values[int64](b, 0)...)
			}
		}
		slices.Sort(all)
		require.Equal(t, upTo(86), all)
	}
}

func TestAStreamIsResumedWhereItStood(t *testing.T) {
	for _, cut := range []int{1, 3, 9} {
		l := newLoader(t, nwt.Streamed(newShelves(10, 25, 7, 31, 12)), nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithShuffle(3), nwt.WithShuffleWindow(20))
		whole, err := values(t, l, 4)
		require.NoError(t, err)
		var s nwt.State
		var got []int64
		for b, err := range l.Epoch(t.Context(), 4) {
			require.NoError(t, err)
			got = append(got, nwt.Values[int64](b, 0)...)
			if s = b.State(); b.Index() == cut {
				break
			}
		}
		other := newLoader(t, nwt.Streamed(newShelves(10, 25, 7, 31, 12)), nwt.WithBatchSize(5), nwt.WithWorkers(0), nwt.WithShuffle(3), nwt.WithShuffleWindow(20))
		for b, err := range other.Resume(t.Context(), s) {
			require.NoError(t, err)
			got = append(got, nwt.Values[int64](b, 0)...)
		}
		require.Equal(t, whole, got)
	}
}

func TestAFixedEpochGivesRanksTheSameNumberOfBatches(t *testing.T) {
	for rank := range 2 {
		l := newLoader(t, nwt.Streamed(newShelves(3, 90)), nwt.WithBatchSize(8), nwt.WithRank(rank, 2), nwt.WithEpochSamples(60), nwt.WithWorkers(1))
		got, err := values(t, l, 0)
		require.NoError(t, err)
		require.Len(t, got, 30)
		require.Equal(t, 4, l.Len())
	}
}

func TestARecordThatCannotBeReadIsABadSample(t *testing.T) {
	for _, workers := range []int{0, 2} {
		s := newShelves(10, 10)
		s.failAt = 4
		l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(workers), nwt.WithInterleave(1))
		got, err := values(t, l, 0)
		require.ErrorIs(t, err, errTorn)
		require.ErrorContains(t, err, "shard 0")
		require.Equal(t, upTo(4), got)
		l = newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(workers), nwt.WithErrorBudget(1), nwt.WithInterleave(1))
		got, err = values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, upTo(20, 4, 5, 6, 7, 8, 9), got, "the rest of the shard is lost")
		require.Zero(t, s.open.Load())
	}
}

func TestSeveralEpochsOfAStreamFollowEachOther(t *testing.T) {
	l := newLoader(t, nwt.Streamed(newShelves(8, 8, 3)), nwt.WithBatchSize(4), nwt.WithWorkers(2))
	var epochs, indices []int
	for b, err := range l.Epochs(t.Context(), 2, 4) {
		require.NoError(t, err)
		epochs, indices = append(epochs, b.Epoch()), append(indices, b.Index())
	}
	require.Equal(t, []int{2, 2, 2, 2, 2, 3, 3, 3, 3, 3}, epochs)
	require.Equal(t, []int{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}, indices)
}

func TestTheEpochOfTheHighestNumberEnds(t *testing.T) {
	for _, workers := range []int{0, 2} {
		for _, opts := range [][]nwt.Option{nil, {nwt.WithEpochSamples(40), nwt.WithShuffle(1)}} {
			l := newLoader(t, nwt.Streamed(newShelves(8, 8, 3)), append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(workers))...)
			samples := map[int]int{}
			for b, err := range l.Epochs(t.Context(), math.MaxInt-1, math.MaxInt) {
				require.NoError(t, err)
				samples[b.Epoch()] += b.Len()
			}
			for b, err := range l.Epoch(t.Context(), math.MaxInt) {
				require.NoError(t, err)
				if samples[b.Epoch()] += b.Len(); len(samples) > 2 {
					break
				}
			}
			require.Len(t, samples, 2)
			require.Equal(t, samples[math.MaxInt], samples[math.MaxInt-1])
		}
	}
}

func TestLeavingAStreamAnywhereClosesItsShards(t *testing.T) {
	s := newShelves(10, 25, 7, 31, 12)
	for _, workers := range []int{0, 1, 4} {
		l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithShuffle(1))
		for cut := range 30 {
			for b, err := range l.Epoch(t.Context(), cut) {
				require.NoError(t, err)
				if b.Index() == cut%25 {
					break
				}
			}
			require.Zero(t, s.open.Load())
		}
	}
}

func TestAStreamCanBeTuned(t *testing.T) {
	r, err := nwt.Tune(t.Context(), nwt.Streamed(newShelves(100, 100, 100)), nwt.WithIterations(20), nwt.WithMaxWorkers(1))
	require.NoError(t, err)
	require.NotEmpty(t, r.Trials)
}

func TestTheSeedOfRandomnessDoesNotChangeAStreamsOrder(t *testing.T) {
	read := func(opts ...nwt.Option) (numbers, noise []int64) {
		opts = append(opts, nwt.WithBatchSize(8), nwt.WithShuffle(1), nwt.WithShuffleWindow(20))
		for b, err := range newLoader(t, nwt.Streamed(newShelves(40, 50)), opts...).Epoch(t.Context(), 1) {
			require.NoError(t, err)
			numbers, noise = append(numbers, nwt.Values[int64](b, 0)...), append(noise, nwt.Values[int64](b, 1)...)
		}
		return numbers, noise
	}
	numbers, noise := read()
	same, other := read(nwt.WithSeed(7))
	require.Equal(t, numbers, same)
	require.NotEqual(t, noise, other)
}

func TestShuffledStreamsStayWhatTheyWere(t *testing.T) {
	read := func(ds nwt.Dataset, opts ...nwt.Option) (numbers []int64) {
		for b, err := range newLoader(t, ds, append(opts, nwt.WithBatchSize(8), nwt.WithShuffle(5), nwt.WithInterleave(2))...).Epoch(t.Context(), 1) {
			require.NoError(t, err)
			numbers = append(numbers, nwt.Values[int64](b, 0)...)
		}
		return numbers
	}
	stream := nwt.Streamed(newShelves(4, 0, 7, 3, 6))
	require.Equal(t, []int64{0, 1, 14, 2, 16, 3, 15, 17, 11, 18, 19, 12, 13, 4, 5, 7, 6, 9, 8, 10}, read(stream, nwt.WithShuffleWindow(2)))
	require.Equal(t, []int64{2, 16, 0, 11, 19, 14, 18, 4, 3, 1, 15, 5, 7, 8, 10, 6, 9, 12, 17, 13}, read(stream, nwt.WithShuffleWindow(8)))
	require.Equal(t, []int64{6, 7, 4, 14, 15, 19, 5, 18, 17, 8, 10, 16, 9}, read(stream, nwt.WithShuffleWindow(8), nwt.WithRank(1, 2)))
	mixed, err := nwt.MixedStreams(nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}, 7, newShelves(20), newShelves(20))
	require.NoError(t, err)
	require.Equal(t, []int64{5, 4, 5, 2, 0, 8, 11, 1, 8, 9, 3, 13, 11, 6, 2, 9, 3, 14, 16, 17}, read(mixed, nwt.WithShuffleWindow(8), nwt.WithEpochSamples(20)))
}

func TestAStreamWithoutOrderHasNoState(t *testing.T) {
	for _, workers := range []int{0, 2} {
		l := newLoader(t, nwt.Streamed(newShelves(10, 10)), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithUnordered())
		for b, err := range l.Epoch(t.Context(), 2) {
			require.NoError(t, err)
			require.Equal(t, nwt.State{Epoch: 2, Samples: -1, World: 1}, progress(b.State()))
		}
	}
}

// Batch.Rand depends on seed, epoch and the position of the batch's first sample alone.
func TestBatchesOfAStreamHaveTheirOwnRandomness(t *testing.T) {
	draws := func(rank, workers int, from nwt.State) (numbers []uint64, states []nwt.State) {
		l := newLoader(t, nwt.Streamed(newShelves(9, 9, 9, 9)), nwt.WithBatchSize(4), nwt.WithRank(rank, 2), nwt.WithWorkers(workers))
		for b, err := range l.Resume(t.Context(), from) {
			require.NoError(t, err)
			numbers, states = append(numbers, b.Rand().Uint64()), append(states, b.State())
		}
		return numbers, states
	}
	all := map[uint64]bool{}
	for rank := range 2 {
		for epoch := range 2 {
			whole, states := draws(rank, 0, nwt.State{Epoch: epoch, World: 2})
			require.Len(t, whole, 5)
			for k, n := range whole {
				require.False(t, all[n], "drawn before")
				all[n] = true
				rest, _ := draws(rank, k%3, states[k])
				require.Equal(t, whole[k+1:], append([]uint64{}, rest...))
			}
		}
	}
}
