package nwt_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

// The benchmarks compare the loader with what a user would write by hand, in
// one run: sub-benchmarks differ in loader=… alone, for benchstat -col /loader.

func sleepyDataset(n int, d time.Duration) nwt.Dataset {
	return nwt.NewDataset(n, kit.Scalar, func(context.Context, int, *nwt.Sample) error { time.Sleep(d); return nil })
}

// spin keeps a CPU busy, for the same work each time.
//
//go:noinline
func spin(n int) float32 {
	x := float32(1)
	for range n {
		x = x*1.0000001 + 1e-9
	}
	return x
}

const spinning = 20_000 // about 80 µs

func busyDataset(n int) nwt.Dataset {
	return nwt.NewDataset(n, kit.Scalar, func(_ context.Context, _ int, dst *nwt.Sample) error {
		nwt.Values[float32](dst, 0)[0] = spin(spinning)
		return nil
	})
}

// benchBatches measures the batches of a loader, from the second on.
func benchBatches(b *testing.B, ds nwt.Dataset, opts ...nwt.Option) {
	b.Helper()
	l, err := nwt.NewLoader(ds, opts...)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	b.ReportAllocs()
	for _, err := range l.Epochs(b.Context(), 0, 1<<30) {
		if err != nil {
			b.Fatal(err)
		}
		if !b.Loop() {
			return
		}
	}
}

// handWritten is the loop that one writes without a loader: a worker a batch, a
// channel of jobs, and results put in order by a channel for each.
func handWritten(ctx context.Context, ds nwt.Dataset, workers, batch int, use func([]float32) bool) {
	type job struct {
		first  int
		result chan []float32
	}
	ctx, cancel := context.WithCancel(ctx)
	jobs, order := make(chan job), make(chan chan []float32, 2*workers)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			s, _ := nwt.LoadSample(ctx, ds, 0)
			for j := range jobs {
				out := make([]float32, batch)
				for i := range out {
					if ds.Load(ctx, j.first+i, s) != nil {
						return
					}
					out[i] = nwt.Values[float32](s, 0)[0]
				}
				j.result <- out
			}
		})
	}
	wg.Go(func() {
		defer close(jobs)
		for n := 0; ; n++ {
			j := job{n * batch % (ds.Len() - batch), make(chan []float32, 1)}
			select {
			case order <- j.result:
				jobs <- j
			case <-ctx.Done():
				return
			}
		}
	})
	for use(<-<-order) {
	}
	cancel()
	for {
		select {
		case <-order: // the feeder may be waiting for room
		default:
			wg.Wait()
			return
		}
	}
}

func benchHandWritten(b *testing.B, ds nwt.Dataset, workers, batch int) {
	b.ReportAllocs()
	handWritten(b.Context(), ds, workers, batch, func([]float32) bool { return b.Loop() })
}

// notOverwriting is a dataset without the promise that its Load writes every element.
type notOverwriting struct{ nwt.Dataset }

func BenchmarkEmptySamples(b *testing.B) {
	ds := kit.EmptyDataset(1 << 30)
	for _, workers := range []int{0, 1, 2, 4, 16} {
		b.Run(fmt.Sprintf("workers=%d/loader=nwt", workers), func(b *testing.B) {
			benchBatches(b, ds, nwt.WithBatchSize(128), nwt.WithWorkers(workers))
		})
		b.Run(fmt.Sprintf("workers=%d/loader=nwt/places=cleared", workers), func(b *testing.B) {
			benchBatches(b, notOverwriting{ds}, nwt.WithBatchSize(128), nwt.WithWorkers(workers))
		})
		if workers > 0 {
			b.Run(fmt.Sprintf("workers=%d/loader=hand", workers), func(b *testing.B) {
				benchHandWritten(b, ds, workers, 128)
			})
		}
	}
	for _, workers := range []int{0, 2} {
		b.Run(fmt.Sprintf("workers=%d/loader=nwt/order=shuffled", workers), func(b *testing.B) {
			benchBatches(b, kit.EmptyDataset(1_281_167), nwt.WithBatchSize(128), nwt.WithWorkers(workers), nwt.WithShuffle(1))
		})
		b.Run(fmt.Sprintf("workers=%d/loader=nwt/order=shuffled/load=batch", workers), func(b *testing.B) {
			ds := nwt.WritesAll(kit.EmptyBatches{Dataset: kit.EmptyDataset(1_281_167)})
			benchBatches(b, ds, nwt.WithBatchSize(128), nwt.WithWorkers(workers), nwt.WithShuffle(1))
		})
	}
}

