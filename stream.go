package nwt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/host"
)

// A Stream is an iterable-style source: shards that are read in sequence, such
// as tar files, record files, or the parts of a query. [Streamed] makes it a
// dataset for [NewLoader] and [Tune].
//
// Reading a shard is sequential and should be cheap: bytes from a file. Load then
// makes samples of what was read; workers call it side by side.
type Stream interface {
	// Fields is the layout of one sample. It must not change.
	Fields() []Field
	// Shards is the number of shards: at least one for each rank. A loader asks
	// for it once.
	Shards() int
	// Open begins to read a shard, 0 ≤ shard < Shards, in an epoch. If its error
	// calls itself temporary, as the error of too many open files does, Open is
	// called again as WithRetry says. With any other error the whole shard counts as
	// one bad sample, whose error is a *[ShardError].
	Open(ctx context.Context, shard int) (ShardReader, error)
	// Load makes a sample of a record, under the rules of [Dataset]'s Load.
	Load(ctx context.Context, r *Record, dst *Sample) error
}

// A ShardReader reads one shard, in one goroutine at a time.
type ShardReader interface {
	// Next reads the next record into r. After the last record it returns [io.EOF]
	// itself. Any other error, even one that wraps io.EOF, makes the record a bad
	// sample, with a *[ShardError], and ends the shard: its other records are lost.
	Next(ctx context.Context, r *Record) error
	// Close ends reading, at the end of the shard or before.
	Close() error
}

// A Skipper is a [ShardReader] that can pass over records for less than reading them
// costs: with an index, or by seeking. If all readers are Skippers, [Loader.Resume]
// skips the records that were delivered, instead of reading and dropping them, so that
// going on late in a long epoch starts soon. It reads them all the same if they are fewer
// than the window of [WithShuffle] holds.
type Skipper interface {
	ShardReader
	// Skip passes over at most the next n records, n ≥ 1, and returns how many it has
	// passed over. If it is none, the loader reads one record by Next and asks again.
	// With [WithTimeout] n is 1, so that the loader knows at which record a call hangs.
	// The errors are those of Next: [io.EOF] itself if no record is left after those
	// passed over; any other error makes the next record a bad sample and ends the
	// shard. If Next would fail at one of the records, Skip must fail there too;
	// otherwise the rest of the epoch isn't the same.
	Skip(ctx context.Context, n int) (skipped int, err error)
}

// A Record is what was read of a sample. Records are reused: Next gets a record
// that still holds what an earlier Next and Load left there, or a new one.
type Record struct {
	Data  []byte // append to Data[:0] to reuse its memory; it alone counts as read ahead
	Value any    // anything else

	part int   // number of the stream that it is of, with MixedStreams
	err  error // what Open or Next failed with
}

// Streamed makes a dataset of a stream. It has no length. Its samples come in the
// order of reading, which is the same at every worker count:
//
//   - the shards come in turn or, with WithShuffle, in another order in each epoch;
//   - each rank reads the shards at its places in that order;
//   - it reads [WithInterleave] shards at once, a sample of each in turn;
//   - with WithShuffle, it mixes the samples within a window, see
//     [WithShuffleWindow].
//
// It reads up to 16 records of each shard ahead, as long as their Data takes at most
// 256 MiB in all. If training waits for slow records while other shards stand still, it
// reads up to 1024 records of these ahead, as long as the Data of all takes at most 128 MiB
// and an eighth of the memory left, divided by the ranks on the host. It does so only for
// records with Data: the size of others isn't known. A record for which there is no room
// is read when it is needed, and may exceed the bound. How large a record is shows only
// when it is read, so two others may exceed it too: the first of each shard that is read
// at once, and one that is larger than the one before it. What is in the window and in
// batches comes on top.
//
// [Sample.Index] is the sample's place in this order, over all ranks, except in [Tune]: it
// begins at the fronts of shards spread over the stream, and counts from there. It seldom
// comes to the ends of long shards, so these should take as long to load. If the shards
// of different ranks differ in length, the ranks have different numbers of batches;
// with [WithEpochSamples] all have the same number. Each rank must get at least one
// shard, and an epoch that has no batch for a rank is an error. [Loader.Resume] reads
// and drops what came before, or skips it if the shards' readers can (see [Skipper]).
// In the middle of an epoch it refuses another number of ranks.
func Streamed(s Stream) Dataset { return &streamDataset{streams: []Stream{s}} }

type streamDataset struct {
	streams []Stream
	mix     *Mix // nil without MixedStreams
	seed    uint64
}

func (d *streamDataset) Len() int        { return -1 }
func (d *streamDataset) Fields() []Field { return d.streams[0].Fields() }

func (d *streamDataset) Load(context.Context, int, *Sample) error {
	return errors.New("nwt: a stream has no sample by index")
}

// check is what checkDataset asks of a stream instead of its length.
func (d *streamDataset) check() error {
	if d.streams[0] == nil {
		return optionError("Streamed", nil, "the stream must not be nil")
	}
	return nil
}

// shards is the number of shards of each stream, which a loader asks for once.
func (d *streamDataset) shards() (all []int, err error) {
	for _, s := range d.streams {
		n, err := shardsOf(s)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

func shardsOf(s Stream) (n int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = optionError("Stream.Shards", fmt.Sprintf("%T", s), "panicked: %v", p)
		}
	}()
	if n = s.Shards(); n < 1 {
		err = optionError("Stream.Shards", n, "must be at least 1")
	}
	return n, err
}

