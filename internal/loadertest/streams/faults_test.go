package streams_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

func TestTheEndOfAShardIsEOFItselfFromNext(t *testing.T) {
	wrapped := fmt.Errorf("reading the header: %w", io.EOF)
	_, empty := gzip.NewReader(strings.NewReader(""))
	require.ErrorIs(t, empty, io.EOF)
	for name, c := range map[string]struct {
		s    kit.Breaking
		says string
	}{
		"Open, io.EOF":    {kit.Breaking{OnOpen: at(1, io.EOF)}, "shard 1 from record 0 on: it can't be opened: EOF"},
		"Open, gzip":      {kit.Breaking{OnOpen: at(1, empty)}, "it can't be opened: EOF"},
		"Open, wrapped":   {kit.Breaking{OnOpen: at(1, wrapped)}, "it can't be opened: reading the header: EOF"},
		"Next, wrapped":   {kit.Breaking{OnNext: at2(1, 3, func() error { return wrapped })}, "shard 1 from record 3 on: reading the header: EOF"},
		"Next, cut short": {kit.Breaking{OnNext: at2(1, 3, func() error { return io.ErrUnexpectedEOF })}, "unexpected EOF"},
		"Next, panic":     {kit.Breaking{OnNext: at2(1, 3, func() error { panic("torn") })}, "shard 1 from record 3 on: panic: torn"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, workers := range []int{0, 2} {
				s := c.s
				s.Shelves = kit.NewShelves(5, 5, 5)
				l := kit.NewLoader(t, nwt.Streamed(&s), nwt.WithBatchSize(2), nwt.WithWorkers(workers))
				_, err := kit.Values(t, l, 0)
				require.ErrorAs(t, err, new(*nwt.LoadError))
				require.ErrorContains(t, err, c.says)
				require.Zero(t, s.Opened.Load())
			}
		})
	}
}

func TestAPanicOfReadIsToldWithItsOwnLineAndStack(t *testing.T) {
	s := nwt.NewStream([]nwt.Field{{Name: "x", Type: nwt.Int64}}, 1, func(context.Context, int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for k := 0; yield(k, nil); k++ {
				if k == 2 {
					tear()
				}
			}
		}
	}, func(context.Context, int, *nwt.Sample) error { return nil })
	for _, workers := range []int{0, 2} {
		_, err := kit.Values(t, kit.NewLoader(t, nwt.Streamed(s), nwt.WithWorkers(workers)), 0)
		require.ErrorContains(t, err, "shard 0 from record 3 on: panic: torn (")
		message, stack, _ := strings.Cut(err.Error(), "\n")
		require.Contains(t, message, "/faults_test.go:")
		require.Contains(t, stack, ".tear(")
	}
}

func tear() { panic("torn") }

func at(shard int, err error) func(int) error {
	return func(s int) error {
		if s == shard {
			return err
		}
		return nil
	}
}

func at2(shard, record int, f func() error) func(int, int) error {
	return func(s, r int) error {
		if s == shard && r == record {
			return f()
		}
		return nil
	}
}

func TestGoexitInAReaderEndsTheEpochWithAnError(t *testing.T) {
	leaves := func() error { runtime.Goexit(); return nil }
	s := &kit.Breaking{Shelves: kit.NewShelves(50, 50, 50), OnNext: at2(1, 30, leaves)}
	l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithErrorBudget(1), kit.Silent)
	kit.Promptly(t, func() {
		_, err := kit.Values(t, l, 0)
		require.ErrorContains(t, err, "a stream's reader: runtime.Goexit was called")
	})
	s.OnNext = nil
	got, err := kit.Values(t, l, 1)
	require.NoError(t, err)
	require.Len(t, got, 150)
}

func TestAReaderThatPanicsOnCloseHarmsNobody(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var log kit.Journal
		s := &kit.Breaking{Shelves: kit.NewShelves(5, 5, 5), OnClose: func(shard int) error {
			if shard == 1 {
				panic("not open")
			}
			return nil
		}}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(workers), log.Option())
		for range 2 {
			for range l.Epoch(t.Context(), 0) {
				break
			}
			got, err := kit.Values(t, l, 0)
			require.NoError(t, err)
			slices.Sort(got)
			require.Equal(t, kit.UpTo(15), got)
		}
		require.Contains(t, log.String(), "panic: not open")
	}
}

