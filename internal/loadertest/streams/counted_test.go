package streams_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// positions returns which record an epoch of one rank has at each position.
func positions(t *testing.T, s nwt.Stream, epoch int, opts ...nwt.Option) []int64 {
	l := kit.NewLoader(t, nwt.Streamed(s), opts...)
	var all []int64
	for b, err := range l.Epoch(t.Context(), epoch) {
		require.NoError(t, err)
		for i, p := range b.Indices() {
			require.Equal(t, len(all), p)
			all = append(all, nwt.Values[int64](b, 0)[i])
		}
	}
	return all
}

func TestTheOrderOfACountedStreamIsTheSameForAnyNumberOfRanks(t *testing.T) {
	for _, opts := range [][]nwt.Option{nil, {nwt.WithShuffle(3)}, {nwt.WithShuffle(3), nwt.WithInterleave(3), nwt.WithShuffleWindow(40)}} {
		s := kit.NewCounted(10, 0, 25, 7, 310, 1, 12, 94)
		want := positions(t, s, 2, append(opts, nwt.WithBatchSize(8), nwt.WithWorkers(0))...)
		sorted := slices.Clone(want)
		slices.Sort(sorted)
		require.Equal(t, kit.UpTo(459), sorted)
		if len(opts) > 0 {
			require.NotEqual(t, want, positions(t, s, 3, append(opts, nwt.WithWorkers(0))...))
		}
		for _, world := range []int{1, 2, 3, 8, 20} {
			got := make([]int64, 459)
			batches := -1
			for rank := range world {
				l := kit.NewLoader(t, nwt.Streamed(s), append(opts, nwt.WithBatchSize(5), nwt.WithWorkers(rank%3), nwt.WithRank(rank, world))...)
				n := 0
				for b, err := range l.Epoch(t.Context(), 2) {
					require.NoError(t, err)
					require.Equal(t, n, b.Number())
					if n++; n == l.Len() {
						require.True(t, b.Last())
						require.Equal(t, nwt.State{Epoch: 2, Samples: 459, World: -1}, kit.Progress(b.State()))
					}
					for i, p := range b.Indices() {
						got[p] = nwt.Values[int64](b, 0)[i]
					}
				}
				require.Equal(t, l.Len(), n)
				if batches < 0 {
					batches = n
				}
				require.Equal(t, batches, n, "all ranks have the same number of batches")
			}
			require.Equal(t, want, got, "%d ranks", world)
		}
		require.Zero(t, s.Opened.Load(), "every shard is closed")
	}
}

// A stream for training and one for validation often have nearly as many records.
func TestCountedStreamsOfSimilarLengthsHaveUnrelatedOrders(t *testing.T) {
	shards := slices.Repeat([]int{100}, 40)
	opts := []nwt.Option{nwt.WithShuffle(3), nwt.WithBatchSize(8), nwt.WithWorkers(0)}
	a := positions(t, kit.NewCounted(shards...), 0, opts...)
	shards[39]++
	b := positions(t, kit.NewCounted(shards...), 0, opts...)
	equal := 0
	for i := range a {
		if a[i] == b[i] {
			equal++
		}
	}
	require.Less(t, equal, 40, "of 4000 positions have the same record")
}

// randomCounted returns a stream of n records, perhaps of none, and options of its order.
func randomCounted(rng *rand.Rand, seed uint64) (s *kit.CountedShelves, n int, order []nwt.Option) {
	lengths := make([]int, 1+rng.IntN(9))
	for i := range lengths {
		lengths[i] = rng.IntN(1 + rng.IntN(40))
		n += lengths[i]
	}
	s = kit.NewCounted(lengths...)
	s.Skips = rng.IntN(2) == 0
	if rng.IntN(3) > 0 {
		order = append(order, nwt.WithShuffle(seed), nwt.WithShuffleWindow(1+rng.IntN(60)))
	}
	if rng.IntN(2) > 0 {
		order = append(order, nwt.WithInterleave(1+rng.IntN(9)))
	}
	return s, n, order
}

