package nwt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/memlimit"
	"github.com/nwt-go/nwt/internal/oncelog"
	"github.com/nwt-go/nwt/internal/resultfile"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/usercall"
)

// Tune finds the lowest worker count that is about as fast as the fastest: see [WithAlpha]. If measurements
// can't tell counts apart, it chooses the loader's default. It measures on this machine, at several counts,
// how long a batch of ds takes to reach the device. Give Tune the options that training will use. Tune drops
// the batches that it loads. It returns the errors of [NewLoader], of loading and of the step, an error if no
// count fits into memory, and the context's if ctx ends first.
//
// On Linux, Tune resets the process's peaks of memory: VmHWM, and the maximum resident set of getrusage. They
// then count from Tune's last measurement.
func Tune(ctx context.Context, ds Dataset, opts ...Option) (*Result, error) {
	src, err := newSetup(ds, opts)
	if err != nil {
		return nil, err
	}
	src.logIgnored("Tune", inTune)
	return src.tune(ctx)
}

// NewTunedLoader calls [Tune], then [NewLoader] with the worker count that Tune chose. [Loader.Result] returns
// Tune's result. ctx ends only the tuning.
func NewTunedLoader(ctx context.Context, ds Dataset, opts ...Option) (*Loader, error) {
	s, err := newSetup(ds, opts)
	if err != nil {
		return nil, err
	}
	s.logIgnored("NewTunedLoader", inTune)
	r, err := s.tune(ctx)
	if err != nil {
		return nil, err
	}
	l := s.trainingLoader(r.Workers)
	l.found.Store(r)
	return newHandle(l), nil
}

// tune returns the result in the file, if there is one that holds, or that of a search.
func (s *setup) tune(ctx context.Context) (*Result, error) {
	tuned := *s
	tuned.once, tuned.tunes = &oncelog.Log{}, true
	t := &tuneCall{setup: &tuned, began: time.Now(), limit: s.memoryLimit(), shapes: map[string]bool{}}
	if s.opts.results == "" {
		return t.search(ctx)
	}
	return t.remembered(ctx)
}

// A tuneCall is one call of Tune. Its search goes in two goroutines that take turns (see package tune): train takes
// batches from an ordinary run, and whenever one is delivered, tuning.measure goes on, which asks the strategy what
// to measure. When it has measured all, train ends; search then chooses. See docs/tuner.md.
type tuneCall struct {
	setup  *setup
	began  time.Time
	limit  memlimit.Limit
	needed uint64        // bytes that the process needed when tuning began
	waited time.Duration // for another process that tuned

	deadline *time.Timer     // fires when loading must end
	shown    search.Request  // for which progress was shown
	logged   time.Time       // when progress was last logged
	done     float64         // share done, as last shown
	shapes   map[string]bool // that the step has been called with
}

// search measures worker counts until the strategy asks for no more, and chooses.
func (t *tuneCall) search(ctx context.Context) (*Result, error) {
	debug.FreeOSMemory() // so that memory from before doesn't count for the trials
	t.needed = t.setup.neededNow()
	o := t.setup.opts
	busy := t.setup.helpers.Beside(o.machine.StartCPU())
	var used host.Use
	m, done, err := t.train(ctx, t.space(), strategies[o.strategy].next, func(m *tuning) (over bool) {
		used = busy.Used() // while those that load for the dataset run
		t.bound(m)
		return o.step == nil && o.tuningTime == 0 && m.sp.Time > 0 && m.sp.Time-m.sp.Left > soonOver && m.trials.quickest() < slowBatch
	})
	if err != nil {
		return nil, err
	}
	if !done { // the deadline came before the strategy was asked again
		m.sp.Left = 0
	}
	if !m.fits() {
		out, _ := m.refusal(m.last.told.Workers)
		return nil, fmt.Errorf("nwt: no worker count fits into memory: %s", out.Reason)
	}
	others, unseen := 0., busy.Note()
	if used.OthersKnown {
		others, unseen = o.machine.CPUs().OthersShare(used.Others, o.ranks(), o.cpus()), ""
	}
	r := m.result(search.Choose(m.sp, m.seen), others, unseen)
	r.Elapsed, r.waited = time.Since(t.began), t.waited
	if !t.show(Progress{Phase: "done", Workers: r.Workers, Done: 1}) {
		o.log.Info("nwt: worker count tuned", "workers", r.Workers, "elapsed", human.Duration(r.Elapsed))
	}
	return r, nil
}

// Without a step, and by default, a search ends after soonOver unless batches take slowBatch or longer.
const (
	soonOver  = 20 * time.Second
	slowBatch = 500 * time.Millisecond
)

