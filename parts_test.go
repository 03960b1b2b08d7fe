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
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

// A slate is a device whose new memory is full of what was there before. It copies and
// clears as late as it may: when somebody waits for it.
type slate struct {
	nowhere
	failing int  // one call in so many fails; 0: none
	plain   bool // its sessions can't clear memory

	mu     sync.Mutex
	rng    *rand.Rand
	memory map[uintptr][]byte
	next   uintptr
	queue  []lateWork
	lost   map[uintptr]bool // the events of copies that were never made
	bytes  int              // of all copies queued
	parts  []int            // of each copy
	gaps   []int            // that were cleared before each copy
	zeros  []int            // bytes of these gaps
}

type lateWork struct {
	event uintptr // 0 for gaps
	parts []nwt.Copy
	gaps  []nwt.Region
}

const slateBlock = uintptr(1) << 24 // from one piece of memory to the next; 32 bits have 255

var errSlate = errors.New("the slate broke")

func newSlate(seed uint64, failing int) *slate {
	return &slate{failing: failing, rng: rand.New(rand.NewPCG(seed, 1)), memory: map[uintptr][]byte{}, lost: map[uintptr]bool{}}
}

func (s *slate) Alloc(size int) (uintptr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ptr := slateBlock
	for s.memory[ptr] != nil {
		ptr += slateBlock
	}
	s.memory[ptr] = bytes.Repeat([]byte{byte(1 + s.rng.IntN(255))}, size)
	return ptr, nil
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

func (s *slate) Open() (nwt.Session, error) {
	if s.plain {
		return struct{ nwt.Session }{s}, nil
	}
	return s, nil
}

func (s *slate) Zero(gaps []nwt.Region) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails() {
		for _, g := range gaps[:s.rng.IntN(len(gaps)+1)] {
			clear(s.at(g.Dst)[:s.rng.IntN(g.Size+1)])
		}
		return errSlate
	}
	s.queue = append(s.queue, lateWork{gaps: slices.Clone(gaps)})
	zeros := 0
	for _, g := range gaps {
		zeros += g.Size
	}
	s.gaps, s.zeros = append(s.gaps, len(gaps)), append(s.zeros, zeros)
	return nil
}

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
	s.queue = append(s.queue, lateWork{event: event, parts: slices.Clone(parts)})
	for _, p := range parts {
		s.bytes += len(p.Src)
	}
	s.parts = append(s.parts, len(parts))
	if len(s.gaps) < len(s.parts) {
		s.gaps, s.zeros = append(s.gaps, 0), append(s.zeros, 0)
	}
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
	for slices.ContainsFunc(s.queue, func(c lateWork) bool { return c.event == event }) {
		s.makeOldest()
	}
}

func (s *slate) makeOldest() {
	for _, g := range s.queue[0].gaps {
		clear(s.at(g.Dst)[:g.Size])
	}
	for _, p := range s.queue[0].parts {
		copy(s.at(p.Dst)[:len(p.Src)], p.Src)
	}
	s.queue = s.queue[1:]
}

// at is the memory from ptr to the end of its block.
func (s *slate) at(ptr uintptr) []byte {
	mem := s.memory[ptr/slateBlock*slateBlock]
	if mem == nil {
		panic("not the slate's memory")
	}
	return mem[ptr%slateBlock:]
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

func TestADeviceHoldsEveryByteOfABatchWhateverWasLeftThere(t *testing.T) {
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
		finished := one(4)
		if finished {
			what += ", finished"
			opts = append(opts, nwt.WithFinish(func(_ context.Context, b *nwt.Batch) error {
				for f := range 5 { // the padding too
					b.Bytes(f)[b.Rand().IntN(len(b.Bytes(f)))] = 77
				}
				return nil
			}))
		}
		dev := newSlate(seed, failing)
		if dev.plain = seed%5 == 4; dev.plain {
			what += ", which can't clear"
		}
		t.Run(what, func(t *testing.T) {
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
				if dev.plain || finished { // a batch in one piece: what lies between its fields goes along, and doesn't count
					require.GreaterOrEqual(t, dev.bytes, l.Stats().CopiedBytes)
				} else {
					require.Equal(t, dev.bytes, l.Stats().CopiedBytes)
				}
			}
			if dev.plain {
				require.Zero(t, slices.Max(append(dev.zeros, 0)))
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
		p.overwrite(p.kept[0])
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

// overwrite changes the whole of a batch on the device, padding included, as a program
// that normalizes it in place does.
func (p *inspector) overwrite(b *nwt.Batch) {
	mark := byte(1 + p.rng.IntN(255))
	p.dev.use(b.Event(), func() {
		for f := range 5 {
			fill(p.dev.at(b.DevicePtr(f))[:len(b.Bytes(f))], mark)
		}
	})
}

// sounds is a dataset of one ragged field and a label. The lengths of its samples follow
// each other.
func sounds(longest int, lengths ...int) nwt.Dataset {
	fields := []nwt.Field{{Name: "sound", Type: nwt.Uint8, Shape: []int{longest}, Ragged: true}, {Name: "label", Type: nwt.Int64}}
	return nwt.NewDataset(len(lengths), fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, lengths[i])
		return nil
	})
}

// copied is the bytes and the parts of each batch's copy, and the bytes and the number of
// the gaps that were cleared.
type copied struct{ bytes, parts, cleared, gaps int }

func copies(t *testing.T, dev *slate, ds nwt.Dataset, opts ...nwt.Option) (all []copied) {
	t.Helper()
	l := newLoader(t, ds, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(0), nwt.WithDevice(dev))...)
	before := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		dev.use(b.Event(), func() {
			all = append(all, copied{l.Stats().CopiedBytes - before, dev.parts[b.Index()], dev.zeros[b.Index()], dev.gaps[b.Index()]})
		})
		before = l.Stats().CopiedBytes
	}
	return all
}

