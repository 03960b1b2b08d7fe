package nwt

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/host"
)

// deepLoader has two workers and eight samples of 100 KiB in a batch, which costs 1.6 ms.
// Sample 0 isn't loaded before gate is closed.
func deepLoader(t *testing.T, gate chan struct{}, opts ...Option) *Loader {
	t.Helper()
	ds := NewDataset(800, []Field{{Name: "x", Type: Uint8, Shape: []int{100 << 10}}}, func(_ context.Context, i int, _ *Sample) error {
		if i == 0 && gate != nil {
			<-gate
		}
		time.Sleep(ms)
		return nil
	})
	l, err := NewLoader(ds, append([]Option{WithBatchSize(8), WithWorkers(2)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

const deepCost = 2 * 8 * 100 << 10 // of a batch of it, in nanoseconds

// "If workers stand idle while training waits, or has waited lately, time is lost."
func TestTimeIsLostWhileWorkersStandIdleAndTrainingWaits(t *testing.T) {
	for _, tt := range []struct {
		name             string
		awaiting, hungry bool
		sample           time.Duration // times eight is the work in a batch
		exhausted, lost  bool
	}{
		{"training waits", true, false, ms, true, true},
		{"it has waited lately", false, true, ms, true, true},
		{"it doesn't wait", false, false, ms, true, false},
		{"there is something to load", true, false, ms, false, false},
		{"a batch is 0.1 ms of work", true, false, 12500 * time.Nanosecond, true, true},
		{"a batch is less", true, false, 12499 * time.Nanosecond, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := deepLoader(t, nil)
				l.pace.perSample.Store(int64(tt.sample))
				l.ring.Reset(0)
				r := &run{l: l}
				r.awaiting.Store(tt.awaiting)
				r.hungry.Store(tt.hungry)
				if !tt.exhausted {
					r.opening.Store(1)
				}
				l.deepening.Store(r)
				defer l.deepening.Store(nil)
				l.idle()
				require.Equal(t, tt.lost, l.deep.idleSince.Load() != 0)
				require.Equal(t, tt.lost, l.deep.timer.Stop(), "which asks for a batch once it is paid for")
			})
		})
	}
	l := deepLoader(t, nil)
	l.deep.idleSince.Store(1)
	require.NotPanics(t, l.paid, "the timer comes when the run is over")
}

func TestTheDepthFollowsNeedIfThereAreWorkersAndNothingFixesIt(t *testing.T) {
	require.True(t, deepLoader(t, nil, WithWorkers(1)).deepens())
	require.False(t, deepLoader(t, nil, WithWorkers(0)).deepens())
	require.False(t, deepLoader(t, nil, WithPrefetch(2)).deepens())
}

// "Once as much time is lost as it takes to fill new memory with a batch, one more batch is
// opened. An eighth of all time may be lost for free."
func TestABatchIsPaidForInLostTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := deepLoader(t, nil)
		d := &l.deep
		require.EqualValues(t, deepCost, d.owed.Load())
		lose := func(all, lost time.Duration) {
			time.Sleep(all - lost)
			if lost > 0 {
				d.idleSince.Store(l.now())
			}
			time.Sleep(lost)
			l.reckon()
			require.Zero(t, d.idleSince.Load())
		}
		lose(800*time.Microsecond, 800*time.Microsecond)
		require.EqualValues(t, deepCost-800_000, d.owed.Load())
		lose(400*time.Microsecond, 0)
		require.EqualValues(t, deepCost-750_000, d.owed.Load(), "an eighth is free")
		lose(500*time.Microsecond, 100*time.Microsecond)
		require.EqualValues(t, deepCost-800_000, d.owed.Load())
		lose(time.Second, 0)
		require.EqualValues(t, deepCost, d.owed.Load(), "what is free isn't saved up")
		lose(time.Second, time.Second)
		require.Zero(t, d.owed.Load(), "nor is what was lost")
		d.quadrupled = 2
		require.EqualValues(t, 16*deepCost, l.depthCosts(), "the price has quadrupled twice")
	})
}

