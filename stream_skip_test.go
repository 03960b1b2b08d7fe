package nwt_test

import (
	"context"
	"encoding/binary"
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
)

// tallies is a stream whose shards count: shard k begins at 1000 k.
type tallies struct {
	lengths []int
	torn    map[int]string        // how a record can't be read, by its number
	hang    map[int]chan struct{} // until when a record can't be read
	hangs   string                // "open": the shard of such a record can't be opened
	open    atomic.Int32
	skip    func(r *tallyReader, n int) (int, error)
	read    atomic.Int64
}

func (s *tallies) Fields() []nwt.Field { return []nwt.Field{{Name: "number", Type: nwt.Int64}} }
func (s *tallies) Shards() int         { return len(s.lengths) }

func (s *tallies) Open(_ context.Context, shard int) (nwt.ShardReader, error) {
	if s.torn[1000*shard] == "open" {
		return nil, errTorn
	}
	if release := s.hang[1000*shard]; release != nil && s.hangs == "open" {
		<-release
	}
	s.open.Add(1)
	r := &tallyReader{s: s, next: 1000 * shard, end: 1000*shard + s.lengths[shard]}
	if s.skip == nil {
		return struct{ nwt.ShardReader }{r}, nil // without its Skip
	}
	return r, nil
}

func (s *tallies) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) error {
	nwt.Values[int64](dst, 0)[0] = int64(binary.LittleEndian.Uint64(r.Data))
	return nil
}

type tallyReader struct {
	s         *tallies
	next, end int
}

func (r *tallyReader) pass() error {
	if release := r.s.hang[r.next]; release != nil {
		<-release
	}
	switch r.s.torn[r.next] {
	case "error":
		return fmt.Errorf("a checksum: %w", io.EOF)
	case "panic":
		panic(errTorn)
	}
	if r.next == r.end {
		return io.EOF
	}
	r.next++
	return nil
}

func (r *tallyReader) Next(_ context.Context, rec *nwt.Record) error {
	r.s.read.Add(1)
	if err := r.pass(); err != nil {
		return err
	}
	rec.Data = binary.LittleEndian.AppendUint64(rec.Data[:0], uint64(r.next-1))
	return nil
}

func (r *tallyReader) Skip(_ context.Context, n int) (int, error) { return r.s.skip(r, n) }
func (r *tallyReader) Close() error                               { r.s.open.Add(-1); return nil }

// over passes over up to n records, fails as Next would, and says so at once or, if
// late, only when it is asked for the record that can't be read.
func over(r *tallyReader, n int, late bool) (int, error) {
	for k := range n {
		if how := r.s.torn[r.next]; k > 0 && (late || how == "panic") && (how != "" || r.next == r.end) {
			return k, nil
		}
		if err := r.pass(); err != nil {
			return k, err
		}
	}
	return n, nil
}

func TestARestThatIsSkippedToIsTheOneThatIsReadTo(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := &tallies{torn: map[int]string{}}
		for shard := range 1 + rng.IntN(7) {
			s.lengths = append(s.lengths, rng.IntN(30))
			if rng.IntN(6) == 0 {
				s.torn[1000*shard+rng.IntN(30)] = []string{"error", "panic"}[rng.IntN(2)]
			}
			if rng.IntN(12) == 0 {
				s.torn[1000*shard] = "open"
			}
		}
		s.lengths[0]++ // rank 0 has a sample
		world := 1 + rng.IntN(len(s.lengths))
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
			s.skip = nil
			workers := 2 * (k % 2)
			plain, _ := restOf(t, nwt.Streamed(s), state, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(2))...)
			require.Equal(t, whole[len(whole)-len(plain):], plain)
			for how, skip := range map[string]func(r *tallyReader, n int) (int, error){
				"all":      func(r *tallyReader, n int) (int, error) { return over(r, n, false) },
				"late":     func(r *tallyReader, n int) (int, error) { return over(r, n, true) },
				"some":     func(r *tallyReader, n int) (int, error) { return over(r, max(1, n/3), true) },
				"none":     func(*tallyReader, int) (int, error) { return 0, nil },
				"in tens":  func(r *tallyReader, n int) (int, error) { return over(r, min(n, 10-r.next%10), true) },
				"not here": nil,
			} {
				s.skip = skip
				rest, _ := restOf(t, nwt.Streamed(s), state, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(workers))...)
				require.Equal(t, plain, rest, "seed %d, %v, skipping %s", seed, state, how)
			}
			s.skip = nil
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
			s := &tallies{lengths: []int{900, 900, 900, 900, 900, 900, 900, 900}}
			s.skip = func(r *tallyReader, n int) (int, error) { return over(r, n, false) }
			l := newLoader(t, nwt.Streamed(s), append(c.opts, nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithPrefetch(1))...)
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
			require.LessOrEqual(t, s.read.Load(), int64(c.most+40), "%s, %d workers: and 4 batches ahead", name, workers)
		}
	}
}