func TestAStreamThatChangesItsMindAboutShardsIsAskedOnce(t *testing.T) {
	var asked atomic.Int32
	s := &kit.Breaking{Shelves: kit.NewShelves(5, 5, 5), OnShards: func() int { asked.Add(1); return 3 }}
	l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2))
	for epoch := range 3 {
		got, err := kit.Values(t, l, epoch)
		require.NoError(t, err)
		require.Len(t, got, 15)
	}
	require.EqualValues(t, 1, asked.Load())
	_, err := nwt.NewLoader(nwt.Streamed(&kit.Breaking{OnShards: func() int { panic("not mounted") }, Shelves: kit.NewShelves(1)}))
	require.ErrorContains(t, err, "Shards: panic: not mounted")
}

func TestARankWithoutAShardIsRefused(t *testing.T) {
	for rank := range 4 {
		_, err := nwt.NewLoader(nwt.Streamed(kit.NewShelves(5, 5, 5)), nwt.WithRank(rank, 4))
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
		require.ErrorContains(t, err, "WithRank: world: 4: each rank needs a shard, and the stream has 3: make more shards")
	}
}

func TestAnEpochWithoutABatchIsAnErrorNotSilence(t *testing.T) {
	for name, c := range map[string]struct {
		lengths []int
		opts    []nwt.Option
		says    string
	}{
		"all empty":     {[]int{0, 0}, nil, "epoch 0 has no sample for rank 0 of 1: its shards (of 2 in all) are empty"},
		"rank's empty":  {[]int{5, 0, 7, 0}, []nwt.Option{nwt.WithRank(1, 2)}, "epoch 0 has no sample for rank 1 of 2"},
		"with a quota":  {[]int{5, 0}, []nwt.Option{nwt.WithRank(1, 2), nwt.WithEpochSamples(6)}, "no sample for rank 1"},
		"with shuffle":  {[]int{0, 0}, []nwt.Option{nwt.WithShuffle(1), nwt.WithEpochSamples(6)}, "no sample for rank 0"},
		"one left out":  {[]int{1, 0}, []nwt.Option{nwt.WithDropLast()}, "epoch 0 has no batch for rank 0: WithDropLast, and fewer samples (1) than one batch of 4"},
		"all left out":  {[]int{2, 1}, []nwt.Option{nwt.WithDropLast()}, "epoch 0 has no batch for rank 0: WithDropLast, and fewer samples (3) than one batch of 4"},
		"quota too low": {[]int{20}, []nwt.Option{nwt.WithDropLast(), nwt.WithEpochSamples(3)}, "fewer samples (3) than one batch of 4"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, workers := range []int{0, 2} {
				l := kit.NewLoader(t, nwt.Streamed(kit.NewShelves(c.lengths...)), append(c.opts, nwt.WithBatchSize(4), nwt.WithWorkers(workers))...)
				batches := 0
				var last error
				for b, err := range l.Epochs(t.Context(), 0, 1000) {
					if last = err; b != nil {
						batches++
					}
				}
				require.Zero(t, batches)
				require.ErrorContains(t, last, c.says)
			}
			_, err := nwt.Tune(t.Context(), nwt.Streamed(kit.NewShelves(c.lengths...)), append(c.opts, nwt.WithBatchSize(4), nwt.WithMaxWorkers(1))...)
			require.ErrorContains(t, err, strings.TrimPrefix(c.says, "epoch 0 "))
		})
	}
}

func TestNoShardIsOpenedAfterTheErrorThatEndsAnEpoch(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			var opened atomic.Int32
			l := kit.NewLoader(t, nwt.Streamed(opening(&opened, 0, 0)), nwt.WithBatchSize(2), nwt.WithPrefetch(8), nwt.WithWorkers(workers))
			failed := 0
			for _, err := range l.Epochs(t.Context(), 0, 5) {
				require.Error(t, err)
				failed++
				synctest.Wait()
				require.EqualValues(t, 2, opened.Load())
			}
			require.Equal(t, 1, failed)
			require.NoError(t, l.Close())
		})
	}
}