// BenchmarkBusySamples reports, as of-bare, the rate of samples by that of bare
// goroutines that do the same work, with workers = CPUs. The time per batch leaves out
// the bare goroutines, and what is loaded beside them.
func BenchmarkBusySamples(b *testing.B) {
	const workers, batch = 2, 32
	bare := func(samples int) time.Duration {
		var next atomic.Int64
		var wg sync.WaitGroup
		began := time.Now()
		for range workers {
			wg.Go(func() {
				var sink float32
				for next.Add(1) <= int64(samples) {
					sink += spin(spinning)
				}
				_ = sink
			})
		}
		wg.Wait()
		return time.Since(began)
	}
	// By default the loader would get ready for the pauses that the bare goroutines are
	// to it, and then hand out batches that no time counted here has loaded.
	l, err := nwt.NewLoader(busyDataset(1<<30), nwt.WithBatchSize(batch), nwt.WithWorkers(workers), nwt.WithPrefetch(2))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	// In turns, so that a machine whose speed drifts is fair to both.
	var ours, theirs time.Duration
	const round, beside = 64, 4
	n, counted := 0, 0
	var began time.Time
	for _, err := range l.Epochs(b.Context(), 0, 1<<30) {
		if err != nil {
			b.Fatal(err)
		}
		switch n++; {
		case n%round == beside: // the first of a round were loaded beside the bare loop
			began = time.Now()
		case n%round == 0:
			ours += time.Since(began)
			counted += round - beside
			time.Sleep(20 * time.Millisecond) // until as much is loaded ahead as may be
			theirs += bare((round - beside) * batch)
		}
		if !b.Loop() {
			break
		}
	}
	if counted > 0 {
		b.ReportMetric(float64(ours)/float64(counted), "ns/op")
		b.ReportMetric(float64(theirs)/float64(ours), "of-bare")
	}
}

// BenchmarkCopiedSamples loads what takes no longer than its bytes take to move,
// 3 kB a sample out of 150 MB, beside goroutines that copy the same into a buffer of
// their own, with nobody to hand it to.
func BenchmarkCopiedSamples(b *testing.B) {
	const workers, batch, size, samples = 2, 128, 3 * 32 * 32, 50_000
	images := make([]byte, samples*size)
	for i := range images {
		images[i] = byte(i)
	}
	image := func(i int) []byte { return images[i*size : (i+1)*size] }
	b.Run("loader=nwt", func(b *testing.B) {
		ds := nwt.NewDataset(samples, []nwt.Field{{Name: "image", Type: nwt.Uint8, Shape: []int{3, 32, 32}}},
			func(_ context.Context, i int, dst *nwt.Sample) error {
				copy(dst.Bytes(0), image(i))
				return nil
			})
		benchBatches(b, nwt.WritesAll(ds), nwt.WithBatchSize(batch), nwt.WithWorkers(workers), nwt.WithShuffle(1))
	})
	b.Run("loader=bare", func(b *testing.B) {
		order := rand.Perm(samples)
		var next atomic.Int64
		var wg sync.WaitGroup
		b.ResetTimer()
		for range workers {
			wg.Go(func() {
				buffer := make([]byte, batch*size)
				for n := int(next.Add(1)); n <= b.N; n = int(next.Add(1)) {
					first := n * batch % (samples - batch)
					for k, i := range order[first : first+batch] {
						copy(buffer[k*size:], image(i))
					}
				}
			})
		}
		wg.Wait()
	})
}

