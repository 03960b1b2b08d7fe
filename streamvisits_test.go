package nwt

import (
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An archive is a stream of numbered records that notes what is read of it.
type archive struct {
	lengths []int                         // of its shards
	read    time.Duration                 // that a record takes
	slow    map[int]time.Duration         // records that take longer
	torn    func(number, opened int) bool // whether a record can't be read by a shard's reader number opened
	close   func() error                  // of each reader; nil: it succeeds

	mu     sync.Mutex
	opened []int // guarded by mu; shards
	open   int   // guarded by mu; readers
	most   int   // guarded by mu; readers that were open at once
	seen   []int // guarded by mu; numbers of the records that were read
	alive  int   // guarded by mu; readers that were closed before the end while their context hadn't ended
}

func (a *archive) Fields() []Field { return []Field{{Name: "number", Type: Int64}} }
func (a *archive) Shards() int     { return len(a.lengths) }

func (a *archive) Open(ctx context.Context, shard int) (ShardReader, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opened, a.open = append(a.opened, shard), a.open+1
	a.most = max(a.most, a.open)
	first := 0
	for _, n := range a.lengths[:shard] {
		first += n
	}
	return &folder{a, ctx, first, first + a.lengths[shard], len(a.opened)}, nil
}

func (a *archive) Load(_ context.Context, r *Record, dst *Sample) error {
	Values[int64](dst, 0)[0] = int64(binary.LittleEndian.Uint64(r.Data))
	return nil
}

// forget returns what was noted since the last time.
func (a *archive) forget() (opened, seen []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	opened, seen = a.opened, a.seen
	a.opened, a.seen = nil, nil
	return opened, seen
}

func (a *archive) openNow() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open
}

type folder struct {
	a         *archive
	ctx       context.Context
	next, end int
	opened    int
}

func (f *folder) Next(_ context.Context, r *Record) error {
	if f.next == f.end {
		return io.EOF
	}
	if err := f.ctx.Err(); err != nil {
		return err
	}
	if f.a.torn != nil && f.a.torn(f.next, f.opened) {
		return io.ErrUnexpectedEOF
	}
	f.a.mu.Lock()
	takes := f.a.read + f.a.slow[f.next]
	f.a.mu.Unlock()
	time.Sleep(takes)
	r.Data = binary.LittleEndian.AppendUint64(r.Data[:0], uint64(f.next))
	f.a.mu.Lock()
	f.a.seen = append(f.a.seen, f.next)
	f.a.mu.Unlock()
	f.next++
	return nil
}

func (f *folder) Close() error {
	f.a.mu.Lock()
	f.a.open--
	if f.next < f.end && f.ctx.Err() == nil {
		f.a.alive++
	}
	f.a.mu.Unlock()
	if f.a.close != nil {
		return f.a.close()
	}
	return nil
}

// A guest visits a stream as a tuner does.
type guest struct {
	t      *testing.T
	l      *Loader
	visits *streamVisits
	round  int
	epoch  int
	epochs int    // of a visit, at most; 0: 1
	ending func() // called while a visit has its last batch; nil: nothing is
}

func newGuest(t *testing.T, ds Dataset, opts ...Option) *guest {
	t.Helper()
	src, err := newSource(ds, opts)
	require.NoError(t, err)
	g := &guest{t: t, l: src.loader(src.opts.workers), visits: newStreamVisits(t.Context(), src)}
	g.l.visits = g.visits
	g.visits.turn(0)
	return g
}

// visit takes so many batches from the beginning of an epoch on, or all of its epochs.
func (g *guest) visit(batches int) (numbers []int64) {
	g.t.Helper()
	g.visits.begin(g.epoch, time.Time{})
	var reached State
	for b, err := range g.l.Epochs(g.t.Context(), g.epoch, g.epoch+max(1, g.epochs)) {
		require.NoError(g.t, err)
		numbers, reached = append(numbers, Values[int64](b, 0)...), b.State()
		if batches--; batches == 0 {
			if g.ending != nil {
				g.ending()
			}
			break
		}
	}
	g.visits.end(g.epoch, reached)
	g.epoch = reached.Epoch
	return numbers
}

// turn begins another round, in another epoch.
func (g *guest) turn() {
	g.round, g.epoch = g.round+1, g.epoch+1
	g.visits.turn(spread(g.round))
}

func (g *guest) leave() {
	require.NoError(g.t, g.l.Close())
	g.visits.close()
}

