// Package kit has what the tests of package nwt and of the packages in internal/loadertest share:
// datasets, streams and devices whose behavior a test sets, and functions that run loaders and look at
// their batches.
package kit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/sampler"
)

// Nowhere is a device that does nothing.
type Nowhere struct{}

func (Nowhere) String() string                    { return "null" }
func (Nowhere) AllocHost(n int) ([]byte, error)   { return make([]byte, n), nil }
func (Nowhere) FreeHost([]byte) error             { return nil }
func (Nowhere) Alloc(int) (uintptr, error)        { return 1, nil }
func (Nowhere) Free(uintptr) error                { return nil }
func (Nowhere) NewEvent() (uintptr, error)        { return 1, nil }
func (Nowhere) FreeEvent(uintptr) error           { return nil }
func (Nowhere) Open() (driver.Session, error)     { return Nowhere{}, nil }
func (Nowhere) Copy([]driver.Copy, uintptr) error { return nil }
func (Nowhere) Wait(uintptr) error                { return nil }
func (Nowhere) Close() error                      { return nil }

// RealGPU returns the GPU of this machine.
func RealGPU(t testing.TB) nwt.Device {
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

// RaceDetector reports whether the test runs under the race detector.
var RaceDetector = false

// MostBytes is how large a batch may be: 1 TiB, or 1 GiB where an int has 32 bits.
const MostBytes = 1 << (30 + 10*(^uint(0)>>63))

// Numbered returns a dataset whose samples are their index, loaded by load before.
func Numbered(n int, load func(ctx context.Context, i int, dst *nwt.Sample) error) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "i", Type: nwt.Int64}}, func(ctx context.Context, i int, dst *nwt.Sample) error {
		if err := load(ctx, i, dst); err != nil {
			return err
		}
		nwt.Values[int64](dst, 0)[0] = int64(i)
		return nil
	})
}

// Values returns the numbers of an epoch, and the error that ended it.
func Values(t *testing.T, l *nwt.Loader, epoch int) (all []int64, err error) {
	t.Helper()
	for b, e := range l.Epoch(t.Context(), epoch) {
		if e != nil {
			return all, e
		}
		all = append(all, nwt.Values[int64](b, 0)...)
	}
	return all, nil
}

// UpTo returns the numbers 0 … n−1 without some.
func UpTo(n int, without ...int64) (out []int64) {
	for i := range int64(n) {
		out = append(out, i)
		for _, w := range without {
			if w == i {
				out = out[:len(out)-1]
			}
		}
	}
	return out
}

// EmptyDataset returns a dataset of n samples of which nothing is loaded.
func EmptyDataset(n int) nwt.Dataset {
	return nwt.WritesAll(nwt.NewDataset(n, Scalar, func(context.Context, int, *nwt.Sample) error { return nil }))
}

// Numbers returns a dataset of the numbers from … from+n−1.
func Numbers(from, n int) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "number", Type: nwt.Int64}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(from + i)
		return nil
	})
}

// Augmented returns a dataset whose samples hold their index, and noise that
// depends on Sample.Rand.
func Augmented(n int) nwt.Dataset {
	fields := []nwt.Field{{Name: "index", Type: nwt.Int64}, {Name: "noise", Type: nwt.Float32, Shape: []int{3, 2}}}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(i)
		for k := range nwt.Values[float32](dst, 1) {
			nwt.Values[float32](dst, 1)[k] = dst.Rand().Float32()
		}
		return nil
	})
}

// NewLoader returns a loader that is closed at the end of the test. No slot may be lost by then.
func NewLoader(t testing.TB, ds nwt.Dataset, opts ...nwt.Option) *nwt.Loader {
	t.Helper()
	l, err := nwt.NewLoader(ds, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.Equal(t, l.Stats().Retained, l.Stats().Slots, "a slot was lost")
	})
	return l
}

// Collect returns what an epoch yields: the bytes of every batch.
func Collect(t testing.TB, l *nwt.Loader, epoch int) (batches [][]byte) {
	t.Helper()
	for b, err := range l.Epoch(t.Context(), epoch) {
		require.NoError(t, err)
		require.Equal(t, len(batches), b.Number())
		require.Equal(t, epoch, b.Epoch())
		batches = append(batches, slices.Concat(b.Bytes(0), b.Bytes(1)))
	}
	require.Len(t, batches, l.Len())
	return batches
}