func TestACountedStreamGoesOnWithAnyNumberOfRanks(t *testing.T) {
	histories := 3000
	if testing.Short() || kit.RaceDetector {
		histories = 300
	}
	for seed := range uint64(histories) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s, n, order := randomCounted(rng, seed)
		if n == 0 {
			continue
		}
		epoch := rng.IntN(3)
		want := positions(t, s, epoch, append(order, nwt.WithWorkers(0))...)
		seen := make([]int, n)
		state := nwt.State{Epoch: epoch}
		for history := ""; state.Samples < n; {
			world, batch, steps := 1+rng.IntN(5), 1+rng.IntN(12), 1+rng.IntN(6)
			history += fmt.Sprintf(" %+v: %d ranks, batches of %d, %d steps;", state, world, batch, steps)
			rest := n - state.Samples
			next := nwt.State{Samples: -1}
			for rank := range world {
				opts := append(slices.Clone(order), nwt.WithBatchSize(batch), nwt.WithWorkers(rng.IntN(3)), nwt.WithRank(rank, world))
				if rng.IntN(2) == 0 {
					opts = append(opts, nwt.WithTimeout(time.Minute))
				}
				l, err := nwt.NewLoader(nwt.Streamed(s), opts...)
				require.NoError(t, err)
				var after nwt.State
				left := steps
				for b, err := range l.Resume(t.Context(), state) {
					require.NoError(t, err)
					for i, p := range b.Indices() {
						seen[p]++
						require.Equal(t, want[p], nwt.Values[int64](b, 0)[i], "seed %d:%s", seed, history)
					}
					after = b.State()
					if left--; left == 0 {
						break
					}
				}
				require.NoError(t, l.Close())
				if rank > 0 {
					require.Equal(t, next, after, "seed %d:%s", seed, history)
				}
				next = after
			}
			if state = next; state.Samples == n && rest < world {
				break // ranks that would have nothing repeat records of others
			}
			for p, times := range seen {
				if p < state.Samples {
					require.GreaterOrEqual(t, times, 1, "seed %d:%s position %d", seed, history, p)
					if state.Samples < n || batch > 1 || rest%world == 0 {
						require.Equal(t, 1, times, "seed %d:%s position %d", seed, history, p)
					}
				} else {
					require.Zero(t, times, "seed %d:%s position %d", seed, history, p)
				}
			}
		}
	}
}

func TestACountedStreamOpensOnlyTheShardsOfItsRank(t *testing.T) {
	lengths := slices.Repeat([]int{40}, 64)
	for rank := range 4 {
		s := &openings{CountedShelves: kit.NewCounted(lengths...), opened: map[int]bool{}}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(16), nwt.WithWorkers(0), nwt.WithShuffle(1), nwt.WithRank(rank, 4))
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		require.Len(t, s.opened, 16)
		clear(s.opened)
		for _, err := range l.Resume(t.Context(), nwt.State{Samples: 32 * 64, World: -1}) {
			require.NoError(t, err)
		}
		require.Len(t, s.opened, 8, "what was delivered isn't opened")
	}
}

type openings struct {
	*kit.CountedShelves
	opened map[int]bool
	times  int
}

func (o *openings) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	o.opened[shard] = true
	o.times++
	return o.CountedShelves.Open(ctx, shard)
}

func TestAWrongCountNamesTheShardAndBothNumbers(t *testing.T) {
	for _, test := range []struct {
		told int
		want string
	}{
		{7, "it has 5 records: its stream said 7"},
		{4, "it has more than 4 records: its stream said 4"},
	} {
		for _, workers := range []int{0, 2} {
			s := kit.NewCounted(6, 5, 6)
			s.Told = []int{6, test.told, 6}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(3), nwt.WithWorkers(workers), nwt.WithInterleave(1))
			var err error
			for _, e := range l.Epoch(t.Context(), 0) {
				err = e
			}
			require.ErrorContains(t, err, test.want)
			var bad *nwt.ShardError
			require.True(t, errors.As(err, &bad))
			require.Equal(t, 1, bad.Shard)
		}
	}
}