func TestTheShortestEpochsOfAStreamAreEpochs(t *testing.T) {
	for _, workers := range []int{0, 2} {
		for _, c := range []struct {
			samples, batches int
			opts             []nwt.Option
		}{
			{1, 1, nil},
			{3, 1, nil},
			{3, 1, []nwt.Option{nwt.WithBatchSize(3), nwt.WithDropLast()}},
			{4, 1, []nwt.Option{nwt.WithBatchSize(3), nwt.WithDropLast()}},
			{4, 2, []nwt.Option{nwt.WithBatchSize(3)}},
		} {
			l := kit.NewLoader(t, nwt.Streamed(kit.NewShelves(0, c.samples)), append([]nwt.Option{nwt.WithBatchSize(4), nwt.WithWorkers(workers)}, c.opts...)...)
			var epochs []int
			for b, err := range l.Epochs(t.Context(), 3, 5) {
				require.NoError(t, err)
				epochs = append(epochs, b.Epoch())
			}
			require.Equal(t, append(slices.Repeat([]int{3}, c.batches), slices.Repeat([]int{4}, c.batches)...), epochs)
		}
	}
}

func TestAnEpochOfFewerSamplesThanRanksHasOneForEach(t *testing.T) {
	for _, c := range []struct{ samples, world, each int }{{1, 1, 1}, {1, 3, 1}, {2, 3, 1}, {3, 3, 1}, {6, 3, 2}} {
		for rank := range c.world {
			l := kit.NewLoader(t, nwt.Streamed(kit.NewShelves(5, 5, 5)), nwt.WithEpochSamples(c.samples), nwt.WithRank(rank, c.world), nwt.WithWorkers(rank))
			got, err := kit.Values(t, l, 0)
			require.NoError(t, err)
			require.Len(t, got, c.each)
		}
	}
}

func TestSamplesThatWithDropLastLeavesOutAreNotLoaded(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var loaded atomic.Int32
		s := &kit.Breaking{Shelves: kit.NewShelves(7, 4), OnLoad: func(*nwt.Sample) { loaded.Add(1) }}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithDropLast())
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		require.Len(t, got, 8)
		require.NoError(t, l.Close())
		require.EqualValues(t, 8, loaded.Load())
	}
}

// With WithEpochSamples a stream that ends is read again, as often as it takes.
func TestAStreamThatHasBecomeEmptyIsAnErrorAndIsNotReadForEver(t *testing.T) {
	for _, workers := range []int{0, 2} {
		for _, c := range []struct {
			lengths []int
			passes  int32
			batches int
			says    string
		}{
			{[]int{5, 5}, 2, 4, "nwt: epoch 1 has no sample for rank 0 of 1: its shards (of 2 in all) are empty"},
			{[]int{5, 5}, 3, 6, "nwt: epoch 1 has only 10 of 16 samples for rank 0 of 1: its shards (of 2 in all) have become empty"},
			{[]int{1, 0}, 1, 0, "nwt: epoch 0 has only 1 of 16 samples for rank 0 of 1: its shards (of 2 in all) have become empty"},
			{[]int{1, 0}, 17, 4, "nwt: epoch 1 has only 1 of 16 samples for rank 0 of 1: its shards (of 2 in all) have become empty"},
		} {
			var opened atomic.Int32
			s := &kit.Breaking{Shelves: kit.NewShelves(c.lengths...), OnOpen: hangAt(0, func() { opened.Add(1) }), OnNext: func(int, int) error {
				if opened.Load() > c.passes {
					return io.EOF
				}
				return nil
			}}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithEpochSamples(16), nwt.WithInterleave(1))
			batches := 0
			var last error
			kit.Promptly(t, func() {
				for _, err := range l.Epochs(t.Context(), 0, 3) {
					if last = err; err == nil {
						batches++
					}
				}
			})
			require.ErrorContains(t, last, c.says)
			require.Equal(t, c.batches, batches)
		}
	}
}

// What isn't read isn't loaded.
func TestNoRecordIsMadeUpWhenTheContextEnds(t *testing.T) {
	for _, workers := range []int{0, 2} {
		for record := range 9 {
			ctx, cancel := context.WithCancel(t.Context())
			s := &kit.Wide{Stream: &kit.Breaking{Shelves: kit.NewShelves(50), OnNext: at2(0, record, func() error { cancel(); return nil })}}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(workers))
			var last error
			for _, err := range l.Epoch(ctx, 0) {
				last = err
			}
			require.ErrorIs(t, last, context.Canceled)
			require.NoError(t, l.Close())
			require.LessOrEqual(t, s.Loaded.Load(), s.Read.Load())
		}
	}
}

