package nwt

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/usercall"
)

var (
	ErrClosed   = errors.New("nwt: the loader is closed: make a new one")                                      // returned after Close
	ErrBusy     = errors.New("nwt: an epoch of this loader is running: end its loop, or make a second loader") // returned for a second epoch while one is running
	ErrRetained = errors.New("nwt: too many batches are retained")                                             // ends an epoch when no slot is left to load a batch into
	ErrNoDevice = cuda.ErrNoDevice                                                                             // no GPU can be used; the error that wraps ErrNoDevice says why
)

// goneBack says of a batch that was used too late what had happened, and what to do.
const goneBack = "the batch had gone back to the loader: call Retain to keep it past its iteration, or copy what you keep"

// nilBatch says why a loop body got no batch, and what to do.
const nilBatch = "nwt: the batch is nil, because the epoch ended with an error: check the error first"

// A LoadError says which sample couldn't be loaded, and why.
type LoadError struct {
	Index    int // index in the dataset; −1 if the sampler, WithWorkerInit or WithBatchTransform failed
	Position int // position in the epoch over all ranks, as [Sample.Position] returns it; −1 if WithWorkerInit, WithBatchTransform or BatchSampler.Start failed
	Epoch    int
	Worker   int
	Err      error  // the cause; for a panic, its value, file and line. For a stream, it names the record
	Stack    []byte // stack of a panic; nil if there was none

	origin string // names the sample in the datasets that its dataset was made of
}

func (e *LoadError) Error() string {
	switch {
	case e.Position < 0:
		return fmt.Sprintf("nwt: worker %d in epoch %d: %v", e.Worker, e.Epoch, usercall.Cause(e.Err))
	case e.Index < 0:
		return fmt.Sprintf("nwt: the sampler in epoch %d (position %d, worker %d): %v", e.Epoch, e.Position, e.Worker, usercall.Cause(e.Err))
	}
	return fmt.Sprintf("nwt: sample %d of epoch %d (%sposition %d, worker %d): %v", e.Index, e.Epoch, e.origin, e.Position, e.Worker, usercall.Cause(e.Err))
}

func (e *LoadError) Unwrap() error { return e.Err }

// A ShardError says at which record the reading of a shard failed. The rest of the shard is lost: one bad
// sample, or in a [CountedStream] one per record.
type ShardError struct {
	Shard  int
	Record int // number of the record in its shard, from 0
	Err    error
}

func (e *ShardError) Error() string {
	return fmt.Sprintf("shard %d from record %d on: %v", e.Shard, e.Record, e.Err)
}

func (e *ShardError) Unwrap() error { return e.Err }

// An ArgumentError says which argument can't be used, and why. Its Code is
//   - "few-samples": an epoch has no batch
//   - "state-length", "state-seed", "state-sampler" or "state-data": the state was saved with another length,
//     seed, sampler or data
//   - "state-beyond": the state counts more samples than its epoch has
//   - "": any other error
type ArgumentError struct {
	Name   string // the argument: "WithBatchSize", "wds.New" in another package, or "Split: shares[0]" for a part of a value
	Value  any    // the value, or the part of it that can't be used; nil if Reason contains the value
	Reason string // what is wrong, and the bounds
	Code   string // for programs with texts of their own
}

// Codes of an ArgumentError: an order without a batch; a state of another order, by what differs first; a
// state with more samples than its epoch has. They stay the same when reasons are reworded.
const (
	codeFewSamples = "few-samples"
	codeBeyond     = "state-beyond"
)

var codesOfOrder = [...]string{order.Length: "state-length", order.Seed: "state-seed", order.Sampler: "state-sampler", order.Data: "state-data"}

