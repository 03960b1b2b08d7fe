package nwt_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

// A trainer is a training program with a stream of its own: its step copies a
// batch elsewhere on the device, where it can be looked at later.
type trainer struct {
	t      *testing.T
	gpu    cudatest.Driver
	dev    *cuda.Device
	stream cudatest.Stream
	seen   uintptr // all that its steps have read, one after the other
	size   int
	events []uintptr
}

func newTrainer(t *testing.T, gpu cudatest.Driver, room int) *trainer {
	t.Helper()
	dev, err := cuda.Open(0)
	require.NoError(t, err)
	seen, err := dev.Alloc(room)
	require.NoError(t, err)
	return &trainer{t: t, gpu: gpu, dev: dev, stream: gpu.OpenStream(gpu.Primary(0)), seen: seen}
}

// step queues a step on a batch, which waits for the batch's copy.
func (p *trainer) step(b *nwt.Batch) {
	p.stream.Wait(b.Event())
	for f := range 2 {
		n := len(b.Bytes(f))
		p.stream.Copy(p.seen+uintptr(p.size), b.DevicePtr(f), n)
		p.size += n
	}
}

// record returns an event that stands for all steps so far.
func (p *trainer) record() uintptr {
	ev, err := p.dev.NewEvent()
	require.NoError(p.t, err)
	p.events = append(p.events, ev)
	p.stream.Record(ev)
	return ev
}

// end waits for the steps and returns what they have read.
func (p *trainer) end() []byte {
	p.stream.Close()
	seen := p.gpu.Read(p.t, p.seen, p.size)
	require.NoError(p.t, p.dev.Free(p.seen))
	for _, ev := range p.events {
		require.NoError(p.t, p.dev.FreeEvent(ev))
	}
	return seen
}

// releases are how a program can tell when it is done with a batch.
var releases = map[string]func(p *trainer, b *nwt.Batch){
	"after an event":  func(p *trainer, b *nwt.Batch) { b.ReleaseAfterEvent(p.record()) },
	"after a stream":  func(p *trainer, b *nwt.Batch) { b.ReleaseAfterStream(uintptr(p.stream)) },
	"the latest word": func(p *trainer, b *nwt.Batch) { b.ReleaseAfterStream(1); b.ReleaseAfterEvent(p.record()) },
}

func TestStepsThatReadLateReadTheirBatches(t *testing.T) {
	for how, release := range releases {
		for _, async := range []bool{false, true} {
			for _, workers := range []int{0, 3} {
				t.Run(fmt.Sprintf("%s, async %v, %d workers", how, async, workers), func(t *testing.T) {
					gpu := cudatest.Load(t)
					p := newTrainer(t, gpu, 1<<20)
					l := newLoader(t, augmented(101), deviceOptions(t, workers, async)...)
					var want []byte
					promptly(t, func() {
						for b, err := range l.Epochs(t.Context(), 0, 2) {
							require.NoError(t, err)
							want = append(want, samples(b)...)
							p.step(b)
							release(p, b)
						}
						require.NoError(t, l.Close(), "frees what the steps may still be reading")
					})
					require.Equal(t, want, p.end())
				})
			}
		}
	}
}

// lateStep runs an epoch whose first two steps read their batches only after the
// loader has had the time to copy all that it may.
func lateStep(t *testing.T, release func(p *trainer, b *nwt.Batch)) (want, seen []byte) {
	gpu := cudatest.Load(t)
	p := newTrainer(t, gpu, 1<<20)
	l := newLoader(t, augmented(6*7), deviceOptions(t, 2, true)...)
	p.stream.Hold()
	promptly(t, func() {
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			want = append(want, samples(b)...)
			p.step(b)
			if release != nil {
				release(p, b)
			}
			if b.Index() != 1 {
				continue
			}
			if release == nil { // two batches more, and one of them over the first
				require.Eventually(t, func() bool { return l.Stats().Copied == 4 }, time.Minute, time.Millisecond)
			} else {
				time.Sleep(10 * time.Millisecond)
				require.Less(t, l.Stats().Copied, 4)
			}
			p.stream.Go()
		}
		if release != nil {
			require.NoError(t, l.Close())
		}
	})
	seen = p.end()
	require.NoError(t, l.Close())
	return want, seen
}