func TestOnlyTheUsedPartOfARaggedFieldIsCopiedAndTheRestIsCleared(t *testing.T) {
	const place, labels = 1 << 20, 4 * 8
	used := func(bytes, parts, gaps int) copied {
		return copied{bytes + labels, parts, 4*place - bytes, gaps}
	}
	require.Equal(t, []copied{
		used(4*1000, 5, 4),
		used(4*1000, 5, 4),
		used(1000+50_000+200, 4, 3), // the empty sample's place is one with the gap before it
		used(4*10, 5, 4),
		used(2*10, 3, 3),
		used(0, 1, 1),
		used(0, 1, 1),
		used(4*place, 1, 0),
		used(3*place+20, 2, 1),
		{2*7 + 2*8, 3, 4*place - 2*7, 2}, // the last batch's unused places too
	}, copies(t, newSlate(1, 0), sounds(place,
		1000, 1000, 1000, 1000,
		1000, 1000, 1000, 1000,
		1000, 50_000, 0, 200,
		10, 10, 10, 10,
		0, 10, 0, 10,
		0, 0, 0, 0,
		0, 0, 0, 0,
		place, place, place, place,
		place, place, place, 20,
		7, 7)))
}

// Leaving out less would take longer than copying it.
func TestSmallGapsAreCopied(t *testing.T) {
	const place, half = 2 * nwt.LeastGap, nwt.LeastGap
	require.Equal(t, []copied{
		{4*place + 32, 1, 0, 0},
		{4*place + 32, 1, 0, 0},
		{3*place + half + 32, 2, half, 1},
		{half + 3*place + 32, 2, half, 1},
		{10 + 2*place + 1 + 32, 3, 2*place - 10 - 1, 2},
	}, copies(t, newSlate(1, 0), sounds(place,
		place, place, place, place,
		place, place, place, half+1,
		place, place, half, place,
		half, place, place, half+1,
		10, place, place, 1,
	)))
}

func TestTheEndOfABatchIsCopiedOrClearedToo(t *testing.T) {
	const place = 2 * nwt.LeastGap
	field := []nwt.Field{{Name: "sound", Type: nwt.Uint8, Shape: []int{place}, Ragged: true}}
	lengths := []int{place, place, place, place, place, place, place, place - 10, place, place, place, 10, 0, 0, 0, 0}
	ds := nwt.NewDataset(len(lengths), field, func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, lengths[i])
		return nil
	})
	require.Equal(t, []copied{
		{4 * place, 1, 0, 0},
		{4 * place, 1, 0, 0},
		{3*place + 10, 1, place - 10, 1},
		{0, 0, 4 * place, 1},
	}, copies(t, newSlate(1, 0), ds))
}

