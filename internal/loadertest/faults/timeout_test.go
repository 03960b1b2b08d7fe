package faults_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// requirePages checks an epoch sample by sample, and returns the samples' indices.
func requirePages(t *testing.T, l *nwt.Loader, epoch int) (all []int) {
	t.Helper()
	for b, err := range l.Epoch(t.Context(), epoch) {
		require.NoError(t, err)
		requirePagesOf(t, b)
		all = append(all, b.Indices()...)
	}
	return all
}

func requirePagesOf(t *testing.T, b *nwt.Batch) {
	t.Helper()
	for k, i := range b.Indices() {
		require.EqualValues(t, i, nwt.Values[int64](b, 0)[k])
		require.EqualValues(t, i%4, b.Lens(1, 0)[k])
		want := make([]int16, 4)
		for j := range i % 4 {
			want[j] = int16(i)
		}
		require.Equal(t, want, nwt.Values[int16](b, 1)[4*k:4*k+4])
	}
}

func TestACallThatWasGivenUpHarmsNobodyHoweverItEnds(t *testing.T) {
	for name, end := range map[string]func(dst *nwt.Sample){
		"returns": func(*nwt.Sample) {},
		"panics":  func(*nwt.Sample) { panic("too late") },
		"goexit":  func(*nwt.Sample) { runtime.Goexit() },
		"writes": func(dst *nwt.Sample) {
			nwt.Values[int64](dst, 0)[0] = -1
			dst.SetLen(1, 4)
		},
		"misuses": func(dst *nwt.Sample) { dst.SetLen(0, math.MaxInt) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				ds := &kit.Pages{N: 64, OnLoad: func(_ context.Context, i int, dst *nwt.Sample) error {
					if i%10 == 3 && dst.Epoch() == 0 {
						kit.Hold(t, release)
						end(dst)
					}
					return nil
				}}
				l := kit.NewLoader(t, nwt.NewDataset(64, ds.Fields(), ds.Load), nwt.WithBatchSize(8), nwt.WithWorkers(3), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(10), kit.Silent)
				require.Equal(t, kit.IndicesUpTo(64, 3, 13, 23, 33, 43, 53, 63), requirePages(t, l, 0))
				kept := requireKept(t, l)
				for epoch := 1; epoch < 20; epoch++ {
					if epoch == 5 {
						close(release)
					}
					require.Equal(t, kit.IndicesUpTo(64), requirePages(t, l, epoch))
				}
				synctest.Wait()
				kept()
				require.NoError(t, l.Close())
			})
		})
	}
}

// A keeper is a device that notes the memory that is given back.
type keeper struct {
	kit.Nowhere
	freed sync.Map // by address
}

func (k *keeper) FreeHost(mem []byte) error { k.freed.Store(&mem[0], true); return nil }

func TestACallThatWasGivenUpKeepsItsSlotUntilItReturns(t *testing.T) {
	for _, together := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			var slot atomic.Pointer[byte] // of the call that hangs
			var others atomic.Int32       // samples of other batches that are loaded there
			load := func(dst *nwt.Sample) {
				first := dst.Index()/8 == 0 && dst.Epoch() == 0
				if first && dst.Index() == 0 && slot.CompareAndSwap(nil, &dst.Bytes(0)[0]) {
					kit.Hold(t, release)
				} else if !first && &dst.Bytes(0)[0] == slot.Load() {
					others.Add(1)
				}
			}
			ds := &kit.Pages{N: 40, OnLoad: func(_ context.Context, _ int, dst *nwt.Sample) error { load(dst); return nil }}
			var pages nwt.Dataset = oneByOne{ds}
			if together {
				ds.OnLoadMany = func(_ context.Context, _ []int, dst []*nwt.Sample) error { load(dst[0]); return nil }
				pages = ds
			}
			k := &keeper{}
			l := kit.NewLoader(t, pages, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), nwt.WithDevice(k), kit.Silent)
			for epoch := range 5 {
				_, err := kit.Epoch(t.Context(), l, epoch)
				require.NoError(t, err)
			}
			require.NoError(t, l.Close())
			require.Zero(t, others.Load(), "other batches are loaded where the call may still write")
			_, freed := k.freed.Load(slot.Load())
			require.False(t, freed, "the call may still write")
			close(release)
			synctest.Wait()
			_, freed = k.freed.Load(slot.Load())
			require.True(t, freed)
		})
	}
}