func TestWhatIsQueuedOnABatchIsOverwrittenUnlessTheLoaderIsTold(t *testing.T) {
	want, seen := lateStep(t, nil)
	require.NotEqual(t, want, seen)
	for how, release := range releases {
		t.Run(how, func(t *testing.T) {
			want, seen := lateStep(t, release)
			require.Equal(t, want, seen)
		})
	}
}

func TestAnAsynchronousBatchIsThereOnlyWhenItsEventHasCome(t *testing.T) {
	gpu := cudatest.Load(t)
	gpu.Delay(5 * time.Millisecond)
	l := newLoader(t, augmented(70), deviceOptions(t, 2, true)...)
	early := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if !bytes.Equal(samples(b), arrived(t, gpu, b)) {
			early++
		}
	}
	require.Positive(t, early)
}

func TestAProgramThatOnlyQueuesStepsNeedsNoMoreMemory(t *testing.T) {
	gpu := cudatest.Load(t)
	p := newTrainer(t, gpu, 1<<20)
	l := newLoader(t, augmented(7*500), append(deviceOptions(t, 2, true), nwt.WithPrefetch(2))...)
	slots := 0
	promptly(t, func() {
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			p.step(b)
			b.ReleaseAfterStream(uintptr(p.stream))
			s := l.Stats()
			require.LessOrEqual(t, s.DeviceBytes, 3*s.SlotBytes/s.Slots)
			require.Zero(t, s.Retained)
			slots = max(slots, s.Slots)
		}
	})
	require.LessOrEqual(t, slots, 3+3, "the ring, and what is copied from")
	require.NoError(t, l.Close())
	p.end()
}

func TestTheSlotsOfAsynchronousCopiesAreUsedAgain(t *testing.T) {
	for _, workers := range []int{0, 2} {
		gpu := cudatest.Load(t)
		l := newLoader(t, augmented(7*300), deviceOptions(t, workers, true)...)
		calls := 0
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Index() == 50 {
				calls = gpu.Calls()
			}
		}
		require.LessOrEqual(t, gpu.Calls()-calls, 250*7+100, "seven calls a batch, and hardly an allocation")
		require.NoError(t, l.Close())
	}
}

func TestABatchCanBeRetainedUntilAStepHasReadIt(t *testing.T) {
	gpu := cudatest.Load(t)
	p := newTrainer(t, gpu, 1<<20)
	l := newLoader(t, augmented(7*40), deviceOptions(t, 2, true)...)
	var want []byte
	var releasing sync.WaitGroup
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		want = append(want, samples(b)...)
		p.step(b)
		b.ReleaseAfterEvent(p.record())
		b.Retain()
		releasing.Go(func() {
			time.Sleep(time.Duration(b.Index()%5) * 100 * time.Microsecond)
			b.Release()
		})
	}
	releasing.Wait()
	require.NoError(t, l.Close())
	require.Equal(t, want, p.end())
}

func TestReleasingAnAsynchronousBatchTwiceIsSeen(t *testing.T) {
	cudatest.Load(t)
	l := newLoader(t, augmented(70), deviceOptions(t, 2, true)...)
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.PanicsWithValue(t, fmt.Sprintf("nwt: Release of batch %d of epoch 0 without a Retain", b.Index()), b.Release)
	}
}

func TestTheDefaultStreamIsAStream(t *testing.T) {
	gpu := cudatest.Load(t)
	l := newLoader(t, augmented(70), deviceOptions(t, 0, false)...)
	calls := func(epoch int, release func(b *nwt.Batch)) int {
		before := gpu.Calls()
		for b, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			release(b)
		}
		return gpu.Calls() - before
	}
	calls(0, func(*nwt.Batch) {})
	plain := calls(1, func(*nwt.Batch) {})
	const pushRecordWaitPop = 4
	require.Equal(t, plain+9*pushRecordWaitPop, calls(2, func(b *nwt.Batch) { b.ReleaseAfterStream(0) }), "all batches but the first")
}
