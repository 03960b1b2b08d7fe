package nwt_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
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
)

var loaders = flag.Int("loaders", 0, "so many random loaders of TestRandomLoadersDeliverWhatALoopWould, others each time; 0: some hundreds, more without -short, the same each time")

// A trial is a dataset, options and what is done with the loader, all at random.
type trial struct {
	seed uint64

	// The dataset: a map of n samples, or a stream of shards.
	n     int
	whole bool         // it has a LoadBatch
	sized int          // it tells sizes: 0 no, 1 as they are, 2 rounded up to even ones
	ends  []int        // where batches end, of a BatchSampler; nil: all are equally large
	shard []int        // length of each, those of all streams one after the other
	parts []int        // of several streams, the shards of each; nil: it is one
	mix   *nwt.Mix     // of these
	torn  map[int]flaw // by shard
	bad   map[int]string
	slow  int   // one in so many samples takes 100 ms; 0: none
	skips int   // its shards' readers skip: 0 no, else at most so many records at once
	ahead int64 // bytes of records that may be read ahead; 0: the default
	auto  bool  // the loader tunes itself

	batch, workers, prefetch, rank, world, budget int
	dropLast, shuffle, unordered, timeout         bool
	window, interleave, epochSamples              int
	device                                        bool
	faulty                                        int // call of a session that fails; 0: none

	prepares time.Duration // what WithWorkerInit takes; 0: there is none
	deaf     bool          // whatever happens to its context
	unfit    int32         // call of it that fails; 0: none

	flaky      map[int]bool // samples that call themselves temporarily bad, at most twice in a row
	finishes   bool         // there is a WithFinish
	finishing  time.Duration
	unfinished int32 // call of it that fails; 0: none
	tries      *sync.Map

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
	early        int  // if not 0: it resumes the state that was seen so many states ago, not the last one
	first, count int
	at           int // batch at which the loop body does what is in then
	then         []string
	workers      []int         // set one after the other by another goroutine
	deadline     time.Duration // of the context; 0: none
}

func randomTrial(seed uint64) *trial {
	rng := rand.New(rand.NewPCG(seed, 7))
	half := func() bool { return rng.IntN(2) == 0 }
	one := func(in int) bool { return rng.IntN(in) == 0 }
	t := &trial{
		seed: seed, n: 1 + rng.IntN(70), bad: map[int]string{}, torn: map[int]flaw{}, world: 1,
		batch: 1 + rng.IntN(9), workers: rng.IntN(6), prefetch: rng.IntN(5),
		dropLast: one(6), shuffle: half(), unordered: one(4), timeout: half(),
		window: []int{1, 3, 1000}[rng.IntN(3)], interleave: 1 + rng.IntN(3),
		device: one(3), whole: one(3),
		sized: rng.IntN(3),
	}
	if one(3) {
		t.slow = 1 + rng.IntN(9)
	}
	t.skips = int(seed % 4) // not by rng, whose trials stay what they were
	t.ahead = []int64{0, 1, 500, 5000}[seed/64%4]
	t.auto = seed%5 == 0
	t.prepares = []time.Duration{0, time.Millisecond, 50 * time.Millisecond, 2 * time.Second}[seed/256%4]
	t.deaf = seed/1024%2 == 1
	t.unfit = []int32{0, 0, 1, 5}[seed/2048%4]
	if half() {
		t.n = 0
		for range 1 + rng.IntN(6) {
			t.shard = append(t.shard, 1+rng.IntN(20))
			t.n += t.shard[len(t.shard)-1]
		}
		if one(2) {
			t.epochSamples = 1 + rng.IntN(t.n)
			if one(3) {
				t.epochSamples = t.n + rng.IntN(2*t.n)
			} else if half() {
				t.epochSamples = t.n
			}
		}
	}
	if one(3) {
		t.world = 1 + rng.IntN(3)
		if t.shard != nil {
			t.world = min(t.world, len(t.shard))
		}
		t.rank = rng.IntN(t.world)
	} else if half() {
		t.budget = rng.IntN(30)
		for range 1 + rng.IntN(20) {
			t.bad[rng.IntN(t.n)] = []string{"error", "panic", "hang", "hang", "missized", "larger"}[rng.IntN(6)]
		}
		if t.shard != nil && !t.shuffle && half() {
			s := rng.IntN(len(t.shard))
			t.torn[s] = flaw{"error", rng.IntN(t.shard[s])}
		}
	}
	if t.shard == nil && one(3) {
		for end := 0; end < t.n; {
			end = min(t.n, end+1+rng.IntN(t.batch))
			t.ends = append(t.ends, end)
		}
	}
	if t.shard == nil && (t.n < t.batch*t.world || t.ends != nil && len(t.ends) < t.world) {
		t.dropLast = false // which is refused: nothing would be left
	}
	if t.device && one(4) {
		t.faulty = 1 + rng.IntN(20)
	}
	for range 1 + rng.IntN(4) {
		r := run{resume: one(4) && !t.unordered, first: rng.IntN(3), count: 1 + rng.IntN(3), at: rng.IntN(8)}
		for range rng.IntN(3) {
			r.then = append(r.then, []string{"break", "cancel", "workers", "none", "retain", "release", "sleep", "close"}[rng.IntN(8)])
		}
		if one(3) {
			for range rng.IntN(6) {
				r.workers = append(r.workers, rng.IntN(6))
			}
		}
		if one(5) {
			r.deadline = time.Duration(rng.IntN(3000)) * time.Millisecond
		}
		t.runs = append(t.runs, r)
	}
	if t.shard != nil {
		t.moreOfStreams(rand.New(rand.NewPCG(seed, 8)))
	}
	t.moreOfBatches(rand.New(rand.NewPCG(seed, 10)))
	return t
}