// requireKept retains a batch, and checks later that nothing has changed it.
func requireKept(t *testing.T, l *nwt.Loader) (check func()) {
	for b, err := range l.Epoch(t.Context(), 1) {
		require.NoError(t, err)
		b.Retain()
		values, lens := slices.Clone(nwt.Values[int64](b, 0)), slices.Clone(b.Lens(1, 0))
		return func() {
			require.Equal(t, values, nwt.Values[int64](b, 0))
			require.Equal(t, lens, b.Lens(1, 0))
			b.Release()
		}
	}
	return nil
}

func TestAHungLoadManyKeepsItsSamplesAndIndices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var changed atomic.Int32
		var once sync.Once
		ds := &kit.Pages{N: 256, OnLoadMany: func(_ context.Context, indices []int, dst []*nwt.Sample) error {
			hang := false
			once.Do(func() { hang = true })
			if !hang {
				return nil
			}
			before := slices.Clone(indices)
			kit.Hold(t, release)
			for k, i := range before {
				if indices[k] != i || dst[k].Index() != i {
					changed.Add(1)
				}
				nwt.Values[int64](dst[k], 0)[0] = -1
				dst[k].SetLen(1, 4)
				indices[k] = -1
			}
			panic("too late")
		}}
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithShuffle(1), nwt.WithTimeout(time.Second), kit.Silent)
		for epoch := range 10 {
			if epoch == 5 {
				close(release)
			}
			got := requirePages(t, l, epoch)
			slices.Sort(got)
			require.Equal(t, kit.IndicesUpTo(256), got, "a LoadMany that hangs costs no sample")
		}
		synctest.Wait()
		require.Zero(t, changed.Load())
		require.NoError(t, l.Close())
	})
}

// Hung calls write while batches are moved out of their way and delivered, or given up
// with their epoch: the race detector sees it if they share anything.
func TestHungCallsMayGoOnWriting(t *testing.T) {
	for _, whole := range []bool{false, true} {
		for budget := range 2 {
			synctest.Test(t, func(t *testing.T) { writeOn(t, whole, budget) })
		}
	}
}

func writeOn(t *testing.T, whole bool, budget int) {
	var stop atomic.Bool
	var loose sync.WaitGroup
	loose.Add(1)
	if whole {
		loose.Add(1) // one LoadMany, one Load
	}
	hang := func(write func()) {
		defer loose.Done()
		for !stop.Load() && kit.Heed(t.Context(), time.Millisecond) == nil {
			write()
		}
	}
	ds := &kit.Pages{N: 64}
	ds.OnLoad = func(_ context.Context, i int, dst *nwt.Sample) error {
		if i == 21 && dst.Epoch() == 0 {
			hang(func() { kit.WritePage(255, dst); dst.SetLen(1, 4) })
		}
		return nil
	}
	ds.OnLoadMany = func(_ context.Context, indices []int, dst []*nwt.Sample) error {
		if dst[0].Epoch() == 0 && slices.Contains(indices, 21) {
			hang(func() {
				for k := range dst {
					kit.WritePage(255, dst[k])
					indices[k]++
				}
			})
		}
		return nil
	}
	var pages nwt.Dataset = ds
	if !whole {
		pages = oneByOne{ds}
	}
	l := kit.NewLoader(t, pages, nwt.WithBatchSize(8), nwt.WithWorkers(3), nwt.WithTimeout(5*time.Millisecond), nwt.WithErrorBudget(budget), nwt.WithRetry(0, 0), kit.Silent)
	for epoch := range 4 {
		var got []int
		for b, err := range l.Epoch(t.Context(), epoch) {
			if epoch == 0 && budget == 0 && err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				break
			}
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond) // the calls write
			requirePagesOf(t, b)
			got = append(got, b.Indices()...)
		}
		switch {
		case epoch > 0:
			require.Equal(t, kit.IndicesUpTo(64), got)
		case budget == 0:
			require.Equal(t, kit.IndicesUpTo(16), got)
		default:
			require.Equal(t, kit.IndicesUpTo(64, 21), got)
		}
	}
	stop.Store(true)
	loose.Wait()
}