// A batch can be had unless it would never be used, or nothing is to be gained by it.
func TestOneMoreBatchIsOpenedOnceItIsPaidFor(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(l *Loader, r *run)
		opened  bool
		after   func(t *testing.T, d *depth)
	}{
		{"it is paid for", nil, true, func(t *testing.T, d *depth) {
			require.EqualValues(t, 1, d.extra.Load())
			require.EqualValues(t, deepCost, d.owed.Load())
		}},
		{"the run is halted", func(_ *Loader, r *run) { r.halted = true }, false, nil},
		{"the stream has ended", func(_ *Loader, r *run) {
			r.sequence = &sequence{}
			r.sequence.ended.Store(true)
		}, false, nil},
		{"the epoch has no more", func(_ *Loader, r *run) { r.opened = r.course.len() }, false, nil},
		{"there are places to load", func(_ *Loader, r *run) { r.opening.Add(1) }, false, nil},
		{"the depth is fixed", func(l *Loader, _ *run) { l.opts.prefetch = 2 }, false, nil},
		{"memory fell short", func(l *Loader, _ *run) { l.deep.memoryShort = true }, false, nil},
		{"there is no memory for more", func(l *Loader, _ *run) { l.deep.bound = func() int32 { return 0 } }, false, nil},
		{"there is memory for one", func(l *Loader, _ *run) { l.deep.bound = func() int32 { return 1 } }, true, nil},
		{"it isn't paid for", func(l *Loader, _ *run) { l.deep.owed.Store(deepCost) }, false, func(t *testing.T, d *depth) {
			require.Equal(t, d.reckoned, d.idleSince.Load())
			require.True(t, d.timer.Stop(), "it will be")
		}},
		{"extra batches are withheld", func(l *Loader, _ *run) { l.deep.check.withheld = 1 }, false, func(t *testing.T, d *depth) {
			require.True(t, d.check.missed)
		}},
		{"none can be had beside one", func(l *Loader, _ *run) {
			l.deep.extra.Store(1)
			l.away.Store(maxAway)
		}, false, func(t *testing.T, d *depth) {
			require.EqualValues(t, 1, d.extra.Load())
		}},
		{"none can be had", func(l *Loader, _ *run) { l.away.Store(maxAway) }, false, func(t *testing.T, d *depth) {
			require.True(t, d.memoryShort)
			require.EqualValues(t, 0, d.extra.Load())
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				l := deepLoader(t, gate)
				r, err := l.begin(t.Context(), 0, 0, 0)
				require.NoError(t, err)
				r.turn.Lock()
				require.NoError(t, r.open())
				time.Sleep(time.Second)
				synctest.Wait() // all but sample 0 is loaded
				r.awaiting.Store(true)
				opened, opening := r.opened, r.opening.Load()
				defer func() {
					if r.opened >= r.course.len() {
						r.opened = opened
						r.opening.Store(opening)
					}
					r.halted, r.sequence = false, nil
					l.away.Store(0)
					r.awaiting.Store(false)
					r.turn.Unlock()
					close(gate)
					r.end()
				}()
				l.deep.owed.Store(0)
				l.deep.reckoned = l.now()
				if tt.prepare != nil {
					tt.prepare(l, r)
				}
				before := r.opened
				r.deepen()
				require.Equal(t, tt.opened, r.opened == before+1)
				if tt.after != nil {
					tt.after(t, &l.deep)
				}
			})
		})
	}

	synctest.Test(t, func(t *testing.T) {
		l := deepLoader(t, nil)
		r, err := l.begin(t.Context(), 0, 0, 0)
		require.NoError(t, err)
		defer r.end()
		r.turn.Lock()
		defer r.turn.Unlock()
		require.NoError(t, r.open())
		time.Sleep(time.Second)
		l.deep.owed.Store(0)
		l.deep.reckoned = l.now()
		opened := r.opened
		r.awaiting.Store(true)
		r.deepen()
		require.Equal(t, opened, r.opened, "the batch that training waits for is there")
		r.awaiting.Store(false)
		r.deepen()
		require.Equal(t, opened+1, r.opened, "training has waited lately")
	})
}