// shardsOfRank is how many shards this rank reads of the stream that has the most.
func (s *source) shardsOfRank() int {
	return (slices.Max(s.shards) - s.opts.rank + s.opts.world - 1) / s.opts.world
}

// fits tells what is wrong with the options for these streams and their shards.
func (d *streamDataset) fits(shards []int, o *options) (errs []error) {
	if o.sampler != nil {
		errs = append(errs, optionError("WithSampler", nameOfSampler(o.sampler), "can't be combined with a stream, whose order is that of reading"))
	}
	if d.mix != nil && o.epochSamples == 0 {
		errs = append(errs, optionError("WithEpochSamples", o.epochSamples, "must be set with MixedStreams, whose epochs have no other end"))
	}
	for k, n := range shards {
		if n < o.world {
			which := ""
			if d.mix != nil {
				which = fmt.Sprintf(" (stream %d of MixedStreams)", k)
			}
			errs = append(errs, optionError("WithRank (world)", o.world, "a stream of %d shards leaves ranks without one: needs at least as many shards as ranks%s", n, which))
		}
	}
	return errs
}

// load is a loader's load.
func (d *streamDataset) load() func(ctx context.Context, _ int, s *Sample) error {
	if d.mix == nil {
		return d.loadRecord
	}
	return d.loadMixed
}

// loadRecord is load for a stream alone.
func (d *streamDataset) loadRecord(ctx context.Context, _ int, s *Sample) error {
	r := s.records[s.place]
	if r.err != nil {
		return r.err
	}
	return d.streams[0].Load(ctx, r, s)
}

// loadMixed is load for the streams of a mixture.
func (d *streamDataset) loadMixed(ctx context.Context, _ int, s *Sample) error {
	r := s.records[s.place]
	if r.err != nil {
		return r.err
	}
	part := r.part
	defer func() { r.part = part }() // if Load has overwritten the record, even if it panics then
	return d.streams[part].Load(ctx, r, s)
}

// unread tells whether the sample's record couldn't be read. It won't be read
// again.
func (s *Sample) unread() bool { return s.records != nil && s.records[s.place].err != nil }

// A sequence reads the records of a run in order. It belongs to one goroutine:
// the run's reader or, without workers, the consumer.
//
// An epoch is one pass over the rank's shards or, if WithEpochSamples asks for
// more than they hold, several passes, one after the other. What is read next
// depends on (seed, epoch, place) alone, because whatever is left of an epoch is
// dropped when it ends.
type sequence struct {
	run   *run
	l     *Loader
	ctx   context.Context
	ahead bool // chains read ahead, each in a goroutine of its own
	quota int  // records of an epoch, from WithEpochSamples; else 0
	most  int  // records that an epoch may have, so that all ranks' places fit into an int
	parts []*streamPart
	plan  *mixPlan // which part each record is of; nil without MixedStreams
	shift int      // by how many records the plan is rotated: 0, but for a tuner's visits

	epoch, last int
	over        bool // nothing comes after epoch
	index       int  // of the next batch in its epoch
	delivered   int  // records of the epoch that were handed out or skipped
	skip        int  // records to drop before the first
	started     bool
	dry         *streamPart // had no record left
	ended       atomic.Bool // a batch was the end: others that are opened hold nothing

	// For reading further ahead, see type reach.
	reachShare func() float64 // share of the bound that records may take then
	cpu        host.Meter     // nil as long as nothing is measured
	metered    int64          // when cpu began
	idle       bool           // CPUs were, before that
}

// A streamPart reads the records of one of a run's streams in order. It belongs to the
// sequence.
type streamPart struct {
	q         *sequence
	number    int
	stream    Stream
	shards    int
	first     int    // number of its first shard among those of all parts
	seed      uint64 // of WithShuffle, for this part
	order     shardOrder
	from      int   // the place in the order that a pass begins with: 0, but for a tuner's visits
	draws     int   // records of it in the epoch, and in the rest of blocks that it cuts; math.MaxInt if it ends with the shards
	delivered int   // records of the epoch that were handed out or skipped
	bound     int64 // of bytes: an equal share for each part that the epoch needs

	// bytes is the memory of the records that chains hold. It exceeds the bound only
	// for a record that the sequence waits for, and for one of a size that no record
	// before it has shown: the first of a chain, and one larger than the one before it.
	bytes atomic.Int64
	// waiting is how many chains wait for room and haven't been given any.
	// Such a chain says how much it needs, and adds itself, before it looks at bytes for
	// the last time; the sequence takes from bytes before it looks at waiting. So one of
	// them sees the other.
	//
	// Room that a chain's goroutine frees, because a record is smaller than the one before
	// it or a call that was given up returns, is given away when the sequence takes the
	// next record, as is what a chain holds that has nothing left. Nothing stalls until
	// then: a chain whose record the sequence waits for needs no room. What it costs is
	// that the other chains begin to read into that room when this one record has come,
	// and not before.
	waiting atomic.Int32

	// For the pass under way.
	chains []*chain
	turn   int       // chain to ask next
	passed int       // records that it has given
	window []*Record // of the shuffle: the records it holds
	spare  []*Record // records that nothing holds

	late  int      // how many chains of the pass were late, see type reach
	still []*chain // scratch of losesTime
}