// moreOfBatches has samples loaded several times, and batches finished. It has an rng of
// its own, as moreOfStreams has.
func (t *trial) moreOfBatches(rng *rand.Rand) {
	t.flaky, t.tries = map[int]bool{}, &sync.Map{}
	if t.n > 0 && rng.IntN(3) == 0 {
		for range 1 + rng.IntN(9) {
			if id := rng.IntN(t.n); t.bad[id] == "" {
				t.flaky[id] = true
			}
		}
	}
	t.finishes = rng.IntN(2) == 0
	t.finishing = []time.Duration{0, 5 * time.Millisecond, 2 * time.Second}[rng.IntN(3)]
	if rng.IntN(4) == 0 {
		t.unfinished = int32(1 + rng.IntN(20))
	}
}

// moreOfStreams makes some trials with a stream trials with several, and puts in flaws.
// It has an rng of its own: the trials without these stay what they were.
func (t *trial) moreOfStreams(rng *rand.Rand) {
	one := func(in int) bool { return rng.IntN(in) == 0 }
	if !one(3) {
		if t.shard, t.n, t.world = nil, 0, 1+rng.IntN(3); t.budget == 0 && one(2) {
			t.budget = rng.IntN(30)
		}
		t.rank = rng.IntN(t.world)
		for range 1 + rng.IntN(4) {
			t.parts = append(t.parts, t.world+rng.IntN(4))
			for range t.parts[len(t.parts)-1] {
				t.shard = append(t.shard, 1+rng.IntN(20))
				if one(20) {
					t.shard[len(t.shard)-1] = 0
				}
				t.n += t.shard[len(t.shard)-1]
			}
		}
		t.epochSamples, t.mix, t.torn = 1+rng.IntN(200), randomMix(rng, len(t.parts)), map[int]flaw{}
		bad := t.bad
		t.bad = map[int]string{}
		for id, how := range bad {
			t.bad[id%max(1, t.n)] = how
		}
	}
	if t.budget > 0 && one(2) {
		hows := []string{"error", "panic", "hang", "hang", "open", "open hangs", "flaky", "close hangs", "close panics"}
		for range 1 + rng.IntN(3) {
			shard := rng.IntN(len(t.shard))
			t.torn[shard] = flaw{hows[rng.IntN(len(hows))], rng.IntN(t.shard[shard] + 1)}
		}
	}
	for i := range t.runs {
		if r := &t.runs[i]; !t.unordered && one(3) {
			r.resume, r.early = true, rng.IntN(20)
		}
	}
}

// randomMix mixes parts in any phases, of which none leaves out what has a weight.
func randomMix(rng *rand.Rand, parts int) *nwt.Mix {
	m := &nwt.Mix{Block: 1 + rng.IntN(40)}
	for range 1 + rng.IntN(4) {
		p := nwt.Phase{Samples: 1 + rng.IntN(250), Weights: make([]float64, parts)}
		p.Weights[rng.IntN(parts)] = 1
		for k := range p.Weights {
			p.Weights[k] += float64(rng.IntN(9)) / 4
		}
		m.Phases = append(m.Phases, p)
	}
	for slices.ContainsFunc(m.Phases, func(p nwt.Phase) bool {
		shares := sharesOf(p.Weights, m.Block)
		for k, w := range p.Weights {
			if w > 0 && shares[k] == 0 {
				return true
			}
		}
		return false
	}) {
		m.Block++
	}
	return m
}

// readByConsumer tells whether a run may begin without workers.
func (t *trial) readByConsumer() bool {
	return t.auto || t.workers == 0 || slices.ContainsFunc(t.runs, func(r run) bool {
		return slices.Contains(r.then, "none") || slices.Contains(r.workers, 0)
	})
}

func (t *trial) fields() []nwt.Field {
	return []nwt.Field{
		{Name: "id", Type: nwt.Int64},
		{Name: "text", Type: nwt.Uint8, Shape: []int{5}, Ragged: true},
		{Name: "noise", Type: nwt.Int64},
		{Name: "image", Type: nwt.Int16, Shape: []int{3, 4, 2}, Ragged: true, RaggedDims: 2},
	}
}

// sizesOf is the length of a sample's text, and height and width of its image.
func sizesOf(id int) [3]int { return [3]int{id % 6, id / 2 % 4, id / 3 % 5} }