// Whatever the visits before have read, and wherever they ended, an epoch is complete.
func TestAnEpochOfAVisitHasAllRecords(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 0))
		world := 1 + rng.IntN(2)
		a := &archive{}
		for range world + rng.IntN(9) {
			a.lengths = append(a.lengths, rng.IntN(30))
		}
		interleave := 1 + rng.IntN(5)
		opts := []Option{WithBatchSize(1 + rng.IntN(6)), WithWorkers(rng.IntN(4)), WithInterleave(interleave), WithRank(world-1, world)}
		if rng.IntN(2) == 0 {
			opts = append(opts, WithShuffle(seed), WithShuffleWindow(1+rng.IntN(20)))
		}
		if rng.IntN(4) == 0 {
			opts = append(opts, WithTimeout(time.Hour))
		}
		g := newGuest(t, Streamed(a), opts...)
		plain, err := NewLoader(Streamed(a), opts...)
		require.NoError(t, err)
		whole := func() (numbers []int64) {
			for b, err := range plain.Epoch(t.Context(), g.epoch) {
				if err == nil { // otherwise it has no record
					numbers = append(numbers, Values[int64](b, 0)...)
				}
			}
			slices.Sort(numbers)
			return numbers
		}
		for range 20 {
			want := whole()
			if rng.IntN(4) == 0 {
				g.turn()
				continue
			}
			if len(want) == 0 {
				break
			}
			got := g.visit(rng.IntN(8)) // 0: all of it
			slices.Sort(got)
			if len(got) == len(want) {
				require.Equal(t, want, got, "seed %d", seed)
			} else {
				require.Equal(t, got, slices.Compact(slices.Clone(got)), "seed %d", seed)
				for _, n := range got {
					_, found := slices.BinarySearch(want, n)
					require.True(t, found, "seed %d", seed)
				}
			}
			require.LessOrEqual(t, a.openNow(), interleave, "seed %d", seed)
			require.Zero(t, a.alive, "a context ends before its reader is closed")
		}
		g.leave()
		require.NoError(t, plain.Close())
		require.Zero(t, a.openNow())
	}
}

// Within a round nothing is read twice, and the shards of a round aren't opened twice.
func TestTheVisitsOfARoundGoOnWhereTheOneBeforeEnded(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			a := &archive{lengths: slices.Repeat([]int{1000}, 100), read: time.Microsecond}
			g := newGuest(t, Streamed(a), WithBatchSize(10), WithWorkers(workers))
			for _, first := range []int{0, 61, 23, 85} {
				for visit := range 3 {
					numbers := g.visit(20)
					for _, n := range numbers {
						require.Contains(t, []int64{0, 1, 2, 3}, n/1000-int64(first), "four shards")
					}
					opened, seen := a.forget()
					if visit == 0 {
						require.ElementsMatch(t, []int{first, first + 1, first + 2, first + 3}, opened)
					} else {
						require.Empty(t, opened)
					}
					slices.Sort(seen)
					require.GreaterOrEqual(t, seen[0]%1000, 50*visit, "what came before isn't read again")
				}
				g.turn()
			}
			g.leave()
			require.Zero(t, a.openNow())
			require.LessOrEqual(t, a.most, 4)
		})
	}
}

// If the shards that a round began with have ended, it goes on with those after them.
func TestARoundThatHasReadItsShardsGoesOnWithTheNext(t *testing.T) {
	a := &archive{lengths: slices.Repeat([]int{50}, 12)}
	g := newGuest(t, Streamed(a), WithBatchSize(10), WithWorkers(0))
	var firsts []int64
	for range 5 {
		numbers := g.visit(22) // more than four shards
		firsts = append(firsts, numbers[0]/50)
	}
	require.Equal(t, []int64{0, 4, 8, 0, 4}, firsts)
	g.visits.turn(0.34)
	require.EqualValues(t, 4, g.visit(1)[0]/50, "another round may begin with shards that one before has read")
	g.leave()
}

// Few shards are all read at once: then rounds go on in them too.
func TestRoundsGoOnInShardsThatAreAllReadAtOnce(t *testing.T) {
	a := &archive{lengths: []int{1000, 1000}}
	g := newGuest(t, Streamed(a), WithBatchSize(10), WithWorkers(0))
	var all []int64
	for range 10 {
		all = append(all, g.visit(10)...)
		g.turn()
	}
	slices.Sort(all)
	require.Equal(t, all, slices.Compact(slices.Clone(all)), "nothing comes twice")
	opened, _ := a.forget()
	require.Len(t, opened, 2)
	g.leave()
}