func TestEachLostRecordOfACountedStreamIsABadSample(t *testing.T) {
	s := kit.NewCounted(10, 10, 10)
	s.FailAt = 13
	l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(30), nwt.WithWorkers(2), nwt.WithErrorBudget(7), kit.Silent)
	var got []int64
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		got = append(got, nwt.Values[int64](b, 0)...)
	}
	require.Len(t, got, 23)
	require.Len(t, l.BadSamples(), 7)
}

func TestAStateGoesOnOnlyInAStreamOfItsOrder(t *testing.T) {
	resume := func(s nwt.Stream, state nwt.State, opts ...nwt.Option) (err error) {
		l := kit.NewLoader(t, nwt.Streamed(s), append(opts, nwt.WithBatchSize(4))...)
		for _, e := range l.Resume(t.Context(), state) {
			err = e
		}
		return err
	}
	c := kit.NewCounted(30, 30)
	require.NoError(t, resume(c, nwt.State{Samples: 8, World: -1}))
	require.ErrorContains(t, resume(c, nwt.State{Samples: 8, World: 1}), "before the stream was a CountedStream")
	require.ErrorContains(t, resume(c.Shelves, nwt.State{Samples: 8, World: -1}), "and this stream isn't one")
	require.NoError(t, resume(c, nwt.State{Samples: 60, World: -1}))
	l := kit.NewLoader(t, nwt.Streamed(c), nwt.WithBatchSize(40))
	var begun []int
	for b, err := range l.ResumeEpochs(t.Context(), nwt.State{Epoch: 1, Samples: 60, World: -1}, 3) {
		require.NoError(t, err)
		begun = append(begun, b.Epoch(), b.Number(), b.Len())
	}
	require.Equal(t, []int{2, 0, 40, 2, 1, 20}, begun)
	require.ErrorContains(t, resume(c, nwt.State{Samples: 61, World: -1}), "State.Samples: 61: an epoch has 60 samples")
	require.ErrorContains(t, resume(c.Shelves, nwt.State{Samples: 8, World: 2}), "CountedStream")
	require.ErrorContains(t, resume(c, nwt.State{Samples: 8, World: 1}, nwt.WithEpochSamples(40)), "before the stream was a CountedStream")
	require.ErrorContains(t, resume(c, nwt.State{Samples: 41, World: -1}, nwt.WithEpochSamples(40)), "State.Samples: 41: an epoch has 40 samples")
	c.Told = []int{30, -1}
	require.NoError(t, resume(c, nwt.State{Samples: 8, World: 1}), "a count that isn't known makes it a stream without counts")
}

func TestEpochsOfACountedStreamAreEachAsAlone(t *testing.T) {
	s := kit.NewCounted(10, 25, 7, 31, 1, 12)
	opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithShuffle(4), nwt.WithRank(1, 3), nwt.WithDropLast(), nwt.WithWorkers(2)}
	l := kit.NewLoader(t, nwt.Streamed(s), opts...)
	want, got := map[int][]int64{}, map[int][]int64{}
	for epoch := range 3 {
		for b, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			want[epoch] = append(append(want[epoch], nwt.Values[int64](b, 0)...), nwt.Values[int64](b, 1)...)
		}
	}
	for b, err := range l.Epochs(t.Context(), 0, 3) {
		require.NoError(t, err)
		require.Equal(t, 8, b.Len())
		got[b.Epoch()] = append(append(got[b.Epoch()], nwt.Values[int64](b, 0)...), nwt.Values[int64](b, 1)...)
	}
	require.Equal(t, want, got)
	require.Len(t, want, 3)
}