func TestASkipThatFailsEndsItsShardAndIsLogged(t *testing.T) {
	for name, skip := range map[string]func(r *tallyReader, n int) (int, error){
		"error":     func(*tallyReader, int) (int, error) { return 0, errTorn },
		"panic":     func(*tallyReader, int) (int, error) { panic(errTorn) },
		"too many":  func(_ *tallyReader, n int) (int, error) { return n + 1, nil },
		"too few":   func(*tallyReader, int) (int, error) { return -1, nil },
		"wraps EOF": func(*tallyReader, int) (int, error) { return 0, fmt.Errorf("a checksum: %w", io.EOF) },
	} {
		var log journal
		s := &tallies{lengths: []int{30, 20}, skip: skip}
		numbers, _ := restOf(t, nwt.Streamed(s), nwt.State{Samples: 1}, nwt.WithInterleave(1), nwt.WithWorkers(1), log.option())
		require.Len(t, numbers, 20, "%s: the first shard is one bad sample then", name)
		require.EqualValues(t, 1000, numbers[0])
		require.Contains(t, log.String(), "nwt: a record that was delivered before can't be read now")
		for _, opts := range [][]nwt.Option{nil, {nwt.WithShuffle(1), nwt.WithShuffleWindow(2)}} {
			l := newLoader(t, nwt.Streamed(s), append(opts, nwt.WithInterleave(1), nwt.WithWorkers(1))...)
			err := refusal(t, l.Resume(t.Context(), nwt.State{Samples: 9}))
			require.ErrorContains(t, err, "to resume after 9 samples of epoch 0 isn't possible: a record of these can't be read: ", name)
		}
	}
	s := &tallies{lengths: []int{30, 20}, torn: map[int]string{1000: "open"}, skip: leap}
	err := refusal(t, newLoader(t, nwt.Streamed(s)).Resume(t.Context(), nwt.State{Samples: 9}))
	require.ErrorContains(t, err, "shard 1 from record 0 on: it can't be opened: torn")
}

func TestSkippingPastTheEndOfAStreamIsAnError(t *testing.T) {
	for _, opts := range [][]nwt.Option{{}, {nwt.WithShuffle(1)}} {
		s := &tallies{lengths: []int{30, 20}, skip: func(r *tallyReader, n int) (int, error) { return over(r, n, false) }}
		l := newLoader(t, nwt.Streamed(s), append(opts, nwt.WithBatchSize(4))...)
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
		s := &tallies{lengths: []int{900, 900, 900, 900}, skip: leap}
		l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithPrefetch(1))
		for _, err := range l.Resume(t.Context(), nwt.State{Samples: 2000}) {
			require.NoError(t, err)
			synctest.Wait()
			require.GreaterOrEqual(t, s.read.Load(), int64(10+4*16))
			break
		}
	})
}

// Without workers there is no goroutine.
func TestWithoutWorkersTheCallerSkips(t *testing.T) {
	caller, calls := goroutine(), 0
	stream := func() *tallies {
		return &tallies{lengths: []int{900, 900, 900, 900}, skip: func(r *tallyReader, n int) (int, error) {
			calls++
			require.Equal(t, caller, goroutine())
			return leap(r, n)
		}}
	}
	for _, ds := range []nwt.Dataset{
		nwt.Streamed(stream()),
		mixedOf(t, nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}, stream(), stream()),
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
		s := &tallies{lengths: []int{20, 20, 20, 20}, skip: func(r *tallyReader, n int) (int, error) {
			skipped, _ := over(r, n, true)
			return skipped, errTorn // wherever it is asked to stop
		}}
		l := newLoader(t, nwt.Streamed(s), nwt.WithEpochSamples(300), nwt.WithErrorBudget(100), nwt.WithBatchSize(10), nwt.WithWorkers(workers), silent)
		ends := 0
		promptly(t, func() {
			for _, err := range l.Resume(t.Context(), nwt.State{Samples: 150}) {
				require.ErrorContains(t, err, "to resume after 150 samples of epoch 0 isn't possible: this rank's shards had ")
				ends++
			}
		})
		require.Equal(t, 1, ends)
		require.Zero(t, s.open.Load())
	}
}

