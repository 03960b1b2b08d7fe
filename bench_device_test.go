package nwt_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/device"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

// BenchmarkStage is what a batch of one field costs where there is nothing to
// load and nothing to copy: to the host, to a device that does nothing, and to
// the fake driver, whose calls by themselves are "calls". The stage's own
// overhead is what a device that does nothing costs more than the host.
func BenchmarkStage(b *testing.B) {
	gpu := cudatest.Load(b)
	gpu.Inline()
	for _, workers := range []int{0, 1, 2} {
		for _, dev := range []nwt.Device{nwt.Host(), nowhere{}, gpu0(b)} {
			b.Run(fmt.Sprintf("workers=%d/to=%.4s", workers, dev), func(b *testing.B) {
				opts := []nwt.Option{nwt.WithBatchSize(16), nwt.WithWorkers(workers), nwt.WithDevice(dev)}
				l := newLoader(b, emptyDataset(1<<30), opts...)
				calls := 0
				deliver(b, l, 100, b.N, func(n int, _ *nwt.Batch) {
					if n == 0 {
						calls = gpu.Calls()
						b.ReportAllocs()
						b.ResetTimer()
					}
				})
				b.ReportMetric(float64(gpu.Calls()-calls)/float64(b.N), "calls/op")
			})
		}
	}
	b.Run("calls", func(b *testing.B) {
		l := newBareLoop(b, 64)
		for b.Loop() {
			l.runLikeAStage(b)
		}
	})
}

// deliver takes warmup batches and n more, and calls f with the number of each
// from −warmup+1 on: with 0 when the first that counts is asked for next.
func deliver(b *testing.B, l *nwt.Loader, warmup, n int, f func(n int, batch *nwt.Batch)) {
	b.Helper()
	i := -warmup
	for batch, err := range l.Epochs(b.Context(), 0, 1<<30) {
		if err != nil {
			b.Fatal(err)
		}
		if i++; i <= n {
			f(i, batch)
		}
		if i == n {
			break
		}
	}
}

// nowhere is a device that does nothing.
type nowhere struct{}

func (nowhere) String() string                    { return "null" }
func (nowhere) AllocHost(n int) ([]byte, error)   { return make([]byte, n), nil }
func (nowhere) FreeHost([]byte) error             { return nil }
func (nowhere) Alloc(int) (uintptr, error)        { return 1, nil }
func (nowhere) Free(uintptr) error                { return nil }
func (nowhere) NewEvent() (uintptr, error)        { return 1, nil }
func (nowhere) FreeEvent(uintptr) error           { return nil }
func (nowhere) Open() (device.Session, error)     { return nowhere{}, nil }
func (nowhere) Copy([]device.Copy, uintptr) error { return nil }
func (nowhere) Wait(uintptr) error                { return nil }
func (nowhere) Close() error                      { return nil }

// A bareLoop is what the loader's copies are measured against: two page-locked
// buffers whose copies take turns, so that one is always queued behind the other.
type bareLoop struct {
	session *cuda.Session
	src     [2][]byte
	dst     [2]uintptr
	event   [2]uintptr
}

func newBareLoop(b *testing.B, size int) *bareLoop {
	b.Helper()
	dev, err := cuda.Open(0)
	require.NoError(b, err)
	l := &bareLoop{}
	l.session, err = dev.Session()
	require.NoError(b, err)
	for i := range l.src {
		l.src[i], err = dev.AllocHost(size)
		require.NoError(b, err)
		l.dst[i], err = dev.Alloc(size)
		require.NoError(b, err)
		l.event[i], err = dev.NewEvent()
		require.NoError(b, err)
	}
	b.Cleanup(func() {
		require.NoError(b, l.session.Close())
		for i := range l.src {
			require.NoError(b, dev.FreeHost(l.src[i]))
			require.NoError(b, dev.Free(l.dst[i]))
			require.NoError(b, dev.FreeEvent(l.event[i]))
		}
	})
	return l
}