// With WithEpochSamples an epoch begins where the one before ended. So whatever the ranks, the
// batches and the interruptions, each record comes once in each pass over all of them.
func TestEpochsOfACountedStreamGoOnWhereTheOneBeforeEnded(t *testing.T) {
	histories := 600
	if testing.Short() || kit.RaceDetector {
		histories = 100
	}
	for seed := range uint64(histories) {
		rng := rand.New(rand.NewPCG(seed, 48))
		s, all, opts := randomCounted(rng, seed)
		if all == 0 {
			continue
		}
		n := 1 + rng.IntN(2*all)
		opts = append(opts, nwt.WithEpochSamples(n))
		epochs := 2*all/n + 2
		order := make([]int64, epochs*n) // of one rank without workers, an epoch at a time
		alone := kit.NewLoader(t, nwt.Streamed(s), append(opts, nwt.WithWorkers(0))...)
		for epoch := range epochs {
			for b, err := range alone.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
				for i, p := range b.Indices() {
					order[epoch*n+p] = nwt.Values[int64](b, 0)[i]
				}
			}
		}
		for pass := range slices.Chunk(order, all) {
			if pass = slices.Clone(pass); len(pass) == all {
				slices.Sort(pass)
				require.Equal(t, kit.UpTo(all), pass, "seed %d: each record once per pass", seed)
			}
		}
		seen := make([]int, epochs*n)
		for state := (nwt.State{World: -1}); state.Epoch < epochs; {
			world, batch, steps := 1+rng.IntN(5), 1+rng.IntN(12), 1+rng.IntN(15)
			last := min(epochs, state.Epoch+1+rng.IntN(3))
			var next nwt.State
			for rank := range world {
				l, err := nwt.NewLoader(nwt.Streamed(s), append(slices.Clone(opts), nwt.WithBatchSize(batch), nwt.WithWorkers(rng.IntN(3)), nwt.WithRank(rank, world))...)
				require.NoError(t, err)
				require.Equal(t, (n+world*batch-1)/(world*batch), l.Len())
				after, left := nwt.State{Epoch: last, World: -1}, steps
				for b, err := range l.ResumeEpochs(t.Context(), state, last) {
					require.NoError(t, err, "seed %d", seed)
					require.Equal(t, b.State().Samples == n, b.Last())
					for i, p := range b.Indices() {
						seen[b.Epoch()*n+p]++
						require.Equal(t, order[b.Epoch()*n+p], nwt.Values[int64](b, 0)[i], "seed %d: epoch %d, position %d of %d, rank %d of %d", seed, b.Epoch(), p, n, rank, world)
					}
					if left--; left == 0 {
						after = b.State()
						break
					}
				}
				require.NoError(t, l.Close())
				if rank > 0 {
					require.Equal(t, next, after)
				}
				next = after
			}
			state = next
		}
		for p, times := range seen {
			require.Positive(t, times, "seed %d: position %d", seed, p)
			if p%n < n-5 { // ranks that would have nothing in the last step repeat records of others
				require.Equal(t, 1, times, "seed %d: position %d", seed, p)
			}
		}
		require.Zero(t, s.Opened.Load())
	}
}

// The ends of all shards are read: an epoch that is short begins where the one before ended.
func TestShortEpochsOfACountedStreamReadTheirShardsToTheEnd(t *testing.T) {
	const shards, each, ranks, n = 16, 100, 4, 80
	s := kit.NewCounted(slices.Repeat([]int{each}, shards)...)
	s.Skips = true
	times := make([]int, shards*each)
	for rank := range ranks {
		o := &openings{CountedShelves: s, opened: map[int]bool{}}
		l := kit.NewLoader(t, nwt.Streamed(o), nwt.WithBatchSize(4), nwt.WithWorkers(0), nwt.WithShuffle(1), nwt.WithInterleave(16), nwt.WithRank(rank, ranks), nwt.WithEpochSamples(n))
		for b, err := range l.Epochs(t.Context(), 0, 3*shards*each/n) {
			require.NoError(t, err)
			for _, i := range nwt.Values[int64](b, 0) {
				times[i]++
			}
		}
		require.EqualValues(t, 3*shards/ranks, o.times, "a shard isn't opened again in the next epoch")
	}
	require.Equal(t, slices.Repeat([]int{3}, shards*each), times)
}

