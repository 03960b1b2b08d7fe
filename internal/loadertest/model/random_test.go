package model_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

func TestMain(m *testing.M) { kit.Main(m) }

var trials = flag.Int("trials", 0, "so many random loaders of TestRandomLoadersDeliverWhatALoopWould, others each time; 0: some hundreds, more without -short, the same each time")

// A trial is a dataset, options and what is done with the loader, all at random.
type trial struct {
	// The dataset: a map of n samples, or streams of shards.
	n       int
	whole   bool         // it has a LoadMany
	sized   bool         // it tells sizes
	ends    []int        // where batches end, of a BatchSampler; nil: all are equally large
	streams [][]int      // the length of each shard; nil: it is a map
	mix     *nwt.Mix     // of the streams; nil: there is one
	torn    map[int]flaw // by shard, counted over all streams
	bad     map[int]string
	flaky   map[int]bool // samples that call themselves temporarily bad, at most twice in a row
	slow    int          // one in so many samples takes 100 ms; 0: none
	skips   int          // the shards' readers skip: 0 no, else at most so many records at once

	batch, workers, prefetch, rank, world, budget              int
	dropLast, shuffle, unordered, timeout, auto, onDev, checks bool
	window, interleave, epochSamples                           int
	ahead                                                      int64 // bytes of records that may be read ahead; 0: the default
	unfinished, broken                                         int32 // call of WithBatchTransform, or of Copy or Wait, that fails; 0: none
	finishes                                                   bool  // there is a WithBatchTransform

	runs []run
}

// A flaw is what is wrong with a shard. If it ends the shard, that is before a record.
type flaw struct {
	how    string
	record int
}

// A run is an iteration, and what happens meanwhile.
type run struct {
	resume       bool // else epochs first … first+count−1
	early        int  // if it resumes: the state that was seen so many states before the last one
	first, count int
	at           int // batch at which the loop body does what is in then
	then         []string
	workers      []int         // set one after the other by another goroutine
	deadline     time.Duration // of the context; 0: none
}

func randomTrial(rng *rand.Rand) *trial {
	one := func(in int) bool { return rng.IntN(in) == 0 }
	t := &trial{
		n: 1 + rng.IntN(70), whole: one(3), sized: one(2), bad: map[int]string{}, flaky: map[int]bool{}, torn: map[int]flaw{},
		batch: 1 + rng.IntN(9), workers: rng.IntN(6), prefetch: rng.IntN(5), world: 1, dropLast: one(6), shuffle: one(2),
		unordered: one(4), checks: one(4), timeout: one(2), auto: one(5), onDev: one(3), window: []int{1, 3, 1000}[rng.IntN(3)], interleave: 1 + rng.IntN(3),
		ahead:    []int64{0, 1, 500, 5000}[rng.IntN(4)],
		finishes: one(2), skips: rng.IntN(4),
	}
	if one(3) {
		t.slow = 1 + rng.IntN(9)
	}
	if one(3) {
		t.world = 1 + rng.IntN(3)
		t.rank = rng.IntN(t.world)
	}
	for _, call := range []*int32{&t.unfinished, &t.broken} {
		if one(8) {
			*call = int32(1 + rng.IntN(20))
		}
	}
	switch {
	case one(2):
		t.randomStreams(rng)
	case one(3):
		for end := 0; end < t.n; t.ends = append(t.ends, end) {
			end = min(t.n, end+1+rng.IntN(t.batch))
		}
	}
	if t.streams == nil && (t.n < t.batch*t.world || t.ends != nil && len(t.ends) < t.world) {
		t.dropLast = false // which is refused: nothing would be left
	}
	if t.n > 0 && (t.world == 1 || t.streams != nil) && one(2) {
		t.budget = rng.IntN(30)
		for range 1 + rng.IntN(20) {
			t.bad[rng.IntN(t.n)] = []string{"error", "panic", "hang", "hang", "larger"}[rng.IntN(5)]
		}
	}
	for range rng.IntN(4) * 3 {
		if id := rng.IntN(max(1, t.n)); t.bad[id] == "" {
			t.flaky[id] = true
		}
	}
	for range 1 + rng.IntN(4) {
		r := run{resume: one(3) && !t.unordered, first: rng.IntN(3), count: 1 + rng.IntN(3), at: rng.IntN(8)}
		if one(3) {
			r.early = rng.IntN(20)
		}
		for range rng.IntN(4) {
			r.then = append(r.then, []string{"break", "cancel", "panic", "workers", "none", "retain", "release", "sleep", "nest", "close"}[rng.IntN(10)])
		}
		for range rng.IntN(6) * rng.IntN(2) {
			r.workers = append(r.workers, rng.IntN(6))
		}
		if one(5) {
			r.deadline = time.Duration(rng.IntN(3000)) * time.Millisecond
		}
		t.runs = append(t.runs, r)
	}
	return t
}