func TestATimeoutIsForEachSampleOfALoadMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := &kit.Pages{N: 64, OnLoadMany: func(_ context.Context, indices []int, _ []*nwt.Sample) error {
			time.Sleep(time.Duration(len(indices)) * 20 * time.Millisecond)
			return nil
		}}
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(16), nwt.WithWorkers(1), nwt.WithTimeout(100*time.Millisecond))
		require.Equal(t, kit.IndicesUpTo(64), requirePages(t, l, 0))
		require.NoError(t, l.Close())
	})
}

func TestOfALoadManyThatHangsOnlyTheSampleThatHangsIsBad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		hang := func(bad bool) error {
			if bad {
				kit.Hold(t, release)
			}
			return nil
		}
		ds := &kit.Pages{N: 64,
			OnLoad: func(_ context.Context, i int, _ *nwt.Sample) error { return hang(i == 5 || i == 6) },
			OnLoadMany: func(_ context.Context, indices []int, _ []*nwt.Sample) error {
				return hang(slices.Contains(indices, 5))
			},
		}
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(16), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(2), kit.Silent)
		require.Equal(t, kit.IndicesUpTo(64, 5, 6), requirePages(t, l, 0))
		close(release)
		require.NoError(t, l.Close())
	})
}

// Whatever a LoadMany does with its indices, those of the batch stay.
func TestTheIndicesOfALoadManyAreItsOwn(t *testing.T) {
	ds := &kit.Pages{N: 64}
	ds.OnLoadMany = func(_ context.Context, indices []int, dst []*nwt.Sample) error {
		for k, i := range indices {
			kit.WritePage(i, dst[k])
		}
		clear(indices)
		return nil
	}
	l := kit.NewLoader(t, nwtBatches{ds}, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithShuffle(2))
	got := requirePages(t, l, 0)
	slices.Sort(got)
	require.Equal(t, kit.IndicesUpTo(64), got)
}

// nwtBatches loads with the function alone.
type nwtBatches struct{ *kit.Pages }

func (p nwtBatches) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	return p.OnLoadMany(ctx, indices, dst)
}

func TestNoTwoWorkersHaveANumberAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var mu sync.Mutex
		using := map[int]bool{}
		var twice []int
		ds := kit.Numbered(200, func(_ context.Context, i int, dst *nwt.Sample) error {
			mu.Lock()
			if using[dst.Worker()] {
				twice = append(twice, dst.Worker())
			}
			using[dst.Worker()] = true
			mu.Unlock()
			if i%20 == 7 && dst.Epoch() == 0 {
				kit.Hold(t, release)
			} else {
				time.Sleep(time.Millisecond)
			}
			mu.Lock()
			using[dst.Worker()] = false
			mu.Unlock()
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(3), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(10), kit.Silent)
		for epoch := range 4 {
			require.NoError(t, l.SetWorkers([]int{3, 2, 5, 1}[epoch]))
			_, err := kit.Values(t, l, epoch)
			require.NoError(t, err)
			if epoch == 2 {
				close(release)
			}
		}
		require.Empty(t, twice)
		require.NoError(t, l.Close())
		synctest.Wait()
	})
}

// A record belongs to the call that has it: reading on doesn't change it.
func TestAHungCallOfAStreamKeepsItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var changed atomic.Int32
		s := &hangingStream{Shelves: kit.NewShelves(50, 50, 50), load: func(r *nwt.Record, dst *nwt.Sample) {
			if dst.Index()%30 == 11 && dst.Epoch() == 0 {
				before := slices.Clone(r.Data)
				kit.Hold(t, release)
				if !slices.Equal(before, r.Data) {
					changed.Add(1)
				}
				r.Data = append(r.Data[:0], "too late, too late"...)
			}
		}}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(5), kit.Silent)
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		require.Len(t, got, 145)
		for epoch := 1; epoch < 8; epoch++ {
			if epoch == 6 {
				close(release)
			}
			got, err := kit.Values(t, l, epoch)
			require.NoError(t, err)
			slices.Sort(got)
			require.Equal(t, kit.UpTo(150), got)
		}
		synctest.Wait()
		require.Zero(t, changed.Load())
		require.NoError(t, l.Close())
	})
}

type hangingStream struct {
	*kit.Shelves
	load func(r *nwt.Record, dst *nwt.Sample)
}

func (s *hangingStream) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	s.load(r, dst)
	return s.Shelves.Load(ctx, r, dst)
}