// leftMemory is a machine with so much memory left.
type leftMemory struct {
	*VirtualMachine
	bytes uint64
}

func (m leftMemory) Available() host.Room {
	if m.bytes == 0 {
		return host.Room{}
	}
	return host.Room{Bytes: m.bytes, Of: "the machine"}
}

// "Within 1 GiB and an eighth of the memory left", which ranks share.
func TestExtraBatchesKeepToTheirMemory(t *testing.T) {
	for _, tt := range []struct {
		left  uint64
		ranks int
		shape int
		want  int
	}{
		{0, 1, 1 << 20, 128},                 // not known
		{1 << 40, 1, 1 << 20, 128},           // 1 GiB of batches of 8 MiB
		{256 << 20, 1, 1 << 20, 4},           // an eighth of 256 MiB
		{256 << 20, 2, 1 << 20, 2},           // half of that
		{8 << 20, 1, 1 << 20, 0},             // not even one
		{1 << 40, 1, 1, maxPrefetch + 1 - 3}, // the ring has no more places
	} {
		ds := NewDataset(800, []Field{{Name: "x", Type: Uint8, Shape: []int{tt.shape}}}, func(context.Context, int, *Sample) error { return nil })
		l, err := NewLoader(ds, WithBatchSize(8), WithWorkers(2), func(o *options) error {
			o.machine = leftMemory{NewVirtualMachine(4), tt.left}
			o.log = slog.New(slog.DiscardHandler)
			o.launcher = &Rank{LocalWorld: tt.ranks}
			return nil
		})
		require.NoError(t, err)
		require.EqualValues(t, tt.want, l.mostExtra(), "%+v", tt)
		require.NoError(t, l.Close())
	}
}

// What a count has needed says nothing of the next: the first visit to a count begins with
// the fewest.
func TestAResetMakesTheDepthTheFewestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := deepLoader(t, nil)
		d := &l.deep
		l.setExtra(5)
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		require.Greater(t, l.Stats().Slots, 3)
		d.idleSince.Store(3)
		d.owed.Store(1)
		d.quadrupled, d.memoryShort, d.check.withheld, d.check.missed, d.late, d.windows, d.sinceCheck, d.checkEvery = 3, true, 4, false, 0.5, 6, 7, 32
		d.window.batches, d.window.began, d.window.waited, d.window.drained = 9, 1, 1, true
		d.calm = 192
		l.counters.wait.Store(int64(time.Second))
		l.resetDepth(0)
		require.Zero(t, d.calm)
		require.Equal(t, 3, l.depth())
		require.Equal(t, 3, l.Stats().Slots, "the memory of the others is given back at once")
		require.EqualValues(t, []int64{0, 0, deepCost}, []int64{int64(d.extra.Load()), d.idleSince.Load(), d.owed.Load()})
		require.Equal(t, []any{0, false, int32(0), 0.0, 0, 0, depthCheckOften}, []any{d.quadrupled, d.memoryShort, d.check.withheld, d.late, d.windows, d.sinceCheck, d.checkEvery})
		require.Equal(t, []any{0, l.now(), int64(time.Second), false}, []any{d.window.batches, d.window.began, d.window.waited, d.window.drained})
	})
}

