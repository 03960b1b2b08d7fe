package nwt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A slate is a device whose new memory is full of what was there before. It copies as
// late as it may: when somebody waits for it.
type slate struct {
	nowhere
	failing int // one call in so many fails; 0: none

	mu     sync.Mutex
	rng    *rand.Rand
	memory map[uintptr][]byte
	next   uintptr
	queue  []lateCopy
	lost   map[uintptr]bool // the events of copies that were never made
	bytes  int              // of all copies queued
	parts  []int            // of each copy
}

type lateCopy struct {
	event uintptr
	parts []nwt.Copy
}

var errSlate = errors.New("the slate broke")

func newSlate(seed uint64, failing int) *slate {
	return &slate{failing: failing, rng: rand.New(rand.NewPCG(seed, 1)), memory: map[uintptr][]byte{}, lost: map[uintptr]bool{}}
}

func (s *slate) Alloc(size int) (uintptr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next += 1 << 30
	s.memory[s.next] = bytes.Repeat([]byte{byte(1 + s.rng.IntN(255))}, size)
	return s.next, nil
}

func (s *slate) Free(ptr uintptr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.memory, ptr)
	return nil
}

func (s *slate) NewEvent() (uintptr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.next, nil
}

func (s *slate) Open() (nwt.Session, error) { return s, nil }

func (s *slate) Copy(parts []nwt.Copy, event uintptr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails() {
		for _, p := range parts[:s.rng.IntN(len(parts)+1)] {
			copy(s.at(p.Dst), p.Src[:s.rng.IntN(len(p.Src)+1)])
		}
		return errSlate
	}
	delete(s.lost, event)
	s.queue = append(s.queue, lateCopy{event, slices.Clone(parts)})
	for _, p := range parts {
		s.bytes += len(p.Src)
	}
	s.parts = append(s.parts, len(parts))
	return nil
}

func (s *slate) Wait(event uintptr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails() {
		for range s.rng.IntN(len(s.queue) + 1) {
			s.makeOldest()
		}
		for _, c := range s.queue {
			s.lost[c.event] = true
		}
		s.queue = nil
		return errSlate
	}
	s.makeUpTo(event)
	return nil
}

func (s *slate) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		s.makeOldest()
	}
	return nil
}

func (s *slate) fails() bool { return s.failing > 0 && s.rng.IntN(s.failing) == 0 }

func (s *slate) makeUpTo(event uintptr) {
	for slices.ContainsFunc(s.queue, func(c lateCopy) bool { return c.event == event }) {
		s.makeOldest()
	}
}

func (s *slate) makeOldest() {
	for _, p := range s.queue[0].parts {
		copy(s.at(p.Dst)[:len(p.Src)], p.Src)
	}
	s.queue = s.queue[1:]
}

// at is the memory from ptr to the end of its block.
func (s *slate) at(ptr uintptr) []byte {
	block := ptr >> 30 << 30
	for from, mem := range s.memory {
		if from>>30<<30 == block {
			return mem[ptr-from:]
		}
	}
	panic("not the slate's memory")
}

// use calls f once event has come, unless it never comes: then an asynchronous copy has
// failed.
func (s *slate) use(event uintptr, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.makeUpTo(event); !s.lost[event] {
		f()
	}
}

// clouds is a dataset of samples of very different lengths. Load leaves no byte of a
// sample's place zero. A few samples are bad.
func clouds(n int, bad bool) nwt.Dataset {
	fields := []nwt.Field{
		{Name: "id", Type: nwt.Int64},
		{Name: "sound", Type: nwt.Int16, Shape: []int{60_000}, Ragged: true},
		{Name: "text", Type: nwt.Uint8, Shape: []int{100}, Ragged: true},
		{Name: "image", Type: nwt.Uint8, Shape: []int{100, 300, 3}, Ragged: true, RaggedDims: 2},
		{Name: "points", Type: nwt.Float32, Shape: []int{20_000, 2}, Ragged: true},
	}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		length := func(longest int) int {
			switch dst.Rand().IntN(6) {
			case 0:
				return 0
			case 1:
				return longest
			case 2, 3:
				return dst.Rand().IntN(1 + longest/50)
			}
			return dst.Rand().IntN(1 + longest)
		}
		for f := range fields {
			fill(dst.Bytes(f), byte(1+dst.Rand().IntN(255)))
		}
		if bad && i%7 == 3 {
			return errBoom
		}
		dst.SetLen(1, length(60_000))
		dst.SetLen(2, length(100))
		dst.SetShape(3, length(100), length(300))
		dst.SetLen(4, length(20_000))
		return nil
	})
}