// space is that of a search for which the program waits: it has a shortest and a longest time.
func (t *tuneCall) space() search.Space {
	o := t.setup.opts
	sp := o.space(o.defaultWorkers(), o.step != nil)
	if sp.Max >= 0 {
		sp.Start = min(sp.Start, sp.Max)
	}
	sp.Fixed, sp.MinTime, sp.Time = o.iterations > 0, search.MinTime, o.tuningTime
	if sp.Time == 0 && !sp.Fixed && o.strategy == Greedy {
		sp.Time = search.DefaultTime
	}
	return sp
}

// space returns what any search may measure, from a count on. step says whether a step follows each batch.
func (o *options) space(start int, step bool) search.Space {
	return search.Space{
		CPUs: int(math.Ceil(o.machine.CPUs().Mine(o.ranks(), o.cpus()))), Shared: o.ranks() > 1, Start: start, Step: step, Max: o.most, Alpha: o.alpha,
		Iterations: cmp.Or(o.iterations, 100), MinWindow: max(minWindow, clockSteps*o.machine.ClockStep()),
	}
}

// A window takes at least minWindow and clockSteps steps of a coarse clock.
const (
	minWindow  = 5 * time.Millisecond
	clockSteps = 20
)

// train takes batches from a loader as training does, and runs the step, until nothing more is to be measured: then
// it is done. It ends before that if the time is over.
func (t *tuneCall) train(ctx context.Context, sp search.Space, next search.Strategy, before func(*tuning) (over bool)) (m *tuning, done bool, err error) {
	m = t.setup.newTuning(sp, t.limit)
	m.attach(newEngine(t.setup, m.sp.Start))
	loading, end := context.WithCancelCause(ctx)
	defer end(nil)
	t.deadline = time.AfterFunc(math.MaxInt64, func() { end(errOver) })
	defer t.deadline.Stop()
	defer m.release()
	defer m.l.close()
	m.tuner.Loop = func() {
		done = m.measure(next, before)
		end(errOver)
	}
	m.tuner.Start(m.sp.Time)
	delivers := false
	at, round, since := State{}, 0, time.Now()
	for more := true; more && err == nil; {
		more = false
		m.l.iterate(loading, at, math.MaxInt32, func(b *Batch, failed error) bool {
			switch over := context.Cause(loading) == errOver; {
			case over && failed != nil:
				m.look(false) // counts what was loaded by the deadline
				return false
			case over:
				return false
			case failed != nil:
				err = failed
				return false
			}
			delivers = true
			if b.Epoch() > at.Epoch {
				m.reloads = true
			}
			t.tell(m) // here, because the program's functions run in its own goroutine
			if err = t.step(ctx, m, b); err != nil {
				return false
			}
			if r := m.req.Round; r != round && time.Since(since) > seldom*time.Duration(m.l.depth())*m.trials.quickest() {
				at, round, since, more = t.startOfRound(r, b.Epoch()), r, time.Now(), true
			}
			return !more
		})
	}
	if err == nil && !delivers {
		err = errors.New("nwt: the dataset yields no batch")
	}
	return m, done, err
}

// errOver ends loading when tuning is over.
var errOver = errors.New("nwt: tuning is over")

// seldom is the factor by which a round must have taken longer than filling the loader, for the next
// round to begin elsewhere in the epoch.
const seldom = 10

// startOfRound returns where a round begins. Rounds are spread over the epoch, so that the beginning of the
// epoch isn't measured alone.
func (t *tuneCall) startOfRound(round, epoch int) State {
	order := &t.setup.first.order // the setup's: that of a new loader
	steps := order.Steps(0)
	if t.setup.streams() || steps < 2 {
		return State{Epoch: epoch}
	}
	const golden = 0.6180339887498949 // spreads the places evenly, however many rounds there are
	_, share := math.Modf(float64(round) * golden)
	step := int(share * float64(steps))
	if order.Batches == 0 {
		return State{Epoch: epoch, Samples: step * t.setup.opts.batchSize * t.setup.opts.world}
	}
	at, err := order.Start(epoch, step*t.setup.opts.world)
	if err != nil {
		at = 0 // the loader meets the error too, and reports it
	}
	return State{Epoch: epoch, Samples: at}
}

// step runs the training step, if there is one. The first step with a batch of each shape isn't
// measured: a framework with a compiler compiles during it, for seconds, and never again.
func (t *tuneCall) step(ctx context.Context, m *tuning, b *Batch) error {
	if t.setup.opts.step == nil {
		return nil
	}
	began := time.Now()
	err := runStep(ctx, t.setup.opts.step, b)
	if err != nil && ctx.Err() != nil {
		return contextError(ctx) // rather than the error that the step returned because of it
	}
	if shapes := fmt.Sprint(b.of.slot.places.Shapes); !t.shapes[shapes] && len(t.shapes) < maxShapes {
		t.shapes[shapes] = true
		m.tuner.LeaveOut(time.Since(began))
		t.bound(m)
	}
	return err
}