func (l *bareLoop) copy(i int) error {
	return l.session.Copy([]device.Copy{{Dst: l.dst[i], Src: l.src[i]}}, l.event[i])
}

// run makes n copies and returns the time they took.
func (l *bareLoop) run(b *testing.B, n int) time.Duration {
	began := time.Now()
	var err error
	for i := range n {
		err = cmp.Or(err, l.copy(i%2))
		if i > 0 {
			err = cmp.Or(err, l.session.Wait(l.event[(i-1)%2]))
		}
	}
	err = cmp.Or(err, l.session.Wait(l.event[(n-1)%2]))
	if err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// runLikeAStage makes the calls that a stage makes for a batch.
func (l *bareLoop) runLikeAStage(b *testing.B) {
	if err := cmp.Or(l.copy(0), l.session.Wait(l.event[0])); err != nil {
		b.Fatal(err)
	}
}

// realGPU returns the GPU of this machine.
func realGPU(t testing.TB) nwt.Device {
	t.Helper()
	dev, err := nwt.CUDA(0)
	if err != nil {
		t.Skipf("needs a GPU: %v", err)
	}
	if strings.Contains(dev.String(), "Fake GPU") {
		t.Skip("needs a GPU: this binary is linked with the tests' driver")
	}
	return dev
}

// images returns a dataset of images of which 128 are a batch of 77 MB. Loading one
// takes a while and no CPU.
func images(load time.Duration) nwt.Dataset {
	fields := []nwt.Field{{Name: "image", Type: nwt.Float32, Shape: []int{3, 224, 224}}}
	return nwt.NewDataset(1<<30, fields, func(context.Context, int, *nwt.Sample) error {
		if load > 0 {
			time.Sleep(load)
		}
		return nil
	})
}

const imageBatch = 128 * 3 * 224 * 224 * 4

// BenchmarkGPUCopies is the loader's bandwidth where copies are all there is to
// do, beside that of a bare loop of page-locked copies, which takes turns with
// it so that both see the same machine. To reach: a share of 0.97 with pinned.
func BenchmarkGPUCopies(b *testing.B) {
	dev := realGPU(b)
	for _, pinned := range []bool{true, false} {
		b.Run(fmt.Sprintf("pinned=%v", pinned), func(b *testing.B) {
			bare := newBareLoop(b, imageBatch)
			l := newLoader(b, images(0), nwt.WithBatchSize(128), nwt.WithWorkers(2), nwt.WithDevice(dev), nwt.WithPinned(pinned))
			const round = 100
			var ours, theirs time.Duration
			for b.Loop() {
				theirs += bare.run(b, round)
				var began time.Time
				deliver(b, l, 10, round, func(n int, _ *nwt.Batch) {
					switch n {
					case 0:
						began = time.Now()
					case round:
						ours += time.Since(began)
					}
				})
			}
			bytes := float64(b.N) * round * imageBatch
			b.ReportMetric(bytes/ours.Seconds()/1e9, "GB/s")
			b.ReportMetric(bytes/theirs.Seconds()/1e9, "bare-GB/s")
			b.ReportMetric(theirs.Seconds()/ours.Seconds(), "share")
		})
	}
}

// BenchmarkGPUHiddenCopies is an epoch whose steps take longer than loading and
// copying: "total/steps" is its time as a multiple of theirs. To reach: 1.02.
func BenchmarkGPUHiddenCopies(b *testing.B) {
	dev := realGPU(b)
	l := newLoader(b, images(100*time.Microsecond), nwt.WithBatchSize(128), nwt.WithWorkers(4), nwt.WithDevice(dev))
	const round = 100
	var total, steps time.Duration
	for b.Loop() {
		var began time.Time
		deliver(b, l, 3, round, func(n int, _ *nwt.Batch) {
			step := time.Now()
			time.Sleep(20 * time.Millisecond)
			switch {
			case n == 0:
				began = time.Now()
			case n > 0:
				steps += time.Since(step)
			}
			if n == round {
				total += time.Since(began)
			}
		})
	}
	b.ReportMetric(total.Seconds()/steps.Seconds(), "total/steps")
}
