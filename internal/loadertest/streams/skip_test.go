package streams_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// over passes over up to n records, fails as Next would, and says so at once or, if
// late, only when it is asked for the record that can't be read.
func over(r *kit.TallyReader, n int, late bool) (int, error) {
	for k := range n {
		if how := r.Stream.Torn[r.At]; k > 0 && (late || how == "panic") && (how != "" || r.At == r.End) {
			return k, nil
		}
		if err := r.Pass(); err != nil {
			return k, err
		}
	}
	return n, nil
}

func TestARestThatIsSkippedToIsTheOneThatIsReadTo(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := &kit.Tallies{Torn: map[int]string{}}
		for shard := range 1 + rng.IntN(7) {
			s.Lengths = append(s.Lengths, rng.IntN(30))
			if rng.IntN(6) == 0 {
				s.Torn[1000*shard+rng.IntN(30)] = []string{"error", "panic"}[rng.IntN(2)]
			}
			if rng.IntN(12) == 0 {
				s.Torn[1000*shard] = "open"
			}
		}
		s.Lengths[0]++ // rank 0 has a sample
		world := 1 + rng.IntN(len(s.Lengths))
		opts := []nwt.Option{nwt.WithInterleave(1 + rng.IntN(5))}
		if rng.IntN(3) > 0 {
			opts = append(opts, nwt.WithShuffle(seed), nwt.WithShuffleWindow([]int{1, 2, 7, 40, 1000}[rng.IntN(5)]))
		} else {
			opts = append(opts, nwt.WithRank(0, world))
		}
		if rng.IntN(2) == 0 {
			opts = append(opts, nwt.WithEpochSamples(1+rng.IntN(150)))
		}
		batch := nwt.WithBatchSize(1 + rng.IntN(6))
		whole, states := restOf(t, nwt.Streamed(s), nwt.State{Epoch: 1}, append(opts, batch, nwt.WithWorkers(2))...)
		for k := range min(len(states), 3) {
			state := states[rng.IntN(len(states))]
			s.OnSkip = nil
			workers := 2 * (k % 2)
			plain, _ := restOf(t, nwt.Streamed(s), state, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(2))...)
			require.Equal(t, whole[len(whole)-len(plain):], plain)
			for how, skip := range map[string]func(r *kit.TallyReader, n int) (int, error){
				"all":      func(r *kit.TallyReader, n int) (int, error) { return over(r, n, false) },
				"late":     func(r *kit.TallyReader, n int) (int, error) { return over(r, n, true) },
				"some":     func(r *kit.TallyReader, n int) (int, error) { return over(r, max(1, n/3), true) },
				"none":     func(*kit.TallyReader, int) (int, error) { return 0, nil },
				"in tens":  func(r *kit.TallyReader, n int) (int, error) { return over(r, min(n, 10-r.At%10), true) },
				"not here": nil,
			} {
				s.OnSkip = skip
				rest, _ := restOf(t, nwt.Streamed(s), state, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(workers))...)
				require.Equal(t, plain, rest, "seed %d, %v, skipping %s", seed, state, how)
			}
			s.OnSkip = nil
		}
	}
}

func TestARestIsReadFromWhereItBegins(t *testing.T) {
	for name, c := range map[string]struct {
		opts []nwt.Option
		most int // records that are read for 100 that are delivered
	}{
		"in order":     {nil, 100 + 4*257},
		"in a window":  {[]nwt.Option{nwt.WithShuffle(1), nwt.WithShuffleWindow(50)}, 100 + 4*257 + 50},
		"second pass":  {[]nwt.Option{nwt.WithEpochSamples(8000)}, 100 + 4*257},
		"third, mixed": {[]nwt.Option{nwt.WithShuffle(1), nwt.WithShuffleWindow(50), nwt.WithEpochSamples(20_000)}, 100 + 4*257 + 2*50},
	} {
		for _, workers := range []int{0, 2} {
			s := &kit.Tallies{Lengths: []int{900, 900, 900, 900, 900, 900, 900, 900}}
			s.OnSkip = func(r *kit.TallyReader, n int) (int, error) { return over(r, n, false) }
			l := kit.NewLoader(t, nwt.Streamed(s), append(c.opts, nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithPrefetch(1))...)
			state := nwt.State{Epoch: 2, Samples: 7000}
			switch name {
			case "second pass":
				state.Samples = 7800
			case "third, mixed":
				state.Samples = 15_000
			}
			n := 0
			for b, err := range l.Resume(t.Context(), state) {
				require.NoError(t, err)
				if n += b.Len(); n == 100 {
					break
				}
			}
			require.Equal(t, 100, n)
			require.NoError(t, l.Close())
			require.LessOrEqual(t, s.Read.Load(), int64(c.most+40), "%s, %d workers: and 4 batches ahead", name, workers)
		}
	}
}

