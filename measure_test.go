package nwt

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/search"
)

// Batches that were loaded before measuring began, and used up meanwhile, hide how long
// loading takes. If measuring ends while a batch is waited for, loading has taken that
// time too.
func TestWhatWasLoadedAheadDoesNotMakeLoadingLookFaster(t *testing.T) {
	for _, c := range []struct {
		wait, unfinished time.Duration
		gained           int // places, of batches of eight
		want             time.Duration
	}{
		{0, 0, 0, 0},
		{0, 0, 80, 0},         // more is ready than was: training set the pace
		{0, 0, -40, 100 * ms}, // five of the ten batches were loaded meanwhile
		{0, 0, -1, 100*ms*80/79 - 100*ms},
		{0, 0, -75, 1500 * ms},
		{0, 0, -76, 0}, // too little was loaded to tell
		{0, 0, -80, 0},
		{0, 20 * ms, 0, 20 * ms},
		{0, 20 * ms, 8, 120*ms*10/11 - 100*ms},
		{0, 20 * ms, 80, 0},
		{0, 100 * ms, -40, 300 * ms},
		{60 * ms, 0, 40, 100*ms*10/15 - 100*ms}, // 15 batches were loaded: only ten were used, since a slow one held them up
		{60 * ms, 0, 800, -60 * ms},             // the step takes 4 ms
		{60 * ms, 20 * ms, 80, 120*ms*10/20 - 100*ms},
	} {
		require.InDelta(t, float64(c.want), float64(hidden(100*ms, c.wait, c.unfinished, 10, c.gained, 8)), 10, "%+v", c)
	}
}

// Of a wait, what others loaded meanwhile is taken off only as far as training wouldn't have
// waited: not if the depth is fixed, and, of batches that come in waves, beyond one wave.
func TestWhenAWaitCountsInFull(t *testing.T) {
	const batch, iterations = 8, 10
	for name, c := range map[string]struct {
		opts   []Option
		least  int
		gained int // batches
		want   time.Duration
	}{
		"the depth may grow":           {nil, 1, 10, 50 * ms},
		"the depth is fixed":           {[]Option{WithPrefetch(4)}, 1, 10, 100 * ms},
		"a wave is ahead":              {nil, 4, 4, 100 * ms},
		"more than a wave is ahead":    {nil, 4, 14, 50 * ms},
		"nothing more is ahead":        {nil, 1, 0, 100 * ms},
		"less is ahead than there was": {nil, 1, -5, 200 * ms},
		"no less than the step":        {nil, 1, 90, 20 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			ds := NewDataset(1000, []Field{{Name: "x", Type: Float32}}, func(context.Context, int, *Sample) error { return nil })
			l, err := NewLoader(ds, append(c.opts, WithBatchSize(batch), WithWorkers(4))...)
			require.NoError(t, err)
			defer l.Close()
			m := measurement{visit: search.Visit{Wanted: iterations, Least: c.least}}
			for i := range iterations {
				one := iteration{all: 2 * ms, step: 2 * ms}
				if i == 3 {
					one = iteration{all: 82 * ms, wait: 80 * ms, step: 2 * ms}
				}
				m.iterations = append(m.iterations, one)
				m.visit.Add(one.all)
			}
			m.conclude(l, account{gained: c.gained * batch, delivered: iterations})
			require.Equal(t, c.want, m.sum.all)
			require.Equal(t, c.want-20*ms, m.sum.wait)
		})
	}
}

