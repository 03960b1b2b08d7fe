package nwt_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// counted is shelves whose records are counted: told, or as many as there are.
type countedShelves struct {
	*shelves
	told  []int
	skips bool
}

func newCounted(lengths ...int) *countedShelves {
	return &countedShelves{shelves: newShelves(lengths...)}
}

func (c *countedShelves) Records(shard int) int {
	if c.told != nil {
		return c.told[shard]
	}
	return c.lengths[shard]
}

func (c *countedShelves) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := c.shelves.Open(ctx, shard)
	if c.skips {
		r = skippingShelf{r.(*shelf)}
	}
	return r, err
}

type skippingShelf struct{ *shelf }

func (s skippingShelf) Skip(_ context.Context, n int) (int, error) {
	n = min(n, s.end-s.next)
	if n == 0 {
		return 0, io.EOF
	}
	s.next += n
	return n, nil
}

// positions is which record an epoch of one rank has at each position.
func positions(t *testing.T, s nwt.Stream, epoch int, opts ...nwt.Option) []int64 {
	l := newLoader(t, nwt.Streamed(s), opts...)
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
		s := newCounted(10, 0, 25, 7, 310, 1, 12, 94)
		want := positions(t, s, 2, append(opts, nwt.WithBatchSize(8), nwt.WithWorkers(0))...)
		sorted := slices.Clone(want)
		slices.Sort(sorted)
		require.Equal(t, upTo(459), sorted)
		if len(opts) > 0 {
			require.NotEqual(t, want, positions(t, s, 3, append(opts, nwt.WithWorkers(0))...))
		}
		for _, world := range []int{1, 2, 3, 8, 20} {
			got := make([]int64, 459)
			batches := -1
			for rank := range world {
				l := newLoader(t, nwt.Streamed(s), append(opts, nwt.WithBatchSize(5), nwt.WithWorkers(rank%3), nwt.WithRank(rank, world))...)
				n := 0
				for b, err := range l.Epoch(t.Context(), 2) {
					require.NoError(t, err)
					require.Equal(t, n, b.Index())
					if n++; n == l.Len() {
						require.True(t, b.Last())
						require.Equal(t, nwt.State{Epoch: 2, Samples: 459, World: -1}, progress(b.State()))
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
		require.Zero(t, s.open.Load(), "every shard is closed")
	}
}

func TestACountedStreamGoesOnWithAnyNumberOfRanks(t *testing.T) {
	histories := 3000
	if testing.Short() || raceDetector {
		histories = 300
	}
	for seed := range uint64(histories) {
		rng := rand.New(rand.NewPCG(seed, 7))
		lengths := make([]int, 1+rng.IntN(9))
		n := 0
		for i := range lengths {
			lengths[i] = rng.IntN(1 + rng.IntN(40))
			n += lengths[i]
		}
		if n == 0 {
			continue
		}
		s := newCounted(lengths...)
		s.skips = rng.IntN(2) == 0
		var order []nwt.Option
		if rng.IntN(3) > 0 {
			order = append(order, nwt.WithShuffle(seed), nwt.WithShuffleWindow(1+rng.IntN(60)))
		}
		if rng.IntN(2) > 0 {
			order = append(order, nwt.WithInterleave(1+rng.IntN(9)))
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
		s := &openings{countedShelves: newCounted(lengths...), opened: map[int]bool{}}
		l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(16), nwt.WithWorkers(0), nwt.WithShuffle(1), nwt.WithRank(rank, 4))
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
	*countedShelves
	opened map[int]bool
}

func (o *openings) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	o.opened[shard] = true
	return o.countedShelves.Open(ctx, shard)
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
			s := newCounted(6, 5, 6)
			s.told = []int{6, test.told, 6}
			l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(3), nwt.WithWorkers(workers), nwt.WithInterleave(1))
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
	s := newCounted(10, 10, 10)
	s.failAt = 13
	l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(30), nwt.WithWorkers(2), nwt.WithErrorBudget(7), quietLog)
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
		l := newLoader(t, nwt.Streamed(s), append(opts, nwt.WithBatchSize(4))...)
		for _, e := range l.Resume(t.Context(), state) {
			err = e
		}
		return err
	}
	c := newCounted(30, 30)
	require.NoError(t, resume(c, nwt.State{Samples: 8, World: -1}))
	require.ErrorContains(t, resume(c, nwt.State{Samples: 8, World: 1}), "now the stream's records are counted")
	require.ErrorContains(t, resume(c.shelves, nwt.State{Samples: 8, World: -1}), "counts are missing")
	require.NoError(t, resume(c, nwt.State{Samples: 60, World: -1}))
	l := newLoader(t, nwt.Streamed(c), nwt.WithBatchSize(40))
	var begun []int
	for b, err := range l.ResumeEpochs(t.Context(), nwt.State{Epoch: 1, Samples: 60, World: -1}, 3) {
		require.NoError(t, err)
		begun = append(begun, b.Epoch(), b.Index(), b.Len())
	}
	require.Equal(t, []int{2, 0, 40, 2, 1, 20}, begun)
	require.ErrorContains(t, resume(c, nwt.State{Samples: 61, World: -1}), "must be 0 … 60")
	require.ErrorContains(t, resume(c.shelves, nwt.State{Samples: 8, World: 2}), "CountedStream")
	require.NoError(t, resume(c, nwt.State{Samples: 8, World: 1}, nwt.WithEpochSamples(40)))
	c.told = []int{30, -1}
	require.NoError(t, resume(c, nwt.State{Samples: 8, World: 1}), "a count that isn't known makes it a stream without counts")
}

func TestEpochsOfACountedStreamAreEachAsAlone(t *testing.T) {
	s := newCounted(10, 25, 7, 31, 1, 12)
	opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithShuffle(4), nwt.WithRank(1, 3), nwt.WithDropLast(), nwt.WithWorkers(2)}
	l := newLoader(t, nwt.Streamed(s), opts...)
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

func TestAShardOfACountedStreamThatHangsLosesItsRecordsAlone(t *testing.T) {
	for name, at := range map[string]int{"first": 0, "middle": 3, "end": 5} {
		for _, interleave := range []int{1, 2, 3} {
			t.Run(fmt.Sprint(name, interleave), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					release := make(chan struct{})
					s := &breaking{shelves: newShelves(5, 5, 5, 5)}
					s.onNext = at2(1, at, func() error { <-release; return nil })
					l := newLoader(t, nwt.Streamed(withCounts{s, []int{5, 5, 5, 5}}), nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithInterleave(interleave), nwt.WithErrorBudget(5), nwt.WithTimeout(time.Second), quietLog)
					got, err := values(t, l, 0)
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
					require.Zero(t, s.open.Load())
				})
			})
		}
	}
}