// tell is the trial's Sizes.
func (t *trial) tell(id int, sizes []int) {
	right := sizesOf(id)
	for d, n := range right {
		if t.sized == 2 {
			n = min((n+1)/2*2, [3]int{5, 3, 4}[d])
		}
		sizes[d] = n
	}
	if t.bad[id] == "missized" {
		switch sizes[id%3] = -1; id % 5 {
		case 0:
			panic("no sizes")
		case 1:
			sizes[id%3] = 6
		case 2:
			sizes[id%3] = math.MaxInt
		}
	}
}

// shapes is the shapes of text and image in a batch of some samples.
func (t *trial) shapes(ids []int) (text, image []int) {
	if t.sized == 0 || t.shard != nil {
		return []int{5}, []int{3, 4, 2}
	}
	longest := [3]int{1, 1, 1}
	for _, id := range ids {
		if t.bad[id] == "missized" {
			continue
		}
		var sizes [3]int
		t.tell(id, sizes[:])
		for d := range longest {
			longest[d] = max(longest[d], sizes[d])
		}
	}
	return longest[:1], append(longest[1:], 2)
}

// flake is what a Load returns for a flaky sample at first. It leaves something behind.
func (t *trial) flake(id int, dst *nwt.Sample) error {
	if !t.flaky[id] {
		return nil
	}
	n, _ := t.tries.LoadOrStore([2]int{dst.Epoch(), dst.Position()}, new(atomic.Int32))
	if n.(*atomic.Int32).Add(1)%3 == 0 {
		return nil
	}
	dst.Rand().Int64()
	spoil(dst)
	return tooMany{}
}

// make is what a Load does for sample id: its contents, or what is bad about it.
func (t *trial) make(ctx context.Context, id int, dst *nwt.Sample, late func()) error {
	nwt.Values[int64](dst, 0)[0] = int64(id)
	sizes := sizesOf(id)
	if t.bad[id] == "larger" {
		if t.sized == 0 || t.shard != nil {
			return errBoom
		}
		t.tell(id, sizes[:])
		sizes[id%3]++
	}
	dst.SetLen(1, sizes[0])
	dst.SetShape(3, sizes[1:]...)
	for _, f := range []int{1, 3} {
		for k := range dst.Bytes(f) {
			dst.Bytes(f)[k] = byte(id)
		}
	}
	nwt.Values[int64](dst, 2)[0] = dst.Rand().Int64() &^ 3 // the rest is for finish
	switch t.bad[id] {
	case "error", "missized":
		return errBoom
	case "panic":
		panic(errBoom)
	case "hang":
		if !t.timeout {
			return errBoom
		}
		time.Sleep(time.Duration(1200+id*300) * time.Millisecond)
		late()
		spoil(dst)
		if id%3 == 0 {
			panic("late")
		}
		return errBoom
	}
	if t.slow > 0 && id%t.slow == 0 {
		time.Sleep(100 * time.Millisecond)
	}
	return ctx.Err()
}

// spoil writes to all that a sample lets a call write to.
func spoil(dst *nwt.Sample) {
	for f := range 4 {
		for k := range dst.Bytes(f) {
			dst.Bytes(f)[k] = 0xee
		}
	}
	dst.SetLen(1, 0)
	dst.SetShape(3, 0, 0)
}

func (t *trial) dataset() (nwt.Dataset, error) {
	if t.shard != nil {
		var streams []nwt.Stream
		first := 0
		for k, shards := range t.shardsOfParts() {
			streams = append(streams, &trialStream{t: t, part: k, first: first, shards: shards, opened: make([]atomic.Int32, shards)})
			first += shards
		}
		if t.mix == nil {
			return nwt.Streamed(streams[0]), nil
		}
		return nwt.MixedStreams(*t.mix, 11, streams...)
	}
	ds := nwt.NewDataset(t.n, t.fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		if err := t.flake(i, dst); err != nil {
			return err
		}
		return t.make(ctx, i, dst, func() {})
	})
	if t.whole {
		ds = trialBatches{ds, t}
	}
	if t.sized > 0 {
		ds = nwt.Sized(ds, t.tell)
	}
	return ds, nil
}

// shardsOfParts is how many shards each stream has.
func (t *trial) shardsOfParts() []int {
	if t.parts == nil {
		return []int{len(t.shard)}
	}
	return t.parts
}

// trialBatches loads several at once, fails if one is bad, and spoils its
// arguments after it was given up.
type trialBatches struct {
	nwt.Dataset
	t *trial
}

func (d trialBatches) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	var bad error
	for k, i := range indices {
		how := d.t.bad[i]
		switch {
		case how == "hang" && d.t.timeout:
			time.Sleep(time.Duration(len(indices))*1200*time.Millisecond + time.Duration(300*i)*time.Millisecond)
			for k := range indices {
				indices[k] = 384 + k
				spoil(dst[k])
			}
			if i%3 == 0 {
				panic("late")
			}
			return errBoom
		case how != "":
			bad = errBoom
		default:
			if err := d.t.flake(i, dst[k]); err != nil {
				return err
			}
			if err := d.t.make(ctx, i, dst[k], func() {}); err != nil {
				return err
			}
		}
	}
	return bad
}