func newSequence(r *run, ahead bool) *sequence {
	c, o := r.course, r.l.opts
	q := &sequence{
		run: r, l: r.l, ctx: r.ctx, ahead: ahead, epoch: c.first, last: c.last,
		skip: c.base / o.world, index: c.skipped, most: (math.MaxInt - o.rank) / o.world, quota: o.quota(o.world), plan: r.l.plan,
	}
	q.reachShare = sync.OnceValue(q.mostReach)
	ds, first := r.l.ds.(*streamDataset), 0
	for k, s := range ds.streams {
		n := r.l.shards[k]
		p := &streamPart{q: q, number: k, stream: s, shards: n, first: first, seed: o.seedOfStream(k), order: o.shardOrder(n, k)}
		if v := r.l.visits; v != nil {
			p.stream, p.from, q.shift = v.streams[k], v.streams[k].from, v.shift
		}
		q.parts = append(q.parts, p)
		first += n
	}
	return q
}

// seedOfStream is what the order of stream k of a dataset is computed from.
func (o *options) seedOfStream(k int) uint64 { return o.shuffled + uint64(k)*golden }

// A shardOrder is the order of a stream's shards for a rank.
type shardOrder struct {
	all         Sampler // of all ranks
	rank, world int
	n           int // shards of the rank
}

// shardOrder is the order of the shards of stream k of a dataset.
func (o *options) shardOrder(shards, k int) shardOrder {
	s := shardOrder{Sequential(shards), o.rank, o.world, (shards - o.rank + o.world - 1) / o.world}
	if o.shuffle {
		s.all = Shuffled(shards, o.seedOfStream(k))
	}
	return s
}

// at is the rank's shard number i of an epoch.
func (s shardOrder) at(epoch, i int) int { return s.all.At(epoch, s.rank+i*s.world) }

// start opens the chains of a pass, and has them read ahead.
func (p *streamPart) start() {
	p.open()
	p.goAhead()
}

// goAhead has the chains read ahead, if they may and are needed.
func (p *streamPart) goAhead() {
	if !p.q.ahead || p.draws == 0 {
		return
	}
	due := p.draws
	if due < math.MaxInt {
		due -= p.delivered + p.passed
		if o := p.q.l.opts; o.shuffle {
			due += o.window
		}
		due = due/len(p.chains) + 1
	}
	for _, c := range p.chains {
		c.due = due
		c.start()
	}
}

// open makes the chains of a pass.
func (p *streamPart) open() {
	o := p.q.l.opts
	mine := make([]int, p.order.n)
	for i := range mine {
		mine[i] = p.order.at(p.q.epoch, (p.from+i)%len(mine))
	}
	p.turn, p.passed, p.late = 0, 0, 0
	for i := range min(o.interleave, len(mine)) {
		var shards []int
		for k := i; k < len(mine); k += o.interleave {
			shards = append(shards, mine[k])
		}
		p.chains = append(p.chains, newChain(p, shards))
	}
}

// stop ends the passes of all parts.
func (q *sequence) stop() {
	for _, p := range q.parts {
		p.stop()
	}
}

// stop ends a pass: closes what is open, joins the chains, and drops what is in
// the window.
func (p *streamPart) stop() {
	for _, c := range p.chains {
		c.close()
	}
	p.chains = nil
	p.spare, p.window = append(p.spare, p.window...), p.window[:0]
}

// feed fills the batches that the run opens, until it ends.
func (q *sequence) feed(r *run) error {
	defer q.stop()
	for {
		select {
		case b := <-r.toFill:
			q.fill(b.seq, b)
		case <-r.ctx.Done():
			return nil
		}
	}
}

// read replaces *r by the next record of the epoch. It reports false after the last
// record, and if the run ends.
func (q *sequence) read(r **Record) bool {
	if q.quota > 0 && q.delivered == q.quota {
		return false
	}
	p := q.parts[0]
	if q.plan != nil {
		p = q.choose(r)
	}
	if !p.read(r) {
		q.dry = p
		return false
	}
	q.delivered++
	return true
}

// choose is the part that the next record is of. If *r is of another part, choose gives
// it back to that, whose next record finds what it holds.
func (q *sequence) choose(r **Record) *streamPart {
	at := q.delivered
	if q.shift > 0 {
		at = (at + q.shift) % q.quota
	}
	part, _ := q.plan.at(q.position(at))
	p := q.parts[part]
	if old := *r; old.part != part {
		q.parts[old.part].spare = append(q.parts[old.part].spare, old)
		*r = p.blank()
	}
	return p
}

// position is the place of the rank's record number i of the epoch in all training.
func (q *sequence) position(i int) uint64 { return uint64(q.epoch)*uint64(q.quota) + uint64(i) }

// read replaces *r by the part's next record.
func (p *streamPart) read(r **Record) bool {
	for !p.readOfPass(r) {
		if p.q.quota == 0 || p.passed == 0 || p.q.ctx.Err() != nil {
			return false
		}
		p.stop()
		p.start()
	}
	p.delivered++
	return true
}

// blank is a record for the part to read into.
func (p *streamPart) blank() *Record {
	if n := len(p.spare) - 1; n >= 0 {
		r := p.spare[n]
		p.spare = p.spare[:n]
		return r
	}
	return &Record{part: p.number}
}