func fill(mem []byte, with byte) {
	if len(mem) > 0 {
		mem[0] = with
	}
	for done := 1; done < len(mem); done *= 2 {
		copy(mem[done:], mem[:done])
	}
}

// allOrNothing is a dataset with a LoadBatch, which fails if one of its samples does.
type allOrNothing struct{ nwt.Dataset }

func (d allOrNothing) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for k, i := range indices {
		if err := d.Load(ctx, i, dst[k]); err != nil {
			return err
		}
	}
	return nil
}

func TestADeviceHoldsEveryByteOfABatchThoughOnlyTheUsedPartIsCopied(t *testing.T) {
	trials := uint64(60)
	if testing.Short() {
		trials = 12
	}
	for seed := range trials {
		rng := rand.New(rand.NewPCG(seed, 2))
		one := func(in int) bool { return rng.IntN(in) == 0 }
		failing := 0
		if one(3) {
			failing = 2 + rng.IntN(20)
		}
		n := 1 + rng.IntN(25)
		bad := one(3)
		ds := clouds(n, bad)
		opts := []nwt.Option{nwt.WithBatchSize(1 + rng.IntN(6)), nwt.WithWorkers(rng.IntN(4)), nwt.WithShuffle(seed), nwt.WithErrorBudget(n), silent}
		what := fmt.Sprintf("seed %d: %d samples, bad %v, failing %d", seed, n, bad, failing)
		if one(3) {
			ds, what = allOrNothing{ds}, what+", LoadBatch"
		}
		if one(2) {
			opts, what = append(opts, nwt.WithAsyncTransfer()), what+", async"
		}
		if one(4) {
			what += ", finished"
			opts = append(opts, nwt.WithFinish(func(_ context.Context, b *nwt.Batch) error {
				for f := range 5 { // the padding too
					b.Bytes(f)[b.Rand().IntN(len(b.Bytes(f)))] = 77
				}
				return nil
			}))
		}
		t.Run(what, func(t *testing.T) {
			dev := newSlate(seed, failing)
			l := newLoader(t, ds, append(opts, nwt.WithDevice(dev))...)
			p := &inspector{t: t, dev: dev, rng: rng}
			promptly(t, func() {
				for epoch := range 8 {
					p.epoch(l, epoch)
				}
				p.release(0)
				require.NoError(t, l.Close())
			})
			if failing == 0 && !p.left {
				require.Equal(t, dev.bytes, l.Stats().CopiedBytes)
			}
			require.Empty(t, dev.memory)
		})
	}
}

// An inspector compares batches on the device with those on the host.
type inspector struct {
	t    *testing.T
	dev  *slate
	rng  *rand.Rand
	kept []*nwt.Batch
	left bool // an epoch before its end
}

func (p *inspector) epoch(l *nwt.Loader, epoch int) {
	last := -1
	if p.rng.IntN(4) == 0 {
		last, p.left = p.rng.IntN(5), true
	}
	for b, err := range l.Epoch(p.t.Context(), epoch) {
		if err != nil {
			require.ErrorIs(p.t, err, errSlate)
			return
		}
		p.compare(b)
		if p.rng.IntN(5) == 0 {
			b.Retain()
			p.kept = append(p.kept, b)
		} else {
			p.overwrite(b)
		}
		p.release(4)
		if b.Index() == last {
			return
		}
	}
}

// release compares retained batches once more and lets go of them, but of n.
func (p *inspector) release(n int) {
	for len(p.kept) > n {
		p.compare(p.kept[0])
		p.kept[0].Release()
		p.kept = p.kept[1:]
	}
}

func (p *inspector) compare(b *nwt.Batch) {
	p.dev.use(b.Event(), func() {
		for f := range 5 {
			host, there := b.Bytes(f), p.dev.at(b.DevicePtr(f))[:len(b.Bytes(f))]
			require.True(p.t, bytes.Equal(host, there), "field %d of batch %d of epoch %d", f, b.Index(), b.Epoch())
		}
	})
}

