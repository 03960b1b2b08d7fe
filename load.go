package nwt

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"

	"github.com/nwt-go/nwt/internal/callctx"
	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/retry"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/usercall"
	"github.com/nwt-go/nwt/internal/watch"
)

// A loading says how the samples of a dataset are loaded. It doesn't change.
type loading struct {
	sample      func(ctx context.Context, index int, dst *Sample) error
	intoCleared func(ctx context.Context, index int, dst *Sample) error       // loads into a place that is already clear
	together    func(ctx context.Context, indices []int, dst []*Sample) error // nil if the dataset has no LoadMany
	mustClear   bool                                                          // places are cleared before loading
	ragged      bool
	size        int // bytes of a sample

	retry  retry.Policy
	strict bool // no sample may be bad, so those after a bad one needn't be loaded
}

// loadingOf finds out how samples are loaded. The check whether places must be cleared isn't in the
// loading loop, because there it would cost every dataset time.
func loadingOf(ds Dataset, l *layout.Layout, policy retry.Policy) *loading {
	how := &loading{sample: ds.Load, ragged: l.Ragged > 0, size: l.Size, retry: policy}
	switch ds := ds.(type) {
	case *funcDataset:
		how.sample = ds.load // saves one call per sample
	case *streamDataset:
		how.sample = ds.load
	}
	if d, ok := ds.(BatchDataset); ok {
		how.together = d.LoadMany
	}
	how.intoCleared = how.sample
	if overwrites(ds) {
		return how
	}
	how.mustClear = true
	load, together := how.sample, how.together
	how.sample = func(ctx context.Context, index int, dst *Sample) error {
		dst.common.mem.Clear(dst.place, 1)
		return load(ctx, index, dst)
	}
	if together != nil {
		how.together = func(ctx context.Context, indices []int, dst []*Sample) error {
			dst[0].common.mem.Clear(dst[0].place, len(dst)) // they are contiguous
			return together(ctx, indices, dst)
		}
	}
	return how
}

// noIndex is the index of a place for which the sampler has panicked.
const noIndex = math.MinInt

// A loadLoop calls Load and LoadMany, for whatever loads samples: it clears their places, repeats temporary
// errors, has a clock for calls that take too long, and makes what fails or panics a bad sample. It belongs
// to one goroutine. If a call is given up, the watchdog reads it while the call can't end.
type loadLoop struct {
	how     *loading
	sample  Sample
	scratch *scratchValues    // the sample's; the watchdog reads them here, since a cache changes sample during a call
	stops   *ring.Ring[batch] // what ends loading early; nil: nothing

	// What is being loaded. The worker that has the loop sets it.
	slot *slot
	next int // the place that is being loaded, or is loaded next
	bad  *faults
	n    int // indices must be below it

	samples []*Sample // passed to LoadMany; grows on demand
	indices []int     // passed to LoadMany, which may change them
	failed  error     // of the LoadMany for the whole claim

	call call
}