func (e *ArgumentError) Error() string {
	const most = 200 // bytes of a value to print; it may be a slice of a million
	value := fmt.Sprint(e.Value)
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "…"
	}
	if value == "" {
		value = `""`
	}
	prefix, name, ok := strings.Cut(e.Name, ".")
	if !ok || strings.Trim(prefix, "abcdefghijklmnopqrstuvwxyz") != "" {
		prefix, name = "nwt", e.Name
	}
	switch {
	case e.Value == nil:
		return fmt.Sprintf("%s: %s: %s", prefix, name, e.Reason)
	case strings.HasSuffix(name, "]"):
		return fmt.Sprintf("%s: %s = %s: %s", prefix, name, value, e.Reason)
	}
	return fmt.Sprintf("%s: %s: %s: %s", prefix, name, value, e.Reason)
}

func optionError(option string, value any, format string, args ...any) error {
	return &ArgumentError{Name: option, Value: value, Reason: fmt.Sprintf(format, args...)}
}

// panicked is deferred in a function that asks something of the program. If that panics, *err says so.
func panicked(err *error, what string, of any, method string) {
	if p := recover(); p != nil {
		_, cause := usercall.Recovered(p)
		*err = optionError(what, fmt.Sprintf("%T", of), "%s: %v", method, cause)
	}
}

func withCode(err error, code string) error {
	err.(*ArgumentError).Code = code
	return err
}

// part returns the name of the i-th of several values, for ArgumentError.Name.
func part(of string, i int) string { return fmt.Sprintf("%s[%d]", of, i) }

// within adds to an error the place where it was found: "Map", "Concat: dataset 2".
func within(what string, err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, err := range all.Unwrap() {
			errs = append(errs, within(what, err))
		}
		return errors.Join(errs...)
	}
	if e, ok := err.(*ArgumentError); ok {
		return &ArgumentError{what + ": " + e.Name, e.Value, e.Reason, e.Code}
	}
	return fmt.Errorf("nwt: %s: %w", what, usercall.Cause(err))
}

// faults are the samples of a batch that couldn't be loaded.
type faults struct {
	// first is the lowest place among them: if no bad sample is allowed, workers
	// needn't load the places after it. Written under mu.
	first atomic.Int32
	mu    sync.Mutex
	list  []fault // guarded by mu until the batch is loaded
}

type fault struct {
	place int
	err   *LoadError
}

func (f *faults) reset() {
	f.first.Store(math.MaxInt32)
	f.list = f.list[:0]
}

// any reports whether a sample is bad.
func (f *faults) any() bool { return f.first.Load() < math.MaxInt32 }

func (f *faults) add(place int, err *LoadError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, fault{place, err})
	f.first.Store(min(f.first.Load(), int32(place)))
}

// has reports whether a place is known to be bad.
func (f *faults) has(place int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.list, func(one fault) bool { return one.place == place })
}

// sorted returns the list in order of the places. The batch is loaded.
func (f *faults) sorted() []fault {
	if len(f.list) > 1 {
		slices.SortFunc(f.list, func(x, y fault) int { return cmp.Compare(x.place, y.place) })
	}
	return f.list
}

// fail records why the sample of a place is bad, while no loop loads it.
func (b *batch) fail(place, worker int, err error, stack []byte) {
	if b.slot.records != nil {
		err = b.slot.records[place].Of(err)
	}
	b.bad.add(place, &LoadError{Index: b.slot.indices[place], Position: b.span.position(place), Epoch: b.span.epoch, Worker: worker, Err: err, Stack: stack})
}

// badSamples remembers those of a loader that were left out.
type badSamples struct {
	mu    sync.Mutex
	count int          // guarded by mu; how many there were in all
	list  []*LoadError // guarded by mu; the first of them, up to maxRemembered
}

const maxRemembered = 10_000

func (s *badSamples) add(err *LoadError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	if len(s.list) < maxRemembered {
		s.list = append(s.list, err)
	}
}

// A tally counts bad samples against the error budget. It belongs to a run, and sees
// batches in the order of their delivery. With WithUnordered, batches of several
// epochs may alternate.
type tally struct {
	bad map[int]int // by epoch; epochs that ended long ago are deleted
}

