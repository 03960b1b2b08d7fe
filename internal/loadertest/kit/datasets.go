package kit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nwt-go/nwt"
)

// Together is a dataset that loads many samples at once.
type Together struct {
	nwt.Dataset
	Calls, Samples atomic.Int64
	Fail           func(index int) error
	Look           func(dst []*nwt.Sample)
}

func (d *Together) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	d.Calls.Add(1)
	if d.Look != nil {
		d.Look(dst)
	}
	for i, index := range indices {
		if d.Fail != nil && d.Fail(index) != nil {
			return d.Fail(index)
		}
		d.Samples.Add(1)
		nwt.Values[int64](dst[i], 0)[0] = int64(index)
	}
	return nil
}

// InOneCall is a dataset with a LoadMany.
type InOneCall struct {
	nwt.Dataset
	Call func(indices []int, dst []*nwt.Sample) error
}

func (d InOneCall) LoadMany(_ context.Context, indices []int, dst []*nwt.Sample) error {
	return d.Call(indices, dst)
}

// ErrBoom is the error of something else that fails.
var ErrBoom = errors.New("boom")

// Epoch runs an epoch to its end: the batches before the error, and the error.
func Epoch(ctx context.Context, l *nwt.Loader, n int) (batches [][]int, err error) {
	for b, e := range l.Epoch(ctx, n) {
		if e != nil {
			err = e
			continue
		}
		batches = append(batches, slices.Clone(b.Indices()))
	}
	return batches, err
}

// SamplerFunc is a sampler of N positions whose order is a function.
type SamplerFunc struct {
	N     int
	Order func(epoch, i int) int
}

func (s SamplerFunc) Len() int            { return s.N }
func (s SamplerFunc) At(epoch, i int) int { return s.Order(epoch, i) }

// Refusal returns the error that is all a sequence yields.
func Refusal(t testing.TB, seq iter.Seq2[*nwt.Batch, error]) (only error) {
	t.Helper()
	n := 0
	for b, err := range seq {
		require.Nil(t, b)
		only = err
		n++
	}
	require.Equal(t, 1, n)
	require.Error(t, only)
	return only
}

// A frugal device has memory for so many batches. It takes a second to refuse more.
type frugal struct {
	Nowhere
	Slots, Buffers atomic.Int32 // that are left
}

// ErrFull is the error of a frugal device that has no memory left.
var ErrFull = errors.New("the memory is full")

// NewFrugal returns a device with memory for so many slots and buffers. It takes a second to refuse more.
func NewFrugal(slots, buffers int32) *frugal {
	d := &frugal{}
	d.Slots.Store(slots)
	d.Buffers.Store(buffers)
	return d
}

func oneOf(left *atomic.Int32) error {
	if left.Add(-1) >= 0 {
		return nil
	}
	left.Add(1)
	time.Sleep(time.Second)
	return ErrFull
}

func (d *frugal) Free(uintptr) error    { d.Buffers.Add(1); return nil }
func (d *frugal) FreeHost([]byte) error { d.Slots.Add(1); return nil }
func (d *frugal) Alloc(int) (uintptr, error) {
	return 1, oneOf(&d.Buffers)
}

func (d *frugal) AllocHost(n int) ([]byte, error) {
	if err := oneOf(&d.Slots); err != nil {
		return nil, err
	}
	return make([]byte, n), nil
}

// Summed is n samples that hold their index, and room for what WithBatchTransform makes of all of a batch.
func Summed(n int) nwt.Dataset {
	fields := []nwt.Field{{Name: "index", Type: nwt.Int64}, {Name: "sum", Type: nwt.Int64}}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(i)
		nwt.Values[int64](dst, 1)[0] = -1
		return nil
	})
}

// Scalar is the fields of a sample of one number.
var Scalar = []nwt.Field{{Name: "x", Type: nwt.Float32}}

// EmptyBatches is an EmptyDataset that is asked for many samples at once.
type EmptyBatches struct{ nwt.Dataset }

func (EmptyBatches) LoadMany(context.Context, []int, []*nwt.Sample) error { return nil }

// Leap skips all that it is asked for at once, as with an index.
func Leap(r *TallyReader, n int) (int, error) {
	if r.At == r.End {
		return 0, io.EOF
	}
	n = min(n, r.End-r.At)
	r.At += n
	return n, nil
}

// Batchwise has a LoadMany that calls Load for each sample.
type Batchwise struct{ nwt.Dataset }

func (d Batchwise) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for i, index := range indices {
		if err := d.Load(ctx, index, dst[i]); err != nil {
			return err
		}
	}
	return nil
}