// BenchmarkWaitingSamples reports, as of-ideal, the rate of batches by workers /
// (batch × the real sleep).
func BenchmarkWaitingSamples(b *testing.B) {
	const batch = 64
	for _, workers := range []int{16, 64, 256} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			benchBatches(b, sleepyDataset(1<<30, time.Millisecond), nwt.WithBatchSize(batch), nwt.WithWorkers(workers))
			perBatch := b.Elapsed() / time.Duration(b.N)
			began := time.Now()
			for range 200 {
				time.Sleep(time.Millisecond)
			}
			sleep := time.Since(began) / 200
			b.ReportMetric(float64(batch*sleep)/float64(workers)/float64(perBatch), "of-ideal")
		})
	}
}

// BenchmarkMemory reports the peak resident set while batches of 64 images of
// 224 × 224 × 3 bytes are loaded.
func BenchmarkMemory(b *testing.B) {
	ds := nwt.NewDataset(1<<20, []nwt.Field{{Name: "image", Type: nwt.Uint8, Shape: []int{224, 224, 3}}},
		func(_ context.Context, i int, dst *nwt.Sample) error {
			px := dst.Bytes(0)
			for k := range px {
				px[k] = byte(i)
			}
			return nil
		})
	for _, workers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			debug.FreeOSMemory()
			peak := host.StartPeak()
			benchBatches(b, ds, nwt.WithBatchSize(64), nwt.WithWorkers(workers))
			bytes, _ := peak.Stop()
			b.ReportMetric(float64(bytes)/1e6, "peak-MB")
		})
	}
}

// BenchmarkFirstBatch is the time to the first batch where a sample takes 5 ms.
func BenchmarkFirstBatch(b *testing.B) {
	for _, workers := range []int{1, 16} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			ds := sleepyDataset(1<<20, 5*time.Millisecond)
			for b.Loop() {
				l, err := nwt.NewLoader(ds, nwt.WithBatchSize(64), nwt.WithWorkers(workers))
				if err != nil {
					b.Fatal(err)
				}
				for range l.Epoch(b.Context(), 0) {
					break
				}
				l.Close()
			}
		})
	}
}

// BenchmarkResume measures how soon a new process has the first batch of an epoch, and
// the first after nine tenths of it: the time to make the order (order-ms), and from
// then on until 2 workers have loaded the batch (batch-ms).
func BenchmarkResume(b *testing.B) {
	const (
		billion = 1_000_000_000
		many    = 10_000_000 // of what takes memory per sample
	)
	length := func(i int) int { return 10 + i%491 }
	weights := slices.Repeat([]float64{1, 2}, 500_000)
	for _, c := range []struct {
		name  string
		n     int
		order func() (nwt.Sampler, error)
	}{
		{"Shuffled", billion, func() (nwt.Sampler, error) { return nwt.Shuffled(billion, 1), nil }},
		{"Bucketed", billion, func() (nwt.Sampler, error) {
			return sampler.Bucketed(billion, length, sampler.Buckets{BatchSize: 32}, 1)
		}},
		{"LocallyShuffled/blocks=1e+06", billion, func() (nwt.Sampler, error) {
			return sampler.LocallyShuffled(slices.Repeat([]int{1000}, billion/1000), 16, 1)
		}},
		{"Mixed", billion, func() (nwt.Sampler, error) {
			return sampler.Mixed(billion, nwt.Mix{
				Parts:  []int{billion / 3, billion / 3, billion / 3},
				Phases: []nwt.Phase{{Samples: billion / 10, Weights: []float64{8, 1, 1}}, {Weights: []float64{1, 1, 1}}},
			}, 1)
		}},
		{"Weighted/weights=1e+06", billion, func() (nwt.Sampler, error) { return sampler.Weighted(weights, billion, 1) }},
		{"WeightedWithoutReplacement", len(weights), func() (nwt.Sampler, error) {
			return sampler.WeightedWithoutReplacement(weights, len(weights), 1)
		}},
		{"Computed", many, func() (nwt.Sampler, error) {
			return sampler.Computed(many, func(epoch int) []int {
				order := make([]int, many)
				nwt.Shuffled(many, 1).(nwt.SamplerFiller).Fill(epoch, 0, order)
				return order
			})
		}},
		{"TokenBatches", many, func() (nwt.Sampler, error) {
			return sampler.TokenBatches(many, length, sampler.Tokens{Max: 4000, MaxSamples: 32}, 1)
		}},
	} {
		for _, tenths := range []int{0, 9} {
			b.Run(fmt.Sprintf("order=%s/n=%.0e/after=%d%%", c.name, float64(c.n), 10*tenths), func(b *testing.B) {
				order := func() nwt.Sampler {
					s, err := c.order()
					if err != nil {
						b.Fatal(err)
					}
					return s
				}
				samples := c.n / 10 * tenths
				if s, ok := order().(nwt.BatchSampler); ok && tenths > 0 {
					samples = s.Start(0, s.Batches()/10*tenths)
				}
				benchResume(b, samples, func() (nwt.Dataset, []nwt.Option) {
					return kit.EmptyDataset(billion), []nwt.Option{nwt.WithSampler(order())}
				})
			})
		}
	}
	for _, c := range []struct {
		name  string
		n     int
		skips bool
		opts  []nwt.Option
	}{
		{"read", many / 10, false, nil},
		{"skipped", billion, true, nil},
		{"skipped, shuffled", billion, true, []nwt.Option{nwt.WithShuffle(1)}},
	} {
		for _, tenths := range []int{0, 9} {
			b.Run(fmt.Sprintf("stream=%s/n=%.0e/after=%d%%", c.name, float64(c.n), 10*tenths), func(b *testing.B) {
				benchResume(b, c.n/10*tenths, func() (nwt.Dataset, []nwt.Option) {
					s := &kit.Tallies{Lengths: slices.Repeat([]int{c.n / 100}, 100)}
					if c.skips {
						s.OnSkip = kit.Leap
					}
					return nwt.Streamed(s), c.opts
				})
			})
		}
	}
}