// What a call of an epoch that was left has loaded elsewhere isn't part of the next epoch.
func TestALoopLeftWithSamplesLoadedElsewhereLeavesNoneOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ds := &kit.Pages{N: 64, OnLoadMany: func(ctx context.Context, indices []int, dst []*nwt.Sample) error {
			if dst[0].Epoch() == 0 && dst[0].Position() >= 8 {
				kit.Hold(t, release)
			}
			return nil
		}}
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithPrefetch(2), nwt.WithShuffle(1), nwt.WithTimeout(time.Second), kit.Silent)
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			time.Sleep(time.Hour)
			close(release) // a slot that a call has is given up whole
			synctest.Wait()
			break
		}
		require.ElementsMatch(t, kit.IndicesUpTo(64), requirePages(t, l, 1))
		require.NoError(t, l.Close())
	})
}

// The call may write to the batch's slot at any time, so the batch can't be delivered.
func TestABatchThatCannotBeMovedFromAHungCallIsAnError(t *testing.T) {
	for name, opts := range map[string][]nwt.Option{
		"plain":    nil,
		"finished": {nwt.WithBatchTransform(func(context.Context, *nwt.Batch) error { return nil })},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				ds := kit.Numbered(64, func(_ context.Context, i int, dst *nwt.Sample) error {
					if i == 13 && dst.Epoch() == 0 {
						kit.Hold(t, release)
					}
					return nil
				})
				dev := kit.NewFrugal(2, 3)
				l := kit.NewLoader(t, ds, append(opts, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithPrefetch(1), nwt.WithTimeout(time.Second),
					nwt.WithErrorBudget(1), nwt.WithDevice(dev), kit.Silent)...)
				batches, err := kit.Epoch(t.Context(), l, 0)
				require.Len(t, batches, 1)
				require.ErrorIs(t, err, kit.ErrFull)
				require.ErrorContains(t, err, "out of the way of a Load that hangs: nwt: 64 bytes of host memory for a batch")
				close(release)
				synctest.Wait()
				got, err := kit.Values(t, l, 1)
				require.NoError(t, err, "there is memory again")
				require.Len(t, got, 64)
				require.Zero(t, l.Stats().Retained)
				require.NoError(t, l.Close())
				require.EqualValues(t, 2, dev.Slots.Load())
			})
		})
	}
}

func TestTheMemoryOfSamplesLoadedElsewhereIsGivenBack(t *testing.T) {
	const batches, size = 16, 16 << 20
	synctest.Test(t, func(t *testing.T) {
		ds := &large{kit.Numbers(0, 8*batches), size / 8}
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithPrefetch(1), nwt.WithTimeout(time.Second), kit.Silent)
		before := mappedInLargePieces(t, size)
		samples := 0
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			samples += b.Len()
		}
		require.Equal(t, 8*batches, samples)
		synctest.Wait() // until the calls that were given up have returned
		require.Less(t, mappedInLargePieces(t, size), before+batches*size/2)
	})
}

// mappedInLargePieces returns the bytes of this process's mappings that can be written and
// have so many bytes at least; 0 where the system doesn't tell. Threads' stacks, and what
// the C library reserves for each thread, are none of these: how many threads there are
// is up to the scheduler.
func mappedInLargePieces(t *testing.T, least uint64) (bytes uint64) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		var may string
		_, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &may)
		require.NoError(t, err, line)
		if may == "rw-p" && to-from >= least {
			bytes += to - from
		}
	}
	return bytes
}

// large is a dataset whose samples have room for size bytes more. Its LoadMany hangs
// until it is given up.
type large struct {
	nwt.Dataset
	size int
}

func (d *large) Fields() []nwt.Field {
	return append(d.Dataset.Fields(), nwt.Field{Name: "room", Type: nwt.Uint8, Shape: []int{d.size}})
}

func (d *large) LoadMany(ctx context.Context, _ []int, _ []*nwt.Sample) error {
	<-ctx.Done()
	return ctx.Err()
}

// slowToClose is what Scratch keeps.
type slowToClose struct{}

func (slowToClose) Close() error { time.Sleep(time.Minute); return nil }