// A visit leaves out its first half if that was slower. What was loaded ahead when the
// other half began counts, not what was when the visit began.
func TestWhatWasLoadedAheadOfAHalfThatIsLeftOutDoesNotCount(t *testing.T) {
	at := func(of []time.Duration, i int) time.Duration { return of[min(i, len(of)-1)] * ms }
	times := func(n int, d time.Duration) []time.Duration { return slices.Repeat([]time.Duration{d}, n) }
	for _, tt := range []struct {
		name        string
		wanted      int
		load, steps []time.Duration // of the batches that are measured, in ms; the last is that of all others
		leftOut     int
	}{
		{"nothing", 10, times(1, 11), times(1, 0), 0},
		{"five of ten", 10, append(times(4, 41), 11), append(times(5, 30), 0), 5},
		{"four of nine", 9, append(times(4, 41), 11), append(times(4, 30), 0), 4},
		{"two times four of eight", 8, slices.Concat(times(4, 11), times(2, 73), times(1, 11)), slices.Concat(times(4, 83), times(4, 31), times(1, 0)), 8},
		{"two times four of nine", 9, slices.Concat(times(4, 11), times(2, 73), times(1, 11)), slices.Concat(times(4, 83), times(4, 31), times(1, 0)), 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const before = 3 // batches: the first with its shape, and the warm-up
				ds := NewDataset(1_000_000, []Field{{Name: "x", Type: Float32}}, func(_ context.Context, i int, _ *Sample) error {
					time.Sleep(at(tt.load, max(0, i-before-4))) // four are loaded before
					return nil
				})
				l, err := NewLoader(ds, WithBatchSize(1), WithWorkers(1), WithPrefetch(4))
				require.NoError(t, err)
				defer l.Close()
				var ahead []int // when an iteration began
				n := 0
				step := func(context.Context, *Batch) error {
					if n++; n == before {
						time.Sleep(time.Second) // all that may be loaded ahead is
					} else if n > before {
						time.Sleep(at(tt.steps, n-before-1) + ms/2)
					}
					if n >= before {
						ahead = append(ahead, l.loadedAhead())
					}
					return nil
				}
				m := measurement{warmup: before - 1, visit: search.Visit{Wanted: tt.wanted}, steps: &preparation{}}
				require.NoError(t, m.run(t.Context(), l, step, State{}))
				require.Len(t, m.iterations, tt.wanted)
				require.Len(t, ahead, tt.leftOut+tt.wanted+1)
				require.Equal(t, 4, ahead[0])
				var shown, waited time.Duration
				for _, one := range m.iterations {
					shown, waited = shown+one.all, waited+one.wait
				}
				gained := ahead[len(ahead)-1] - ahead[tt.leftOut]
				require.Equal(t, shown+hidden(shown, waited, 0, tt.wanted, gained, 1), m.sum.all)
			})
		})
	}
}

// Reading the first records takes long, and computing is waited for. That half of the visit
// is left out, once or more often, and what was used of the machine meanwhile, too.
func TestSharesAreOfWhatIsNotLeftOut(t *testing.T) {
	for _, wanted := range []int{10, 9} {
		for name, slow := range map[string][]time.Duration{"nothing": nil, "a half": {20 * ms}, "two times a half": {60 * ms, 20 * ms}} {
			t.Run(fmt.Sprint(name, " of ", wanted), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const before = 2 // batches: the warm-up
					machine := NewVirtualMachine(2)
					ds := Streamed(&slowAtFirst{read: func(nth int) (d time.Duration) {
						if half := max(0, nth-before) / (wanted / 2); half < len(slow) {
							d = slow[half]
						}
						return d
					}, compute: func() { machine.Compute(10 * ms) }})
					l, err := NewLoader(ds, WithBatchSize(1), WithWorkers(0), machine.Option())
					require.NoError(t, err)
					defer l.Close()
					m := measurement{warmup: before, visit: search.Visit{Wanted: wanted}}
					require.NoError(t, m.run(t.Context(), l, nil, State{}))
					require.Len(t, m.iterations, wanted)
					require.Equal(t, 10*ms*time.Duration(wanted), m.sum.all)
					require.InDelta(t, 1, m.use.Own, 0.001)
					require.InDelta(t, 0, m.use.reading, 0.001)
				})
			})
		}
	}
}