// Demanding does what Batchwise does, for samples of numbers, and uses what LoadMany is promised: the
// indices are its own, and the samples lie one after the other.
type Demanding struct{ nwt.Dataset }

func (d Demanding) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	if err := Batchwise(d).LoadMany(ctx, indices, dst); err != nil {
		return err
	}
	for i := range indices {
		indices[i] = -1
	}
	nwt.ValuesOf[int64](dst, 0)[0] += 0
	return nil
}

// BatchesOf is field 0 of every batch of epoch 0.
func BatchesOf[T nwt.Element](t *testing.T, l *nwt.Loader) (batches [][]T) {
	t.Helper()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		batches = append(batches, slices.Clone(nwt.Values[T](b, 0)))
	}
	return batches
}

// Quiet is a logger that drops everything.
var Quiet = slog.New(slog.DiscardHandler)

// Silent makes a loader log nothing.
var Silent = nwt.WithLogger(Quiet)

// Sleeping returns a dataset whose samples wait.
func Sleeping(n int, d time.Duration) nwt.Dataset {
	return nwt.NewDataset(n, Scalar, func(ctx context.Context, _ int, _ *nwt.Sample) error { return Heed(ctx, d) })
}

// Heed waits for d, or until ctx ends.
func Heed(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Heeding is a stream whose records wait, and heed their context meanwhile.
type Heeding struct{ Reading, Loading time.Duration }

func (h Heeding) Fields() []nwt.Field { return Scalar }
func (h Heeding) Shards() int         { return 64 }

func (h Heeding) Open(context.Context, int) (nwt.ShardReader, error) { return heedingReader{h}, nil }

func (h Heeding) Load(ctx context.Context, _ *nwt.Record, _ *nwt.Sample) error {
	return Heed(ctx, h.Loading)
}

type heedingReader struct{ Heeding }

func (h heedingReader) Next(ctx context.Context, _ *nwt.Record) error { return Heed(ctx, h.Reading) }
func (h heedingReader) Close() error                                  { return nil }

// SlowTogether loads samples one after the other in a call, and heeds its context meanwhile.
type SlowTogether struct {
	nwt.Dataset
	Each time.Duration
}

func (d SlowTogether) LoadMany(ctx context.Context, indices []int, _ []*nwt.Sample) error {
	return Heed(ctx, time.Duration(len(indices))*d.Each)
}

// InFours is an epoch in batches of four.
type InFours int

func (n InFours) Len() int           { return int(n) }
func (n InFours) At(_, i int) int    { return i }
func (n InFours) Batches() int       { return int(n) / 4 }
func (InFours) Largest() int         { return 4 }
func (n InFours) Start(_, b int) int { return 4 * b }

// Tailed returns a dataset some of whose samples take far longer than the others.
func Tailed(n int, usual, slow time.Duration, share float64) (nwt.Dataset, func(index int) time.Duration) {
	rng := rand.New(rand.NewPCG(7, 7))
	times := make([]time.Duration, n)
	for i := range times {
		times[i] = usual
		if rng.Float64() < share {
			times[i] = slow
		}
	}
	return nwt.NewDataset(n, Scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
		time.Sleep(times[i])
		return nil
	}), func(i int) time.Duration { return times[i] }
}

// Train runs so many batches with a step each, and returns what they took.
func Train(t testing.TB, l *nwt.Loader, batches int, step func()) time.Duration {
	began, n := time.Now(), 0
	for _, err := range l.Epochs(t.Context(), 0, 1<<20) {
		require.NoError(t, err)
		step()
		if n++; n == batches {
			break
		}
	}
	return time.Since(began)
}