func TestASkipThatFailsEndsItsShardAndIsLogged(t *testing.T) {
	for name, skip := range map[string]func(r *kit.TallyReader, n int) (int, error){
		"error":     func(*kit.TallyReader, int) (int, error) { return 0, kit.ErrTorn },
		"panic":     func(*kit.TallyReader, int) (int, error) { panic(kit.ErrTorn) },
		"too many":  func(_ *kit.TallyReader, n int) (int, error) { return n + 1, nil },
		"too few":   func(*kit.TallyReader, int) (int, error) { return -1, nil },
		"wraps EOF": func(*kit.TallyReader, int) (int, error) { return 0, fmt.Errorf("a checksum: %w", io.EOF) },
	} {
		var log kit.Journal
		s := &kit.Tallies{Lengths: []int{30, 20}, OnSkip: skip}
		numbers, _ := restOf(t, nwt.Streamed(s), nwt.State{Samples: 1}, nwt.WithInterleave(1), nwt.WithWorkers(1), log.Option())
		require.Len(t, numbers, 20, "%s: the first shard is one bad sample then", name)
		require.EqualValues(t, 1000, numbers[0])
		require.Contains(t, log.String(), "nwt: a record that was delivered before can't be read now")
		for _, opts := range [][]nwt.Option{nil, {nwt.WithShuffle(1), nwt.WithShuffleWindow(2)}} {
			l := kit.NewLoader(t, nwt.Streamed(s), append(opts, nwt.WithInterleave(1), nwt.WithWorkers(1))...)
			err := kit.Refusal(t, l.Resume(t.Context(), nwt.State{Samples: 9}))
			require.ErrorContains(t, err, "to resume after 9 samples of epoch 0 isn't possible: a record of these can't be read: ", name)
		}
	}
	s := &kit.Tallies{Lengths: []int{30, 20}, Torn: map[int]string{1000: "open"}, OnSkip: kit.Leap}
	err := kit.Refusal(t, kit.NewLoader(t, nwt.Streamed(s)).Resume(t.Context(), nwt.State{Samples: 9}))
	require.ErrorContains(t, err, "shard 1 from record 0 on: it can't be opened: torn")
	s = &kit.Tallies{Lengths: []int{30}, OnSkip: func(*kit.TallyReader, int) (int, error) { return 0, nwt.Retryable(kit.ErrTorn) }}
	err = kit.Refusal(t, kit.NewLoader(t, nwt.Streamed(s), nwt.WithRetry(2, time.Microsecond)).Resume(t.Context(), nwt.State{Samples: 9}))
	require.ErrorContains(t, err, "shard 0 from record 0 on: torn (attempt 3)")
}

func TestSkippingPastTheEndOfAStreamIsAnError(t *testing.T) {
	for _, opts := range [][]nwt.Option{{}, {nwt.WithShuffle(1)}} {
		s := &kit.Tallies{Lengths: []int{30, 20}, OnSkip: func(r *kit.TallyReader, n int) (int, error) { return over(r, n, false) }}
		l := kit.NewLoader(t, nwt.Streamed(s), append(opts, nwt.WithBatchSize(4))...)
		n := 0
		for _, err := range l.Resume(t.Context(), nwt.State{Epoch: 3, Samples: 51}) {
			require.ErrorContains(t, err, "to resume after 51 samples of epoch 3 isn't possible: this rank's shards have 50")
			n++
		}
		require.Equal(t, 1, n)
		for range l.Resume(t.Context(), nwt.State{Epoch: 3, Samples: 50}) {
			t.Error("nothing is left")
		}
	}
}

func TestAfterSkippingRecordsAreReadAheadAsEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &kit.Tallies{Lengths: []int{900, 900, 900, 900}, OnSkip: kit.Leap}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithPrefetch(1))
		for _, err := range l.Resume(t.Context(), nwt.State{Samples: 2000}) {
			require.NoError(t, err)
			synctest.Wait()
			require.GreaterOrEqual(t, s.Read.Load(), int64(10+4*16))
			break
		}
	})
}