// Loading or the step takes long at first. While the machine's figures are read when a half
// is left out, batches are loaded ahead. Loading takes 10 ms per batch all the same.
func TestWhatIsLoadedWhileTheMachineIsReadDoesNotCount(t *testing.T) {
	for _, wanted := range []int{40, 39} {
		for _, tt := range []struct {
			name        string
			load, steps []time.Duration // of each half that is left out
			anew        int             // what is measured so often before counts for nothing
		}{
			{"a half", nil, []time.Duration{30 * ms}, 0},
			{"two times a half", nil, []time.Duration{90 * ms, 30 * ms}, 0},
			{"three times a half", nil, []time.Duration{270 * ms, 90 * ms, 30 * ms}, 0},
			{"three times a half, as loading becomes faster", []time.Duration{10 * ms, 80 * ms, 30 * ms}, []time.Duration{200 * ms, 0, 0}, 0},
			{"a half, then all", nil, []time.Duration{30 * ms}, 1},
		} {
			t.Run(fmt.Sprint(tt.name, " of ", wanted), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const before = 3 // batches: the first with its shape, and the warm-up
					ds := NewDataset(1_000_000, []Field{{Name: "x", Type: Float32}}, func(_ context.Context, i int, _ *Sample) error {
						if half := (i - before) / (wanted / 2); half < len(tt.load) {
							time.Sleep(tt.load[half] - 10*ms)
						}
						time.Sleep(10 * ms)
						return nil
					})
					l, err := NewLoader(ds, WithBatchSize(1), WithWorkers(1), WithPrefetch(4))
					require.NoError(t, err)
					defer l.Close()
					tries, machine := 0, NewVirtualMachine(2)
					machine.Missed = func(time.Time, time.Time) float64 {
						tries++
						return float64(max(0, tt.anew+1-tries))
					}
					l.opts.machine = readSlowly{machine}
					n := 0
					step := func(context.Context, *Batch) error {
						if half := (n - before) / (wanted / 2); n >= before && half < len(tt.steps) {
							time.Sleep(tt.steps[half])
						}
						n++
						return nil
					}
					m := measurement{warmup: before - 1, visit: search.Visit{Wanted: wanted}, steps: &preparation{}, repeats: tt.anew}
					require.NoError(t, m.run(t.Context(), l, step, State{}))
					require.Equal(t, before+len(tt.steps)*(wanted/2)+(1+tt.anew)*wanted, n)
					require.InEpsilon(t, 10*ms*time.Duration(wanted), m.sum.all, 0.05)
				})
			})
		}
	}
}

// readSlowly is a machine whose figures take a second to read.
type readSlowly struct{ *VirtualMachine }

func (r readSlowly) StartCPU() host.Meter {
	time.Sleep(time.Second)
	return r.VirtualMachine.StartCPU()
}

func (r readSlowly) StartMissed() host.Meter {
	time.Sleep(time.Second)
	return r.VirtualMachine.StartMissed()
}

// slowAtFirst is a stream of endless shards. Reading the first records takes a while.
type slowAtFirst struct {
	read    func(nth int) time.Duration
	compute func()
}

func (s *slowAtFirst) Fields() []Field { return []Field{{Name: "x", Type: Float32}} }
func (s *slowAtFirst) Shards() int     { return 1 }
func (s *slowAtFirst) Open(context.Context, int) (ShardReader, error) {
	return &slowAtFirstReader{s: s}, nil
}
func (s *slowAtFirst) Load(context.Context, *Record, *Sample) error { s.compute(); return nil }

type slowAtFirstReader struct {
	s   *slowAtFirst
	nth int
}

func (r *slowAtFirstReader) Next(context.Context, *Record) error {
	time.Sleep(r.s.read(r.nth))
	r.nth++
	return nil
}
func (r *slowAtFirstReader) Close() error { return nil }

func TestACopyCountsForTheTimeThatTrainingWaitedForIt(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(0, 0).Add(time.Duration(n)) }
	for _, c := range []struct{ begin, end, want int }{
		{0, 5, 0}, {5, 10, 0}, {5, 13, 3}, {10, 20, 10}, {12, 17, 5}, {5, 25, 10}, {18, 25, 2}, {20, 25, 0}, {23, 30, 0},
	} {
		require.EqualValues(t, c.want, overlap(at(c.begin), at(c.end), at(10), at(20)), "%+v", c)
	}
}

