package streams_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// The memory of a record is read into again, if there is room to keep it.
func TestReadingAheadReusesTheMemoryOfRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &kit.Wide{Stream: kit.NewShelves(5000, 5000), Bytes: 16_000}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithPrefetch(1), nwt.WithWorkers(2))
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		require.Len(t, got, 10_000)
		require.LessOrEqual(t, s.Made.Load(), int32(2*257+3*4), "each shard has 256 and what it reads, and each batch has its own")
		require.NoError(t, l.Close())
	})
}

// A shard that is over gives up the memory that its records have left, and doesn't hold it
// until the pass ends.
func TestAShardThatIsOverLeavesNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bytes, batch, prefetch = 16_000, 4, 1
		var all []weak.Pointer[byte]
		lock := make(chan struct{}, 1)
		s := &kit.Wide{Stream: kit.NewShelves(40, 400, 400, 400), Bytes: bytes, OnMade: func(data []byte) {
			lock <- struct{}{}
			all = append(all, weak.Make(&data[:1][0]))
			<-lock
		}}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(batch), nwt.WithPrefetch(prefetch), nwt.WithWorkers(2))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Number() == 60 {
				synctest.Wait()
				runtime.GC()
				held := 0
				for _, p := range all {
					if p.Value() != nil {
						held++
					}
				}
				require.Greater(t, held, 3*256, "what the other shards have ready")
				require.LessOrEqual(t, held, 3*257+(prefetch+2)*batch)
			}
		}
		require.NoError(t, l.Close())
	})
}

// In each case a call of shard 1 doesn't answer before the loader is closed.
func TestAShardThatHangsIsAnErrorInOrderAndTheOthersAreRead(t *testing.T) {
	for name, hang := range map[string]func(s *kit.Breaking, wait func()){
		"Open":  func(s *kit.Breaking, wait func()) { s.OnOpen = hangAt(1, wait) },
		"Next":  func(s *kit.Breaking, wait func()) { s.OnNext = at2(1, 3, func() error { wait(); return nil }) },
		"first": func(s *kit.Breaking, wait func()) { s.OnNext = at2(1, 0, func() error { wait(); return nil }) },
		"end":   func(s *kit.Breaking, wait func()) { s.OnNext = at2(1, 5, func() error { wait(); return nil }) },
	} {
		for _, interleave := range []int{1, 2, 3} {
			opts := []nwt.Option{nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithInterleave(interleave), nwt.WithErrorBudget(1), kit.Silent}
			failing := &kit.Breaking{Shelves: kit.NewShelves(5, 5, 5, 5)}
			hang(failing, func() { panic("torn") })
			like := kit.NewLoader(t, nwt.Streamed(failing), opts...)
			want, err := kit.Values(t, like, 0)
			require.NoError(t, err)
			t.Run(fmt.Sprint(name, interleave), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					release := make(chan struct{})
					s := &kit.Breaking{Shelves: kit.NewShelves(5, 5, 5, 5)}
					hang(s, func() { kit.Hold(t, release) })
					l := kit.NewLoader(t, nwt.Streamed(s), append(opts, nwt.WithTimeout(time.Second))...)
					began := time.Now()
					got, err := kit.Values(t, l, 0)
					require.NoError(t, err)
					require.Equal(t, want, got)
					require.Equal(t, time.Second, time.Since(began))
					bad := l.BadSamples()
					require.Len(t, bad, 1)
					require.Equal(t, like.BadSamples()[0].Position, bad[0].Position)
					require.ErrorIs(t, bad[0], context.DeadlineExceeded)
					var lost, torn *nwt.ShardError
					require.ErrorAs(t, bad[0], &lost)
					require.ErrorAs(t, like.BadSamples()[0], &torn)
					require.Equal(t, []int{torn.Shard, torn.Record}, []int{lost.Shard, lost.Record})
					require.ErrorContains(t, bad[0], "no answer within WithTimeout(1s)")
					require.NoError(t, l.Close())
					close(release)
					synctest.Wait()
					require.Zero(t, s.Opened.Load(), "the call that was given up closes its shard")
				})
			})
		}
	}
}

func hangAt(shard int, wait func()) func(int) error {
	return func(s int) error {
		if s == shard {
			wait()
		}
		return nil
	}
}