// Without workers there is no goroutine.
func TestWithoutWorkersTheCallerSkips(t *testing.T) {
	caller, calls := kit.Goroutine(), 0
	stream := func() *kit.Tallies {
		return &kit.Tallies{Lengths: []int{900, 900, 900, 900}, OnSkip: func(r *kit.TallyReader, n int) (int, error) {
			calls++
			require.Equal(t, caller, kit.Goroutine())
			return kit.Leap(r, n)
		}}
	}
	for _, ds := range []nwt.Dataset{
		nwt.Streamed(stream()),
		kit.MixedOf(t, nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}, stream(), stream()),
	} {
		calls = 0
		numbers, _ := restOf(t, ds, nwt.State{Samples: 3000}, nwt.WithEpochSamples(3600), nwt.WithWorkers(0))
		require.Len(t, numbers, 600)
		require.GreaterOrEqual(t, calls, 4)
	}
}

// Otherwise a resume of several passes would look for its place for ever.
func TestAStreamWhosePassesDifferWhenItIsSkippedIsNotResumed(t *testing.T) {
	for _, workers := range []int{0, 2} {
		s := &kit.Tallies{Lengths: []int{20, 20, 20, 20}, OnSkip: func(r *kit.TallyReader, n int) (int, error) {
			skipped, _ := over(r, n, true)
			return skipped, kit.ErrTorn // wherever it is asked to stop
		}}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithEpochSamples(300), nwt.WithErrorBudget(100), nwt.WithBatchSize(10), nwt.WithWorkers(workers), kit.Silent)
		ends := 0
		kit.Promptly(t, func() {
			for _, err := range l.Resume(t.Context(), nwt.State{Samples: 150}) {
				require.ErrorContains(t, err, "to resume after 150 samples of epoch 0 isn't possible: this rank's shards had ")
				ends++
			}
		})
		require.Equal(t, 1, ends)
		require.Zero(t, s.Opened.Load())
	}
}

// By drawing once for each of the records delivered, it would take years.
func TestARestLateInTheLongestShuffledStreamBeginsAtOnce(t *testing.T) {
	s := &kit.Tallies{Lengths: slices.Repeat([]int{math.MaxInt / 8}, 4), OnSkip: kit.Leap}
	l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithShuffle(1), nwt.WithBatchSize(16))
	for b, err := range l.Resume(t.Context(), nwt.State{Samples: math.MaxInt / 4}) {
		require.NoError(t, err)
		require.Equal(t, 16, b.Len())
		break
	}
	require.Less(t, s.Read.Load(), int64(3000), "the window, and what is read ahead")
}

func TestSkippingEndsWithItsContext(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			l := kit.NewLoader(t, nwt.Streamed(bottomless{kit.NewShelves(30, 20)}), nwt.WithWorkers(workers))
			require.ErrorIs(t, kit.Refusal(t, l.Resume(ctx, nwt.State{Samples: 40})), context.DeadlineExceeded)
			require.NoError(t, l.Close())
		})
	}

	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int32
	s := &kit.Tallies{Lengths: []int{30, 20}, OnSkip: func(_ *kit.TallyReader, n int) (int, error) {
		calls.Add(1)
		cancel()
		return min(n, 1), nil
	}}
	l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithWorkers(2))
	n := 0
	for _, err := range l.Resume(ctx, nwt.State{Samples: 40}) {
		require.ErrorIs(t, err, context.Canceled)
		n++
	}
	require.Equal(t, 1, n)
	require.LessOrEqual(t, calls.Load(), int32(2), "one in each shard, though Skip doesn't look at the context")
}

