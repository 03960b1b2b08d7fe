package nwt_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

var (
	programs = flag.Int("programs", 0, "so many random programs of the model-based test, others each time; 0: some thousand, fewer with -short, the same each time")
	seed     = flag.Uint64("seed", 0, "the first random program or loader of the model-based tests")
)

// A program is what a user may do with a dataset and its loaders.
type program struct {
	n       int
	bad     map[int]string // samples that fail, and how
	budget  int
	shuffle bool
	ops     []op
}

type op struct {
	do string

	// Of "new": a loader instead of the one before.
	batch, workers, prefetch, rank, world int
	dropLast                              bool

	// Of "epochs", "resume" from the state that was taken last, and "busy".
	first, count int
	at           int      // batch of the run at which something happens
	then         []string // what
}

func (o op) String() string {
	switch o.do {
	case "new":
		return fmt.Sprintf("new batch=%d workers=%d prefetch=%d rank=%d/%d dropLast=%t", o.batch, o.workers, o.prefetch, o.rank, o.world, o.dropLast)
	case "workers":
		return fmt.Sprintf("workers %d", o.workers)
	case "epochs", "resume":
		return fmt.Sprintf("%s first=%d count=%d, at batch %d: %v (workers %d)", o.do, o.first, o.count, o.at, o.then, o.workers)
	}
	return o.do
}

func (p program) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "n=%d bad=%v budget=%d shuffle=%t\n", p.n, p.bad, p.budget, p.shuffle)
	for _, o := range p.ops {
		fmt.Fprintf(&s, "\t%v\n", o)
	}
	return s.String()
}

func randomProgram(rng *rand.Rand) program {
	p := program{n: 1 + rng.IntN(60), bad: map[int]string{}, shuffle: rng.IntN(2) == 0}
	if rng.IntN(2) == 0 {
		p.budget = rng.IntN(8)
		for range rng.IntN(6) {
			p.bad[rng.IntN(p.n)] = []string{"error", "panic"}[rng.IntN(2)]
		}
	}
	for i := range 2 + rng.IntN(12) {
		o := op{do: "new", workers: rng.IntN(6), batch: 1 + rng.IntN(9), world: 1}
		if what := rng.IntN(12); i > 0 {
			o.do = []string{"new", "workers", "release", "close", "resume", "resume"}[min(what, 5)]
			if what > 5 {
				o.do = "epochs"
			}
		}
		if rng.IntN(2) == 0 {
			o.prefetch = 1 + rng.IntN(4)
		}
		if rng.IntN(3) == 0 {
			o.world = 1 + rng.IntN(3)
			o.rank = rng.IntN(o.world)
		}
		o.dropLast = rng.IntN(5) == 0 && p.n >= o.batch*o.world // else it is refused: nothing would be left
		o.first, o.count, o.at = rng.IntN(4), 1+rng.IntN(3), rng.IntN(12)
		for range rng.IntN(4) {
			o.then = append(o.then, []string{"break", "cancel", "panic", "workers", "retain", "nest", "close"}[rng.IntN(7)])
		}
		p.ops = append(p.ops, o)
	}
	return p
}

var errProgram = errors.New("the program's own panic")

// A machine runs a program on the real loader and compares. What its batches must hold,
// it leaves to the judge of the random trials; its own are the slots, after each
// operation, and how runs end.
type machine struct {
	program
	judge    *judge
	loader   *nwt.Loader
	ref      *reference
	closed   bool
	state    nwt.State
	retained []kept
	running  atomic.Int32
	log      *slog.Logger
}

type kept struct {
	l *nwt.Loader
	b *nwt.Batch
	d delivery
}

func (m *machine) dataset() nwt.Dataset {
	return nwt.NewDataset(m.n, m.judge.fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		m.running.Add(1)
		defer m.running.Add(-1)
		if i%7 == 0 {
			runtime.Gosched()
		}
		return m.judge.make(ctx, i, dst, func() {})
	})
}