// readOfPass replaces *r by the next record of the pass, mixed as WithShuffle
// asks for.
func (p *streamPart) readOfPass(r **Record) bool {
	o := p.q.l.opts
	if !o.shuffle || o.window < 2 {
		return p.readInOrder(r)
	}
	for len(p.window) < o.window {
		next := p.blank()
		if !p.readInOrder(&next) {
			p.spare = append(p.spare, next)
			break
		}
		p.window = append(p.window, next)
	}
	n := len(p.window)
	if n == 0 {
		return false
	}
	pick := p.draw(p.delivered, n)
	*r, p.window[pick] = p.window[pick], *r
	p.spare, p.window[pick], p.window = append(p.spare, p.window[pick]), p.window[n-1], p.window[:n-1]
	return true
}

// draw is the place in a window of n records that the rank's record number i of the
// part's in the epoch is taken from.
func (p *streamPart) draw(i, n int) int {
	o := p.q.l.opts
	key := epochKey(seedKey(p.seed), p.q.epoch) + uint64(i*o.world+o.rank)*golden
	return int(mix64(key) % uint64(n)) // a window is too small for the bias to show
}

// readInOrder replaces *r by the next record as it is read: one of each chain in
// turn.
func (p *streamPart) readInOrder(r **Record) bool {
	empty := 0 // chains in a row that had nothing
	for empty < len(p.chains) {
		at := p.turn
		p.turn = (p.turn + 1) % len(p.chains)
		if p.take(at, r) {
			p.passed++
			return true
		}
		empty++
	}
	return false
}

// begin begins an epoch, and drops the records that a State says were delivered. If
// one of them can't be read now but could be read then, the records after it aren't the
// rest of the epoch. Without an error budget it could be read then, so it is an error.
func (q *sequence) begin(scratch **Record) error {
	needed := int64(0)
	for _, p := range q.parts {
		p.draws = cmp.Or(q.quota, math.MaxInt)
		if q.plan != nil {
			p.draws = q.plan.draws(p.number, q.position(0), q.position(q.quota))
		}
		if p.draws > 0 {
			needed++
		}
	}
	for _, p := range q.parts {
		p.bound, p.delivered = q.l.opts.aheadBytes/needed, 0
		p.open()
	}
	q.started, q.delivered = true, 0
	if o := q.l.opts; q.skip > 0 && o.endsEpoch(q.skip*o.world, o.world) {
		q.delivered = q.quota
		return nil
	}
	if q.skips() {
		return q.pass()
	}
	for _, p := range q.parts {
		p.goAhead()
	}
	for from := q.skip; q.skip > 0; q.skip-- {
		if !q.read(scratch) {
			return fmt.Errorf("nwt: to resume after %d samples of epoch %d isn't possible: this rank's shards have %d", from, q.epoch, q.delivered)
		}
		if err := (*scratch).err; err != nil && q.l.opts.maxBad == 0 {
			return fmt.Errorf("nwt: to resume after %d samples of epoch %d isn't possible: record %d of these can't be read: %w", from, q.epoch, q.delivered-1, err)
		} else if err != nil {
			q.l.opts.log.Warn("nwt: a record that was delivered before can't be read now: unless it was bad then, samples are lost", "epoch", q.epoch, "record", q.delivered-1, "error", err)
		}
	}
	return nil
}

// fill reads the records of a batch and offers them to the workers: each as it
// comes, or with WithDropLast all at once, since a short batch must not be loaded.
// If nothing is left to read, b is marked as the end, with a failure if there was
// one.
func (q *sequence) fill(seq uint64, b *Batch) {
	q.l.counters.reading.start()
	defer q.l.counters.reading.stop()
	o := q.l.opts
	n := 0
	b.failure = nil
	for n == 0 && b.failure == nil && !q.over && !q.l.ring.Stopped() {
		if !q.started {
			b.failure = q.begin(&b.records[0])
		}
		b.epoch, b.index, b.from = q.epoch, q.index, q.delivered
		if b.failure == nil {
			n = q.fillPlaces(seq, b)
		}
		if n == o.batchSize {
			q.index++
			break
		}
		if q.ctx.Err() != nil {
			b.failure = nil // reading has ended with the run, which proves nothing
		} else if b.failure == nil {
			b.failure = q.wrong(n)
		}
		if o.dropLast {
			n = 0
		}
		q.stop()
		if q.started, q.index = false, 0; q.epoch == q.last {
			q.over = true
		} else {
			q.epoch++
		}
	}
	q.over = q.over || b.failure != nil
	b.end = n == 0 || b.failure != nil
	b.resize(n)
	b.reached = q.delivered * o.world
	b.state = State{Epoch: b.epoch, Samples: b.reached, World: o.world}
	if o.unordered {
		b.state.Samples = -1
	}
	if dropped := o.batchSize - n; n > 0 && dropped > 0 {
		q.countAsLoaded(b, dropped)
	}
	if b.end {
		q.ended.Store(true)
	}
	if q.ctx.Err() != nil {
		b.skipped.Add(int32(o.batchSize - n))
	}
	q.l.ring.Seal(seq, n)
}

// countAsLoaded counts places that nobody will load. If all others are loaded, this
// finishes the batch and calls the function of WithFinish. This happens in a
// goroutine of its own, since that function may end its goroutine, and must not end
// the reader's.
func (q *sequence) countAsLoaded(b *Batch, places int) {
	if !q.ahead || q.l.opts.finish == nil {
		b.loadedPlaces(places, 0)
		return
	}
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		b.loadedPlaces(places, 0)
	}()
	<-counted
}