// A shard that hangs while it is skipped or opened is lost from there on, as it would be
// if it hung while it is read.
func TestAShardThatHangsWhileItIsSkippedIsLost(t *testing.T) {
	for name, hang := range map[string]int{"Open": 1000, "first": 1000, "in the middle": 1007, "at the end": 1020} {
		for _, interleave := range []int{1, 2, 3} {
			for _, opts := range [][]nwt.Option{{}, {nwt.WithShuffle(3), nwt.WithShuffleWindow(9)}, {nwt.WithEpochSamples(90)}} {
				opts := append(slices.Clone(opts), nwt.WithBatchSize(5), nwt.WithInterleave(interleave), nwt.WithWorkers(2))
				like := &kit.Tallies{Lengths: []int{20, 20, 20}, Torn: map[int]string{hang: "error"}}
				if name == "Open" {
					like.Torn[hang] = "open"
				}
				whole, states := restOf(t, nwt.Streamed(like), nwt.State{}, opts...)
				t.Run(fmt.Sprint(name, interleave, len(opts)), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						release := make(chan struct{})
						s := &kit.Tallies{Lengths: []int{20, 20, 20}, Hang: map[int]chan struct{}{hang: release}}
						s.OnSkip = func(r *kit.TallyReader, n int) (int, error) { return over(r, n, true) }
						if name == "Open" {
							s.Hangs = "open"
						}
						for _, state := range states {
							rest, _ := restOf(t, nwt.Streamed(s), state, append(opts, nwt.WithTimeout(time.Second))...)
							require.Equal(t, whole[len(whole)-len(rest):], rest, "%v", state)
							plain, _ := restOf(t, nwt.Streamed(like), state, opts...)
							require.Len(t, rest, len(plain))
						}
						close(release)
						synctest.Wait()
						require.Zero(t, s.Opened.Load(), "calls that were given up close their shards")
					})
				})
			}
		}
	}
}

func TestAShardThatHangsWhileItIsSkippedEndsTheEpochWithoutABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := &kit.Tallies{Lengths: []int{200, 200}, Hang: map[int]chan struct{}{1100: release}}
		s.OnSkip = func(r *kit.TallyReader, n int) (int, error) { return over(r, n, true) }
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithWorkers(1), nwt.WithTimeout(time.Second))
		for range 2 {
			began := time.Now()
			for b, err := range l.Resume(t.Context(), nwt.State{Samples: 300}) {
				require.Nil(t, b)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, "to resume after 300 samples of epoch 0 isn't possible: a record of these can't be read: shard 1 from record 100 on: no answer within WithTimeout(1s)")
			}
			require.Equal(t, time.Second, time.Since(began))
		}
		require.NoError(t, l.Close())
		close(release)
		synctest.Wait()
		require.Zero(t, s.Opened.Load())
	})
}

// Each record that is skipped has its time, however many there are.
func TestASlowSkipIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &kit.Tallies{Lengths: []int{500, 20, 480}}
		s.OnSkip = func(r *kit.TallyReader, n int) (int, error) {
			time.Sleep(time.Duration(n) * 900 * time.Millisecond)
			return over(r, n, false)
		}
		numbers, _ := restOf(t, nwt.Streamed(s), nwt.State{Samples: 900}, nwt.WithErrorBudget(0), nwt.WithTimeout(time.Second), nwt.WithWorkers(1))
		require.Len(t, numbers, 100)
	})
}

// Open, Skip and Next have the time each, when records are skipped too.
func TestEachCallHasItsTimeWhenRecordsAreSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nothing := func(*kit.TallyReader, int) (int, error) { time.Sleep(900 * time.Millisecond); return 0, nil }
		s := &kit.Breaking{
			Shelves: kit.NewShelves(30, 30), OnOpen: func(int) error { time.Sleep(900 * time.Millisecond); return nil },
			OnNext: func(int, int) error { time.Sleep(900 * time.Millisecond); return nil },
		}
		l := kit.NewLoader(t, nwt.Streamed(skippingBy{s, nothing}), nwt.WithInterleave(1), nwt.WithTimeout(time.Second), nwt.WithWorkers(1))
		n := 0
		for b, err := range l.Resume(t.Context(), nwt.State{Samples: 40}) {
			require.NoError(t, err)
			n += b.Len()
		}
		require.Equal(t, 20, n)
		require.NoError(t, l.Close())
	})
}

// skippingBy is a stream with a Skip.
type skippingBy struct {
	*kit.Breaking
	skip func(*kit.TallyReader, int) (int, error)
}

func (s skippingBy) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.Breaking.Open(ctx, shard)
	return skipBy{r, s.skip}, err
}

type skipBy struct {
	nwt.ShardReader
	skip func(*kit.TallyReader, int) (int, error)
}

func (r skipBy) Skip(_ context.Context, n int) (int, error) { return r.skip(nil, n) }