// A trialStream is one of a trial's streams. What it leaves in its records may be seen by
// nobody else.
type trialStream struct {
	t             *trial
	part          int
	first, shards int // of the trial's shards
	opened        []atomic.Int32
}

func (s *trialStream) Fields() []nwt.Field { return s.t.fields() }
func (s *trialStream) Shards() int         { return s.shards }

func (s *trialStream) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	reader := &trialShard{s: s, shard: s.first + shard, first: s.t.begins(s.first + shard)}
	switch s.t.torn[reader.shard].how {
	case "open":
		return nil, errTorn
	case "open hangs":
		if err := s.t.hang(ctx, reader.shard, nil); err != nil {
			return nil, err
		}
	case "flaky": // never more often in a row than it is tried again
		if s.opened[shard].Add(1)%3 > 0 {
			return nil, tooMany{}
		}
	}
	if s.t.skips > 0 {
		return trialSkipper{reader}, nil
	}
	return reader, nil
}

type tooMany struct{}

func (tooMany) Error() string   { return "too many open files" }
func (tooMany) Temporary() bool { return true }

// hang returns some time after the call was given up, with anything. Without WithTimeout
// it fails at once, and if no worker can be given up, after an hour.
func (t *trial) hang(ctx context.Context, shard int, r *nwt.Record) error {
	if !t.timeout {
		return errTorn
	}
	select {
	case <-time.After(time.Hour):
		return errTorn
	case <-ctx.Done():
	}
	time.Sleep(time.Duration(shard*700) * time.Millisecond)
	if r != nil {
		r.Data = append(r.Data[:0], 0xee)
	}
	switch shard % 4 {
	case 0:
		panic("late")
	case 1:
		return io.EOF
	case 2:
		return errTorn
	}
	return nil
}

var errForeign = errors.New("the record is another stream's")

func (s *trialStream) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	if r.Value != s.part {
		return errForeign
	}
	id, data := int(binary.LittleEndian.Uint64(r.Data)), r.Data
	if err := s.t.flake(id, dst); err != nil {
		return err
	}
	if s.part%2 == 1 {
		*r = nwt.Record{Value: s.part}
	}
	return s.t.make(ctx, id, dst, func() {
		for k := range data {
			data[k] = 0xee
		}
		r.Value = s.part
	})
}

func (t *trial) begins(shard int) (first int) {
	for _, n := range t.shard[:shard] {
		first += n
	}
	return first
}

type trialShard struct {
	s               *trialStream
	shard, first, k int // shard is among all of the trial's
}

func (s *trialShard) Next(ctx context.Context, r *nwt.Record) error {
	if r.Value != nil && r.Value != s.s.part {
		return errForeign
	}
	if err := s.pass(ctx, r); err != nil {
		return err
	}
	id := s.first + s.k - 1
	data := binary.LittleEndian.AppendUint64(r.Data[:0], uint64(id))
	if s.s.t.ahead > 0 {
		data = append(data, make([]byte, id*37%400)...)
	}
	*r = nwt.Record{Data: data, Value: s.s.part}
	return nil
}

// pass goes past a record.
func (s *trialShard) pass(ctx context.Context, r *nwt.Record) error {
	t := s.s.t
	if t.slow > 1 {
		time.Sleep(13 * time.Millisecond)
	}
	if flaw, ok := t.torn[s.shard]; ok && s.k == flaw.record {
		switch flaw.how {
		case "error":
			return errTorn
		case "panic":
			panic(errTorn)
		case "hang":
			if err := t.hang(ctx, s.shard, r); err != nil {
				return err
			}
		}
	}
	if s.k == t.shard[s.shard] {
		return io.EOF
	}
	s.k++
	return nil
}

type trialSkipper struct{ *trialShard }

func (s trialSkipper) Skip(ctx context.Context, n int) (skipped int, err error) {
	for skipped < min(n, s.s.t.skips) {
		if flaw := s.s.t.torn[s.shard]; skipped > 0 && s.k == flaw.record && flaw.how == "panic" {
			return skipped, nil
		}
		if err := s.pass(ctx, nil); err != nil {
			return skipped, err
		}
		skipped++
	}
	return skipped, nil
}

func (s *trialShard) Close() error {
	switch s.s.t.torn[s.shard].how {
	case "close hangs":
		time.Sleep(time.Duration(1200+700*s.shard) * time.Millisecond)
	case "close panics":
		panic("not open")
	}
	return nil
}

// A judge knows what a trial's loaders must deliver.
type judge struct {
	*trial
	device *fakeDevice
	noise  map[[2]int]int64
	loader *nwt.Loader
	closed bool
	states []nwt.State // of all batches
	kept   []retained

	beginning, begun atomic.Int32 // workers
	finished         atomic.Int32 // calls of finish
}