// Main runs a package's tests, and fails if they leave goroutines behind.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := Leftover(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Leftover names the goroutines that haven't ended within a minute: on a busy machine
// one that was joined may take a while.
func Leftover() (err error) {
	for began := time.Now(); time.Since(began) < time.Minute; {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return err
}

// Loads returns a dataset of n scalars that hold index + 1, once load has agreed.
func Loads(n int, load func(ctx context.Context, i int, dst *nwt.Sample) error) nwt.Dataset {
	return nwt.NewDataset(n, Scalar, func(ctx context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[float32](dst, 0)[0] = float32(i + 1)
		return load(ctx, i, dst)
	})
}

// Decoders makes decoders and knows which are open.
type Decoders struct {
	Made, Open atomic.Int64
	Fail       atomic.Bool
}

// A Decoder must not be used by two goroutines at once.
type Decoder struct {
	mu     sync.Mutex
	of     *Decoders
	Closed atomic.Bool
}

func (d *Decoders) Create() (*Decoder, error) {
	if d.Fail.Load() {
		return nil, errors.New("no decoder")
	}
	d.Made.Add(1)
	d.Open.Add(1)
	return &Decoder{of: d}, nil
}

func (d *Decoder) Use() error {
	if d.Closed.Load() {
		return errors.New("used after it was closed")
	}
	if !d.mu.TryLock() {
		return errors.New("used by two at once")
	}
	runtime.Gosched()
	d.mu.Unlock()
	return nil
}

func (d *Decoder) Close() error {
	if d.Closed.Swap(true) {
		panic("closed twice")
	}
	d.of.Open.Add(-1)
	return nil
}

// Decoded returns a dataset that loads with decoders, and after that with load.
func (d *Decoders) Decoded(n int, load func(context.Context, int) error) nwt.Dataset {
	return nwt.NewDataset(n, Scalar, func(ctx context.Context, i int, dst *nwt.Sample) error {
		dec, err := nwt.Scratch(dst, d.Create)
		if err != nil {
			return err
		}
		if err := dec.Use(); err != nil || load == nil {
			return err
		}
		return load(ctx, i)
	})
}

// Words is a dataset of n samples: sample i has i mod 10 words, each of them i, and a
// picture of i mod 4 × i mod 3 pixels, each of them i. The longest allowed are 100
// words and 50 × 60 pixels.
type Words struct {
	N    int
	Tell func(index int, sizes []int) // instead of the true sizes
}

func (d Words) Len() int { return d.N }

func (d Words) Fields() []nwt.Field {
	return []nwt.Field{
		{Name: "words", Type: nwt.Int32, Shape: []int{100}, RaggedDims: 1},
		{Name: "id", Type: nwt.Int64},
		{Name: "picture", Type: nwt.Uint8, Shape: []int{50, 60, 3}, RaggedDims: 2},
	}
}

func (d Words) Sizes(index int, sizes []int) {
	if d.Tell != nil {
		d.Tell(index, sizes)
		return
	}
	sizes[0], sizes[1], sizes[2] = index%10, index%4, index%3
}

func (d Words) Load(_ context.Context, index int, dst *nwt.Sample) error {
	dst.SetLen(0, index%10)
	for k := range index % 10 {
		nwt.Values[int32](dst, 0)[k] = int32(index)
	}
	nwt.Values[int64](dst, 1)[0] = int64(index)
	dst.SetShape(2, index%4, index%3)
	width := dst.Shape(2)[1]
	for y := range index % 4 {
		for k := range index % 3 * 3 {
			dst.Bytes(2)[y*width*3+k] = byte(index)
		}
	}
	return nil
}

// Pages is a BatchDataset of numbered ragged samples: sample i is i%4 values of i. OnLoad and OnLoadMany
// run first.
type Pages struct {
	N          int
	OnLoad     func(ctx context.Context, i int, dst *nwt.Sample) error
	OnLoadMany func(ctx context.Context, indices []int, dst []*nwt.Sample) error
}

func (p *Pages) Len() int { return p.N }
func (p *Pages) Fields() []nwt.Field {
	return []nwt.Field{{Name: "i", Type: nwt.Int64}, {Name: "text", Type: nwt.Int16, Shape: []int{4}, RaggedDims: 1}}
}

func (p *Pages) Load(ctx context.Context, i int, dst *nwt.Sample) error {
	if p.OnLoad != nil {
		if err := p.OnLoad(ctx, i, dst); err != nil {
			return err
		}
	}
	WritePage(i, dst)
	return nil
}

func (p *Pages) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	if p.OnLoadMany != nil {
		if err := p.OnLoadMany(ctx, indices, dst); err != nil {
			return err
		}
	}
	for k, i := range indices {
		WritePage(i, dst[k])
	}
	return nil
}

// WritePage writes the sample of Pages at an index.
func WritePage(i int, dst *nwt.Sample) {
	nwt.Values[int64](dst, 0)[0] = int64(i)
	dst.SetLen(1, i%4)
	for k := range i % 4 {
		nwt.Values[int16](dst, 1)[k] = int16(i)
	}
}

// Goroutine names the one it is called in.
func Goroutine() string {
	var buf [64]byte
	stack := string(buf[:runtime.Stack(buf[:], false)])
	var id int
	_, _ = fmt.Sscanf(stack, "goroutine %d", &id)
	return fmt.Sprint(id)
}

// Late returns a dataset of which one sample is loaded for so long, whatever its context says.
func Late(n, bad int, d time.Duration) nwt.Dataset {
	return Numbered(n, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == bad {
			time.Sleep(d)
		} else {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
}