func TestWorkersOfManyBatchesAreAWave(t *testing.T) {
	for workers, want := range map[int]int{0: 1, 1: 1, 8: 1, 9: 2, 16: 2, 17: 3} {
		require.Equal(t, want, wave(workers, 8), workers)
	}
}

// A visit waits until each worker has loaded twelve samples, and then for what is open.
func TestAVisitWaitsForWorkersThatAreCold(t *testing.T) {
	l := &Loader{source: &source{opts: &options{batchSize: 8}, order: order{n: 1000, batch: 8, world: 1}}, crew: []*worker{{}, {}, {}}}
	l.perBatch.Store(8)
	l.workers.Store(2)
	left := func(samples ...int32) {
		for seat, n := range samples {
			l.crew[seat].cold.Store(n)
		}
	}
	const depth = 3
	left(0, -4, 12)
	require.Zero(t, l.cold(1)(1), "the third isn't among the two")

	left(12, 12)
	cold := l.cold(1)
	for batches, n := range [][2]int32{{12, 12}, {4, 12}, {-4, 11}, {-4, 3}, {-4, 2}, {-4, 1}} {
		left(n[0], n[1])
		require.Equal(t, depth, cold(batches+1), batches)
	}
	left(-4, 0)
	require.Zero(t, cold(7), "all are warm")

	left(0, 5)
	cold = l.cold(1)
	for batches := range depth + 1 {
		require.Equal(t, depth, cold(batches+1), batches)
	}
	require.Zero(t, cold(depth+2), "the second finds nothing to load")

	left(0, 1000)
	cold = l.cold(1)
	for batches := range 16*(2*12/8+1) - 1 {
		left(0, int32(1000-batches))
		require.Equal(t, depth, cold(batches+1), batches)
	}
	left(0, 1)
	require.Zero(t, cold(16*(2*12/8+1)), "16 times as many batches as it should take")
}

func TestWarmingUpTakesWholeWaves(t *testing.T) {
	l := &Loader{source: &source{opts: &options{batchSize: 1}, order: order{n: 1000, batch: 1, world: 1}}, crew: []*worker{{}, {}, {}, {}}}
	l.perBatch.Store(1)
	l.workers.Store(4)
	for wave := 1; wave < 6; wave++ {
		for _, w := range l.crew {
			w.cold.Store(12)
		}
		cold := l.cold(wave)
		for batches := 1; batches < 12; batches++ {
			l.crew[0].cold.Add(-1)
			more := cold(batches)
			require.GreaterOrEqual(t, more, l.depth())
			require.Less(t, more, l.depth()+wave)
			require.Zero(t, (batches+more)%wave)
		}
	}
}

// How many more batches a warm-up of two takes, by what it has taken.
func TestAWarmUpEndsInTime(t *testing.T) {
	for _, tt := range []struct {
		name  string
		n     int // minus the batches that it is still to take
		took  time.Duration
		limit time.Duration // of the visit
		cold  int
		want  int
	}{
		{"a batch is left", -1, ms, 0, 0, -1},
		{"the second batch", 0, 10 * ms, 0, 0, 0},
		{"10 ms aren't over", 0, 10*ms - 1, 0, 0, -1},
		{"after 200 ms a batch will do", -1, 200 * ms, 0, 0, 0},
		{"nearly", -1, 200*ms - 1, 0, 0, -1},
		{"unless workers are cold", -1, time.Second, 0, 3, -3},
		{"a batch does", -1, time.Second, 0, 1, -1},
		{"or there are more to come", -5, time.Second, 0, 3, -5},
		{"a limit of a nanosecond", -1, 2, 1, 0, 0},
		{"the visit's time is over", -1, 51 * ms, 50 * ms, 0, 0},
		{"it isn't", -1, 50 * ms, 50 * ms, 0, -1},
		{"four times that is over, and workers are cold", -1, 201 * ms, 50 * ms, 3, 0},
		{"it isn't, and they are", -1, 200 * ms, 50 * ms, 3, -3},
		{"a sample is missing", -1, 200 * ms, 50 * ms, 1, -1},
		{"a limit that is hardly one", -1, time.Second, math.MaxInt64 / 2, 3, -3},
	} {
		m := measurement{warmupTime: search.WarmTime, visit: search.Visit{Limit: tt.limit}}
		m.cold = func(batches int) int {
			require.Equal(t, 7, batches)
			return tt.cold
		}
		require.Equal(t, tt.want, m.warming(tt.n, 7, tt.took), tt.name)
		if m.cold = nil; tt.cold == 0 {
			require.Equal(t, tt.want, m.warming(tt.n, 7, tt.took), tt.name)
		}
	}
}