// fillPlaces reads records until the batch is full or the epoch over.
func (q *sequence) fillPlaces(seq uint64, b *Batch) (n int) {
	o := q.l.opts
	for n < o.batchSize && q.delivered < q.most && !q.l.ring.Stopped() && q.read(&b.records[n]) {
		b.indices[n] = (q.delivered-1)*o.world + o.rank
		n++
		if n < o.batchSize && !o.dropLast {
			q.l.ring.Offer(seq, n)
		}
	}
	return n
}

// wrong tells what is wrong with an epoch whose last batch has n records. An epoch
// without any batch is an error: otherwise nobody would notice, and the other ranks
// would wait for this one.
func (q *sequence) wrong(n int) error {
	o := q.l.opts
	switch {
	case q.delivered == q.most:
		return fmt.Errorf("nwt: epoch %d of %d ranks has more samples than an int counts", q.epoch, o.world)
	case q.plan != nil && q.dry != nil:
		return fmt.Errorf("nwt: epoch %d has no sample of stream %d for rank %d of %d: its shards, of the stream's %d, are empty", q.epoch, q.dry.number, o.rank, o.world, q.dry.shards)
	case q.delivered > 0 && q.delivered < q.quota:
		return fmt.Errorf("nwt: epoch %d has no more than %d samples of the %d for rank %d of %d: its shards, of the stream's %d, have become empty", q.epoch, q.delivered, q.quota, o.rank, o.world, q.parts[0].shards)
	case q.index > 0 || n > 0 && !o.dropLast:
		return nil
	case n > 0:
		return fmt.Errorf("nwt: epoch %d has no batch: rank %d has %d samples, WithDropLast leaves out less than WithBatchSize(%d)", q.epoch, o.rank, n, o.batchSize)
	}
	return fmt.Errorf("nwt: epoch %d has no sample for rank %d of %d: its shards, of the stream's %d, are empty", q.epoch, o.rank, o.world, q.parts[0].shards)
}

// A chain reads some of a rank's shards, one after the other. It belongs to the
// sequence or, if it reads ahead, to a goroutine of its own until it is closed or
// given up.
type chain struct {
	q      *sequence
	part   *streamPart
	shards []int
	at     int // of shards: the one that is open or opened next
	reader ShardReader
	read   int   // records of that shard so far
	fault  error // what ends that shard; nil as long as it goes on

	// While a resumed run skips.
	spent   bool // nothing is left
	passed  int  // records that the skip under way has passed over
	dropped Record
	got     *Record // what was read; nil if nothing was left
	unread  []error // of the records that can't be read

	// If the chain reads ahead.
	backlog atomic.Pointer[backlog] // nil if it doesn't
	reach   reach
	idle    []*Record // that came back and aren't in use
	made    int       // records there are
	under   *Record   // the record that is being read
	counted int       // bytes that held has for under
	last    int       // bytes of the record before under
	due     int       // records that the epoch will take of it if the others have enough, too
	done    chan struct{}
	ctx     context.Context
	cancel  context.CancelCauseFunc

	sent   int           // records that went into full
	taken  int           // records that the sequence has taken; the sequence's
	wanted atomic.Int64  // the sequence waits for this record, or has it: counts from 1
	bound  int64         // the part's
	held   atomic.Int64  // the chain's share of the part's bytes
	recent atomic.Int64  // bytes of the larger of the last two records
	needs  atomic.Int64  // bytes that it waits for; 0 if it doesn't wait for room, or was given it
	room   chan struct{} // holds something if it was given room, or a record is wanted

	call call // with WithTimeout
}

// A call is what the sequence sees of a chain's call of the stream or of a reader.
type call struct {
	mu    sync.Mutex
	since time.Time // guarded by mu; when the call under way began, zero between calls
	lost  bool      // guarded by mu; set once, when the call under way is given up

	// The chain's when the call began; guarded by mu.
	at, read, passed int
	fault            error // not nil if the call is Close
	unread           []error
}

const (
	// maxAheadBytes bounds the memory of the records that all chains have ready.
	maxAheadBytes = 256 << 20
	// enoughRefused is how many chains are offered room that is too small for them.
	enoughRefused = 16
)

func newChain(p *streamPart, shards []int) *chain {
	q := p.q
	c := &chain{q: q, part: p, shards: shards, bound: p.bound, due: math.MaxInt, ctx: q.ctx}
	if q.ahead {
		c.ctx, c.cancel = context.WithCancelCause(q.ctx)
	}
	return c
}

// start makes a new chain read ahead.
func (c *chain) start() {
	c.done, c.room = make(chan struct{}), make(chan struct{}, 1)
	c.reach.reckoned = c.q.l.now()
	c.reach.beginWindow()
	c.backlog.Store(newBacklog(readAhead))
	go c.run()
}

// run is the goroutine of a chain that reads ahead.
func (c *chain) run() {
	finished := false
	defer func() {
		if !finished {
			go c.run() // the reader called runtime.Goexit: go on elsewhere
			return
		}
		c.reach.mu.Lock()
		c.reach.over = true
		close(c.backlog.Load().full)
		c.reach.mu.Unlock()
		close(c.done)
		if c.call.isLost() {
			c.letGo()
			c.q.l.away.Add(-1)
		}
	}()
	for c.readOne() {
	}
	c.hold(-c.counted) // nothing came into the record
	c.counted = 0      // the next goroutine comes here too, if Close ends this one
	c.shut()
	finished = true
}