// overwrite changes what a program may change on the device: everything but padding.
func (p *inspector) overwrite(b *nwt.Batch) {
	mark := byte(1 + p.rng.IntN(255))
	p.dev.use(b.Event(), func() {
		for f, row := range []int{0, 2, 1, 0, 8} {
			mem := p.dev.at(b.DevicePtr(f))[:len(b.Bytes(f))]
			place := len(mem) / b.Len()
			for i := range b.Len() {
				used := 0
				if row > 0 {
					used = int(b.Lens(f)[i]) * row
				}
				fill(mem[i*place:][:used], mark)
			}
		}
	})
}

// sounds is a dataset of one ragged field, with places of 1 MiB, and a label. The
// lengths of its samples follow each other.
func sounds(longest int, lengths ...int) nwt.Dataset {
	fields := []nwt.Field{{Name: "sound", Type: nwt.Uint8, Shape: []int{longest}, Ragged: true}, {Name: "label", Type: nwt.Int64}}
	return nwt.NewDataset(len(lengths), fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, lengths[i])
		return nil
	})
}

// copied is the bytes and the parts of each batch's copy.
func copied(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) (sizes, parts []int) {
	t.Helper()
	dev := newSlate(1, 0)
	l := newLoader(t, ds, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(0), nwt.WithDevice(dev))...)
	before := 0
	for _, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		sizes = append(sizes, l.Stats().CopiedBytes-before)
		before = l.Stats().CopiedBytes
	}
	return sizes, dev.parts
}

func TestOnlyTheUsedPartOfARaggedFieldIsCopied(t *testing.T) {
	const place, labels = 1 << 20, 4 * 8
	sizes, parts := copied(t, sounds(place,
		1000, 1000, 1000, 1000,
		1000, 1000, 1000, 1000,
		1000, 50_000, 0, 200,
		10, 10, 10, 10,
		10, 10, 10, 10,
		0, 0, 0, 0,
		0, 0, 0, 0,
		place, place, place, place,
		7, 7))
	require.Equal(t, []int{
		4*place + labels, // new memory
		4*1000 + labels,
		1000 + 50_000 + 2*1000 + labels,
		1000 + 50_000 + 10 + 200 + labels, // what the batch before has left is cleared
		4*10 + labels,
		4*10 + labels,
		labels,
		4*place + labels,
		2*place + 2*8, // only of the places that it has
	}, sizes)
	require.Equal(t, []int{1, 5, 5, 5, 5, 5, 1, 1, 2}, parts)
}

// Leaving out less would take longer than copying it.
func TestSmallGapsAreCopied(t *testing.T) {
	const place = 2 * nwt.LeastGap
	sizes, parts := copied(t, sounds(place,
		place, place, place, place,
		place, place, place, place/2+1,
		place, place, 10, place/2,
		10, place, place/2, place/2+1,
	))
	require.Equal(t, []int{4*place + 32, 4*place + 32, 4*place + 32, 3*place + place/2 + 32}, sizes)
	require.Equal(t, []int{1, 1, 1, 2}, parts)
}

func TestWhatMayBeAnywhereIsCopiedWhole(t *testing.T) {
	lengths := slices.Repeat([]int{3}, 12)
	finish := nwt.WithFinish(func(context.Context, *nwt.Batch) error { return nil })
	for name, c := range map[string]struct {
		longest int
		opts    []nwt.Option
	}{
		"after WithFinish": {1 << 20, []nwt.Option{finish}},
		"small samples":    {nwt.LeastGap - 1, nil},
	} {
		sizes, parts := copied(t, sounds(c.longest, lengths...), c.opts...)
		require.Equal(t, slices.Repeat([]int{4*c.longest + 32}, 3), sizes, name)
		require.Equal(t, []int{1, 1, 1}, parts, name)
	}
}

// brokenSlate fails in one call of a session.
type brokenSlate struct {
	*slate
	call string
	n    int
}

func (d *brokenSlate) fails(call string) bool {
	if call == d.call {
		d.n--
	}
	return call == d.call && d.n == 0
}