// count adds a bad sample of an epoch and returns how many the epoch now has.
func (t *tally) count(epoch int) int {
	if t.bad == nil {
		t.bad = make(map[int]int)
	}
	t.bad[epoch]++
	if len(t.bad) > 2*ring.Capacity { // at most so many batches, and so epochs, are open at once
		maps.DeleteFunc(t.bad, func(e, _ int) bool { return e < epoch-ring.Capacity })
	}
	return t.bad[epoch]
}

// applyBudget leaves the bad samples out of a loaded batch. If they exceed the error budget, it
// returns the error of the first sample beyond it.
func (t *tally) applyBudget(b *batch) error {
	if b.failure != nil {
		return b.failure
	}
	list := b.bad.sorted()
	budget := b.l.setup.opts.maxBad
	for _, f := range list {
		bad := t.count(b.span.epoch)
		f.err.origin = origin(b.l.setup.ds, f.err.Index, f.err.Err)
		if endsEpoch(f.err) {
			return f.err
		}
		if bad <= budget {
			b.l.tellOfBad(f.err, bad)
			b.l.counters.bad.add(f.err)
			continue
		}
		if budget == 0 {
			return f.err
		}
		return fmt.Errorf("nwt: %d bad samples in epoch %d, WithErrorBudget allows %d; the last: %w", bad, b.span.epoch, budget, usercall.Cause(f.err))
	}
	if b.transformErr != nil {
		return b.transformErr
	}
	if err := b.leaveOutBad(); err != nil {
		return err
	}
	if len(list) > 0 && b.size == 0 && b.l.setup.opts.world > 1 {
		return fmt.Errorf("nwt: no sample of batch %d is left, and the other ranks would wait for it; the last: %w", b.number, usercall.Cause(list[len(list)-1].err))
	}
	return nil
}

// endsEpoch reports whether an error is the source's and not the sample's, so that no budget covers it: see
// WithErrorBudget.
func endsEpoch(err error) bool {
	e, ok := errors.AsType[interface {
		error
		EndsEpoch() bool
	}](err)
	return ok && e.EndsEpoch()
}

// leaveOutBad leaves the bad samples out, and moves the batch to memory that no call that was
// given up can write to. The batch must be loaded.
func (b *batch) leaveOutBad() error {
	if b.leftOut {
		return nil
	}
	b.leftOut = true
	list := b.bad.sorted()
	if b.slot.shared() || b.spare != nil {
		if err := b.moveOut(); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		b.leaveOut(list)
	}
	return nil
}

// leaveOut closes the gaps of the bad samples, which are listed in order.
func (b *batch) leaveOut(list []fault) {
	kept := list[0].place
	for i, f := range list {
		end := b.size
		if i+1 < len(list) {
			end = list[i+1].place
		}
		from := f.place + 1
		b.slot.copyPlaces(kept, b.slot, from, end)
		kept += end - from
	}
	b.resize(kept)
}

// tellOfBad logs that a sample is left out. While tuning it logs each sample once; in an epoch it logs less
// and less often: numbers 1 … 10, 20 … 100, 200 and so on.
func (l *engine) tellOfBad(err *LoadError, bad int) {
	if l.setup.tunes && !l.setup.once.First(err.Index) {
		return
	}
	digits := bad
	for digits%10 == 0 {
		digits /= 10
	}
	if digits > 9 {
		return
	}
	log := l.setup.opts.log
	if err.origin != "" {
		log = log.With("origin", strings.TrimSuffix(err.origin, ", "))
	}
	budget := any(l.setup.opts.maxBad)
	if l.setup.opts.drawn != nil { // Precompute tries all
		budget = "counted at the end"
	}
	log.Warn("nwt: a bad sample is left out", "during", l.setup.during(), "index", err.Index, "position", err.Position,
		"epoch", err.Epoch, "worker", err.Worker, "bad", bad, "budget", budget, "error", err.Err)
}