func TestPaddingIsCopiedIfItMayNotBeZeroOrCantBeCleared(t *testing.T) {
	lengths := slices.Repeat([]int{3}, 12)
	finish := nwt.WithFinish(func(context.Context, *nwt.Batch) error { return nil })
	for name, c := range map[string]struct {
		longest int
		plain   bool
		opts    []nwt.Option
	}{
		"after WithFinish":   {1 << 20, false, []nwt.Option{finish}},
		"small samples":      {nwt.LeastGap - 1, false, nil},
		"by a plain session": {1 << 20, true, nil},
	} {
		dev := newSlate(1, 0)
		dev.plain = c.plain
		require.Equal(t, slices.Repeat([]copied{{4*c.longest + 32, 1, 0, 0}}, 3), copies(t, dev, sounds(c.longest, lengths...), c.opts...), name)
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

func (d *brokenSlate) Zero(gaps []nwt.Region) error {
	if d.fails("zero") {
		return errSlate
	}
	return d.slate.Zero(gaps)
}

func TestAfterAnErrorTheNextBatchesAreWhole(t *testing.T) {
	for _, call := range []string{"copy", "wait", "zero"} {
		dev := &brokenSlate{newSlate(1, 0), call, 3}
		l := newLoader(t, sounds(1<<20, slices.Repeat([]int{1000}, 16)...), nwt.WithBatchSize(4), nwt.WithWorkers(0), nwt.WithDevice(dev))
		var errs []error
		var sizes []int
		for epoch := range 2 {
			before := l.Stats().CopiedBytes
			for b, err := range l.Epoch(t.Context(), epoch) {
				if err != nil {
					errs = append(errs, err)
					continue
				}
				dev.use(b.Event(), func() {
					mem := dev.at(b.DevicePtr(0))[:4<<20]
					require.True(t, bytes.Equal(b.Bytes(0), mem), "batch %d of epoch %d, %s", b.Index(), epoch, call)
					fill(mem, 0xEE)
				})
				sizes = append(sizes, l.Stats().CopiedBytes-before)
				before = l.Stats().CopiedBytes
			}
		}
		require.Len(t, errs, 1, call)
		require.ErrorIs(t, errs[0], errSlate)
		require.Equal(t, slices.Repeat([]int{4*1000 + 32}, 6), sizes, call)
	}
}

// clearing is nowhere with sessions that can clear memory.
type clearing struct{ nowhere }

func (clearing) Open() (nwt.Session, error) { return clearing{}, nil }
func (clearing) Zero([]nwt.Region) error    { return nil }

func TestCopyingWhatIsUsedAllocatesNothing(t *testing.T) {
	lengths := make([]int, 8000)
	for i := range lengths {
		lengths[i] = i * i % 1000 * 100
	}
	l := newLoader(t, sounds(100_000, lengths...), nwt.WithBatchSize(4), nwt.WithWorkers(0), nwt.WithDevice(clearing{}))
	allocations := testing.AllocsPerRun(3, func() {
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
	})
	require.Less(t, allocations, 200.0, "of an epoch of 2000 batches")
}

// burning panics as it clears.
type burning struct{ clearing }

func (burning) Open() (nwt.Session, error) { return burning{}, nil }
func (burning) Zero([]nwt.Region) error    { panic("burnt") }

func TestADeviceThatPanicsAsItClearsIsAnError(t *testing.T) {
	l := newLoader(t, sounds(1<<20, 1, 2, 3, 4), nwt.WithBatchSize(4), nwt.WithDevice(burning{}))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.Nil(t, b)
		require.ErrorContains(t, err, "nwt: transfer to null: batch 0 of epoch 0: panic: burnt (")
	}
}

func TestATrainingStreamMayOverwriteThePaddingOnAGPU(t *testing.T) {
	gpu := cudatest.Load(t)
	dev := gpu0(t)
	const place = 128 << 10
	garbage, err := dev.Alloc(4 * place)
	require.NoError(t, err)
	step := gpu.OpenStream(gpu.Primary(0))
	lengths := slices.Repeat([]int{place, place, place, place, 0, 0, 1000, 50_000, 100_000, 1, 0, place}, 5)
	l := newLoader(t, sounds(place, lengths...), nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithDevice(dev))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.True(t, bytes.Equal(b.Bytes(0), gpu.Read(t, b.DevicePtr(0), 4*place)), "batch %d", b.Index())
		step.Copy(b.DevicePtr(0), garbage, 4*place)
		b.ReleaseAfterStream(uintptr(step))
	}
	require.Less(t, l.Stats().CopiedBytes, 10*4*place, "of 15 batches")
	require.NoError(t, l.Close())
	step.Close()
	require.NoError(t, dev.Free(garbage))
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
			gaps := 0
			for _, n := range dev.gaps {
				gaps += n
			}
			b.ReportMetric(float64(gaps)/float64(len(dev.gaps)), "cleared/batch")
			b.ReportMetric(float64(parts)/float64(len(dev.parts)), "parts/batch")
		})
	}
}