func (d *brokenSlate) Open() (nwt.Session, error) { return d, nil }
func (d *brokenSlate) Copy(parts []nwt.Copy, event uintptr) error {
	if d.fails("copy") {
		return errSlate
	}
	return d.slate.Copy(parts, event)
}

func (d *brokenSlate) Wait(event uintptr) error {
	if d.fails("wait") {
		return errSlate
	}
	return d.slate.Wait(event)
}

func TestAfterAnErrorABatchIsCopiedWhole(t *testing.T) {
	for _, call := range []string{"copy", "wait"} {
		dev := &brokenSlate{newSlate(1, 0), call, 3}
		l := newLoader(t, sounds(1<<20, slices.Repeat([]int{1000}, 16)...), nwt.WithBatchSize(4), nwt.WithWorkers(0), nwt.WithDevice(dev))
		var errs []error
		var sizes []int
		for epoch := range 2 {
			before := l.Stats().CopiedBytes
			for _, err := range l.Epoch(t.Context(), epoch) {
				if err != nil {
					errs = append(errs, err)
					continue
				}
				sizes = append(sizes, l.Stats().CopiedBytes-before)
				before = l.Stats().CopiedBytes
			}
		}
		require.Len(t, errs, 1, call)
		require.ErrorIs(t, errs[0], errSlate)
		const whole, used = 4<<20 + 32, 4*1000 + 32
		require.Equal(t, []int{whole, used, whole, used, used, used}, sizes, call)
	}
}

func TestCopyingWhatIsUsedAllocatesNothing(t *testing.T) {
	lengths := make([]int, 8000)
	for i := range lengths {
		lengths[i] = i * i % 1000 * 100
	}
	l := newLoader(t, sounds(100_000, lengths...), nwt.WithBatchSize(4), nwt.WithWorkers(0), nwt.WithDevice(nowhere{}))
	allocations := testing.AllocsPerRun(3, func() {
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
	})
	require.Less(t, allocations, 200.0, "of an epoch of 2000 batches")
}

// BenchmarkUsedPart loads batches of ragged samples whose sizes aren't known before:
// bytes and parts that a batch's copy has, and the bytes with all padding.
func BenchmarkUsedPart(b *testing.B) {
	for _, c := range []struct {
		name   string
		field  nwt.Field
		batch  int
		length func(rng *rand.Rand) int
	}{
		{"text", nwt.Field{Type: nwt.Int32, Shape: []int{512}}, 32, func(rng *rand.Rand) int { return 16 + rng.IntN(200) }},
		{"speech", nwt.Field{Type: nwt.Float32, Shape: []int{3000, 80}}, 16, func(rng *rand.Rand) int { return 200 + rng.IntN(1400) }},
		{"images", nwt.Field{Type: nwt.Uint8, Shape: []int{1333, 1333, 3}}, 8, func(rng *rand.Rand) int { return 600 + rng.IntN(734) }},
		{"points", nwt.Field{Type: nwt.Float32, Shape: []int{200_000, 4}}, 8, func(rng *rand.Rand) int { return 20_000 + rng.IntN(80_000) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.field.Name, c.field.Ragged = c.name, true
			ds := nwt.NewDataset(1<<30, []nwt.Field{c.field}, func(_ context.Context, i int, dst *nwt.Sample) error {
				dst.SetLen(0, c.length(dst.Rand()))
				return nil
			})
			dev := newSlate(1, 0)
			l := newLoader(b, ds, nwt.WithBatchSize(c.batch), nwt.WithWorkers(2), nwt.WithDevice(dev))
			var before nwt.Stats
			deliver(b, l, 20, b.N, func(n int, _ *nwt.Batch) {
				if n == 0 {
					before = l.Stats()
					b.ResetTimer()
				}
			})
			b.StopTimer()
			s := l.Stats()
			require.NoError(b, l.Close())
			parts := 0
			for _, n := range dev.parts {
				parts += n
			}
			b.ReportMetric(float64(s.CopiedBytes-before.CopiedBytes)/float64(s.Copied-before.Copied)/1e6, "copied-MB/batch")
			b.ReportMetric(float64(s.SlotBytes/s.Slots)/1e6, "padded-MB/batch")
			b.ReportMetric(float64(parts)/float64(len(dev.parts)), "parts/batch")
		})
	}
}