func (t *trial) randomStreams(rng *rand.Rand) {
	one := func(in int) bool { return rng.IntN(in) == 0 }
	t.n = 0
	mixed, parts := one(2), 1
	if mixed {
		parts = 1 + rng.IntN(4)
	}
	number := 0
	for range parts {
		var shards []int
		for range t.world + rng.IntN(5) {
			length := 1 + rng.IntN(20)
			if mixed && one(20) {
				length = 0
			}
			if one(4) {
				t.torn[number] = flaw{[]string{"error", "panic", "hang", "open", "open hangs", "flaky"}[rng.IntN(6)], rng.IntN(length + 1)}
			}
			t.n += length
			shards, number = append(shards, length), number+1
		}
		t.streams = append(t.streams, shards)
	}
	if t.budget = rng.IntN(30); t.world > 1 && !mixed || one(2) {
		t.budget, t.torn = 0, map[int]flaw{}
	}
	switch {
	case mixed:
		t.epochSamples, t.mix = 1+rng.IntN(200), randomMix(rng, parts)
	case one(2):
		t.epochSamples = 1 + rng.IntN(3*t.n)
	}
}

// randomMix mixes parts in any phases, of which none leaves out what has a weight: short ones have one part.
func randomMix(rng *rand.Rand, parts int) *nwt.Mix {
	m := &nwt.Mix{Block: 36 + rng.IntN(20)} // enough for a quarter in nine
	for range 1 + rng.IntN(4) {
		p := nwt.Phase{Samples: 1 + rng.IntN(250), Weights: make([]float64, parts)}
		p.Weights[rng.IntN(parts)] = 1
		for k := range p.Weights {
			if p.Samples >= 36 {
				p.Weights[k] += float64(rng.IntN(9)) / 4
			}
		}
		m.Phases = append(m.Phases, p)
	}
	return m
}

// loop returns what the trial's loader must do.
func (t *trial) loop(budget int) *plainLoop {
	p := &plainLoop{
		n: t.n, shuffle: t.shuffle, ends: t.ends, batch: t.batch, rank: t.rank, world: t.world, budget: budget, dropLast: t.dropLast,
		bad: func(id int) bool { return t.bad[id] != "" },
	}
	if t.streams == nil {
		return p
	}
	p.streams = &plainStreams{
		mix: t.mix, mixSeed: 11, rank: t.rank, world: t.world, interleave: t.interleave, window: t.window,
		epochSamples: t.epochSamples, shuffle: t.shuffle, seed: 5,
	}
	number, id := 0, 0
	for _, lengths := range t.streams {
		var shards [][]int
		for _, n := range lengths {
			records := kit.IndicesUpTo(n)
			for k := range records {
				records[k] += id
			}
			switch flaw := t.torn[number]; flaw.how {
			case "error", "panic", "hang":
				records = append(records[:flaw.record], lost)
			case "open", "open hangs":
				records = []int{lost}
			}
			shards, number, id = append(shards, records), number+1, id+n
		}
		p.streams.streams = append(p.streams.streams, shards)
	}
	return p
}

// textOf returns the length of a sample's text, which is sample by sample the same byte.
func textOf(id int) int { return id % 6 }