// readOne waits for room and reads one record ahead. It reports false after the last
// record, and if the chain is closed.
func (c *chain) readOne() bool {
	if c.under == nil && !c.pick() || !c.makeRoom() || !c.next(c.under) {
		return false
	}
	before := c.last
	c.last = cap(c.under.Data)
	if recent := int64(max(before, c.last)); recent != c.recent.Load() {
		c.recent.Store(recent)
	}
	c.hold(c.last - c.counted)
	c.sent++
	c.backlog.Load().full <- c.under // has room: no more records are under way
	c.under, c.counted = nil, 0
	return true
}

// pick chooses the record to read into. It waits if all are in use, and reports false if the
// chain is closed.
func (c *chain) pick() bool {
	for b := c.backlog.Load(); !c.mayRead(b); b = c.backlog.Load() {
		if c.backlog.Load() != b {
			continue // mayRead may have taken the nil that tells
		}
		select {
		case r := <-b.empty:
			c.cameBack(r)
		case <-c.ctx.Done():
			return false
		}
	}
	c.choose()
	return true
}

// mayRead tells whether a record is there to read into. It drops those that are too many.
func (c *chain) mayRead(b *backlog) bool {
	c.collect(b)
	for n := len(c.idle) - 1; n >= 0 && c.made > c.allowed(b); n-- {
		c.hold(-cap(c.idle[n].Data))
		c.idle[n] = nil
		c.idle, c.made = c.idle[:n], c.made-1
	}
	if len(c.idle) == 0 && c.made < c.allowed(b) {
		c.made++
		c.idle = append(c.idle, &Record{part: c.part.number})
	}
	return len(c.idle) > 0
}

// allowed is how many records the chain may have now.
func (c *chain) allowed(b *backlog) int {
	if b.most > readAhead && (c.sent >= c.due || c.part.bytes.Load() > c.part.farBound()) {
		return readAhead
	}
	return b.most
}

// collect takes the records that came back.
func (c *chain) collect(b *backlog) {
	for empty := len(b.empty); empty > 0; empty-- {
		c.cameBack(<-b.empty)
	}
}

func (c *chain) cameBack(r *Record) {
	if r != nil {
		c.idle = append(c.idle, r)
	}
}

// choose chooses one of the idle records to read into, as late as possible the ones without
// memory: what waits for use takes room from what could be read.
func (c *chain) choose() {
	best := len(c.idle) - 1
	for i := range c.idle {
		if cap(c.idle[best].Data) >= c.last {
			break
		}
		if cap(c.idle[i].Data) > cap(c.idle[best].Data) {
			best = i
		}
	}
	c.under = c.idle[best]
	c.idle = slices.Delete(c.idle, best, best+1)
	c.counted = cap(c.under.Data)
}

// makeRoom waits until there is room to read ahead a record as large as the last one,
// until one with memory for it comes back, or until the sequence waits for the record.
// It counts the record's bytes, and reports false if the chain is closed.
func (c *chain) makeRoom() bool {
	if c.fits(c.part.waiting.Load() > 0) {
		return true
	}
	b := c.backlog.Load()
	for {
		c.idle = append(c.idle, c.under)
		c.collect(b)
		c.choose() // one with memory may have come back
		if c.counted >= c.last {
			return true
		}
		grow := c.last - c.counted
		c.waits(int64(grow))
		fits := c.fits(c.part.waiting.Load() > 1)
		wanted, closed := c.wanted.Load() > int64(c.sent), false
		if !fits && !wanted {
			select {
			case <-c.room:
			case r := <-b.empty:
				c.cameBack(r)
			case <-c.ctx.Done():
				closed = true
			}
		}
		given := !c.waits(0)
		switch {
		case given && fits: // counted twice
			c.hold(-grow)
		case given:
			c.counted = c.last
		}
		if closed {
			return false
		}
		if fits || given || wanted {
			return true
		}
	}
}

// fits tells whether there is room for a record as large as the last one, and counts it.
// If others wait, a chain that would come above its share waits to be given room: what its
// own records free is otherwise taken again before the sequence can give it to the chains
// whose turn is next. The record may be larger than the last one: the chain is within its
// share only if one as large as the one before that is, too.
func (c *chain) fits(others bool) bool {
	grow := c.last - c.counted
	if grow <= 0 {
		return true
	}
	if others && c.aboveShare(int(c.recent.Load())-c.counted) || !c.reserve(grow, c.bound) {
		return false
	}
	c.counted = c.last
	return true
}

// reserve adds to the bytes that the chain holds, unless all chains of the part would then
// hold more than bound.
func (c *chain) reserve(n int, bound int64) bool {
	for {
		now := c.part.bytes.Load()
		if now+int64(n) > bound {
			return false
		}
		if c.part.bytes.CompareAndSwap(now, now+int64(n)) {
			c.held.Add(int64(n))
			return true
		}
	}
}

// keep is reserve for memory that comes back, while bytes counts some that is freed. It is
// kept as long as the chain will hold no more than its share of the bound when a record is
// in it, or if no chain waits for room and all together hold no more than half of the bound:
// what waits for use leaves the other chains room for reading ahead.
func (c *chain) keep(n int, freed int64) bool {
	bound := c.bound
	if c.aboveShare(max(n, int(c.recent.Load()))) {
		if c.part.waiting.Load() > 0 {
			return false
		}
		bound /= 2
	}
	return c.reserve(n, bound+freed)
}