// run is what differs from the reference, nil where nothing does.
func (p program) run() (err error) {
	m := &machine{program: p, judge: newJudge(&trial{n: p.n, bad: p.bad}), log: slog.New(slog.DiscardHandler)}
	defer func() {
		for len(m.retained) > 0 && err == nil {
			err = m.release()
		}
		if m.loader != nil {
			err = errors.Join(err, m.close())
		}
	}()
	for i, o := range p.ops {
		if err := m.step(o); err != nil {
			return fmt.Errorf("op %d (%v): %w", i, o, err)
		}
	}
	return nil
}

func (m *machine) step(o op) error {
	if m.loader == nil && o.do != "new" {
		return nil
	}
	switch o.do {
	case "new":
		return m.renew(o)
	case "close":
		return m.close()
	case "release":
		return m.release()
	case "workers":
		return m.setWorkers(o.workers)
	case "resume":
		return m.iterate(o, m.state, 1, m.loader.Resume)
	default:
		return m.iterate(o, nwt.State{Epoch: o.first}, o.count, func(ctx context.Context, _ nwt.State) iter.Seq2[*nwt.Batch, error] {
			return m.loader.Epochs(ctx, o.first, o.first+o.count)
		})
	}
}

func (m *machine) renew(o op) (err error) {
	if m.loader != nil {
		if err := m.close(); err != nil {
			return err
		}
	}
	opts := []nwt.Option{nwt.WithBatchSize(o.batch), nwt.WithWorkers(o.workers), nwt.WithRank(o.rank, o.world), nwt.WithErrorBudget(m.budget), nwt.WithLogger(m.log), nwt.WithSeed(5)}
	if m.shuffle {
		opts = append(opts, nwt.WithShuffle(5))
	}
	if o.dropLast {
		opts = append(opts, nwt.WithDropLast())
	}
	if o.prefetch > 0 {
		opts = append(opts, nwt.WithPrefetch(o.prefetch))
	}
	m.closed, m.ref = false, &reference{program: m.program, op: o}
	m.loader, err = nwt.NewLoader(m.dataset(), opts...)
	return err
}

func (m *machine) close() error {
	m.closed = true
	if err := m.loader.Close(); err != nil {
		return err
	}
	return m.idle()
}

func (m *machine) setWorkers(n int) error {
	err := m.loader.SetWorkers(n)
	if m.closed {
		return is("SetWorkers", err, nwt.ErrClosed)
	}
	return is("SetWorkers", err, nil)
}

func (m *machine) release() error {
	if len(m.retained) == 0 {
		return nil
	}
	k := m.retained[0]
	m.retained = m.retained[1:]
	err := m.judge.same(k.b, k.d, nil)
	k.b.Release()
	return err
}

func is(what string, got, want error) error {
	if errors.Is(got, want) {
		return nil
	}
	return fmt.Errorf("%s: got error %v, want %v", what, got, want)
}

// idle checks that nothing is running and no slot lost.
func (m *machine) idle() error {
	if n := m.running.Load(); n != 0 {
		return fmt.Errorf("%d loads are running", n)
	}
	c, distinct := m.loader.SlotCount(), map[*nwt.Batch]bool{}
	for _, k := range m.retained {
		if k.l == m.loader {
			distinct[k.b] = true
		}
	}
	if owed := len(distinct); c.Retained != owed || c.Memory != c.Free+owed || m.closed && c.Free > 0 {
		return fmt.Errorf("slots %+v with %d retained, closed: %t", c, owed, m.closed)
	}
	return nil
}