// By drawing once for each of the records delivered, it would take years.
func TestARestLateInTheLongestShuffledStreamBeginsAtOnce(t *testing.T) {
	s := &tallies{lengths: slices.Repeat([]int{math.MaxInt / 8}, 4), skip: leap}
	l := newLoader(t, nwt.Streamed(s), nwt.WithShuffle(1), nwt.WithBatchSize(16))
	for b, err := range l.Resume(t.Context(), nwt.State{Samples: math.MaxInt / 4}) {
		require.NoError(t, err)
		require.Equal(t, 16, b.Len())
		break
	}
	require.Less(t, s.read.Load(), int64(3000), "the window, and what is read ahead")
}

func TestMoreSamplesThanAnIntCountsEndTheEpochWithAnError(t *testing.T) {
	for world := 1; world <= 2; world++ {
		for _, workers := range []int{0, 2} {
			s := &tallies{lengths: slices.Repeat([]int{math.MaxInt / 4}, 6), skip: leap}
			l := newLoader(t, nwt.Streamed(s), nwt.WithRank(world-1, world), nwt.WithBatchSize(16), nwt.WithWorkers(workers))
			samples := 0
			var last error
			for b, err := range l.Resume(t.Context(), nwt.State{Samples: (math.MaxInt/world - 20) * world}) {
				if last = err; err == nil {
					samples += b.Len()
				}
			}
			require.ErrorContains(t, last, fmt.Sprintf("nwt: epoch 0 of %d ranks has more samples than an int counts", world))
			require.Equal(t, 16, samples)
		}
	}
}

func TestSkippingEndsWithItsContext(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			l := newLoader(t, nwt.Streamed(bottomless{newShelves(30, 20)}), nwt.WithWorkers(workers))
			require.ErrorIs(t, refusal(t, l.Resume(ctx, nwt.State{Samples: 40})), context.DeadlineExceeded)
			require.NoError(t, l.Close())
		})
	}

	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int32
	s := &tallies{lengths: []int{30, 20}, skip: func(_ *tallyReader, n int) (int, error) {
		calls.Add(1)
		cancel()
		return min(n, 1), nil
	}}
	l := newLoader(t, nwt.Streamed(s), nwt.WithWorkers(2))
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
				like := &tallies{lengths: []int{20, 20, 20}, torn: map[int]string{hang: "error"}}
				if name == "Open" {
					like.torn[hang] = "open"
				}
				whole, states := restOf(t, nwt.Streamed(like), nwt.State{}, opts...)
				t.Run(fmt.Sprint(name, interleave, len(opts)), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						release := make(chan struct{})
						s := &tallies{lengths: []int{20, 20, 20}, hang: map[int]chan struct{}{hang: release}}
						s.skip = func(r *tallyReader, n int) (int, error) { return over(r, n, true) }
						if name == "Open" {
							s.hangs = "open"
						}
						for _, state := range states {
							rest, _ := restOf(t, nwt.Streamed(s), state, append(opts, nwt.WithTimeout(time.Second))...)
							require.Equal(t, whole[len(whole)-len(rest):], rest, "%v", state)
							plain, _ := restOf(t, nwt.Streamed(like), state, opts...)
							require.Len(t, rest, len(plain))
						}
						close(release)
						synctest.Wait()
						require.Zero(t, s.open.Load(), "calls that were given up close their shards")
					})
				})
			}
		}
	}
}

func TestAShardThatHangsWhileItIsSkippedEndsTheEpochWithoutABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := &tallies{lengths: []int{200, 200}, hang: map[int]chan struct{}{1100: release}}
		s.skip = func(r *tallyReader, n int) (int, error) { return over(r, n, true) }
		l := newLoader(t, nwt.Streamed(s), nwt.WithWorkers(1), nwt.WithTimeout(time.Second))
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
		require.Zero(t, s.open.Load())
	})
}