// "If half of what is open was ready whenever training asked, during windows that have 256
// batches together, half of the extra batches are given back, and so on after each window
// until one in which it wasn't. If training waits in spite of extra batches, a
// check shows now and then whether they pay: half of them are withheld for a window. If
// training waits longer than bearable, they pay, and come into use again. If not, their
// memory is given back, and half of the rest is checked. If workers stood idle for the price
// of a batch meanwhile, the price quadruples."
func TestExtraBatchesAreWeighedWindowByWindow(t *testing.T) {
	type state struct {
		extra, withheld int32
		dear            int
		apart           int
		unchecked       int
	}
	for _, tt := range []struct {
		name      string
		before    state
		drained   bool
		missed    bool
		pays      bool
		lately    float64
		after     state
		beginning int // windows before
		calm      int // batches of the last of them
	}{
		{"half was always ready, for 256 batches", state{9, 0, 1, 32, 3}, false, false, false, 1, state{4, 0, 1, 8, 4}, 3, 192},
		{"for one fewer", state{9, 0, 1, 32, 3}, false, false, false, 1, state{9, 0, 1, 8, 4}, 2, 191},
		{"none was extra", state{0, 0, 1, 32, 3}, false, false, false, 1, state{0, 0, 1, 8, 4}, 3, 192},
		{"and goes on to be", state{9, 0, 1, 32, 3}, false, false, false, 1, state{4, 0, 1, 8, 4}, 9, 600},
		{"it wasn't", state{9, 0, 1, 32, 3}, true, false, false, 1, state{9, 0, 1, 32, 4}, 3, 192},
		{"the time of a check", state{9, 0, 1, 8, 8}, true, false, false, 0.2, state{4, 5, 1, 8, 0}, 0, 0},
		{"not yet", state{9, 0, 1, 8, 7}, true, false, false, 0.2, state{9, 0, 1, 8, 8}, 0, 0},
		{"training doesn't wait", state{9, 0, 1, 8, 8}, true, false, false, 1. / 8, state{9, 0, 1, 8, 9}, 0, 0},
		{"the withheld pay", state{4, 5, 1, 8, 0}, true, false, true, 1, state{9, 0, 0, 32, 1}, 0, 0},
		{"they pay and are cheap", state{4, 5, 0, 64, 0}, true, true, true, 1, state{9, 0, 0, 128, 1}, 0, 0},
		{"they don't pay", state{4, 5, 1, 32, 0}, true, false, false, 1, state{2, 2, 1, 8, 0}, 0, 0},
		{"nor were they wanted", state{5, 1, 1, 32, 0}, false, false, false, 1, state{2, 3, 1, 8, 0}, 0, 0},
		{"they don't pay, and were paid for", state{4, 5, 1, 32, 0}, true, true, false, 1, state{2, 2, 2, 8, 0}, 0, 0},
		{"the price is the highest", state{4, 5, depthDearest, 32, 0}, true, true, false, 1, state{2, 2, depthDearest, 8, 0}, 0, 0},
		{"the price is forgotten", state{9, 0, 2, 32, 0}, true, false, false, 1, state{9, 0, 1, 32, 1}, 63, 0},
		{"it is the least", state{9, 0, 0, 32, 0}, true, false, false, 1, state{9, 0, 0, 32, 1}, 127, 0},
		{"it isn't yet", state{9, 0, 2, 32, 0}, true, false, false, 1, state{9, 0, 2, 32, 1}, 62, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := deepLoader(t, nil)
				d := &l.deep
				l.setExtra(tt.before.extra)
				d.check.withheld, d.quadrupled, d.checkEvery, d.sinceCheck = tt.before.withheld, tt.before.dear, tt.before.apart, tt.before.unchecked
				d.window.drained, d.check.missed, d.late, d.windows, d.calm, d.memoryShort = tt.drained, tt.missed, tt.lately, tt.beginning, tt.calm, true
				d.window.batches, d.window.began, d.window.waited = 64, l.now(), 0
				time.Sleep(1024 * ms)
				l.counters.wait.Store(int64(128 * ms))
				l.endWindow(tt.pays)
				require.Equal(t, tt.after, state{d.extra.Load(), d.check.withheld, d.quadrupled, d.checkEvery, d.sinceCheck})
				require.Equal(t, []any{tt.beginning + 1, false, false, 0, l.now(), int64(128 * ms), false}, []any{d.windows, d.memoryShort, d.check.missed, d.window.batches, d.window.began, d.window.waited, d.window.drained})
				if tt.drained || tt.before.extra == 0 {
					require.Zero(t, d.calm)
				} else {
					require.Equal(t, tt.calm+64, d.calm)
				}
				if tt.before.withheld == 0 && d.check.withheld > 0 {
					require.Equal(t, 3*ms, time.Duration(d.check.bearable), "2 ms per batch as before, and a sixteenth of 16 ms")
				}
			})
		})
	}
}