func TestResumingAfterTheEndOfAStreamIsAnError(t *testing.T) {
	l := kit.NewLoader(t, nwt.Streamed(kit.NewShelves(5, 5)), nwt.WithBatchSize(2))
	count := func(samples int) (n int, last error) {
		for b, err := range l.Resume(t.Context(), nwt.State{Epoch: 2, Samples: samples}) {
			if last = err; b != nil {
				n += b.Len()
			}
		}
		return n, last
	}
	n, err := count(10)
	require.NoError(t, err)
	require.Zero(t, n, "the epoch was over")
	for range 3 {
		_, err = count(11)
		require.ErrorContains(t, err, "resume after 11 samples of epoch 2")
		require.ErrorContains(t, err, "have 10")
	}
	got, err := kit.Values(t, l, 2)
	require.NoError(t, err)
	require.Len(t, got, 10, "the loader can be used again")
}

// A loop that spins keeps the bubble's clock from going on.
func TestALoaderThatLosesItsWorkersWaitsForAStreamWithoutSpinning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &kit.Breaking{Shelves: kit.NewShelves(20, 20), OnNext: func(int, int) error { time.Sleep(time.Second); return nil }}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(2))
		var got []int64
		for b, err := range l.Epochs(t.Context(), 0, 2) {
			require.NoError(t, err)
			got = append(got, nwt.Values[int64](b, 0)...)
			if b.Number() == 2 {
				require.NoError(t, l.SetWorkers(0))
			}
			if b.Number() == 7 {
				require.NoError(t, l.SetWorkers(3))
			}
		}
		require.Len(t, got, 80)
		require.NoError(t, l.Close())
	})
}

func TestTheWaitBeforeAShardIsOpenedAgainDoubles(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			var opened []time.Duration
			began := time.Now()
			s := &kit.Breaking{Shelves: kit.NewShelves(5), OnOpen: func(int) error {
				opened = append(opened, time.Since(began))
				return briefly{}
			}}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(workers))
			_, err := kit.Values(t, l, 0)
			require.ErrorIs(t, err, briefly{})
			const first = 10 * time.Millisecond // and three times, by default
			require.Equal(t, []time.Duration{0, first, 3 * first, 7 * first}, opened)
			require.NoError(t, l.Close())
		})
	}
}

func TestAWaitBeforeAShardIsOpenedAgainEndsWithTheContext(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			tries := 0
			s := &kit.Breaking{Shelves: kit.NewShelves(5), OnOpen: func(int) error { tries++; return briefly{} }}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithWorkers(workers), nwt.WithRetry(100, time.Hour))
			var last error
			for _, err := range l.Epoch(ctx, 0) {
				last = err
			}
			require.ErrorIs(t, last, context.DeadlineExceeded)
			require.Equal(t, 1, tries)
			require.NoError(t, l.Close())
		})
	}
}

// readerless opens shards to nothing.
type readerless struct{ *kit.Shelves }

func (readerless) Open(context.Context, int) (nwt.ShardReader, error) { return nil, nil }

func TestAShardWithoutAReaderIsABadSample(t *testing.T) {
	for _, workers := range []int{0, 2} {
		l := kit.NewLoader(t, nwt.Streamed(readerless{kit.NewShelves(5)}), nwt.WithWorkers(workers))
		_, err := kit.Values(t, l, 0)
		require.ErrorAs(t, err, new(*nwt.ShardError))
		require.ErrorContains(t, err, "shard 0 from record 0 on: it can't be opened: its Open returned neither a reader nor an error")
	}
}

func TestAStreamThatCannotBeUsedIsNamed(t *testing.T) {
	order, err := sampler.Weighted([]float64{1, 2}, 2, 1)
	require.NoError(t, err)
	for _, c := range []struct {
		s    nwt.Stream
		opts []nwt.Option
		says string
	}{
		{nil, nil, "Streamed: the stream is nil"},
		{kit.NewShelves(), nil, "Stream.Shards: 0: must be at least 1"},
		{&kit.Breaking{Shelves: kit.NewShelves(1), OnShards: func() int { return -3 }}, nil, "Stream.Shards: -3: must be at least 1"},
		{kit.NewShelves(5), []nwt.Option{nwt.WithSampler(order)}, "a stream is read in its own order"},
	} {
		_, err := nwt.NewLoader(nwt.Streamed(c.s), c.opts...)
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
		require.ErrorContains(t, err, c.says)
	}
	require.Equal(t, -1, nwt.Streamed(kit.NewShelves(5)).Len())
	require.ErrorContains(t, nwt.Streamed(kit.NewShelves(5)).Load(t.Context(), 0, nil), "nwt: a stream has no sample by index")
}