func newJudge(t *trial) *judge {
	return &judge{trial: t, noise: map[[2]int]int64{}, closed: true}
}

type retained struct {
	b      *nwt.Batch
	d      delivery
	device *fakeDevice
}

func (t *trial) sampler() nwt.Sampler {
	if t.shuffle {
		return nwt.Shuffled(t.n, 5)
	}
	return nwt.Sequential(t.n)
}

// cutSampler is another sampler's order, cut into batches.
type cutSampler struct {
	nwt.Sampler
	ends []int
}

func (s cutSampler) Batches() int       { return len(s.ends) }
func (s cutSampler) Start(_, b int) int { return s.ends[b-1] }

// cut is reference.batches for a trial with ends.
func (t *trial) cut(budget, first, count, base int) (ds []delivery, end int) {
	sampler := t.sampler()
	for epoch := first; epoch < first+count; epoch, base = epoch+1, 0 {
		bad, b := 0, 0
		for base > 0 && t.ends[b] <= base {
			if b++; b == len(t.ends) {
				break
			}
		}
		for ; b < len(t.ends); b += t.world {
			left := min(t.world, len(t.ends)-b)
			if t.dropLast && left < t.world {
				break
			}
			mine := b + t.rank*left/t.world
			from, to := 0, t.ends[mine]
			if mine > 0 {
				from = t.ends[mine-1]
			}
			var ranks []int // that share the batch
			for r := range t.world {
				if b+r*left/t.world == mine {
					ranks = append(ranks, r)
				}
			}
			if n, at := len(ranks), slices.Index(ranks, t.rank); to-from < n {
				from += at % (to - from)
				to = from + 1
			} else {
				from, to = from+(to-from)*at/n, from+(to-from)*(at+1)/n
			}
			d := delivery{epoch: epoch, delivered: t.ends[b+left-1]}
			for p := from; p < to; p++ {
				id := sampler.At(epoch, p)
				d.all = append(d.all, id)
				if t.bad[id] == "" {
					d.index, d.id = append(d.index, id), append(d.id, id)
				} else if bad++; bad > budget {
					return ds, badly
				}
			}
			if len(d.id) > 0 {
				ds = append(ds, d)
			}
		}
	}
	return ds, well
}

func (t *trial) options(workers int) []nwt.Option {
	opts := []nwt.Option{
		nwt.WithBatchSize(t.batch), nwt.WithWorkers(workers), nwt.WithRank(t.rank, t.world), nwt.WithSeed(5),
		nwt.WithLogger(slog.New(slog.DiscardHandler)), nwt.WithErrorBudget(t.budget),
	}
	switch {
	case t.ends != nil:
		opts = append(opts, nwt.WithSampler(cutSampler{t.sampler(), t.ends}))
	case t.shuffle:
		opts = append(opts, nwt.WithShuffle(5))
	}
	if t.shard != nil {
		opts = append(opts, nwt.WithShuffleWindow(t.window), nwt.WithInterleave(t.interleave))
		if t.epochSamples > 0 {
			opts = append(opts, nwt.WithEpochSamples(t.epochSamples))
		}
	}
	return opts
}

func (j *judge) open() (err error) {
	opts := j.options(j.workers)
	if j.prefetch > 0 {
		opts = append(opts, nwt.WithPrefetch(j.prefetch))
	}
	if j.dropLast {
		opts = append(opts, nwt.WithDropLast())
	}
	if j.unordered {
		opts = append(opts, nwt.WithUnordered())
	}
	if j.timeout {
		opts = append(opts, nwt.WithTimeout(time.Second))
	}
	if j.trial.device {
		calls := 0 // of Copy and Wait, which come one at a time
		j.device = &fakeDevice{took: 14 * time.Millisecond, fail: func(call string, _ int) error {
			if call == "Copy" || call == "Wait" {
				if calls++; calls == j.faulty {
					return errFake
				}
			}
			return nil
		}}
		opts = append(opts, nwt.WithDevice(j.device))
	}
	if j.ahead > 0 {
		opts = append(opts, nwt.WithReadAhead(j.ahead))
	}
	if j.auto {
		opts = append(opts, nwt.WithAutoWorkers())
	}
	if j.prepares > 0 {
		opts = append(opts, nwt.WithWorkerInit(j.begin))
	}
	if j.finishes {
		opts = append(opts, nwt.WithFinish(j.finish))
	}
	j.closed = false
	ds, err := j.dataset()
	if err == nil {
		j.loader, err = nwt.NewLoader(ds, opts...)
	}
	return err
}

// begin is the trial's WithWorkerInit.
func (j *judge) begin(ctx context.Context, worker int) error {
	j.beginning.Add(1)
	defer j.beginning.Add(-1)
	takes := j.prepares * time.Duration(worker+1)
	if j.deaf {
		time.Sleep(takes)
	} else if err := heed(ctx, takes); err != nil {
		return err
	}
	switch calls := j.begun.Add(1); {
	case calls != j.unfit:
		return nil
	case worker%2 == 0:
		panic(errUnfit)
	}
	return errUnfit
}