func TestWithoutABudgetAShardThatHangsEndsTheEpochAfterTheBatchesBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := &kit.Breaking{Shelves: kit.NewShelves(5, 5), OnNext: at2(1, 2, func() error { kit.Hold(t, release); return nil })}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithInterleave(1), nwt.WithTimeout(time.Second))
		for range 3 { // the loader can be used again
			got, err := kit.Values(t, l, 0)
			require.Equal(t, kit.UpTo(6), got)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			var bad *nwt.LoadError
			require.True(t, errors.As(err, &bad))
			require.Equal(t, 7, bad.Position)
		}
		require.NoError(t, l.Close())
		close(release)
		synctest.Wait()
		require.Zero(t, s.Opened.Load())
	})
}

func TestALoopLeftWhileAShardHangsEndsWithinTheTimeout(t *testing.T) {
	for _, where := range []string{"Next", "Close"} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			wait := func() error { kit.Hold(t, release); return nil }
			s := &kit.Breaking{Shelves: kit.NewShelves(50, 50)}
			if where == "Next" {
				s.OnNext = at2(1, 40, wait)
			} else {
				s.OnClose = func(int) error { return wait() }
			}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), kit.Silent)
			began := time.Now()
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				if b.Number() == 30 {
					break
				}
			}
			require.LessOrEqual(t, time.Since(began), 2*time.Second)
			require.NoError(t, l.Close())
			close(release)
			synctest.Wait()
			require.Zero(t, s.Opened.Load())
		})
	}
}

func TestAShardThatHangsInCloseLosesNoSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var log kit.Journal
		s := &kit.Breaking{Shelves: kit.NewShelves(5, 5, 5), OnClose: hangAt(1, func() { kit.Hold(t, release) })}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithInterleave(1), nwt.WithTimeout(time.Second), log.Option())
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, kit.UpTo(15), got)
		require.Contains(t, log.String(), "a shard could not be closed")
		require.NoError(t, l.Close())
		close(release)
		synctest.Wait()
	})
}

// Each Open, Next and Close has the time, also when it is repeated.
func TestEachCallOfAShardHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func() error { time.Sleep(900 * time.Millisecond); return nil }
		s := &kit.Breaking{
			Shelves: kit.NewShelves(3, 3), OnOpen: func(int) error { return slow() },
			OnNext: func(int, int) error { return slow() }, OnClose: func(int) error { return slow() },
		}
		var log kit.Journal
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(1), nwt.WithInterleave(1), nwt.WithTimeout(time.Second), log.Option())
		for epoch := range 2 {
			got, err := kit.Values(t, l, epoch)
			require.NoError(t, err)
			require.Equal(t, kit.UpTo(6), got)
		}
		require.NoError(t, l.Close())
		require.Empty(t, log.String())

		s.OnOpen = func(int) error { time.Sleep(400 * time.Millisecond); return briefly{} }
		l = kit.NewLoader(t, nwt.Streamed(s), nwt.WithWorkers(1), nwt.WithTimeout(time.Second), nwt.WithRetry(2, 0), kit.Silent)
		began := time.Now()
		_, err := kit.Values(t, l, 0)
		require.ErrorIs(t, err, briefly{})
		require.Equal(t, 1200*time.Millisecond, time.Since(began))
		require.NoError(t, l.Close())
	})
}

func TestACallOfAShardThatWasGivenUpIsToldSoByItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause atomic.Value
		s := &toldByContext{Shelves: kit.NewShelves(20), cause: &cause}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), kit.Silent)
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		synctest.Wait()
		require.ErrorContains(t, cause.Load().(error), "no answer within WithTimeout(1s)")
		require.NoError(t, l.Close())
	})
}

// toldByContext is shelves whose sixth record comes when its context ends.
type toldByContext struct {
	*kit.Shelves
	cause *atomic.Value
}

func (s *toldByContext) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.Shelves.Open(ctx, shard)
	return &toldByContextReader{ShardReader: r, s: s}, err
}

type toldByContextReader struct {
	nwt.ShardReader
	s    *toldByContext
	read int
}

func (r *toldByContextReader) Next(ctx context.Context, rec *nwt.Record) error {
	if r.read++; r.read == 6 {
		<-ctx.Done()
		r.s.cause.Store(context.Cause(ctx))
	}
	return r.ShardReader.Next(ctx, rec)
}