// Each record that is skipped has its time, however many there are.
func TestASlowSkipIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tallies{lengths: []int{500, 20, 480}}
		s.skip = func(r *tallyReader, n int) (int, error) {
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
		nothing := func(*tallyReader, int) (int, error) { time.Sleep(900 * time.Millisecond); return 0, nil }
		s := &breaking{
			shelves: newShelves(30, 30), onOpen: func(int) error { time.Sleep(900 * time.Millisecond); return nil },
			onNext: func(int, int) error { time.Sleep(900 * time.Millisecond); return nil },
		}
		l := newLoader(t, nwt.Streamed(skippingBy{s, nothing}), nwt.WithInterleave(1), nwt.WithTimeout(time.Second), nwt.WithWorkers(1))
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
	*breaking
	skip func(*tallyReader, int) (int, error)
}

func (s skippingBy) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.breaking.Open(ctx, shard)
	return skipBy{r, s.skip}, err
}

type skipBy struct {
	nwt.ShardReader
	skip func(*tallyReader, int) (int, error)
}

func (r skipBy) Skip(_ context.Context, n int) (int, error) { return r.skip(nil, n) }

// A shard that hangs doesn't hide the one that was lost before it.
func TestAShardThatIsLostBeforeOneThatHangsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		release := make(chan struct{})
		s := &tallies{lengths: []int{5, 5, 5}, torn: map[int]string{1: "error"}, hang: map[int]chan struct{}{1002: release}}
		s.skip = func(r *tallyReader, n int) (int, error) { return over(r, n, false) }
		restOf(t, nwt.Streamed(s), nwt.State{Samples: 7}, nwt.WithInterleave(1), nwt.WithWorkers(1), nwt.WithTimeout(time.Second), log.option())
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
			s := &tallies{lengths: slices.Repeat([]int{1}, 1100), skip: func(r *tallyReader, n int) (int, error) {
				if returns {
					time.Sleep(3 * time.Second)
				} else {
					<-release
				}
				return over(r, n, false)
			}}
			l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(1), nwt.WithPrefetch(1), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1<<20), silent)
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
			require.Zero(t, s.open.Load())
		})
	}
}

// What a call returns just when it is given up is delivered, or lost with the rest of its
// shard: never lost by itself.
func TestACallThatReturnsWhenItIsGivenUpLosesNoRecordByItself(t *testing.T) {
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			s := &breaking{shelves: newShelves(30, 30), onNext: at2(1, 7, func() error { time.Sleep(time.Second); return nil })}
			l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), quietLog)
			got, err := values(t, l, 0)
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
	var log journal
	s := &tallies{lengths: []int{20, 20, 20, 20}, torn: map[int]string{5: "error", 1005: "error", 2006: "error"}}
	s.skip = func(r *tallyReader, n int) (int, error) { return over(r, n, false) }
	numbers, _ := restOf(t, nwt.Streamed(s), nwt.State{Samples: 35}, nwt.WithWorkers(1), log.option())
	require.Equal(t, []int64{3016, 3017, 3018, 3019}, numbers)
	for shard, record := range map[int]int{0: 5, 1: 5, 2: 6} {
		require.Equal(t, 1, strings.Count(log.String(), fmt.Sprintf("shard %d from record %d on", shard, record)))
	}

	var other journal
	s = &tallies{lengths: []int{5, 5, 5}, torn: map[int]string{1: "error", 1002: "error", 2003: "error"}, skip: s.skip}
	restOf(t, nwt.Streamed(s), nwt.State{Samples: 8}, nwt.WithInterleave(1), nwt.WithWorkers(1), other.option())
	for shard, record := range map[int]int{0: 1, 1: 2, 2: 3} {
		require.Contains(t, other.String(), fmt.Sprintf("shard %d from record %d on", shard, record), "one after the other in a chain")
	}
}

// A bottomless stream's readers skip until their context ends.
type bottomless struct{ *shelves }

func (b bottomless) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := b.shelves.Open(ctx, shard)
	return bottomlessReader{r}, err
}

type bottomlessReader struct{ nwt.ShardReader }

func (bottomlessReader) Skip(ctx context.Context, _ int) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}