var errUnfit = errors.New("unfit")

// finish is the trial's WithFinish.
func (j *judge) finish(ctx context.Context, b *nwt.Batch) error {
	noise := nwt.Values[int64](b, 2)
	for p, id := range nwt.Values[int64](b, 0) {
		if j.bad[int(id)] != "" || noise[p]&3 != 0 || b.Len() == 0 {
			return fmt.Errorf("to be finished: sample %d, %q, of %v, noise %d", id, j.bad[int(id)], b.Indices(), noise[p]&3)
		}
		noise[p]++
	}
	if err := heed(ctx, j.finishing*time.Duration(b.Index()%3)); err != nil {
		return err
	}
	if calls := j.finished.Add(1); calls == j.unfinished {
		if calls%2 == 0 {
			panic(errUnfinished)
		}
		return errUnfinished
	}
	return nil
}

var errUnfinished = errors.New("unfinished")

// plain is the trial's streams as a plain loop reads them.
func (t *trial) plain() *plainStreams {
	p := &plainStreams{
		mix: t.mix, mixSeed: 11, rank: t.rank, world: t.world, interleave: t.interleave, window: t.window,
		epochSamples: t.epochSamples, shuffle: t.shuffle, seed: 5,
	}
	at, id := 0, 0
	for _, shards := range t.shardsOfParts() {
		var stream [][]int
		for range shards {
			records := indicesUpTo(t.shard[at])
			for k := range records {
				records[k] += id
			}
			switch flaw := t.torn[at]; flaw.how {
			case "error", "panic", "hang":
				records = append(records[:flaw.record], lost)
			case "open", "open hangs":
				records = []int{lost}
			}
			stream = append(stream, records)
			id += t.shard[at]
			at++
		}
		p.streams = append(p.streams, stream)
	}
	return p
}

// epochOf is a stream's epoch, which must hold what it promises.
func (j *judge) epochOf(epoch int) (ids []int, whole bool, err error) {
	ids, whole = j.plain().epoch(epoch)
	if j.mix != nil || !j.shuffle || len(j.torn) > 0 {
		return ids, whole, nil
	}
	have := slices.Clone(ids)
	slices.Sort(have)
	switch {
	case j.epochSamples > 0 && len(ids) != max(1, j.epochSamples/j.world):
		return nil, false, fmt.Errorf("an epoch of %d samples for %d ranks has %d", j.epochSamples, j.world, len(ids))
	case j.world == 1 && len(ids) == j.n && !slices.Equal(have, indicesUpTo(j.n)):
		return nil, false, fmt.Errorf("a shuffled epoch of as many samples as there are holds %v", have)
	case j.world == 1 && len(ids) <= j.n && len(slices.Compact(have)) != len(ids):
		return nil, false, fmt.Errorf("a shuffled epoch of %d of %d samples repeats some: %v", len(ids), j.n, ids)
	}
	return ids, whole, nil
}

// How a run ends.
const (
	well    = iota
	badly   // with a bad sample that is one too many
	refused // with an epoch that has no batch or too few samples, which the other ranks would wait for
)

// plan is what a run is to deliver, and how it ends. Without order it may deliver
// more before it does.
func (j *judge) plan(first, count, base int) (ds []delivery, end int, err error) {
	ds, end, err = j.within(j.budget, first, count, base)
	if err == nil && end == badly && j.unordered {
		ds, _, err = j.within(1<<30, first, count, base)
	}
	return ds, end, err
}

func (j *judge) within(budget, first, count, base int) (ds []delivery, end int, err error) {
	if j.ends != nil {
		ds, end = j.cut(budget, first, count, base)
		return ds, end, nil
	}
	if j.shard == nil {
		ref := &reference{program: program{n: j.n, bad: j.bad, budget: budget, shuffle: j.shuffle}, op: op{batch: j.batch, rank: j.rank, world: j.world, dropLast: j.dropLast}}
		if ds, end = ref.batches(first, count, base); end != -1 {
			return ds, badly, nil
		}
		return ds, well, nil
	}
	for epoch := first; epoch < first+count; epoch, base = epoch+1, 0 {
		ids, whole, err := j.epochOf(epoch)
		if err != nil {
			return nil, well, err
		}
		if j.dropLast && base == 0 && len(ids) < j.batch {
			return ds, refused, nil
		}
		bad := 0
		for from := base / j.world; from < len(ids); from += j.batch {
			to := min(from+j.batch, len(ids))
			if (j.dropLast || !whole) && to < from+j.batch {
				break
			}
			d := delivery{epoch: epoch, delivered: to * j.world}
			for p := from; p < to; p++ {
				if ids[p] >= 0 && j.bad[ids[p]] == "" {
					d.index, d.id = append(d.index, p*j.world+j.rank), append(d.id, ids[p])
				} else if bad++; bad > budget {
					return ds, badly, nil
				}
			}
			if len(d.id) > 0 {
				ds = append(ds, d)
			} else if j.world > 1 && budget == j.budget {
				return ds, badly, nil // the other ranks would wait for it
			}
		}
		if !whole {
			return ds, refused, nil
		}
	}
	return ds, well, nil
}