func (m *machine) iterate(o op, from nwt.State, count int, run func(context.Context, nwt.State) iter.Seq2[*nwt.Batch, error]) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	wants, end := m.ref.batches(from.Epoch, count, from.Samples)
	var last error
	seen, left := 0, false
	if m.closed {
		wants = nil
	}
	defer func() {
		switch p := recover(); p {
		case nil:
		case errProgram:
			left = true
		default:
			panic(p)
		}
		if err == nil {
			err = m.over(last, end, seen, len(wants), left, ctx.Err())
		}
	}()
	for b, e := range run(ctx, from) {
		if last != nil {
			return errors.New("the loop went on after an error")
		}
		if last = e; e != nil {
			continue
		}
		if seen == len(wants) {
			return fmt.Errorf("a batch too many: %v", b.Indices())
		}
		if err := m.judge.same(b, wants[seen], nil); err != nil {
			return fmt.Errorf("batch %d: %w", seen, err)
		}
		m.state = b.State()
		if seen++; seen != o.at+1 {
			continue
		}
		for _, then := range o.then {
			switch then {
			case "break":
				left = true
			case "cancel":
				cancel()
			case "panic":
				panic(errProgram)
			case "close":
				m.closed = true
				if err := m.loader.Close(); err != nil {
					return err
				}
			case "workers":
				if err := m.setWorkers(o.workers); err != nil {
					return err
				}
			case "retain":
				b.Retain()
				m.retained = append(m.retained, kept{m.loader, b, wants[seen-1]})
			case "nest":
				busy := nwt.ErrBusy
				if m.closed {
					busy = nwt.ErrClosed
				}
				for _, e := range m.loader.Epoch(ctx, 0) {
					if err := is("nested", e, busy); err != nil {
						return err
					}
				}
			}
		}
		if left {
			break
		}
	}
	return nil
}

// over checks how a run ended.
func (m *machine) over(last error, bad, seen, all int, left bool, cancelled error) error {
	if err := m.idle(); err != nil {
		return err
	}
	switch {
	case left:
		return is("left", last, nil)
	case m.closed:
		return is("closed", last, nwt.ErrClosed)
	case cancelled != nil && last != nil:
		return is("cancelled", last, cancelled)
	case seen < all:
		return fmt.Errorf("%d batches, want %d; error %v", seen, all, last)
	case bad == -1:
		return is("end", last, nil)
	}
	var le *nwt.LoadError
	if !errors.As(last, &le) || bad >= 0 && le.Index != bad {
		return fmt.Errorf("got error %v, want one of sample %d", last, bad)
	}
	return nil
}

// shrunk is what remains of p once nothing can be left out and it still fails.
func (p program) shrunk(fails func(program) bool) program {
	for again := true; again; {
		again = false
		try := func(q program) bool {
			if fails(q) {
				p, again = q, true
				return true
			}
			return false
		}
		for i := len(p.ops) - 1; i >= 0; i-- {
			q := p
			q.ops = slices.Concat(p.ops[:i], p.ops[i+1:])
			if !try(q) && len(p.ops[i].then) > 0 {
				q.ops = slices.Clone(p.ops)
				q.ops[i].then = q.ops[i].then[:len(q.ops[i].then)-1]
				try(q)
			}
		}
		for i, how := range p.bad {
			q := p
			q.bad = map[int]string{}
			for k, v := range p.bad {
				if k != i || v != how {
					q.bad[k] = v
				}
			}
			if try(q) {
				break
			}
		}
	}
	return p
}

// seedsOf are the seeds of a model-based test, as many as the flag asks for. Without it
// they are fewer with -short, and always the same: a change that fails has caused that.
func seedsOf(flag, short, long int) iter.Seq[uint64] {
	count, first := flag, *seed
	if first == 0 {
		if first = 1; count > 0 {
			first = uint64(rand.Uint32())
		}
	}
	if count == 0 {
		if count = long; testing.Short() {
			count = short
		}
	}
	return func(yield func(uint64) bool) {
		for s := first; s != first+uint64(count) && yield(s); s++ {
		}
	}
}

func TestRandomProgramsBehaveAsThePlainLoop(t *testing.T) {
	for s := range seedsOf(*programs, 400, 4000) {
		p := randomProgram(rand.New(rand.NewPCG(s, 6)))
		hung := time.AfterFunc(hangs, func() { panic(fmt.Sprintf("-seed=%d hangs: %v", s, p)) })
		err := p.run()
		hung.Stop()
		if err == nil {
			continue
		}
		small := p.shrunk(func(p program) bool {
			for range 20 { // it may depend on timing
				if p.run() != nil {
					return true
				}
			}
			return false
		})
		require.FailNow(t, "a program behaves otherwise", "-seed=%d: %v\n%v\nshrunk: %v", s, err, p, small)
	}
}