func TestMediansAndBandwidthsAreThoseOfAllThatWasMeasured(t *testing.T) {
	c := newCount(3)
	for i := range 200 {
		one := iteration{all: time.Duration(200-i) * time.Second, wait: 2, transfer: 3, step: 4}
		c.iterations, c.sum = append(c.iterations, one), c.sum.plus(one)
	}
	c.Iterations, c.measured = 200, 10
	c.cpu, c.gc, c.reading = 5, 2, 1
	c.average()
	require.Equal(t, []time.Duration{100500 * time.Millisecond, 2, 3, 4}, []time.Duration{c.Mean, c.Wait, c.Transfer, c.Step})
	require.Equal(t, []time.Duration{101 * time.Second, 199 * time.Second}, []time.Duration{c.Median, c.P99})
	require.Equal(t, []float64{0.5, 0.2, 0.1, -1}, []float64{c.CPU, c.CollectorCPU, c.Reading, c.OtherCPU})
	require.Zero(t, c.Bandwidth)

	c.other, c.otherTime = 3, 4
	c.copies = copies{batches: 5, took: 10 * time.Second, bytes: 1000}
	c.average()
	require.Equal(t, []float64{0.75, 100}, []float64{c.OtherCPU, c.Bandwidth})
	require.Equal(t, 2*time.Second, c.Copy)
}

// Visits begin all over the epoch, so that the front of a dataset alone doesn't decide.
func TestRoundsAreSpreadOverTheEpoch(t *testing.T) {
	tuner := &tuner{source: &source{opts: &options{batchSize: 5, world: 2}, order: order{n: 1000, batch: 5, world: 2}}}
	tuner.next = State{Epoch: 3, Samples: 70}
	require.Equal(t, State{Epoch: 3}, tuner.place(0))
	begins := map[int]bool{}
	for round := range 20 {
		at := tuner.place(round)
		require.Equal(t, 3, at.Epoch)
		require.True(t, 0 <= at.Samples && at.Samples < 1000 && at.Samples%10 == 0, at)
		begins[at.Samples/100] = true
	}
	require.Len(t, begins, 10, "every tenth of the epoch is visited")

	require.NoError(t, tuner.order.follow("", cuts{7, 3, 4, 6, 1, 2, 9, 5}))
	for round := range 20 {
		at := tuner.place(round)
		require.Contains(t, []int{0, 10, 20, 23}, at.Samples, "where a step of two ranks begins")
		begins[-at.Samples] = true
	}
	require.Len(t, begins, 10+3, "0 was there before")

	tuner.order = order{n: 11, batch: 5, world: 2}
	require.Equal(t, State{Epoch: 3, Samples: 10}, tuner.place(1), "the second of two steps")
	tuner.order.n = 10
	require.Equal(t, State{Epoch: 3}, tuner.place(1))
	tuner.order.n = endless
	require.Equal(t, State{Epoch: 3}, tuner.place(1))
	require.NotPanics(t, func() { tuner.place(math.MaxInt32) })
}

// A tenth of the CPUs in use, and of one CPU at least.
func TestThreadsMissCPUsIfTheyWaitForMoreThanATenthOfThoseInUse(t *testing.T) {
	for _, c := range []struct {
		own, missed float64
		want        bool
	}{
		{0, 0, false}, {0, 0.1, false}, {0, 0.11, true}, {0.5, 0.09, false}, {0.5, 0.11, true},
		{1, 0.11, true}, {4, 0.39, false}, {4, 0.41, true}, {64, 6.3, false}, {64, 6.5, true},
	} {
		require.Equal(t, c.want, usage{Use: host.Use{Own: c.own, Missed: c.missed}}.missedCPUs(), c)
	}
}