// maxShapes bounds how many first steps aren't measured. If nearly every batch has another shape, all
// further steps are measured, compiling included.
const maxShapes = 32

// runStep runs the user's step, and turns its panic into an error.
func runStep(ctx context.Context, step func(context.Context, *Batch) error, b *Batch) (err error) {
	usercall.Call(func() error { return step(ctx, b) }, func(stack []byte, cause error) {
		err = fmt.Errorf("nwt: WithStep, batch %d of epoch %d: %w", b.Number(), b.Epoch(), cause)
		if stack != nil {
			err = fmt.Errorf("%w\n%s", err, stack)
		}
	})
	return err
}

// bound ends loading, even a call that hangs, when the time for tuning is over and a count has been
// measured.
func (t *tuneCall) bound(m *tuning) {
	if m.sp.Time > 0 && len(m.trials) > 0 {
		t.deadline.Reset(m.tuner.Left())
	}
}

// tell tells how far the search has come, once for each request: the program, or the log from time to time.
func (t *tuneCall) tell(m *tuning) {
	if m.req == t.shown {
		return
	}
	t.shown = m.req
	// It isn't known how much will be measured: after an ordinary search, half of it counts as done.
	searches := float64(m.trials.windows()) / usual
	t.done = max(t.done, searches/(1+searches))
	p := Progress{Phase: "measuring", Workers: m.req.Workers}
	if m.sp.Time > 0 {
		p.Left = m.tuner.Left()
		t.done = max(t.done, 1-float64(p.Left)/float64(m.sp.Time))
	}
	p.Done = t.done
	if m.last != nil {
		known := m.last.told // a copy, because the program may keep it
		known.Total = known.Mean * time.Duration(m.sp.Iterations)
		p.Trial = &known
	}
	if now := time.Now(); !t.show(p) && now.Sub(t.logged) >= tellEvery {
		t.logged = now
		t.setup.opts.log.Info("nwt: tuning the worker count", "trying", p.Workers, "elapsed", human.Duration(now.Sub(t.began)))
	}
}

const (
	tellEvery = 10 * time.Second // between lines of the log
	usual     = 40               // windows in an ordinary search
)

// show shows progress to the program, and reports whether it has asked for it.
func (t *tuneCall) show(p Progress) bool {
	p.Elapsed = time.Since(t.began)
	show := t.setup.opts.progress
	if show != nil {
		show(p)
	}
	return show != nil
}

// remembered returns the result in the file if it still holds, else that of a search, which it keeps.
func (t *tuneCall) remembered(ctx context.Context) (*Result, error) {
	file, key := resultfile.File{Path: t.setup.opts.results, Log: t.setup.opts.log}, t.setup.resultKey()
	r, saved := t.setup.recall(t.limit, file, key)
	if r != nil {
		holds, err := t.confirm(ctx, file, r)
		if err != nil {
			return nil, err
		}
		if holds {
			return r, nil
		}
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	again := resultfile.File{Path: file.Path, Log: slog.New(slog.DiscardHandler)} // what is wrong with the file has been logged already
	asked := time.Now()
	err := file.WhileTuning(ctx, func() (err error) {
		t.waited = time.Since(asked)
		var since time.Time
		if r, since = t.setup.recall(t.limit, again, key); r != nil && !since.Equal(saved) {
			return nil // the process that this one waited for has just found it
		}
		if r, err = t.search(ctx); err != nil {
			return err
		}
		file.Store(ctx, key, keptResult{r, t.needed})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// confirm reports whether a batch takes about as long as the kept result says. The name may stand for
// another dataset by now, or the storage may have changed.
func (t *tuneCall) confirm(ctx context.Context, file resultfile.File, r *Result) (holds bool, err error) {
	sp := t.space()
	sp.Start = r.Workers
	req := search.Request{Workers: r.Workers, Iterations: confirmOver}
	t.shown = req // no progress is shown of it
	once := func(_ search.Space, seen []search.Series) (search.Request, bool) { return req, len(seen) == 0 }
	m, _, err := t.train(ctx, sp, once, func(*tuning) bool { return false })
	if err != nil {
		return false, err
	}
	then, now := r.trial(r.Workers).Mean, m.trials[0].told.Mean
	if now > confirmed*then || then > confirmed*now {
		file.Log.Info("nwt: tuning anew", "path", file.Path, "name", t.setup.opts.resultName, "reason",
			fmt.Sprintf("with %s a batch takes %s, and took %s when the result was kept", human.Workers(r.Workers), human.Duration(now), human.Duration(then)))
		return false, nil
	}
	t.show(Progress{Phase: "done", Workers: r.Workers, Done: 1})
	return true, nil
}

// confirmed is the largest factor by which the time of a batch may differ from the kept result.
const confirmed = 2

const confirmOver = 20 // in batches