func TestOnlyLoadIsBoundedByATimeout(t *testing.T) {
	slow := func(is bool) {
		if is {
			time.Sleep(time.Minute)
		}
	}
	scratch := kit.Numbered(16, func(_ context.Context, i int, dst *nwt.Sample) error {
		_, err := nwt.Scratch(dst, func() (slowToClose, error) { return slowToClose{}, nil })
		if i == 9 {
			panic(kit.ErrBoom)
		}
		return err
	})
	for name, c := range map[string]struct {
		ds  nwt.Dataset
		opt nwt.Option
		bad []int
	}{
		"sampler":    {ds: kit.EmptyDataset(16), opt: nwt.WithSampler(kit.SamplerFunc{N: 16, Order: func(_, i int) int { slow(i == 9); return i }})},
		"Sizes":      {ds: kit.Words{N: 16, Tell: func(i int, sizes []int) { slow(i == 9); kit.Words{}.Sizes(i, sizes) }}, opt: kit.Silent},
		"WorkerInit": {ds: kit.EmptyDataset(16), opt: nwt.WithWorkerInit(func(context.Context, int) error { slow(true); return nil })},
		"Finish":     {ds: kit.EmptyDataset(16), opt: nwt.WithBatchTransform(func(_ context.Context, b *nwt.Batch) error { slow(b.Number() == 1); return nil })},
		"Scratch":    {ds: scratch, opt: kit.Silent, bad: []int{9}},
	} {
		for _, workers := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				l := kit.NewLoader(t, c.ds, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(16), kit.Silent, c.opt)
				var got []int
				for b, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					got = append(got, b.Indices()...)
				}
				require.Equal(t, kit.IndicesUpTo(16, c.bad...), got, name)
				require.NoError(t, l.Close())
			})
		}
	}
}

// A cache lends the sample to the dataset beneath it while the watchdog looks at the
// worker: the race detector sees it if they share anything.
func TestACallThatHangsBeneathACacheIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := kit.Numbered(40, func(ctx context.Context, i int, _ *nwt.Sample) error {
			if i%10 == 3 {
				<-ctx.Done()
				_ = kit.Heed(t.Context(), time.Second)
			}
			return ctx.Err()
		})
		l := kit.NewLoader(t, nwt.Cached(slow, 1<<20), nwt.WithBatchSize(8), nwt.WithWorkers(3), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(4), kit.Silent)
		for epoch := range 3 {
			got, err := kit.Values(t, l, epoch)
			require.NoError(t, err)
			require.Equal(t, kit.UpTo(40, 3, 13, 23, 33), got)
		}
		require.NoError(t, l.Close())
	})
}

// hangsUntil is 64 pages, of which some hang until release is closed.
func hangsUntil(t *testing.T, release chan struct{}, pages ...int) *kit.Pages {
	return &kit.Pages{N: 64, OnLoadMany: func(_ context.Context, indices []int, _ []*nwt.Sample) error {
		if slices.ContainsFunc(indices, func(i int) bool { return slices.Contains(pages, i) }) {
			kit.Hold(t, release)
		}
		return nil
	}}
}

func TestALoadManyThatHangsIsLoggedWithItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ds := hangsUntil(t, release, 5, 40)
		var log kit.Journal
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(16), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), log.Option())
		_, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		synctest.Wait() // the watchdog logs
		require.Equal(t, 2, strings.Count(log.String(), "(LoadMany) failed: "))
		require.Contains(t, log.String(), `error="no answer within WithTimeout(1s): context deadline exceeded"`)
		close(release)
		require.NoError(t, l.Close())
	})
}

// slowJournal is a log that takes its time.
type slowJournal struct{ kit.Journal }

func (j *slowJournal) Write(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return j.Journal.Write(p)
}

func TestALoadManyThatHangsIsToldOfThoughTheEpochEndsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ds := hangsUntil(t, release, 5)
		var log slowJournal
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(16), nwt.WithWorkers(2), nwt.WithTimeout(time.Second),
			nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.Equal(t, kit.IndicesUpTo(64), requirePages(t, l, 0)) // while it is logged
		close(release)
		require.NoError(t, l.Close())
		require.Contains(t, log.String(), "(LoadMany) failed:")
	})
}

func TestACallThatWasGivenUpIsToldSoByItsContextWhileTheEpochGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause atomic.Value
		ds := kit.Numbered(64, func(ctx context.Context, i int, _ *nwt.Sample) error {
			if i == 5 {
				<-ctx.Done()
				cause.Store(context.Cause(ctx))
			}
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), kit.Silent)
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			synctest.Wait()
			if b.Number() == 1 {
				require.ErrorContains(t, cause.Load().(error), "no answer within WithTimeout(1s)")
			}
		}
		require.NoError(t, l.Close())
	})
}