// vast is 64 shards of so many records each, whose numbers its samples are.
type vast int

func (vast) Fields() []nwt.Field { return []nwt.Field{{Name: "i", Type: nwt.Int64}} }
func (vast) Shards() int         { return 64 }
func (v vast) Records(int) int   { return int(v) }
func (v vast) Open(context.Context, int) (nwt.ShardReader, error) {
	return &vastReader{end: int(v)}, nil
}

func (vast) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) error {
	nwt.Values[int64](dst, 0)[0] = int64(binary.LittleEndian.Uint64(r.Data))
	return nil
}

type vastReader struct{ next, end int }

func (r *vastReader) Next(_ context.Context, rec *nwt.Record) error {
	if r.next == r.end {
		return io.EOF
	}
	rec.Data = binary.LittleEndian.AppendUint64(rec.Data[:0], uint64(r.next))
	r.next++
	return nil
}

func (r *vastReader) Skip(_ context.Context, n int) (int, error) {
	n = min(n, r.end-r.next)
	r.next += n
	return n, nil
}

func (r *vastReader) Close() error { return nil }

// Many records cost no time before the first batch, nor when the loop is left: what a rank
// reads is found by arithmetic.
func TestTheFirstBatchOfTheLongestCountedStreamComesAtOnce(t *testing.T) {
	most := 1<<24 - 3
	if strconv.IntSize == 64 {
		most <<= 10
	}
	for rank := range 2 {
		for _, n := range []int{most, most >> 4} {
			l := kit.NewLoader(t, nwt.Streamed(vast(n)), nwt.WithBatchSize(2), nwt.WithRank(rank, 2), nwt.WithShuffle(1))
			kit.Promptly(t, func() {
				for epoch := range 3 {
					for _, err := range l.Epoch(t.Context(), epoch) {
						require.NoError(t, err)
						break
					}
				}
			})
		}
	}
}

func TestBatchesOfACountedStreamHaveTheirOwnRandomness(t *testing.T) {
	all := map[uint64]bool{}
	for rank := range 2 {
		l := kit.NewLoader(t, nwt.Streamed(kit.NewCounted(9, 9, 9, 9)), nwt.WithBatchSize(4), nwt.WithRank(rank, 2), nwt.WithWorkers(2))
		for b, err := range l.Epochs(t.Context(), 0, 2) {
			require.NoError(t, err)
			n := b.Rand().Uint64()
			require.False(t, all[n], "drawn before")
			all[n] = true
		}
	}
	require.Len(t, all, 20)
}

func TestAShardOfACountedStreamThatHangsLosesItsRecordsAlone(t *testing.T) {
	for name, at := range map[string]int{"first": 0, "middle": 3, "end": 5} {
		for _, interleave := range []int{1, 2, 3} {
			t.Run(fmt.Sprint(name, interleave), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					release := make(chan struct{})
					s := &kit.Breaking{Shelves: kit.NewShelves(5, 5, 5, 5)}
					s.OnNext = at2(1, at, func() error { kit.Hold(t, release); return nil })
					l := kit.NewLoader(t, nwt.Streamed(withCounts{s, []int{5, 5, 5, 5}}), nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithInterleave(interleave), nwt.WithErrorBudget(5), nwt.WithTimeout(time.Second), kit.Silent)
					got, err := kit.Values(t, l, 0)
					require.NoError(t, err)
					lost := min(5-at, 5)
					if at == 5 {
						lost = 1 // the end of the shard isn't proved
					}
					require.Len(t, got, 20-lost)
					require.Len(t, l.BadSamples(), lost)
					for _, bad := range l.BadSamples() {
						require.ErrorIs(t, bad, context.DeadlineExceeded)
					}
					require.NoError(t, l.Close())
					close(release)
					synctest.Wait()
					require.Zero(t, s.Opened.Load())
				})
			})
		}
	}
}