// An epoch of a length of its own reads the first shards only, unless they are shuffled.
func TestRoundsOfShortEpochsBeginWhereTrainingDoes(t *testing.T) {
	a := &archive{lengths: slices.Repeat([]int{1000}, 100)}
	g := newGuest(t, Streamed(a), WithBatchSize(10), WithWorkers(0), WithEpochSamples(100))
	for range 3 {
		for _, begins := range []int64{0, 15, 0} { // 60 of 100 are read, then 120
			require.Equal(t, begins, g.visit(6)[0])
		}
		g.turn()
	}
	g.epochs = 3
	once := g.visit(10)
	require.Equal(t, slices.Concat(once, once, once), g.visit(30), "each epoch begins at the front, also within a visit")
	g.visit(15)
	require.Equal(t, once, g.visit(10), "and after one that was begun")
	g.leave()
	require.Zero(t, a.openNow())

	g = newGuest(t, Streamed(a), WithBatchSize(10), WithWorkers(0), WithEpochSamples(100), WithShuffle(1), WithShuffleWindow(1))
	begins := map[int64]bool{}
	for range 8 {
		number := g.visit(6)[0]
		require.Zero(t, number%1000, "the front of a shard")
		begins[number] = true
		g.turn()
	}
	require.Greater(t, len(begins), 6)
	g.leave()
}

// A mixture whose first half draws from one stream and the other from another.
func TestRoundsBeginAllOverTheEpochOfAMixture(t *testing.T) {
	m := Mix{Block: 10, Phases: []Phase{{Samples: 500, Weights: []float64{1, 0}}, {Weights: []float64{0, 1}}}}
	ds, err := MixedStreams(m, 1, &archive{lengths: []int{5000}}, &archive{lengths: []int{0, 7000}})
	require.NoError(t, err)
	g := newGuest(t, ds, WithBatchSize(10), WithWorkers(0), WithEpochSamples(1000))
	require.Equal(t, upTo64(50), g.visit(5))
	require.Equal(t, 50, g.visits.shift)
	g.visits.turn(0.48)
	numbers := g.visit(5)
	require.Equal(t, append(upTo64(20), upTo64(30)...), numbers)
	g.leave()
}

func upTo64(n int) (all []int64) {
	for i := range n {
		all = append(all, int64(i))
	}
	return all
}

func TestAVisitDoesNotWaitForAReaderThatHangs(t *testing.T) {
	for _, workers := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			g := newGuest(t, Streamed(stuck{at: 20}), WithBatchSize(10), WithWorkers(workers), WithPrefetch(1))
			g.ending = synctest.Wait // until it hangs
			began := time.Now()
			require.Len(t, g.visit(2), 20)
			require.Equal(t, 100*ms, time.Since(began))
			require.Empty(t, g.visits.streams[0].kept, "a reader that was interrupted can't go on")
			require.Len(t, g.visit(2), 20)
			g.leave()
		})
	}
}

func TestAVisitWaitsForAReaderNoLongerThanItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuest(t, Streamed(stuck{at: 20}), WithBatchSize(10), WithWorkers(1), WithPrefetch(1))
		began := time.Now()
		g.visits.begin(0, began.Add(30*ms))
		for b, err := range g.l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Index() == 1 {
				synctest.Wait() // until it hangs
				break
			}
		}
		require.Equal(t, 30*ms, time.Since(began))
		g.leave()
	})
}

// A reader that was interrupted, but came back with a record, can't go on.
func TestAReaderThatReturnsLateIsClosed(t *testing.T) {
	for name, leave := range map[string]bool{"after the last visit": true, "after another one": false} {
		t.Run(name, func(t *testing.T) {
			for _, timeout := range []time.Duration{0, 20 * ms} { // the call is given up
				for _, late := range []time.Duration{60 * ms, 500 * ms} {
					synctest.Test(t, func(t *testing.T) {
						opts := []Option{WithBatchSize(10), WithWorkers(1), WithPrefetch(1), WithInterleave(1)}
						if timeout > 0 {
							opts = append(opts, WithTimeout(timeout))
						}
						a := &archive{lengths: []int{1000}, slow: map[int]time.Duration{20: late}}
						g := newGuest(t, Streamed(a), opts...)
						g.ending = synctest.Wait // until it reads the record that takes long
						require.Len(t, g.visit(2), 20)
						if !leave {
							a.mu.Lock()
							a.slow = nil
							a.mu.Unlock()
							require.Len(t, g.visit(2), 20)
							time.Sleep(time.Second)
							require.LessOrEqual(t, a.openNow(), 1)
						}
						g.leave()
						time.Sleep(time.Second)
						require.Zero(t, a.openNow())
					})
				}
			}
		})
	}
}