// aboveShare tells whether n bytes more are more than the chain's share of the bound.
func (c *chain) aboveShare(n int) bool {
	return c.held.Load()+int64(n) > c.bound/int64(c.q.l.opts.interleave)
}

// hold adds to the bytes that the chain holds.
func (c *chain) hold(n int) {
	c.held.Add(int64(n))
	c.part.bytes.Add(int64(n))
}

// letGo stops counting the chain's bytes.
func (c *chain) letGo() { c.part.bytes.Add(-c.held.Swap(0)) }

// take replaces *r by the next record of chain number i. It reports false after the
// last.
func (p *streamPart) take(i int, r **Record) bool {
	c := p.chains[i]
	b := c.backlog.Load()
	if b == nil {
		return p.takeNow(i, r)
	}
	got, ok, answered := awaitRecord(c, b)
	for !answered {
		c = c.replace()
		c.start()
		p.chains[i], b = c, c.backlog.Load()
		got, ok, answered = awaitRecord(c, b)
	}
	switch {
	case ok:
		c.taken++
		if c.taken%reachLook == 0 {
			c.look(b)
		}
		freed := int64(cap(got.Data)) // counted until it is given away: the chain, whose next turn is the last, could take it back
		c.held.Add(-freed)
		*r, got = got, *r
		if n := cap(got.Data); n > 0 && !c.keep(n, freed) {
			got = &Record{part: p.number}
		}
		p.giveRoom(freed)
		p.bytes.Add(-freed)
		p.giveRoom(0)
		b.empty <- got // has room: it is one of the chain's
	case c.held.Load() > 0 || c.recent.Load() > 0: // its goroutine is over: it leaves the others its room
		c.under, c.idle = nil, nil
		c.backlog.Store(&backlog{b.most, b.full, nil})
		c.recent.Store(0)
		c.letGo()
		p.giveRoom(0)
	}
	return ok
}

// awaitRecord waits for a chain's next record, see await.
func awaitRecord(c *chain, b *backlog) (got *Record, ok, answered bool) {
	select {
	case got, ok = <-b.full:
		return got, ok, true
	default:
	}
	c.wanted.Store(int64(c.taken) + 1)
	c.wake()
	began := c.q.l.now()
	got, ok, answered = await(c, b.full)
	if waited := c.q.l.now() - began; waited >= reachStall && c.q.run.awaiting.Load() {
		c.part.losesTime(c, waited)
	}
	return got, ok, answered
}

// giveRoom counts the room that there is, and what bytes counts but is freed, as that of
// chains that wait for it, and wakes them, beginning with the one whose turn is next. Those
// that have a record ready come last. If a chain needs more than is left, those after it wait
// until it has that: records whose turn is later would fill the room, and the earlier ones be
// read one by one. Only a chain that needs more than half of all room isn't waited for. If
// there are many such chains, giveRoom doesn't ask all others: with hundreds, that would cost
// more than reading.
func (p *streamPart) giveRoom(freed int64) {
	if p.waiting.Load() <= 0 {
		return
	}
	refused, bound := 0, p.bound+freed
	for _, ready := range []bool{false, true} {
		for k := 0; k < len(p.chains) && p.bytes.Load() < bound; k++ {
			c := p.chains[(p.turn+k)%len(p.chains)]
			n := c.needs.Load()
			switch {
			case n == 0 || !ready && len(c.backlog.Load().full) > 0:
			case !c.reserve(int(n), bound):
				if refused++; n <= p.bound/2 || refused == enoughRefused {
					return
				}
			case c.needs.CompareAndSwap(n, 0):
				p.waiting.Add(-1)
				c.wake()
			default: // it needs so much no more
				c.hold(int(-n))
			}
		}
	}
}

// waits sets how many bytes the chain waits for, and reports whether it waited.
func (c *chain) waits(n int64) bool {
	waited := c.needs.Swap(n) > 0
	switch {
	case n > 0 && !waited:
		c.part.waiting.Add(1)
	case n == 0 && waited:
		c.part.waiting.Add(-1)
	}
	return waited
}

// wake wakes the chain if it waits for room.
func (c *chain) wake() {
	select {
	case c.room <- struct{}{}:
	default:
	}
}

// await receives what the chain's goroutine sends, or that it closes the channel. It
// gives up the call that the goroutine is in, and reports that there is no answer,
// once the call takes longer than WithTimeout allows.
func await[T any](c *chain, from <-chan T) (got T, ok, answered bool) {
	if c.q.l.opts.timeout == 0 {
		got, ok = <-from
		return got, ok, true
	}
	for {
		c.call.mu.Lock()
		left := c.left(len(from) > 0)
		c.call.mu.Unlock()
		if left <= 0 {
			return got, false, false
		}
		timer := time.NewTimer(left)
		select {
		case got, ok = <-from:
			timer.Stop()
			return got, ok, true
		case <-timer.C:
		}
	}
}

// left is how much time is left for the call under way. If it is 0 or less, the call
// has been given up. answered tells that there is something to receive: then the call
// has all its time. The caller holds call.mu.
func (c *chain) left(answered bool) time.Duration {
	timeout := c.q.l.opts.timeout
	if answered || c.call.since.IsZero() {
		return timeout
	}
	left := timeout - time.Since(c.call.since)
	if left <= 0 {
		c.call.lost = true
		c.q.l.away.Add(1)
	}
	return left
}