// Must returns v to a test, which fails if there is an error: Must(f())(t).
func Must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// Drawn is n samples that hold their index and a random number, and their position.
func Drawn(n int) nwt.Dataset {
	fields := []nwt.Field{{Name: "drawn", Type: nwt.Int64, Shape: []int{2}}, {Name: "position", Type: nwt.Int64}}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		d := nwt.Values[int64](dst, 0)
		d[0], d[1] = int64(i), dst.Rand().Int64()
		nwt.Values[int64](dst, 1)[0] = int64(dst.Position())
		return nil
	})
}

// IndicesUpTo returns the indices 0 … n−1 without some.
func IndicesUpTo(n int, without ...int) (all []int) {
	for i := range n {
		if !slices.Contains(without, i) {
			all = append(all, i)
		}
	}
	return all
}

// A Journal is a log that a test reads.
type Journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *Journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

func (j *Journal) Option() nwt.Option { return nwt.WithLogger(slog.New(slog.NewTextHandler(j, nil))) }

// Hold waits until release is closed, or until the test is over: a call that still hung in a bubble whose test
// has failed would end the whole binary. So would a write to memory that has gone meanwhile: it panics.
func Hold(t testing.TB, release <-chan struct{}) {
	debug.SetPanicOnFault(true)
	select {
	case <-release:
	case <-t.Context().Done():
	}
}

// Promptly fails a test in which f, which gets a goroutine of its own, doesn't return.
func Promptly(t testing.TB, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(Hangs):
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		t.Fatalf("hangs: %s", &stacks)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// Intact requires that every value of a batch is its sample's.
func Intact(t testing.TB, b *nwt.Batch) {
	t.Helper()
	for p, i := range b.Indices() {
		require.Equal(t, float32(i+1), nwt.Values[float32](b, 0)[p])
	}
}

// Fill sets each byte of mem.
func Fill(mem []byte, with byte) {
	for i := range mem {
		mem[i] = with
	}
}

// ArgumentErrors returns all of them that err joins.
func ArgumentErrors(err error) (all []*nwt.ArgumentError) {
	switch e := err.(type) {
	case *nwt.ArgumentError:
		return append(all, e)
	case interface{ Unwrap() []error }:
		for _, e := range e.Unwrap() {
			all = append(all, ArgumentErrors(e)...)
		}
	}
	return all
}

// Progress returns a state without its order.
func Progress(s nwt.State) nwt.State {
	s.Order = 0
	return s
}

// Printed is a dataset with a fingerprint.
type Printed struct {
	nwt.Dataset
	Print string
}

func (p Printed) Fingerprint() string { return p.Print }

// ErrBad is the error of a bad sample.
var ErrBad = errors.New("bad")

// TokensOf returns the length of a sample: some long ones, many short ones, some empty.
func TokensOf(i int) int {
	if i%97 == 0 {
		return 0
	}
	return 1 + int(uint64(i)*2654435761%1000)*int(uint64(i)*40503%1000)/5000
}

// TokenBatches returns a sampler of n samples in batches of about as many tokens each.
func TokenBatches(t *testing.T, n int, tokens sampler.Tokens) nwt.BatchSampler {
	t.Helper()
	s, err := sampler.TokenBatches(n, TokensOf, tokens, 7)
	require.NoError(t, err)
	return s
}

// BatchOf returns the indices of a batch of an epoch.
func BatchOf(s nwt.BatchSampler, epoch, batch int) (indices []int) {
	from, to := 0, s.Len()
	if batch > 0 {
		from = s.Start(epoch, batch)
	}
	if batch+1 < s.Batches() {
		to = s.Start(epoch, batch+1)
	}
	for i := from; i < to; i++ {
		indices = append(indices, s.At(epoch, i))
	}
	return indices
}

// Sizes is batches of these sizes. A negative size panics.
type Sizes []int

func (s Sizes) Len() int        { return s.Start(0, len(s)) }
func (s Sizes) At(_, i int) int { return i }
func (s Sizes) Batches() int    { return len(s) }
func (s Sizes) Largest() int    { return 1 } // it doesn't tell
func (s Sizes) Start(_, batch int) (n int) {
	for _, size := range s[:batch] {
		n += max(size, -size)
	}
	if batch < len(s) && s[batch] < 0 {
		panic("no start")
	}
	return n
}

// Apart runs f in a goroutine that it may end.
func Apart(f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	<-done
}