// choosy is shelves with a sample that can't be made of its record, at first or ever.
type choosy struct {
	*kit.Shelves
	number int64
	fail   func() error
}

func (s *choosy) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	if err := s.Shelves.Load(ctx, r, dst); err != nil || nwt.Values[int64](dst, 0)[0] != s.number {
		return err
	}
	return s.fail()
}

func TestARecordOfWhichNoSampleCanBeMadeIsABadSampleAndTheOthersOfItsShardAreNot(t *testing.T) {
	mix := nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1}}}}
	for _, workers := range []int{0, 2} {
		for _, mixed := range []bool{false, true} {
			loader := func(fail func() error, opts ...nwt.Option) *nwt.Loader {
				s := &choosy{kit.NewShelves(10), 4, fail}
				ds := nwt.Streamed(s)
				if mixed {
					var err error
					ds, err = nwt.MixedStreams(mix, 7, s)
					require.NoError(t, err)
				}
				return kit.NewLoader(t, ds, append(opts, nwt.WithBatchSize(2), nwt.WithWorkers(workers), nwt.WithEpochSamples(10), kit.Silent)...)
			}
			got, err := kit.Values(t, loader(func() error { return kit.ErrTorn }), 0)
			require.ErrorIs(t, err, kit.ErrTorn)
			require.Equal(t, kit.UpTo(4), got)
			got, err = kit.Values(t, loader(func() error { return kit.ErrTorn }, nwt.WithErrorBudget(1)), 0)
			require.NoError(t, err)
			require.Equal(t, kit.UpTo(10, 4), got)
			var tries atomic.Int32
			got, err = kit.Values(t, loader(func() error {
				if tries.Add(1) < 3 {
					return briefly{}
				}
				return nil
			}, nwt.WithRetry(2, 0)), 0)
			require.NoError(t, err, "it is loaded again")
			require.Equal(t, kit.UpTo(10), got)
		}
	}
}

// The end of a stream is loaded sooner than the batches before it.
func TestAStreamWithoutOrderDeliversWhatIsSlow(t *testing.T) {
	for range 20 {
		s := &kit.Breaking{Shelves: kit.NewShelves(16, 16), OnLoad: func(dst *nwt.Sample) {
			if dst.Index() >= 24 {
				time.Sleep(time.Millisecond)
			}
		}}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(8), nwt.WithWorkers(4), nwt.WithPrefetch(8), nwt.WithUnordered())
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		slices.Sort(got)
		require.Equal(t, kit.UpTo(32), got)
	}
}

// briefly is an error that calls itself temporary.
type briefly struct{}

func (briefly) Error() string   { return "not now" }
func (briefly) Temporary() bool { return true }

func TestARecordThatCannotBeReadIsNotAskedForAgain(t *testing.T) {
	asked := 0
	s := &kit.Breaking{Shelves: kit.NewShelves(6)}
	s.OnNext = at2(0, 3, func() error { asked++; return briefly{} })
	l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithErrorBudget(1), nwt.WithRetry(4, time.Nanosecond), kit.Silent)
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, 3, b.Len())
	}
	require.Equal(t, 5, asked, "the shard was opened again as often as WithRetry says, and the sample not loaded again")
}

// cutOff is a stream whose connections are cut now and then: the reader's calls fail from there on.
type cutOff struct {
	nwt.Stream
	every  int // of so many calls, on average, one finds its connection cut
	skips  bool
	reopen atomic.Int32
	seed   atomic.Uint64
}

func (c *cutOff) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	rng := rand.New(rand.NewPCG(c.seed.Add(1), 1))
	if rng.IntN(c.every) == 0 {
		return nil, briefly{}
	}
	r, err := c.Stream.Open(ctx, shard)
	cut := &cutReader{ShardReader: r, c: c, rng: rng}
	if _, ok := r.(nwt.Skipper); ok && c.skips {
		return cuttable{cut}, err
	}
	return cut, err
}