func TestAWindowHasTwiceAsManyBatchesAsAreOpen(t *testing.T) {
	for _, tt := range []struct {
		name     string
		open     int
		withheld int32
		waited   time.Duration // of the window, before its batches
		bearable time.Duration
		want     int // batches of the window
	}{
		{"the least", 3, 0, 0, 0, 64},
		{"many are open", 40, 0, 0, 0, 80},
		{"the withheld pay", 3, 1, 64*ms + 1, ms, 1},
		{"what can be borne", 3, 1, 64 * ms, ms, 64},
		{"none is withheld", 3, 0, time.Second, ms, 64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := deepLoader(t, nil)
			d := &l.deep
			r := &run{l: l, course: newCourse(&l.order, 0, 0, 0), ahead: make([]uint64, tt.open)}
			d.check.withheld, d.check.bearable = tt.withheld, int64(tt.bearable)
			l.counters.wait.Store(int64(tt.waited))
			n := 0
			for d.windows == 0 && n < 1000 {
				r.watchDepth()
				n++
			}
			require.Equal(t, tt.want, n)
		})
	}

	l := deepLoader(t, nil)
	r := &run{l: l, course: newCourse(&l.order, 0, 0, 0)}
	r.opened = r.course.len()
	r.watchDepth()
	require.Equal(t, 1, l.deep.window.batches, "an epoch's last batches count, too")
	l = deepLoader(t, nil, WithPrefetch(2))
	(&run{l: l}).watchDepth()
	require.Zero(t, l.deep.window.batches, "the depth is fixed")
}

// late is the share of the last batches that weren't loaded when training asked.
func TestTrainingCountsAsWaitingOnceItHasWaitedForAnEighth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		l := deepLoader(t, gate)
		d := &l.deep
		r, err := l.begin(t.Context(), 0, 0, 0)
		require.NoError(t, err)
		r.turn.Lock()
		require.NoError(t, r.open())
		ahead := r.ahead
		defer func() {
			r.ahead, r.taken = ahead, 0
			r.turn.Unlock()
			close(gate)
			r.end()
		}()
		time.Sleep(time.Second) // all but sample 0 is loaded
		late, loaded := ahead[0], ahead[1]
		r.taken = l.leastDepth() - 1
		r.watchDepth()
		require.Zero(t, d.late, "training waits for loading to begin")
		r.taken++
		for want := 0.0; want <= depthLate; {
			require.False(t, r.hungry.Load())
			r.watchDepth()
			want += (1 - want) / 32
			require.InDelta(t, want, d.late, 1e-9)
		}
		require.True(t, r.hungry.Load())

		before := d.late
		r.ahead = []uint64{loaded, late}
		r.watchDepth()
		require.InDelta(t, before*31/32, d.late, 1e-9)
		require.False(t, d.window.drained, "there are no extra batches")
		d.extra.Store(1)
		r.ahead = []uint64{loaded, late, loaded, late}
		r.watchDepth()
		require.False(t, d.window.drained, "half of what is open is ready")
		r.ahead = []uint64{loaded, loaded, late, loaded}
		r.watchDepth()
		require.True(t, d.window.drained)
	})
}