// same compares a batch with what it is to be, on the host and on the device.
func (j *judge) same(b *nwt.Batch, d delivery, device *fakeDevice) error {
	delivered := d.delivered
	if j.unordered {
		delivered = -1
	}
	world := 0 // which may change, except for a stream
	if j.shard != nil {
		world = j.world
	}
	if b.Epoch() != d.epoch || !slices.Equal(b.Indices(), d.index) || b.State() != (nwt.State{Epoch: d.epoch, Samples: delivered, World: world}) {
		return fmt.Errorf("epoch %d: %v, %v; want %+v", b.Epoch(), b.Indices(), b.State(), d)
	}
	textShape, imageShape := j.shapes(d.all)
	for f, shape := range [][]int{nil, textShape, nil, imageShape} {
		if got := b.Shape(f); got[0] != len(d.id) || !slices.Equal(got[1:], shape) {
			return fmt.Errorf("field %d of %v has shape %v; want %d × %v", f, d.index, got, len(d.id), shape)
		}
	}
	length, height, width := textShape[0], imageShape[0], imageShape[1]
	for p, id := range d.id {
		sizes := sizesOf(id)
		text := append(slices.Repeat([]byte{byte(id)}, sizes[0]), make([]byte, length-sizes[0])...)
		if got := nwt.Values[int64](b, 0)[p]; got != int64(id) || b.Lens(1)[p] != int32(sizes[0]) || !slices.Equal(b.Bytes(1)[length*p:length*(p+1)], text) {
			return fmt.Errorf("place %d of %v holds sample %d, %v of %d; want %d", p, d.index, got, b.Bytes(1)[length*p:length*(p+1)], b.Lens(1)[p], id)
		}
		if b.LensOf(3, 0)[p] != int32(sizes[1]) || b.LensOf(3, 1)[p] != int32(sizes[2]) {
			return fmt.Errorf("the image in place %d of %v has %d × %d pixels, want %v", p, d.index, b.LensOf(3, 0)[p], b.LensOf(3, 1)[p], sizes)
		}
		image := b.Bytes(3)[height*width*4*p:][:height*width*4]
		for k, got := range image {
			want := byte(0)
			if y, x := k/4/width, k/4%width; y < sizes[1] && x < sizes[2] {
				want = byte(id)
			}
			if got != want {
				return fmt.Errorf("byte %d of the image in place %d of %v is %d, want %d", k, p, d.index, got, want)
			}
		}
		key, noise := [2]int{d.epoch, d.index[p]}, nwt.Values[int64](b, 2)[p]
		if j.finishes != (noise&3 == 1) || !j.finishes && noise&3 != 0 {
			return fmt.Errorf("place %d of %v was finished %d times", p, d.index, noise&3)
		}
		if old, ok := j.noise[key]; ok && old != noise {
			return fmt.Errorf("sample %d of epoch %d has another randomness than before", d.index[p], d.epoch)
		}
		j.noise[key] = noise
	}
	if device == nil {
		return nil
	}
	if !device.holds(b) {
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
	err := j.same(k.b, k.d, k.device)
	k.b.Release()
	return err
}

// iterate is one run.
func (j *judge) iterate(r run) error {
	if j.closed {
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
	wants, end, err := j.plan(first, count, base)
	if err != nil {
		return err
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
	known := len(j.loader.BadSamples())
	seq := j.loader.Epochs(ctx, first, first+count)
	if r.resume {
		seq = j.loader.Resume(ctx, state)
	}
	last, seen, left, err := j.loop(r, seq, wants, cancel)
	if err != nil {
		return err
	}
	if n := j.beginning.Load(); n != 0 {
		return fmt.Errorf("%d workers go on beginning after the run", n)
	}
	if err := j.onlyBad(j.loader.BadSamples()[known:]); err != nil {
		return err
	}
	var le *nwt.LoadError
	switch {
	case left && last == nil:
	case j.closed && errors.Is(last, nwt.ErrClosed):
	case ctx.Err() != nil && errors.Is(last, ctx.Err()):
	case j.faulty > 0 && errors.Is(last, errFake):
	case j.unfit > 0 && errors.Is(last, errUnfit):
	case j.finishes && j.unfinished > 0 && errors.Is(last, errUnfinished):
	case end == badly && errors.As(last, &le):
	case end == refused && last != nil && (strings.Contains(last.Error(), "has no batch") || strings.Contains(last.Error(), "has no sample")):
	case end != well || last != nil:
		return fmt.Errorf("ended after %d of %d batches with error %v; expected end: %d", seen, len(wants), last, end)
	case seen < len(wants):
		return fmt.Errorf("%d batches, want %d", seen, len(wants))
	}
	return nil
}

// loop is a training loop.
func (j *judge) loop(r run, seq iter.Seq2[*nwt.Batch, error], wants []delivery, cancel func()) (last error, seen int, left bool, err error) {
	wants = slices.Clone(wants)
	for b, e := range seq {
		if last != nil {
			return last, seen, left, errors.New("the loop went on after an error")
		}
		if last = e; e != nil {
			continue
		}
		k := seen
		if j.unordered {
			k = slices.IndexFunc(wants, func(d delivery) bool { return d.epoch == b.Epoch() && slices.Equal(d.index, b.Indices()) })
		}
		if k < 0 || k == len(wants) {
			return nil, seen, left, fmt.Errorf("a batch that nobody expects: epoch %d, %v", b.Epoch(), b.Indices())
		}
		d := wants[k]
		if err := j.same(b, d, j.device); err != nil {
			return nil, seen, left, fmt.Errorf("batch %d: %w", seen, err)
		}
		if j.unordered {
			wants[k].epoch = -1 // it comes once
		}
		j.states = append(j.states, b.State())
		if seen++; seen != r.at+1 {
			j.device.overwrite(b)
			continue
		}
		for _, then := range r.then {
			switch then {
			case "break":
				left = true
			case "cancel":
				cancel()
			case "workers", "none":
				n := 0
				if then == "workers" {
					n = 1 + seen%5
				}
				if err := j.loader.SetWorkers(n); err != nil && !j.closed {
					return nil, seen, left, err
				}
			case "retain":
				b.Retain()
				j.kept = append(j.kept, retained{b, d, j.device})
			case "release":
				if err := j.release(); err != nil {
					return nil, seen, left, fmt.Errorf("retained: %w", err)
				}
			case "sleep":
				time.Sleep(3 * time.Second)
				if err := j.same(b, d, j.device); err != nil {
					return nil, seen, left, fmt.Errorf("batch %d, some seconds later: %w", seen-1, err)
				}
			case "close":
				j.closed = true
				if err := j.loader.Close(); err != nil {
					return nil, seen, left, err
				}
			}
		}
		if !slices.Contains(r.then, "retain") {
			j.device.overwrite(b)
		}
		if left {
			break
		}
	}
	return last, seen, left, nil
}

// onlyBad checks what was left out in a run.
func (j *judge) onlyBad(list []*nwt.LoadError) error {
	count := map[int]int{}
	for _, le := range list {
		id := le.Index
		if j.shard != nil {
			ids, _, err := j.epochOf(le.Epoch)
			if err != nil {
				return err
			}
			if le.Index/j.world >= len(ids) {
				return fmt.Errorf("epoch %d has %d samples, and a bad one after these: %w", le.Epoch, len(ids), le)
			}
			id = ids[le.Index/j.world]
		}
		if id >= 0 && j.bad[id] == "" {
			return fmt.Errorf("sample %d is good, and was called bad: %v", id, le)
		}
		if count[le.Epoch]++; count[le.Epoch] > j.budget {
			return fmt.Errorf("more than %d samples of epoch %d were left out", j.budget, le.Epoch)
		}
	}
	return nil
}

// result is what is wrong with a trial, nil if nothing is.
func (t *trial) result() error {
	j := newJudge(t)
	var err error
	for i, r := range t.runs {
		if err = j.iterate(r); err != nil {
			err = fmt.Errorf("run %d, %+v: %w", i, r, err)
			break
		}
	}
	if j.loader == nil {
		return err
	}
	err = errors.Join(err, j.loader.Close())
	for len(j.kept) > 0 {
		err = errors.Join(err, j.release())
	}
	time.Sleep(5 * time.Minute) // calls that were given up return
	if n := j.loader.SlotCount(); err == nil && n.Memory != 0 {
		err = fmt.Errorf("slots are left: %+v", n)
	}
	if j.device != nil && err == nil && (j.device.left() > 0 || len(j.device.wrongs) > 0) {
		err = fmt.Errorf("%d things of the device's were never given back; %v", j.device.left(), j.device.wrongs)
	}
	return err
}

func (t *trial) String() string {
	return strings.ReplaceAll(fmt.Sprintf("%+v", *t), " runs:", "\n\truns:")
}

// Whatever the options, faults and interruptions: each batch holds what a plain
// loop would have put in it, in memory and on the device, now and as long as it
// is retained; and what goes wrong is told.
func TestRandomLoadersDeliverWhatALoopWould(t *testing.T) {
	for s := range seedsOf(*loaders, 600, 2000) {
		tryLoader(t, s)
	}
}

// An unordered stream on a device whose stage failed at the end waited, now and
// then, for what came after it.
func TestALoaderThatOnceHungEnds(t *testing.T) {
	for range 20 {
		tryLoader(t, 1064144153)
	}
}

func tryLoader(t *testing.T, seed uint64) {
	tr := randomTrial(seed)
	var over atomic.Bool
	hung := time.AfterFunc(hangs, func() {
		if !over.Load() {
			panic(fmt.Sprintf("-seed=%d hangs, or spins: %v", seed, tr))
		}
	})
	var err error
	synctest.Test(t, func(*testing.T) { err = tr.result() })
	over.Store(true)
	hung.Stop()
	require.NoError(t, err, "-seed=%d: %v", seed, tr)
}