// benchResume makes loaders and takes the first batch after some samples of an epoch.
func benchResume(b *testing.B, samples int, make func() (nwt.Dataset, []nwt.Option)) {
	var order, batch time.Duration
	n := 0
	for ; b.Loop(); n++ {
		began := time.Now()
		ds, opts := make()
		ordered := time.Now()
		l, err := nwt.NewLoader(ds, append(opts, nwt.WithWorkers(2))...)
		if err != nil {
			b.Fatal(err)
		}
		for _, err := range l.Resume(b.Context(), nwt.State{Samples: samples}) {
			if err != nil {
				b.Fatal(err)
			}
			order, batch = order+ordered.Sub(began), batch+time.Since(ordered)
			break
		}
		l.Close()
	}
	b.ReportMetric(1000*order.Seconds()/float64(n), "order-ms")
	b.ReportMetric(1000*batch.Seconds()/float64(n), "batch-ms")
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

// A bareLoop is what the loader's copies are measured against: two page-locked
// buffers whose copies take turns, so that one is always queued behind the other.
type bareLoop struct {
	session driver.Session
	src     [2][]byte
	dst     [2]uintptr
	event   [2]uintptr
}

func newBareLoop(b *testing.B, size int) *bareLoop {
	b.Helper()
	dev, err := cuda.Open(0)
	require.NoError(b, err)
	l := &bareLoop{}
	l.session, err = dev.Open()
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
	return l.session.Copy([]driver.Copy{{Dst: l.dst[i], Src: l.src[i]}}, l.event[i])
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
	dev := kit.RealGPU(b)
	for i, pinned := range []nwt.Option{nwt.WithPinned(), nwt.WithoutPinned()} {
		b.Run(fmt.Sprintf("pinned=%v", i == 0), func(b *testing.B) {
			bare := newBareLoop(b, imageBatch)
			l := kit.NewLoader(b, images(0), nwt.WithBatchSize(128), nwt.WithWorkers(2), nwt.WithDevice(dev), pinned)
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
	dev := kit.RealGPU(b)
	l := kit.NewLoader(b, images(100*time.Microsecond), nwt.WithBatchSize(128), nwt.WithWorkers(4), nwt.WithDevice(dev))
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