func TestTheNumberOfACallThatHasReturnedIsTakenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var most atomic.Int32
		ds := kit.Numbered(16, func(_ context.Context, i int, dst *nwt.Sample) error {
			most.Store(max(most.Load(), int32(dst.Worker())))
			if i == 5 {
				_ = kit.Heed(t.Context(), 1500*time.Millisecond)
			}
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), kit.Silent)
		for epoch := range 10 {
			got, err := kit.Values(t, l, epoch)
			require.NoError(t, err)
			require.Len(t, got, 15)
			time.Sleep(time.Second)
		}
		require.EqualValues(t, 2, most.Load(), "two workers, and one that goes on for a call that was given up")
		require.NoError(t, l.Close())
	})
}

func TestCallsThatNeverReturnEndTheEpochBeforeTheyTakeTheMemory(t *testing.T) {
	for _, hanging := range []int{1023, 1024} {
		t.Run(fmt.Sprint(hanging), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				ds := kit.Numbered(4000, func(_ context.Context, i int, _ *nwt.Sample) error {
					if i < hanging {
						kit.Hold(t, release)
					}
					return nil
				})
				l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(64), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(4000), kit.Silent)
				got, err := kit.Values(t, l, 0)
				if hanging == 1023 {
					require.NoError(t, err)
					require.Len(t, got, 4000-1023)
				} else {
					require.ErrorContains(t, err, "1024 calls that WithTimeout(1s) gave up haven't returned, the bound is 1024")
				}
				close(release)
				synctest.Wait()
				got, err = kit.Values(t, l, 1)
				require.NoError(t, err, "they have returned")
				require.Len(t, got, 4000)
				require.NoError(t, l.Close())
			})
		})
	}
}

func TestWhatHangsAfterAPauseIsGivenUpToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := kit.Numbered(64, func(ctx context.Context, i int, _ *nwt.Sample) error {
			if i == 60 {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Millisecond), nwt.WithErrorBudget(1), kit.Silent)
		for epoch := range 2 {
			n := 0
			for b, err := range l.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
				n += b.Len()
				time.Sleep(10 * time.Second)
			}
			require.Equal(t, 63, n)
			time.Sleep(10 * time.Second)
		}
	})
}

func TestACloseWithinLoadIsNamedAfterFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log kit.Journal
		var l *nwt.Loader
		closes := kit.Loads(64, func(ctx context.Context, i int, _ *nwt.Sample) error {
			if i == 13 {
				closed := make(chan struct{})
				go func() { _ = l.Close(); close(closed) }() // so that the test can end
				select {
				case <-closed:
				case <-time.After(time.Minute):
				}
			}
			return nil
		})
		l = kit.NewLoader(t, closes, nwt.WithBatchSize(4), nwt.WithWorkers(2), log.Option())
		var last error
		for _, err := range l.Epoch(t.Context(), 0) {
			last = err
			time.Sleep(2 * time.Minute)
		}
		require.ErrorIs(t, last, nwt.ErrClosed)
		require.Contains(t, log.String(), "Load must not call Close")
	})
}

func TestALoadThatIgnoresItsContextIsToldOfAfterFiveSeconds(t *testing.T) {
	for name, end := range map[string]func(l *nwt.Loader, cancel func()) (leave bool){
		"break":  func(*nwt.Loader, func()) bool { return true },
		"cancel": func(_ *nwt.Loader, cancel func()) bool { cancel(); return false },
		"Close":  func(l *nwt.Loader, _ func()) bool { _ = l.Close(); return false },
	} {
		for _, takes := range []time.Duration{4 * time.Second, 20 * time.Second} {
			for _, opt := range []nwt.Option{kit.Silent, nwt.WithTimeout(time.Hour)} {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					var log kit.Journal
					l := kit.NewLoader(t, kit.Late(64, 13, takes), nwt.WithBatchSize(4), nwt.WithWorkers(2), opt, log.Option())
					for b, err := range l.Epoch(ctx, 0) {
						if err != nil {
							continue
						}
						time.Sleep(time.Second)
						if b.Number() == 2 && end(l, cancel) {
							break
						}
					}
					if takes < 5*time.Second {
						require.Empty(t, log.String(), name)
						return
					}
					require.Equal(t, 1, strings.Count(log.String(), "\n"), name)
					require.Contains(t, log.String(), "a call of Load is still running", name)
					require.Contains(t, log.String(), "epoch=0", name)
				})
			}
		}
	}
}