// A judge is a trial under way.
type judge struct {
	*trial
	device   *kit.FakeDevice
	loader   *nwt.Loader
	closed   bool
	states   []nwt.State // of all batches
	kept     []retained
	running  atomic.Int32 // calls of Load
	finished atomic.Int32 // calls of WithBatchTransform
	tries    sync.Map
}

type retained struct {
	l      *nwt.Loader
	b      *nwt.Batch
	d      delivery
	device *kit.FakeDevice
}

// Load makes sample id, or does what is bad about it. late is called before it writes to
// what a call that was given up may still write to.
func (j *judge) load(ctx context.Context, id int, dst *nwt.Sample, late func()) error {
	j.running.Add(1)
	defer j.running.Add(-1)
	if tries, _ := j.tries.LoadOrStore([2]int{dst.Epoch(), dst.Position()}, new(atomic.Int32)); j.flaky[id] && tries.(*atomic.Int32).Add(1)%3 > 0 {
		dst.Rand().Int64()
		spoil(dst)
		return tooMany{}
	}
	nwt.Values[int64](dst, 0)[0] = int64(id)
	n := textOf(id)
	if j.bad[id] == "larger" {
		n = 6
	}
	dst.SetLen(1, n)
	kit.Fill(dst.Bytes(1), byte(id))
	nwt.Values[int64](dst, 2)[0] = dst.Rand().Int64() &^ 3 // the rest is for finish
	switch how := j.bad[id]; {
	case how == "panic":
		panic(kit.ErrBoom)
	case how == "hang" && j.timeout:
		time.Sleep(time.Duration(1200+id*600) * time.Millisecond)
		late()
		if spoil(dst); id%3 == 0 {
			panic("late")
		}
		return kit.ErrBoom
	case how == "error" || how == "hang":
		return kit.ErrBoom
	}
	if j.slow > 0 && id%j.slow == 0 {
		time.Sleep(100 * time.Millisecond)
	}
	return ctx.Err()
}

// spoil writes to all that a sample lets a call write to.
func spoil(dst *nwt.Sample) {
	for f := range 3 {
		kit.Fill(dst.Bytes(f), 0xee)
	}
	dst.SetLen(1, 0)
}