// misses makes a machine whose threads miss so many CPUs, and which takes so long to tell
// it. asked counts how often it is asked.
func misses(cpus *float64, asked *int, pause time.Duration) *VirtualMachine {
	m := NewVirtualMachine(4)
	m.Missed = func(time.Time, time.Time) float64 {
		*asked++
		time.Sleep(pause)
		return *cpus
	}
	return m
}

// slowly is a dataset whose samples take d each.
func slowly(d time.Duration) Dataset {
	return NewDataset(1_000_000, []Field{{Name: "x", Type: Float32}}, func(context.Context, int, *Sample) error {
		time.Sleep(d)
		return nil
	})
}

func TestTheLastTryCountsWhateverItShows(t *testing.T) {
	for repeats := range 4 {
		synctest.Test(t, func(t *testing.T) {
			missed, asked := 1., 0
			machine := misses(&missed, &asked, 7*ms)
			ds := NewDataset(1_000_000, []Field{{Name: "x", Type: Float32}}, func(context.Context, int, *Sample) error {
				machine.Compute(ms)
				return nil
			})
			l, err := NewLoader(ds, WithBatchSize(1), WithWorkers(0), machine.Option())
			require.NoError(t, err)
			m := measurement{warmup: 2, visit: search.Visit{Wanted: 10}, repeats: repeats}
			require.NoError(t, m.run(t.Context(), l, nil, State{}))
			require.Equal(t, repeats, asked, "the last try isn't asked")
			require.Zero(t, m.repeats)
			require.Len(t, m.iterations, 10)
			for _, one := range m.iterations {
				require.Equal(t, ms, one.all)
			}
			require.Equal(t, 1., m.use.Own, "in the last try alone")
			require.NoError(t, l.Close())
		})
	}
}

// A try takes 10 ms. Another begins if there is time for two.
func TestAVisitIsMeasuredAnewIfThereIsTime(t *testing.T) {
	for left, tries := range map[time.Duration]int{19 * ms: 1, 21 * ms: 2, 29 * ms: 2, 31 * ms: 3} {
		synctest.Test(t, func(t *testing.T) {
			missed, asked := 1., 0
			l, err := NewLoader(slowly(ms), WithBatchSize(1), WithWorkers(0), misses(&missed, &asked, 0).Option())
			require.NoError(t, err)
			const warmup, try = 10, 10
			m := measurement{warmup: warmup, visit: search.Visit{Wanted: try}, repeats: 2, steps: &preparation{},
				deadline: time.Now().Add((warmup+try)*ms + left)}
			require.NoError(t, m.run(t.Context(), l, nil, State{}))
			require.Equal(t, 3-tries, m.repeats, left)
			require.Len(t, m.iterations, try)
			require.NoError(t, l.Close())
		})
	}
}

// If a pause of the step ended a warm-up, or a visit, the next visit would begin right after it.
// With pauses that come regularly, all visits to a count could lie between two of them.
func TestAPauseOfTheStepEndsNoWarmUpAndNoVisit(t *testing.T) {
	visits := func(pauseAt int) (batches []int) { // of each visit, with its warm-up
		synctest.Test(t, func(t *testing.T) {
			l, err := NewLoader(slowly(ms), WithBatchSize(1), WithWorkers(2), NewVirtualMachine(4).Option())
			require.NoError(t, err)
			defer l.Close()
			n, next, steps, known := 0, State{}, preparation{}, pauses{}
			for range 6 {
				before := n
				m := measurement{
					warmup: search.WarmBatches, warmupTime: search.WarmTime, steps: &steps, pauses: known,
					visit: search.Visit{Wanted: 10, Limit: 50 * ms},
				}
				require.NoError(t, m.run(t.Context(), l, func(context.Context, *Batch) error {
					time.Sleep(2 * ms)
					if n++; n == pauseAt {
						time.Sleep(270 * ms)
					}
					return nil
				}, next))
				batches = append(batches, n-before)
				next, known = m.reached, m.pauses
			}
		})
		return batches
	}
	without := visits(0)
	for at := 3; at < 60; at++ { // the first step that counts has nothing to be compared with
		require.Equal(t, without, visits(at), "a pause after %d batches", at)
	}
}