// A shard that hangs doesn't hide the one that was lost before it.
func TestAShardThatIsLostBeforeOneThatHangsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log kit.Journal
		release := make(chan struct{})
		s := &kit.Tallies{Lengths: []int{5, 5, 5}, Torn: map[int]string{1: "error"}, Hang: map[int]chan struct{}{1002: release}}
		s.OnSkip = func(r *kit.TallyReader, n int) (int, error) { return over(r, n, false) }
		restOf(t, nwt.Streamed(s), nwt.State{Samples: 7}, nwt.WithInterleave(1), nwt.WithWorkers(1), nwt.WithTimeout(time.Second), log.Option())
		require.Contains(t, log.String(), "shard 0 from record 1 on")
		require.Contains(t, log.String(), "shard 1 from record 2 on")
		close(release)
		synctest.Wait()
	})
}

// Calls that were given up count until they return.
func TestOnlySkipsThatHaveNotReturnedEndTheEpoch(t *testing.T) {
	for _, returns := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			s := &kit.Tallies{Lengths: slices.Repeat([]int{1}, 1100), OnSkip: func(r *kit.TallyReader, n int) (int, error) {
				if returns {
					time.Sleep(3 * time.Second)
				} else {
					kit.Hold(t, release)
				}
				return over(r, n, false)
			}}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(1), nwt.WithPrefetch(1), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1<<20), kit.Silent)
			samples := 0
			var last error
			for b, err := range l.Resume(t.Context(), nwt.State{Samples: 1050}) {
				if last = err; err == nil {
					samples += b.Len()
				}
			}
			if returns {
				require.NoError(t, last)
				require.Equal(t, 50, samples)
			} else {
				require.ErrorContains(t, last, "calls that WithTimeout(1s) gave up haven't returned, the bound is 1024")
			}
			require.NoError(t, l.Close())
			close(release)
			time.Sleep(time.Minute)
			require.Zero(t, s.Opened.Load())
		})
	}
}

// What a call returns just when it is given up is delivered, or lost with the rest of its
// shard: never lost by itself.
func TestACallThatReturnsWhenItIsGivenUpLosesNoRecordByItself(t *testing.T) {
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			s := &kit.Breaking{Shelves: kit.NewShelves(30, 30), OnNext: at2(1, 7, func() error { time.Sleep(time.Second); return nil })}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), kit.Silent)
			got, err := kit.Values(t, l, 0)
			require.NoError(t, err)
			own := slices.DeleteFunc(got, func(n int64) bool { return n < 30 })
			if bad := l.BadSamples(); len(bad) > 0 {
				var lost *nwt.ShardError
				require.ErrorAs(t, bad[0], &lost)
				require.Len(t, own, lost.Record)
			} else {
				require.Len(t, own, 30)
			}
			require.NoError(t, l.Close())
		})
	}
}

// In one round each chain may lose a shard.
func TestEveryShardThatIsLostBeforeTheRestIsNamed(t *testing.T) {
	var log kit.Journal
	s := &kit.Tallies{Lengths: []int{20, 20, 20, 20}, Torn: map[int]string{5: "error", 1005: "error", 2006: "error"}}
	s.OnSkip = func(r *kit.TallyReader, n int) (int, error) { return over(r, n, false) }
	numbers, _ := restOf(t, nwt.Streamed(s), nwt.State{Samples: 35}, nwt.WithWorkers(1), log.Option())
	require.Equal(t, []int64{3016, 3017, 3018, 3019}, numbers)
	for shard, record := range map[int]int{0: 5, 1: 5, 2: 6} {
		require.Equal(t, 1, strings.Count(log.String(), fmt.Sprintf("shard %d from record %d on", shard, record)))
	}

	var other kit.Journal
	s = &kit.Tallies{Lengths: []int{5, 5, 5}, Torn: map[int]string{1: "error", 1002: "error", 2003: "error"}, OnSkip: s.OnSkip}
	restOf(t, nwt.Streamed(s), nwt.State{Samples: 8}, nwt.WithInterleave(1), nwt.WithWorkers(1), other.Option())
	for shard, record := range map[int]int{0: 1, 1: 2, 2: 3} {
		require.Contains(t, other.String(), fmt.Sprintf("shard %d from record %d on", shard, record), "one after the other in a chain")
	}
}

// A bottomless stream's readers skip until their context ends.
type bottomless struct{ *kit.Shelves }

func (b bottomless) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := b.Shelves.Open(ctx, shard)
	return bottomlessReader{r}, err
}

type bottomlessReader struct{ nwt.ShardReader }

func (bottomlessReader) Skip(ctx context.Context, _ int) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}