type cutReader struct {
	nwt.ShardReader
	c   *cutOff
	rng *rand.Rand
	cut bool
}

func (r *cutReader) fails() bool {
	if !r.cut && r.rng.IntN(r.c.every) == 0 {
		r.cut = true
		r.c.reopen.Add(1)
	}
	return r.cut
}

func (r *cutReader) Next(ctx context.Context, rec *nwt.Record) error {
	if r.fails() {
		rec.Data = append(rec.Data[:0], "half"...)
		return fmt.Errorf("read tcp: %w", briefly{})
	}
	return r.ShardReader.Next(ctx, rec)
}

type cuttable struct{ *cutReader }

func (r cuttable) Skip(ctx context.Context, n int) (int, error) {
	if r.fails() {
		return 0, briefly{}
	}
	n, err := r.ShardReader.(nwt.Skipper).Skip(ctx, 1+r.rng.IntN(n))
	if err == nil && r.fails() {
		err = briefly{} // in the middle
	}
	return n, err
}

// What WithRetry promises for Load holds for the calls of a shard's reader: the epoch is the one
// that is read without a fault, also the rest of one.
func TestAShardWhoseConnectionIsCutIsReadOn(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 48))
		lengths := make([]int, 1+rng.IntN(6))
		for i := range lengths {
			lengths[i] = 1 + rng.IntN(60)
		}
		s := kit.NewCounted(lengths...)
		s.Skips = true
		opts := []nwt.Option{nwt.WithBatchSize(1 + rng.IntN(9)), nwt.WithRetry(100, 0), nwt.WithInterleave(1 + rng.IntN(4)), nwt.WithRank(0, 1+rng.IntN(len(lengths)))}
		if rng.IntN(2) == 0 {
			opts = append(opts, nwt.WithShuffle(seed), nwt.WithShuffleWindow(1+rng.IntN(20)))
		}
		if rng.IntN(3) == 0 {
			opts = append(opts, nwt.WithTimeout(time.Minute))
		}
		var plain nwt.Stream = s
		cut := &cutOff{Stream: s, every: 60 + rng.IntN(60), skips: rng.IntN(2) == 0}
		var flaky nwt.Stream = cut
		if rng.IntN(2) == 0 {
			flaky = withCounts{cut, lengths}
		} else {
			plain = s.Shelves
		}
		numbers := func(s nwt.Stream, from nwt.State, workers int) (all []int64, states []nwt.State) {
			for b, err := range kit.NewLoader(t, nwt.Streamed(s), append(opts, nwt.WithWorkers(workers))...).Resume(t.Context(), from) {
				require.NoError(t, err, "seed %d", seed)
				all, states = append(all, nwt.Values[int64](b, 0)...), append(states, b.State())
			}
			return all, states
		}
		want, states := numbers(plain, nwt.State{Epoch: 1}, 2)
		got, _ := numbers(flaky, nwt.State{Epoch: 1}, int(seed%2)*2)
		require.Equal(t, want, got, "seed %d", seed)
		at := states[rng.IntN(len(states))]
		want, _ = numbers(plain, at, 0)
		got, _ = numbers(flaky, at, int(seed%2)*2)
		require.Equal(t, want, got, "seed %d, resumed from %v", seed, at)
		require.Zero(t, s.Opened.Load())
	}
}

func TestAShardIsOpenedAgainAsOftenAsWithRetrySaysForEachRecord(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			began, cuts := time.Now(), 0
			s := &kit.Breaking{Shelves: kit.NewShelves(30), OnNext: func(_, record int) error {
				if record%10 == 9 && cuts < 3*(record/10+1) {
					cuts++
					return briefly{}
				}
				return nil
			}}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(workers), nwt.WithTimeout(time.Millisecond))
			got, err := kit.Values(t, l, 0)
			require.NoError(t, err)
			require.Equal(t, kit.UpTo(30), got)
			require.Equal(t, 3*70*time.Millisecond, time.Since(began), "waits are no time of the call's")
			s.OnNext = at2(0, 7, func() error { return briefly{} })
			got, err = kit.Values(t, l, 0)
			require.ErrorIs(t, err, briefly{})
			require.ErrorContains(t, err, "shard 0 from record 7 on")
			require.Equal(t, kit.UpTo(6), got)
			require.NoError(t, l.Close())
			require.Zero(t, s.Opened.Load())
		})
	}
}