func TestCallsOfShardsThatNeverReturnEndTheEpochAndThoseThatHaveReturnedDoNot(t *testing.T) {
	for _, where := range []string{"Open", "Next", "Close"} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			wait := func(int) error { kit.Hold(t, release); return nil }
			s := &kit.Breaking{Shelves: kit.NewShelves(slices.Repeat([]int{2}, 1030)...)}
			switch where {
			case "Open":
				s.OnOpen = wait
			case "Next":
				s.OnNext = func(int, int) error { return wait(0) }
			case "Close":
				s.OnClose = wait
			}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(1), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1<<20), kit.Silent)
			_, err := kit.Values(t, l, 0)
			require.ErrorContains(t, err, "calls that WithTimeout(1s) gave up haven't returned, the bound is 1024", where)
			close(release)
			synctest.Wait()
			require.Zero(t, s.Opened.Load(), where)
			got, err := kit.Values(t, l, 1)
			require.NoError(t, err, where)
			require.Len(t, got, 2*1030)
			require.NoError(t, l.Close())
		})
	}
}

// Only calls that haven't returned count, each once.
func TestFewerCallsOfShardsThanTheBoundEndNoEpoch(t *testing.T) {
	for name, c := range map[string]struct {
		shards  int
		returns bool
	}{"late": {1100, true}, "never": {1023, false}} {
		for _, where := range []string{"Open", "Next", "Close"} {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				late := func(int) error {
					if c.returns {
						time.Sleep(3 * time.Second)
					} else {
						kit.Hold(t, release)
					}
					return nil
				}
				s := &kit.Breaking{Shelves: kit.NewShelves(slices.Repeat([]int{1}, c.shards)...)}
				switch where {
				case "Open":
					s.OnOpen = late
				case "Next":
					s.OnNext = func(int, int) error { return late(0) }
				case "Close":
					s.OnClose = late
				}
				l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(1), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1<<20), kit.Silent)
				got, err := kit.Values(t, l, 0)
				require.NoError(t, err, "%s, %s", name, where)
				if where == "Close" {
					require.Len(t, got, c.shards)
				} else {
					require.Len(t, l.BadSamples(), c.shards)
				}
				require.NoError(t, l.Close())
				close(release)
				time.Sleep(time.Minute)
				require.Zero(t, s.Opened.Load())
			})
		}
	}
}

// What a call that was given up writes to its record reaches nobody.
func TestACallOfNextThatWasGivenUpKeepsItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &kit.Breaking{Shelves: kit.NewShelves(30, 30, 30), OnNext: at2(1, 3, func() error { time.Sleep(90 * time.Second); return nil })}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithTimeout(time.Minute), nwt.WithErrorBudget(1), kit.Silent)
		var got []int64
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			got = append(got, nwt.Values[int64](b, 0)...)
			time.Sleep(time.Second) // the call returns in the middle of the epoch
		}
		want := kit.UpTo(90)
		require.Len(t, got, 63)
		require.NotContains(t, got, want[33])
		require.NoError(t, l.Close())
		time.Sleep(time.Minute)
		require.Zero(t, s.Opened.Load())
	})
}

// No record is slower than WithTimeout allows, however many there are ahead and
// however long the loop takes.
func TestALoopThatPausesLongerThanTheTimeoutLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &kit.Breaking{Shelves: kit.NewShelves(40, 40, 40), OnNext: func(int, int) error { time.Sleep(900 * time.Millisecond); return nil }}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(3), nwt.WithWorkers(2), nwt.WithTimeout(time.Second))
		samples := 0
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if samples += b.Len(); b.Number()%7 == 0 {
				time.Sleep(time.Minute)
			}
		}
		require.Equal(t, 120, samples)
		require.NoError(t, l.Close())
	})
}

func TestALostShardIsNamedWithTheRecordFromWhichItIsLost(t *testing.T) {
	s := &kit.Breaking{Shelves: kit.NewShelves(5, 5, 5), OnNext: at2(1, 3, func() error { return kit.ErrTorn }), OnOpen: at(2, io.ErrNoProgress)}
	l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithErrorBudget(2), nwt.WithWorkers(2), kit.Silent)
	_, err := kit.Values(t, l, 0)
	require.NoError(t, err)
	lost := map[int]*nwt.ShardError{}
	for _, bad := range l.BadSamples() {
		var e *nwt.ShardError
		require.ErrorAs(t, bad, &e)
		lost[e.Shard] = e
	}
	require.Len(t, lost, 2)
	require.Equal(t, 3, lost[1].Record)
	require.ErrorIs(t, lost[1], kit.ErrTorn)
	require.Zero(t, lost[2].Record)
	require.ErrorIs(t, lost[2], io.ErrNoProgress)
}