// loadBatch loads one after the other. It fails with the first bad sample.
func (j *judge) loadBatch(indices []int, dst []*nwt.Sample) error {
	for k, i := range indices {
		err := j.load(context.Background(), i, dst[k], func() {
			for k := range indices {
				indices[k] = 384 + k
				spoil(dst[k])
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

var trialFields = []nwt.Field{{Name: "id", Type: nwt.Int64}, {Name: "text", Type: nwt.Uint8, Shape: []int{5}, RaggedDims: 1}, {Name: "noise", Type: nwt.Int64}}

func (j *judge) dataset() (nwt.Dataset, error) {
	if j.streams == nil {
		ds := nwt.NewDataset(j.n, trialFields, func(ctx context.Context, i int, dst *nwt.Sample) error { return j.load(ctx, i, dst, func() {}) })
		if j.whole {
			ds = kit.InOneCall{Dataset: ds, Call: j.loadBatch}
		}
		if j.sized {
			ds = nwt.Sized(ds, func(id int, sizes []int) { sizes[0] = textOf(id) })
		}
		return ds, nil
	}
	var streams []nwt.Stream
	number, id := 0, 0
	for k, lengths := range j.streams {
		s := &trialStream{j: j, part: k, number: number, lengths: lengths, opened: make([]atomic.Int32, len(lengths))}
		for _, n := range lengths {
			s.first = append(s.first, id)
			number, id = number+1, id+n
		}
		streams = append(streams, s)
	}
	if j.mix == nil {
		return nwt.Streamed(streams[0]), nil
	}
	return nwt.MixedStreams(*j.mix, 11, streams...)
}

// A trialStream is one of a trial's streams. What it leaves in its records may be seen by
// nobody else.
type trialStream struct {
	j       *judge
	part    int
	number  int // of its first shard, among all streams'
	lengths []int
	first   []int // sample of each shard
	opened  []atomic.Int32
}

func (s *trialStream) Fields() []nwt.Field { return trialFields }
func (s *trialStream) Shards() int         { return len(s.lengths) }

func (s *trialStream) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r := &trialShard{s: s, shard: shard, flaw: s.j.torn[s.number+shard]}
	switch {
	case r.flaw.how == "open":
		return nil, kit.ErrTorn
	case r.flaw.how == "open hangs":
		if err := s.j.hang(ctx, shard, nil); err != nil {
			return nil, err
		}
	case r.flaw.how == "flaky" && s.opened[shard].Add(1)%3 > 0: // never more often in a row than it is tried again
		return nil, tooMany{}
	}
	if s.j.skips > 0 {
		return trialSkipper{r}, nil
	}
	return r, nil
}

type tooMany struct{}

func (tooMany) Error() string   { return "too many open files" }
func (tooMany) Temporary() bool { return true }

// hang returns some time after the call was given up, with anything. Without WithTimeout
// it fails at once, and if no worker can be given up, after an hour.
func (j *judge) hang(ctx context.Context, shard int, r *nwt.Record) error {
	if !j.timeout {
		return kit.ErrTorn
	}
	select {
	case <-time.After(time.Hour):
		return kit.ErrTorn
	case <-ctx.Done():
	}
	time.Sleep(time.Duration(shard*700) * time.Millisecond)
	if r != nil {
		r.Data = append(r.Data[:0], 0xee)
	}
	if shard%4 == 0 {
		panic("late")
	}
	return []error{nil, io.EOF, kit.ErrTorn, nil}[shard%4]
}

var errForeign = errors.New("the record is another stream's")

func (s *trialStream) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	if r.Value != s.part {
		return errForeign
	}
	data := r.Data
	return s.j.load(ctx, int(binary.LittleEndian.Uint64(data)), dst, func() {
		kit.Fill(data, 0xee)
		r.Value = s.part
	})
}

type trialShard struct {
	s        *trialStream
	shard, k int
	flaw     flaw
}

func (s *trialShard) Next(ctx context.Context, r *nwt.Record) error {
	if r.Value != nil && r.Value != s.s.part {
		return errForeign
	}
	if err := s.pass(ctx, r); err != nil {
		return err
	}
	id := s.s.first[s.shard] + s.k - 1
	*r = nwt.Record{Data: append(binary.LittleEndian.AppendUint64(r.Data[:0], uint64(id)), make([]byte, id*37%400)...), Value: s.s.part}
	return nil
}

// pass goes past a record.
func (s *trialShard) pass(ctx context.Context, r *nwt.Record) error {
	if s.s.j.slow > 1 {
		time.Sleep(13 * time.Millisecond)
	}
	if s.k == s.flaw.record {
		switch s.flaw.how {
		case "error":
			return kit.ErrTorn
		case "panic":
			panic(kit.ErrTorn)
		case "hang":
			if err := s.s.j.hang(ctx, s.shard, r); err != nil {
				return err
			}
		}
	}
	if s.k == s.s.lengths[s.shard] {
		return io.EOF
	}
	s.k++
	return nil
}

func (s *trialShard) Close() error { return nil }

type trialSkipper struct{ *trialShard }

func (s trialSkipper) Skip(ctx context.Context, n int) (skipped int, err error) {
	for ; skipped < min(n, s.s.j.skips); skipped++ {
		if skipped > 0 && s.k == s.flaw.record && s.flaw.how == "panic" {
			return skipped, nil
		}
		if err := s.pass(ctx, nil); err != nil {
			return skipped, err
		}
	}
	return skipped, nil
}

func (j *judge) open() (err error) {
	opts := []nwt.Option{
		nwt.WithBatchSize(j.batch), nwt.WithWorkers(j.workers), nwt.WithRank(j.rank, j.world), nwt.WithSeed(5),
		kit.Silent, nwt.WithErrorBudget(j.budget),
	}
	with := func(on bool, opt func() nwt.Option) {
		if on {
			opts = append(opts, opt())
		}
	}
	var sampler nwt.Sampler = nwt.Sequential(max(1, j.n))
	if j.shuffle {
		sampler = nwt.Shuffled(max(1, j.n), 5)
	}
	with(j.ends != nil, func() nwt.Option { return nwt.WithSampler(cutSampler{sampler, j.ends}) })
	with(j.ends == nil && j.shuffle, func() nwt.Option { return nwt.WithShuffle(5) })
	with(j.streams != nil, func() nwt.Option { return nwt.WithShuffleWindow(j.window) })
	with(j.streams != nil, func() nwt.Option { return nwt.WithInterleave(j.interleave) })
	with(j.epochSamples > 0, func() nwt.Option { return nwt.WithEpochSamples(j.epochSamples) })
	with(j.prefetch > 0, func() nwt.Option { return nwt.WithPrefetch(j.prefetch) })
	with(j.dropLast, nwt.WithDropLast)
	with(j.unordered, nwt.WithUnordered)
	with(j.auto, nwt.WithAutoWorkers)
	with(j.checks, nwt.WithChecks)
	with(j.timeout, func() nwt.Option { return nwt.WithTimeout(time.Second) })
	with(j.ahead > 0, func() nwt.Option { return kit.WithReadAhead(j.ahead) })
	with(j.finishes, func() nwt.Option { return nwt.WithBatchTransform(j.finish) })
	j.device = nil
	with(j.onDev, func() nwt.Option {
		calls := int32(0) // of Copy and Wait, which come one at a time
		j.device = &kit.FakeDevice{Took: 14 * time.Millisecond, Fail: func(call string, _ int) error {
			if call == "Copy" || call == "Wait" {
				if calls++; calls == j.broken {
					return kit.ErrFake
				}
			}
			return nil
		}}
		return nwt.WithDevice(j.device)
	})
	ds, err := j.dataset()
	if err == nil {
		j.loader, err = nwt.NewLoader(ds, opts...)
	}
	j.closed = err != nil
	return err
}

var errUnfinished, errLoop = errors.New("unfinished"), errors.New("the loop's own panic")

// finish is the trial's WithBatchTransform.
func (j *judge) finish(_ context.Context, b *nwt.Batch) error {
	noise := nwt.Values[int64](b, 2)
	for p, id := range nwt.Values[int64](b, 0) {
		if noise[p]&3 != 0 || b.Len() == 0 {
			return fmt.Errorf("to be finished: sample %d of %v, noise %d", id, b.Indices(), noise[p]&3)
		}
		noise[p]++
	}
	time.Sleep(5 * time.Millisecond * time.Duration(b.Number()%3))
	if calls := j.finished.Add(1); calls == j.unfinished {
		if calls%2 == 0 {
			panic(errUnfinished)
		}
		return errUnfinished
	}
	return nil
}

// same compares a batch with what it is to be, on the host and on the device.
func (j *judge) same(k retained) error {
	b, d := k.b, k.d
	state := nwt.State{Epoch: d.epoch, Samples: d.delivered}
	if j.unordered {
		state.Samples = -1
	}
	if j.streams != nil { // for others the number of ranks may change
		state.World = j.world
	}
	if b.Epoch() != d.epoch || !slices.Equal(b.Indices(), d.index) || kit.Progress(b.State()) != state {
		return fmt.Errorf("epoch %d: %v, %v; want %+v", b.Epoch(), b.Indices(), b.State(), d)
	}
	length := 5
	if j.sized && j.streams == nil {
		length = 1
		for _, id := range d.all {
			length = max(length, textOf(id))
		}
	}
	if got := b.Shape(1); !slices.Equal(got, []int{len(d.id), length}) {
		return fmt.Errorf("%v has texts of shape %v, want %d of %d", d.index, got, len(d.id), length)
	}
	for p, id := range d.id {
		text := append(slices.Repeat([]byte{byte(id)}, textOf(id)), make([]byte, length-textOf(id))...)
		if got := b.Bytes(1)[length*p:][:length]; nwt.Values[int64](b, 0)[p] != int64(id) || b.Lens(1, 0)[p] != int32(textOf(id)) || !slices.Equal(got, text) {
			return fmt.Errorf("place %d of %v holds sample %d, %v of %d; want %d", p, d.index, nwt.Values[int64](b, 0)[p], got, b.Lens(1, 0)[p], id)
		}
		want := noiseOf(5, d.epoch, d.position[p]) &^ 3
		if j.finishes {
			want++
		}
		if got := nwt.Values[int64](b, 2)[p]; got != want {
			return fmt.Errorf("sample %d of epoch %d, position %d, drew %x, want %x", d.index[p], d.epoch, d.position[p], got, want)
		}
	}
	if k.device != nil && !k.device.Holds(b) {
		return fmt.Errorf("%v isn't on the device", d.index)
	}
	return nil
}

func (j *judge) release() error {
	if len(j.kept) == 0 {
		return nil
	}
	k := j.kept[0]
	j.kept = j.kept[1:]
	err := j.same(k)
	k.b.Release()
	return err
}

func is(what string, got, want error) error {
	if errors.Is(got, want) {
		return nil
	}
	return fmt.Errorf("%s: got error %v, want %v", what, got, want)
}

// ended returns what a loader of which an epoch runs, or that is closed, says.
func (j *judge) ended(otherwise error) error {
	if j.closed {
		return nwt.ErrClosed
	}
	return otherwise
}

// iterate is one run.
func (j *judge) iterate(r run) error {
	if j.loader == nil || j.closed {
		if err := j.open(); err != nil {
			return err
		}
	}
	first, count, base := r.first, r.count, 0
	var state nwt.State
	if n := len(j.states); n > 0 {
		state = j.states[n-1-min(r.early, n-1)]
	}
	if r.resume {
		first, count, base = state.Epoch, 1, state.Samples
	}
	wants, end := j.loop(j.budget).batches(first, count, base)
	if end >= 0 && j.unordered { // more may come before it ends
		wants, _ = j.loop(unlimited).batches(first, count, base)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if r.deadline > 0 {
		ctx, cancel = context.WithTimeout(ctx, r.deadline)
		defer cancel()
	}
	var other sync.WaitGroup
	other.Go(func() {
		for _, n := range r.workers {
			time.Sleep(37 * time.Millisecond)
			_ = j.loader.SetWorkers(n) // it may be closed
		}
	})
	defer other.Wait()
	seq := j.loader.Epochs(ctx, first, first+count)
	if r.resume {
		seq = j.loader.Resume(ctx, state)
	}
	last, seen, left, err := j.train(ctx, r, seq, slices.Clone(wants), cancel)
	if err == nil {
		err = j.idle()
	}
	var le *nwt.LoadError
	switch {
	case err != nil:
		return err
	case left && last == nil,
		j.closed && errors.Is(last, nwt.ErrClosed),
		ctx.Err() != nil && errors.Is(last, ctx.Err()),
		j.broken > 0 && errors.Is(last, kit.ErrFake),
		j.finishes && j.unfinished > 0 && errors.Is(last, errUnfinished),
		end >= 0 && errors.As(last, &le) && (j.unordered || le.Index == end && seen == len(wants)),
		end == refused && last != nil && (strings.Contains(last.Error(), "has no batch") || strings.Contains(last.Error(), "has no sample")),
		end == well && last == nil && seen == len(wants):
		return nil
	}
	return fmt.Errorf("ended after %d of %d batches with error %v; expected end: %d", seen, len(wants), last, end)
}

// train is a training loop.
func (j *judge) train(ctx context.Context, r run, seq iter.Seq2[*nwt.Batch, error], wants []delivery, cancel func()) (last error, seen int, left bool, err error) {
	defer func() {
		if p := recover(); p == errLoop {
			left = true
		} else if p != nil {
			panic(p)
		}
	}()
	for b, e := range seq {
		if last != nil {
			return last, seen, left, errors.New("the loop went on after an error")
		}
		if last = e; e != nil {
			continue
		}
		k := 0
		if j.unordered {
			k = slices.IndexFunc(wants, func(d delivery) bool { return d.epoch == b.Epoch() && slices.Equal(d.index, b.Indices()) })
		}
		if k < 0 || k == len(wants) {
			return nil, seen, left, fmt.Errorf("a batch that nobody expects: epoch %d, %v", b.Epoch(), b.Indices())
		}
		got := retained{j.loader, b, wants[k], j.device}
		if err := j.same(got); err != nil {
			return nil, seen, left, fmt.Errorf("batch %d: %w", seen, err)
		}
		wants = slices.Delete(wants, k, k+1)
		j.states = append(j.states, b.State())
		if seen++; seen == r.at+1 {
			for _, then := range r.then {
				left = left || then == "break"
				if err := j.do(ctx, then, got, cancel); err != nil {
					return nil, seen, left, fmt.Errorf("batch %d, %s: %w", seen-1, then, err)
				}
			}
		}
		if !slices.Contains(r.then, "retain") {
			j.device.Overwrite(b)
		}
		if left {
			break
		}
	}
	return last, seen, left, nil
}

// do is what a loop's body does.
func (j *judge) do(ctx context.Context, then string, got retained, cancel func()) error {
	switch then {
	case "cancel":
		cancel()
	case "panic":
		panic(errLoop)
	case "none":
		return is("SetWorkers", j.loader.SetWorkers(0), j.ended(nil))
	case "workers":
		return is("SetWorkers", j.loader.SetWorkers(1+len(j.states)%5), j.ended(nil))
	case "retain":
		got.b.Retain()
		j.kept = append(j.kept, got)
	case "release":
		return j.release()
	case "sleep":
		time.Sleep(3 * time.Second)
		return j.same(got)
	case "nest":
		for _, err := range j.loader.Epoch(ctx, 0) {
			return is("nested", err, j.ended(nwt.ErrBusy))
		}
	case "close":
		j.closed = true
		return j.loader.Close()
	}
	return nil
}

// idle checks that nothing is running and no slot lost.
func (j *judge) idle() error {
	if n := j.running.Load(); n != 0 && !j.timeout {
		return fmt.Errorf("%d calls are running", n)
	}
	s, distinct := j.loader.Stats(), map[*nwt.Batch]bool{}
	for _, k := range j.kept {
		if k.l == j.loader {
			distinct[k.b] = true
		}
	}
	if owed := len(distinct); s.Retained != owed || j.closed && s.Slots != owed {
		return fmt.Errorf("%d slots and %d retained of %d, closed: %t", s.Slots, s.Retained, owed, j.closed)
	}
	return nil
}

// result returns what is wrong with a trial, nil if nothing is.
func (t *trial) result() error {
	j := &judge{trial: t}
	var devices []*kit.FakeDevice
	var err error
	for i, r := range t.runs {
		err = j.iterate(r)
		if devices = append(devices, j.device); err != nil {
			err = fmt.Errorf("run %d, %+v: %w", i, r, err)
			break
		}
	}
	err = errors.Join(err, j.loader.Close())
	for len(j.kept) > 0 {
		err = errors.Join(err, j.release())
	}
	time.Sleep(5 * time.Minute) // calls that were given up return
	if n := j.loader.Stats().Slots; err == nil && n != 0 {
		err = fmt.Errorf("%d slots are left", n)
	}
	for _, d := range devices {
		if err == nil && d != nil && (d.Left() > 0 || len(d.Wrongs) > 0) {
			err = fmt.Errorf("%d things of the device's were never given back; %v", d.Left(), d.Wrongs)
		}
	}
	return err
}

// Whatever the options, faults and interruptions: each batch holds what a plain loop would have
// put in it, in memory and on the device, now and as long as it is retained; and what goes wrong
// is told.
func TestRandomLoadersDeliverWhatALoopWould(t *testing.T) {
	for s := range seedsOf(*trials, 600, 2000) {
		tr := randomTrial(rand.New(rand.NewPCG(s, 7)))
		var over atomic.Bool
		hung := time.AfterFunc(kit.Hangs, func() {
			if !over.Load() {
				panic(fmt.Sprintf("-seed=%d hangs, or spins: %+v", s, *tr))
			}
		})
		var err error
		synctest.Test(t, func(*testing.T) { err = tr.result() })
		over.Store(true)
		hung.Stop()
		require.NoError(t, err, "-seed=%d: %+v", s, *tr)
	}
}

// Some calls of the device fail or hang, sessions don't end, and the program cancels, breaks,
// retains batches and changes the number of workers. Whatever it is delivered is on the device,
// and all that the device gave comes back.
func TestRandomProgramsOnADeviceThatFails(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runRandomly(t, rand.New(rand.NewPCG(seed, 21))) })
		})
	}
}