// A call is what the watchdog sees of a call of Load or LoadMany.
type call struct {
	watchdog *watch.Watchdog // nil: no call is bounded
	clock    watch.Clock

	// Written before the clock begins.
	upto    int  // the place after the last one that the call loads
	ofBatch bool // the call is one of LoadMany

	parent context.Context // what ctx was made of
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// context returns the context that Load gets in a run whose context is parent. If calls are bounded, it
// also ends when the call is given up.
func (h *loadLoop) context(parent context.Context) context.Context {
	if h.call.watchdog == nil {
		return parent
	}
	if h.call.parent != parent {
		h.call.parent = parent
		h.call.ctx, h.call.cancel = context.WithCancelCause(callctx.WithTimeout(parent, h.call.watchdog.Timeout()))
	}
	return h.call.ctx
}

// calls records that a call begins, for the places from next up to upto.
func (h *loadLoop) calls(upto int, ofBatch bool) {
	h.call.upto, h.call.ofBatch = upto, ofBatch
	h.call.clock.Begin(h.call.watchdog.Now(), upto-h.next)
}

// tooLate records that the call under way has returned, and reports whether it was given up.
func (h *loadLoop) tooLate() bool { return h.call.watchdog != nil && !h.call.clock.End() }

// pause records that a create of Scratch begins, whose time doesn't count for the call.
func (h *loadLoop) pause() { h.call.clock.Pause(h.call.watchdog.Now()) }

// resume records that the create has ended.
func (h *loadLoop) resume() { h.call.clock.Resume(h.call.watchdog.Now()) }

// setSlot prepares the loop for places of a slot, and says what their Load may depend on.
func (h *loadLoop) setSlot(s *slot, at span) {
	h.slot = s
	h.sample.common.mem, h.sample.common.records, h.sample.common.span = s.places.Memory, s.records, at
	if h.sample.common.drawn != nil { // as if it were loaded alone, whatever was loaded before
		h.sample.common.span.positions = s.indices
	}
}

// singly loads the places before end one by one, unless it is stopped or a call is given up.
func (h *loadLoop) singly(ctx context.Context, end int) {
	for h.next < end && !h.call.clock.Lost() {
		h.untilPanic(ctx, end)
	}
}

// clearedAtOnce is how many bytes of small samples are cleared together, so that they are still in the
// cache when they are loaded.
const clearedAtOnce = 16 << 10

// untilPanic is the loading loop: it calls Load for one place after the other, until Load panics.
func (h *loadLoop) untilPanic(ctx context.Context, end int) {
	how, s, indices := h.how, &h.sample, h.slot.indices
	s.common.scratch.ctx = ctx
	stops, load, n, ragged, bounded := h.stops, how.sample, uint(h.n), how.ragged, h.call.watchdog != nil // read once; more wouldn't fit into registers
	if places := end - h.next; how.mustClear && places*how.size <= clearedAtOnce {
		s.common.mem.Clear(h.next, places)
		load = how.intoCleared
	}
	finished := false
	defer func() {
		if finished {
			return
		}
		p := recover()
		if h.tooLate() || p == nil {
			return // the call was given up long ago, or the goroutine ends
		}
		stack, err := usercall.Recovered(p)
		h.bad.add(h.next, s.failure(err, stack))
		h.next++
		h.forget()
	}()
	for ; h.next < end; h.next++ {
		if stops != nil && stops.Stopped() {
			h.next = end // the batch will not be delivered
			break
		}
		index := indices[h.next]
		s.setPlace(h.next, index)
		if uint(index) >= n {
			if index != noIndex || !h.bad.has(h.next) {
				h.bad.add(h.next, s.failure(fmt.Errorf("the sampler's index %d for position %d is out of range 0 … %d, the samples that there were when the epoch began", index, s.Position(), n-1), nil))
			}
			continue
		}
		if ragged { // this is begin, without a call per sample for other datasets
			if s.common.mem.UnsetLens(h.next, h.next+1); s.common.mem.Told != nil && s.common.mem.Told[h.next] == layout.Untold {
				continue
			}
		}
		if bounded {
			h.calls(h.next+1, false)
		}
		err := load(ctx, index, s)
		if err != nil {
			err = h.again(ctx, err)
		}
		if h.tooLate() {
			break
		}
		if ragged && err == nil {
			err = s.end()
		}
		if err != nil {
			h.bad.add(h.next, s.failure(err, nil))
		}
	}
	finished = true
}

// again loads the current sample again, as WithRetry says.
func (h *loadLoop) again(ctx context.Context, err error) error {
	if h.sample.unread() {
		return err
	}
	return h.how.retry.Do(ctx, err, func() error {
		h.sample.begin(h.sample.place, h.sample.index)
		return h.how.sample(ctx, h.sample.index, &h.sample)
	})
}

// forget drops the values that a call that panicked may have left half done.
func (h *loadLoop) forget() {
	h.scratch.close(h.sample.common.log)
	h.sample.scope = 0
	for _, s := range h.samples {
		s.scope = 0
	}
}

// together loads the places before end in one call of LoadMany, which it repeats as WithRetry says if they
// are the whole of a claim. If the call fails, it tries each half, without a wait, then the halves of
// these, and so on. Load is then called only for the samples that fail alone, and its errors name them.
func (h *loadLoop) together(ctx context.Context, end int, whole bool) {
	switch {
	case h.next >= end || h.call.clock.Lost():
	case h.stops.Stopped() || h.isBeyondError():
		h.next = end // these samples will not be delivered
	case !h.gather(end):
		h.singly(ctx, end)
	case h.callTogether(ctx, end, whole):
		h.next = end
	case end-h.next == 1:
		h.singly(ctx, end)
	default:
		h.together(ctx, h.next+(end-h.next)/2, false)
		h.together(ctx, end, false)
	}
}

// isBeyondError reports whether a bad sample before place next will end the epoch.
func (h *loadLoop) isBeyondError() bool { return h.how.strict && h.next > int(h.bad.first.Load()) }

// callTogether calls LoadMany for the places that gather has readied.
func (h *loadLoop) callTogether(ctx context.Context, end int, whole bool) (ok bool) {
	samples, returned := h.samples[:end-h.next], false
	failed := func(err error) {
		if whole && !h.stops.Stopped() && ctx.Err() == nil { // if the context has ended, that is not a failure
			h.failed = err
		}
	}
	defer func() {
		if returned {
			return
		}
		p := recover()
		if h.tooLate() || p == nil {
			return // the call was given up long ago, or the goroutine ends
		}
		_, err := usercall.Recovered(p)
		failed(err)
		h.forget()
	}()
	h.scratch.ctx = ctx
	if h.call.watchdog != nil {
		h.calls(end, true)
	}
	err := h.how.together(ctx, h.indices, samples)
	if err != nil && whole {
		err = h.how.retry.Do(ctx, err, func() error {
			h.gather(end) // the call may have sorted both, and set lengths
			return h.how.together(ctx, h.indices, samples)
		})
	}
	returned = true
	switch {
	case h.tooLate():
		return false
	case err != nil && endsEpoch(err):
		for ; h.next < end; h.next++ {
			h.sample.setPlace(h.next, h.slot.indices[h.next])
			h.bad.add(h.next, h.sample.failure(err, nil))
		}
		return true
	case err != nil:
		failed(err)
		return false
	}
	if h.how.ragged {
		for _, s := range samples {
			if err := s.end(); err != nil {
				h.bad.add(s.place, s.failure(err, nil))
			}
		}
	}
	return true
}

// gather prepares the samples and indices for a LoadMany of the places next … end−1. It returns false if
// one of them is known to be bad: Load is then called for the others.
func (h *loadLoop) gather(end int) (ok bool) {
	n, indices := end-h.next, h.slot.indices[h.next:end]
	if len(h.samples) < n {
		h.samples = newSamples(h.sample.common, n)
	}
	h.indices = append(h.indices[:0], indices...)
	for i, s := range h.samples[:n] {
		if uint(indices[i]) >= uint(h.n) {
			return false
		}
		s.setPlace(h.next+i, indices[i])
	}
	if h.how.ragged {
		h.sample.common.mem.UnsetLens(h.next, end)
		if told := h.sample.common.mem.Told; told != nil && slices.Contains(told[h.next:end], layout.Untold) {
			return false
		}
	}
	return true
}

// failedTogether logs that a LoadMany has failed, but no Load for its samples: the first time, the second,
// the fourth and so on. Loading is slow then, and this log is the only hint.
func (l *engine) failedTogether(err error) {
	if times := l.counters.failedTogether.Add(1); times&(times-1) == 0 {
		l.setup.opts.log.Warn("nwt: samples that are loaded together (LoadMany) failed: "+
			"they are loaded by halves, and by halves of these, down to single ones", "during", l.setup.during(), "failures", times, "error", err)
	}
}

// LoadSample loads one sample by its index. The sample's position is its index, and its epoch and seed are 0.
// If an error is temporary, LoadSample tries again, as [WithRetry] does by default. The sample stays valid.
// The errors are *[LoadError] and those of [NewLoader].
func LoadSample(ctx context.Context, ds Dataset, index int) (*Sample, error) {
	n, l, err := checkIndexed(ds)
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= n {
		return nil, optionError("LoadSample: index", index, "must be 0 … %d", n-1)
	}
	h := &loadLoop{how: loadingOf(ds, l.Layout, retry.Default), scratch: &scratchValues{}, n: n, bad: &faults{}}
	defer h.scratch.close(slog.Default())
	s := newBlock(l.Layout, 1)[0]
	h.sample.common, s.common.scratch = s.common, h.scratch
	h.slot = &slot{indices: []int{index}}
	h.sample.common.span.from = index
	h.singly(ctx, 1)
	if len(h.bad.list) > 0 {
		bad := h.bad.list[0].err
		bad.origin = origin(ds, index, bad.Err)
		return nil, bad
	}
	return &h.sample, nil
}

// loadAlone loads a sample into s as LoadSample would, for epoch 0 and seed 0, whatever s holds. It then
// restores the state of s. drawn is called if the sample draws from Rand.
func (s *Sample) loadAlone(ctx context.Context, ds Dataset, index int, drawn func(*slog.Logger)) error {
	if s.alone == nil {
		s.alone = &common{}
	}
	was, alone := *s, *s.alone // s may already be loaded alone, by a cache around this one
	defer func() {
		s.common, s.index, s.outer = was.common, was.index, was.outer
		s.pcg, s.seeded, s.scope = was.pcg, was.seeded, was.scope
		*s.alone = alone
	}()
	*s.alone = *s.common
	s.alone.span = span{from: index - s.place, key: permute.SeedKey(0)}
	s.alone.records, s.alone.drawn = nil, drawn
	s.common, s.outer = s.alone, nil
	s.begin(s.place, index)
	s.scope = was.scope
	if !overwrites(ds) {
		s.common.mem.Clear(s.place, 1)
	}
	if err := ds.Load(ctx, index, s); err != nil {
		return err
	}
	return s.end()
}