func TestAShardThatIsShorterWhenItIsOpenedAgainIsAnError(t *testing.T) {
	for _, counted := range []bool{false, true} {
		opened := 0
		s := &kit.Breaking{Shelves: kit.NewShelves(9)}
		s.OnOpen = func(int) error { opened++; return nil }
		s.OnNext = func(_, record int) error {
			switch {
			case opened == 1 && record == 6:
				return briefly{}
			case opened == 2 && record == 4:
				return io.EOF
			}
			return nil
		}
		var stream nwt.Stream = s
		if counted {
			stream = withCounts{s, []int{9}}
		}
		_, err := kit.Values(t, kit.NewLoader(t, nwt.Streamed(stream), nwt.WithRetry(1, 0)), 0)
		require.ErrorContains(t, err, "it had 4 records when it was opened again, and more before")
	}
}

func TestAShardWhoseCloseHangsBeforeItIsOpenedAgainLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, cut := make(chan struct{}), atomic.Bool{}
		s := &kit.Breaking{Shelves: kit.NewShelves(9)}
		s.OnNext = at2(0, 6, func() error {
			if !cut.Swap(true) {
				return briefly{}
			}
			return nil
		})
		s.OnClose = func(int) error {
			if cut.Load() {
				kit.Hold(t, release)
			}
			return nil
		}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithTimeout(time.Second), kit.Silent)
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, kit.UpTo(9), got)
		require.NoError(t, l.Close())
		close(release)
		synctest.Wait()
	})
}

func TestAStreamBegunWithoutWorkersIsReadByItsConsumerAlone(t *testing.T) {
	var l *nwt.Loader
	var consumer string
	var elsewhere atomic.Int32
	s := &kit.Breaking{Shelves: kit.NewShelves(1600)}
	s.OnNext = func(int, int) error {
		if kit.Goroutine() != consumer {
			elsewhere.Add(1)
		}
		return nil
	}
	s.OnLoad = func(dst *nwt.Sample) {
		if l.Workers() > 0 && dst.Index()%8 == 0 {
			time.Sleep(5 * time.Millisecond) // the others run out of places
		}
	}
	l = kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(8), nwt.WithWorkers(0))
	consumer = kit.Goroutine()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if b.Number() == 2 {
			require.NoError(t, l.SetWorkers(8))
		}
		time.Sleep(time.Millisecond)
	}
	require.Zero(t, elsewhere.Load())
}

// When the end of the stream is found, all samples of the short batch are loaded.
func TestAShortBatchIsFinishedBeforeItIsDelivered(t *testing.T) {
	for k := range 6 {
		workers, samples := 2*(k%2), 5+k/2 // one, two or three of the last four
		synctest.Test(t, func(t *testing.T) {
			s := &kit.Breaking{Shelves: kit.NewShelves(samples), OnNext: func(_, record int) error {
				if record == samples {
					time.Sleep(time.Second)
				}
				return nil
			}}
			var finished atomic.Int32
			finish := nwt.WithBatchTransform(func(_ context.Context, b *nwt.Batch) error {
				time.Sleep(time.Minute)
				finished.Add(1)
				return nil
			})
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(workers), finish)
			for b, err := range l.Epochs(t.Context(), 0, 2) {
				require.NoError(t, err)
				require.GreaterOrEqual(t, int(finished.Load()), 2*b.Epoch()+b.Number()+1)
			}
			require.EqualValues(t, 4, finished.Load(), "each batch once")
			require.NoError(t, l.Close())
		})
	}
}

func TestTheEndOfAStreamMakesTheRingNoDeeper(t *testing.T) {
	for _, order := range [][]nwt.Option{nil, {nwt.WithUnordered()}} {
		s := &kit.Breaking{Shelves: kit.NewShelves(160)}
		s.OnLoad = func(dst *nwt.Sample) {
			if dst.Index()%8 == 0 {
				time.Sleep(3 * time.Millisecond)
			}
		}
		l := kit.NewLoader(t, nwt.Streamed(s), append(order, nwt.WithBatchSize(8), nwt.WithWorkers(8))...)
		for epoch := range 3 {
			for _, err := range l.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
			}
			require.LessOrEqual(t, l.Stats().Prefetch, 20) // an epoch's batches
		}
	}
}