// visiting is a tuner whose samples take d each.
func visiting(t *testing.T, d time.Duration, opts ...Option) *tuner {
	t.Helper()
	src, err := newSource(slowly(d), append([]Option{NewVirtualMachine(4).Option()}, opts...))
	require.NoError(t, err)
	return &tuner{source: src, cpus: src.opts.machine.CPUs(), repeats: firstRepeats}
}

// There are four tries beyond the first ones of visits, and one more for two visits; a
// visit has two at most.
func TestTriesThatVisitsDoNotNeedAreLeftForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missed, asked := 0., 0
		tn := visiting(t, ms, WithBatchSize(1), misses(&missed, &asked, 0).Option())
		tries := func(round int) int {
			asked = 0
			_, ok, err := tn.visit(t.Context(), search.Request{Round: round, Iterations: 4})
			require.NoError(t, err)
			require.True(t, ok)
			return asked
		}
		for round := range 8 {
			require.Equal(t, 1, tries(round), "the first says that nothing was missed")
		}
		missed = 1
		var got []int
		for round := range 9 {
			got = append(got, tries(8+round))
		}
		require.Equal(t, []int{2, 2, 2, 2, 2, 0, 1, 0, 1}, got)
		require.NoError(t, tn.live.Close())
	})
}

// In order, a visit begins with as many batches ahead as the last one to its count ended with.
// Without order each begins with the fewest: workers that all have something to claim load faster
// at first than in a long run.
func TestHowManyBatchesAheadAVisitBeginsWith(t *testing.T) {
	for name, opts := range map[string][]Option{"in order": nil, "without order": {WithUnordered()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tn *tuner
				var begin atomic.Int32 // extra batches when the visit loaded its first sample; -1: it hasn't
				ds := NewDataset(1_000_000, []Field{{Name: "x", Type: Float32}}, func(_ context.Context, i int, _ *Sample) error {
					begin.CompareAndSwap(-1, int32(tn.live.deep.Extra()))
					if time.Sleep(ms); i%50 == 0 {
						time.Sleep(100 * ms)
					}
					return nil
				})
				src, err := newSource(ds, append(opts, NewVirtualMachine(4).Option(), WithBatchSize(8)))
				require.NoError(t, err)
				tn = &tuner{source: src, cpus: src.opts.machine.CPUs()}
				var begins, ends []int
				for round := range 3 {
					begin.Store(-1)
					_, _, err := tn.visit(t.Context(), search.Request{Round: round, Workers: 8, Iterations: 50})
					require.NoError(t, err)
					begins, ends = append(begins, int(begin.Load())), append(ends, tn.live.deep.Extra())
					require.Positive(t, ends[round])
				}
				if name == "in order" {
					require.Equal(t, []int{0, ends[0], ends[1]}, begins)
				} else {
					require.Equal(t, []int{0, 0, 0}, begins)
				}
				require.NoError(t, tn.live.Close())
			})
		})
	}
}

// A visit waits for workers that no visit had before, and for no others.
func TestWorkersAreWarmedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := visiting(t, 20*ms, WithBatchSize(8))
		var took []time.Duration
		for round, workers := range []int{2, 4, 1, 4, 2, 4} {
			began := time.Now()
			_, _, err := tn.visit(t.Context(), search.Request{Round: round, Workers: workers, Iterations: 4})
			require.NoError(t, err)
			took = append(took, time.Since(began))
		}
		require.Less(t, took[3], took[1])
		require.Equal(t, took[3], took[5])
		require.NoError(t, tn.live.Close())
	})
}