// What was read of a shard before comes at its end; it counts from the front there.
func TestARecordThatCanNotBeReadAgainIsNamed(t *testing.T) {
	a := &archive{lengths: []int{30}, torn: func(number, opened int) bool { return opened == 2 && number == 4 }}
	g := newGuest(t, Streamed(a), WithBatchSize(5), WithWorkers(0))
	require.Len(t, g.visit(3), 15)
	g.visits.begin(1, time.Time{})
	var last error
	n := 0
	for b, err := range g.l.Epoch(t.Context(), 1) {
		if last = err; b != nil {
			n += b.Len()
		}
	}
	require.Equal(t, 15, n)
	var shard *ShardError
	require.ErrorAs(t, last, &shard)
	require.Equal(t, 4, shard.Record)
	g.leave()
	require.Zero(t, a.openNow())
}

// A round of seven counts reads more than an epoch has, which is 80 records of each shard.
func TestTuningReadsNoFurtherThanEpochsThatBeginAtTheFront(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &archive{lengths: slices.Repeat([]int{1000}, 4), read: ms}
		_, err := Tune(t.Context(), Streamed(a), WithBatchSize(32), WithEpochSamples(320), WithMaxWorkers(32), NewVirtualMachine(4).Option())
		require.NoError(t, err)
		_, seen := a.forget()
		for _, n := range seen {
			require.Less(t, n%1000, 300)
		}
	})
}

func TestACallThatIsGivenUpIsInterruptedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Time, 1)
		g := newGuest(t, Streamed(stuck{at: 20, ended: ended}), WithBatchSize(10), WithWorkers(1), WithTimeout(time.Second), WithErrorBudget(1))
		began := time.Now()
		require.Len(t, g.visit(0), 20)
		require.Equal(t, time.Second, (<-ended).Sub(began))
		g.leave()
	})
}

// stuck is a stream of a shard that hangs at a record until the call's context ends.
type stuck struct {
	at    int
	ended chan<- time.Time // gets when it ended; nil: nobody asks
}

func (s stuck) Fields() []Field                                    { return []Field{{Name: "number", Type: Int64}} }
func (s stuck) Shards() int                                        { return 1 }
func (s stuck) Open(context.Context, int) (ShardReader, error)     { return &stuckReader{s, 0}, nil }
func (s stuck) Load(_ context.Context, _ *Record, _ *Sample) error { return nil }

type stuckReader struct {
	stuck
	read int
}

func (s *stuckReader) Next(ctx context.Context, _ *Record) error {
	if s.read++; s.read <= s.at {
		return nil
	}
	<-ctx.Done()
	if s.ended != nil {
		s.ended <- time.Now()
	}
	return ctx.Err()
}
func (s *stuckReader) Close() error { return nil }

// Readers that are left open are closed as carefully as others.
func TestReadersThatAreLeftOpenAreClosedInTheEnd(t *testing.T) {
	for name, closing := range map[string]func(never <-chan struct{}) error{
		"succeeds": func(<-chan struct{}) error { return nil },
		"fails":    func(<-chan struct{}) error { return io.ErrUnexpectedEOF },
		"panics":   func(<-chan struct{}) error { panic("no") },
		"leaves":   func(<-chan struct{}) error { runtime.Goexit(); return nil },
		"hangs":    func(never <-chan struct{}) error { <-never; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				never := make(chan struct{})
				a := &archive{lengths: []int{1000, 1000, 1000, 1000, 1000, 1000}, close: func() error { return closing(never) }}
				g := newGuest(t, Streamed(a), WithBatchSize(10), WithWorkers(2), WithTimeout(50*ms))
				g.visit(1)
				require.Equal(t, 4, a.openNow())
				g.leave()
				require.Zero(t, a.openNow())
				close(never)
			})
		})
	}
}