func TestAStreamIsNotResumedByAnotherNumberOfRanks(t *testing.T) {
	loader := func(world int) *nwt.Loader {
		return kit.NewLoader(t, nwt.Streamed(kit.NewShelves(8, 8, 8, 8)), nwt.WithBatchSize(2), nwt.WithRank(0, world))
	}
	var state nwt.State
	for b, err := range loader(4).Epoch(t.Context(), 0) {
		require.NoError(t, err)
		state = b.State()
		break
	}
	require.Equal(t, nwt.State{Samples: 8, World: 4}, kit.Progress(state))
	for _, world := range []int{1, 2} {
		err := kit.Refusal(t, loader(world).Resume(t.Context(), state))
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
		require.ErrorContains(t, err, fmt.Sprintf("State.World: 4: a stream's epoch can't go on with %d ranks", world))
		require.ErrorContains(t, err, "resume with 4, or begin the next epoch, State{Epoch: 1}")
	}
	state.World = -4
	require.ErrorContains(t, kit.Refusal(t, loader(4).Resume(t.Context(), state)), "State.World: -4: must be at least −1")
	state.World = 0 // as others keep it
	for _, err := range loader(2).Resume(t.Context(), state) {
		require.NoError(t, err)
	}
}

func TestAStateThatTheRanksOfAStreamCannotHaveReachedIsRefused(t *testing.T) {
	for _, world := range []int{0, 2} {
		var opened atomic.Int32
		l := kit.NewLoader(t, nwt.Streamed(opening(&opened, 8, 8, 8, 8)), nwt.WithBatchSize(2), nwt.WithRank(1, 2))
		err := kit.Refusal(t, l.Resume(t.Context(), nwt.State{Samples: 7, World: world}))
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
		require.ErrorContains(t, err, "State.Samples: 7: in a stream it must be a multiple of the number of ranks, 2")
		require.Zero(t, opened.Load())
	}
}

// Between epochs the number of ranks may change: what a state of the end leaves of its
// epoch is nothing, and the beginning of the next epoch is the same for everyone.
func TestBetweenEpochsAStreamIsResumedByAnyNumberOfRanks(t *testing.T) {
	two := nwt.Mix{Block: 4, Phases: []nwt.Phase{{Samples: 30, Weights: []float64{1, 3}}, {Weights: []float64{1, 1}}}}
	for name, c := range map[string]struct {
		ds   func(opened *atomic.Int32) nwt.Dataset
		opts []nwt.Option
	}{
		"plain":       {func(o *atomic.Int32) nwt.Dataset { return nwt.Streamed(opening(o, 9, 8, 7, 6, 5)) }, nil},
		"many passes": {func(o *atomic.Int32) nwt.Dataset { return nwt.Streamed(opening(o, 1, 2, 1, 2, 1)) }, nil},
		"short batch": {func(o *atomic.Int32) nwt.Dataset { return nwt.Streamed(opening(o, 9, 8, 7, 6, 5)) }, []nwt.Option{nwt.WithDropLast()}},
		"in a mixture": {func(o *atomic.Int32) nwt.Dataset {
			return kit.MixedOf(t, two, opening(o, 9, 8, 7, 6, 5), opening(o, 9, 8, 7, 6, 5))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var opened atomic.Int32
			loader := func(world, workers int) *nwt.Loader {
				return kit.NewLoader(t, c.ds(&opened), append(c.opts, nwt.WithRank(world-1, world), nwt.WithWorkers(workers),
					nwt.WithEpochSamples(23), nwt.WithBatchSize(3), nwt.WithShuffle(1), nwt.WithShuffleWindow(5))...)
			}
			for before := 1; before <= 5; before++ {
				var end nwt.State
				for b, err := range loader(before, 1).Epoch(t.Context(), 2) {
					require.NoError(t, err)
					end = b.State()
				}
				require.Equal(t, before, end.World)
				for after := 1; after <= 5; after++ {
					l := loader(after, after%3)
					opened.Store(0)
					for b, err := range l.Resume(t.Context(), end) {
						t.Errorf("%d ranks go on after %+v with %v, %v", after, end, b, err)
					}
					require.Zero(t, opened.Load(), "nothing is read for it")
					want, err := kit.Values(t, l, 3)
					require.NoError(t, err)
					var got []int64
					for b, err := range l.Resume(t.Context(), nwt.State{Epoch: 3, World: before}) {
						require.NoError(t, err)
						got = append(got, nwt.Values[int64](b, 0)...)
					}
					require.Equal(t, want, got)
				}
			}
			l := loader(2, 1)
			require.NoError(t, l.Close())
			require.ErrorIs(t, kit.Refusal(t, l.Resume(t.Context(), nwt.State{Samples: 21, World: 3})), nwt.ErrClosed)
		})
	}
}