// replace returns a chain to go on in place of c, whose call was given up. c keeps its
// records and its reader, and closes the reader if the call returns.
func (c *chain) replace() *chain {
	c.call.mu.Lock()
	defer c.call.mu.Unlock()
	next := newChain(c.part, c.shards)
	next.due = c.due - c.taken
	next.at, next.read, next.passed, next.fault, next.unread = c.call.at, c.call.read, c.call.passed, c.call.fault, c.call.unread
	err := c.q.l.opts.noAnswer()
	if next.fault == nil {
		next.fault = err
	} else {
		c.warnOfClose(c.call.at, err)
	}
	c.cancel(err)
	return next
}

// timed tells whether calls of the stream and its readers can be given up.
func (c *chain) timed() bool { return c.q.ahead && c.q.l.opts.timeout > 0 }

// begins notes that a call of the stream or of a reader begins.
func (c *chain) begins() {
	if !c.timed() {
		return
	}
	c.call.mu.Lock()
	defer c.call.mu.Unlock()
	if c.call.lost {
		return // what the call that was given up had read goes to nobody
	}
	c.call.since, c.call.at, c.call.read, c.call.passed, c.call.fault = time.Now(), c.at, c.read, c.passed, c.fault
	c.call.unread = slices.Clip(c.unread)
}

// returned notes that the call has returned.
func (c *chain) returned() {
	if !c.timed() {
		return
	}
	c.call.mu.Lock()
	defer c.call.mu.Unlock()
	c.call.since = time.Time{}
}

func (c *call) isLost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// close ends the chain and closes what it has open.
func (c *chain) close() {
	if c.backlog.Load() == nil {
		if c.cancel != nil {
			c.cancel(nil)
		}
		c.here((*chain).shut)
		return
	}
	c.cancel(nil)
	if _, _, answered := await(c, c.done); answered {
		c.letGo()
	}
}

// shut closes the shard that is open.
func (c *chain) shut() {
	if c.reader == nil {
		return
	}
	reader := c.reader
	c.reader = nil // before Close can end the goroutine
	c.begins()
	defer c.returned()
	guarded(reader.Close, func(_ []byte, err error) { c.warnOfClose(c.at, err) })
}

func (c *chain) warnOfClose(at int, err error) {
	c.q.l.opts.warnOfClose(c.part.first+c.shards[at], err)
}

func (o *options) warnOfClose(shard int, err error) {
	o.log.Warn("nwt: a shard could not be closed", "shard", shard, "error", err)
}

// noAnswer is the error of a call that is given up.
func (o *options) noAnswer() error {
	return fmt.Errorf("no answer within WithTimeout(%v): %w", o.timeout, context.DeadlineExceeded)
}

// next reads the next record of the chain's shards. It reports false after the last.
// A failure makes a bad record. If the reader ends the goroutine, the next goroutine
// reads fault to know where to go on.
func (c *chain) next(r *Record) bool {
	r.err = nil
	for c.ctx.Err() == nil {
		if c.fault == nil {
			if c.at == len(c.shards) {
				return false
			}
			if c.attempt(r); c.fault == nil {
				r.part = c.part.number // if Next has overwritten the record
				c.read++
				return true
			}
		}
		c.shut()
		shard, read, fault := c.shards[c.at], c.read, c.fault
		c.at, c.read, c.fault = c.at+1, 0, nil
		if fault != io.EOF {
			r.part, r.err = c.part.number, &ShardError{Shard: c.part.first + shard, Record: read, Err: fault}
			return true
		}
	}
	return false
}

// attempt opens the shard if it isn't open, and reads a record. Only io.EOF itself,
// and only from Next, means the end of the shard.
func (c *chain) attempt(r *Record) {
	finished := false
	defer func() {
		c.returned()
		if !finished {
			stack, err := recovered(recover())
			c.fault = fmt.Errorf("%w\n%s", err, stack)
		}
		if c.fault != nil {
			c.countVisits()
		}
	}()
	c.begins()
	err := c.open()
	switch {
	case err != nil:
		err = fmt.Errorf("it can't be opened: %w", err)
	default:
		c.begins()
		err = c.reader.Next(c.ctx, r)
	}
	c.fault, finished = err, true
}

// open opens the shard if it isn't open.
func (c *chain) open() (err error) {
	if c.reader != nil {
		return nil
	}
	if c.reader, err = c.q.l.opts.openShard(c.ctx, c.part.stream, c.shards[c.at]); err != nil {
		return err
	}
	c.countVisits()
	return nil
}

// countVisits counts the records that earlier visits of a tuner have read of the shard.
func (c *chain) countVisits() {
	if r, ok := c.reader.(*visitedReader); ok {
		c.read = r.read
	}
}

// openShard opens a shard, as often as WithRetry says while the error calls itself
// temporary: too many open files, for example.
func (o *options) openShard(ctx context.Context, s Stream, shard int) (ShardReader, error) {
	for tries, wait := 0, o.backoff; ; tries, wait = tries+1, 2*wait {
		reader, err := s.Open(ctx, shard)
		switch {
		case err == nil && reader == nil:
			return nil, errors.New("Open returned neither a reader nor an error")
		case err == nil:
			return reader, nil
		case tries == o.retries || !temporary(err) || !rest(ctx, wait):
			return nil, err
		}
	}
}