func runRandomly(t *testing.T, rng *rand.Rand) {
	one := func(in int) bool { return rng.IntN(in) == 0 }
	upTo := func(n int) time.Duration { return time.Duration(rng.IntN(n)) * time.Millisecond }
	calls := []string{"AllocHost", "FreeHost", "Alloc", "Free", "NewEvent", "FreeEvent", "Open", "Copy", "Wait", "copying"}
	call, first := calls[rng.IntN(len(calls))], 1+rng.IntN(12)
	last := first + []int{-1, 0, 1, 3, 10000}[rng.IntN(5)]
	unended, hung := max(0, rng.IntN(5)-2), rng.IntN(40) // sessions that don't end; the copy that takes an hour, if there are so many
	dev := &kit.FakeDevice{Took: upTo(40), Fail: func(c string, n int) error {
		switch {
		case c == "copying" && n == hung:
			time.Sleep(time.Hour)
		case c == "Close" && n <= unended, c == call && first <= n && n <= last:
			return kit.ErrFake
		}
		return nil
	}}
	n, load := 1+rng.IntN(80), upTo(4)
	ds := kit.Ragged(n)
	slow := nwt.NewDataset(n, ds.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		time.Sleep(load * time.Duration(i%3))
		return errors.Join(ctx.Err(), ds.Load(ctx, i, dst))
	})
	opts := []nwt.Option{nwt.WithBatchSize(1 + rng.IntN(9)), nwt.WithWorkers(rng.IntN(6)), nwt.WithPrefetch(1 + rng.IntN(6)), nwt.WithDevice(dev), kit.Silent}
	if one(4) {
		opts = append(opts, nwt.WithoutPinned())
	}
	l, err := nwt.NewLoader(slow, opts...)
	require.NoError(t, err)
	var kept sync.WaitGroup
	for epoch := range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		if one(4) {
			time.AfterFunc(upTo(400), cancel)
		}
		workers, leave := rng.IntN(6), rng.IntN(20)
		time.AfterFunc(upTo(200), func() { _ = l.SetWorkers(workers) })
		i := 0
		var ended error
		for b, err := range l.Epoch(ctx, epoch) {
			if ended = err; err != nil {
				break
			}
			for k, v := range nwt.Values[uint8](b, 1) {
				require.Equal(t, uint8((i+k)%6), v)
			}
			require.True(t, dev.Holds(b))
			i += b.Len()
			took := upTo(500)
			if time.Sleep(upTo(40)); one(4) {
				b.Retain()
				kept.Go(func() {
					time.Sleep(took)
					if !dev.Holds(b) {
						t.Error("a batch that is retained has changed")
					}
					b.Release()
				})
			} else {
				dev.Overwrite(b)
			}
			if b.Number() == leave {
				break
			}
		}
		if cancel(); ended != nil && !errors.Is(ended, context.Canceled) {
			require.ErrorIs(t, ended, kit.ErrFake)
		}
	}
	if one(2) {
		kept.Wait()
	}
	require.NoError(t, l.Close())
	kept.Wait()
	dev.Settled(t)
}

var seed = flag.Uint64("seed", 0, "the first seed of the random tests")

// seedsOf are the seeds of a random test, as many as the flag asks for. Without it they are
// fewer with -short, and always the same: a change that fails has caused that.
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