// opening counts in opened how often shards of these lengths are opened.
func opening(opened *atomic.Int32, lengths ...int) nwt.Stream {
	return &kit.Breaking{Shelves: kit.NewShelves(lengths...), OnOpen: func(int) error { opened.Add(1); return nil }}
}

// With WithEpochSamples it is known how long an epoch is, and nothing need be read to
// refuse a state that is past it.
func TestAStateThatIsPastTheSamplesOfAnEpochIsRefused(t *testing.T) {
	mix := nwt.Mix{Block: 4, Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}
	for _, workers := range []int{0, 2} {
		for world, epoch := range map[int]int{1: 23, 2: 22, 4: 20} {
			var opened atomic.Int32
			for _, ds := range []nwt.Dataset{
				nwt.Streamed(opening(&opened, 4, 4, 4, 4)),
				nwt.Streamed(opening(&opened, 50, 50, 50, 50)),
				kit.MixedOf(t, mix, opening(&opened, 4, 4, 4, 4), opening(&opened, 9, 9, 9, 9)),
			} {
				l := kit.NewLoader(t, ds, nwt.WithRank(0, world), nwt.WithWorkers(workers), nwt.WithEpochSamples(23), nwt.WithBatchSize(3))
				for _, past := range []int{epoch + world, epoch + 10*world, math.MaxInt / world * world} {
					opened.Store(0)
					ends := 0
					for b, err := range l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: past, World: world}) {
						require.Nil(t, b)
						require.ErrorAs(t, err, new(*nwt.ArgumentError))
						require.ErrorContains(t, err, fmt.Sprintf("State.Samples: %d: an epoch has %d samples", past, epoch))
						ends++
					}
					require.Equal(t, 1, ends)
					require.Zero(t, opened.Load())
				}
				for range l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: epoch, World: world}) {
					t.Error("nothing is left")
				}
				n := 0
				for b, err := range l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: epoch - world, World: world}) {
					require.NoError(t, err)
					n += b.Len()
				}
				require.Equal(t, 1, n)
				for other, samples := range map[int]int{world + 1: 2*epoch + 2*(world+1), world + 2: world + 1} {
					err := kit.Refusal(t, l.Resume(t.Context(), nwt.State{Samples: samples, World: other}))
					require.ErrorContains(t, err, fmt.Sprintf("State.World: %d: a stream's epoch can't go on with %d ranks", other, world))
				}
			}
		}
	}
}

func TestAStreamIsNotResumedPastAShardThatIsLostMeanwhile(t *testing.T) {
	for _, workers := range []int{0, 2} {
		for _, budget := range []int{0, 1} {
			gone := false
			s := &kit.Breaking{Shelves: kit.NewShelves(10, 10, 10), OnOpen: func(shard int) error {
				if gone && shard == 0 {
					return kit.ErrTorn
				}
				return nil
			}}
			var log kit.Journal
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithInterleave(1), nwt.WithErrorBudget(budget), log.Option())
			var state nwt.State
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				if state = b.State(); b.Number() == 3 {
					break
				}
			}
			gone = true
			var last error
			for b, err := range l.Resume(t.Context(), state) {
				require.True(t, budget > 0 || b == nil, "samples would be left out")
				last = err
			}
			if budget == 0 {
				require.ErrorIs(t, last, kit.ErrTorn)
				require.ErrorContains(t, last, "to resume after 16 samples of epoch 0 isn't possible: record 0 of these can't be read")
			} else {
				require.NoError(t, last)
				require.Contains(t, log.String(), "a record that was delivered before can't be read now")
				require.Contains(t, log.String(), "epoch=0 ")
			}
		}
	}
}

func TestALoopThatIsLeftWaitsUntilItsShardsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Int32
		s := &kit.Breaking{Shelves: kit.NewShelves(50, 50, 50, 50), OnClose: func(int) error {
			time.Sleep(time.Second)
			closed.Add(1)
			return nil
		}}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(2))
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			synctest.Wait()
			break
		}
		require.EqualValues(t, 4, closed.Load())
		require.NoError(t, l.Close())
	})
}
