package nwt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/lanes"
	"github.com/nwt-go/nwt/internal/mixture"
	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/retry"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/shards"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A Stream is a set of shards that are read in sequence, such as tar files or the parts of a query.
// [Streamed] makes a dataset of it. Reading a shard should be cheap. Expensive work belongs in Load, which
// many workers call at once.
type Stream interface {
	Fields() []Field // the layout of one sample, which must not change
	Shards() int     // the number of shards. Each rank needs at least one, except with a [CountedStream]. Each loader asks once
	// Open begins to read a shard, 0 ≤ shard < Shards. After a temporary error of Open or of the reader, the
	// loader calls Open again, as [WithRetry] says. The shard must give the same records again: the loader
	// drops those that it has read. After any other error of Open, the shard counts as one bad sample.
	Open(ctx context.Context, shard int) (ShardReader, error)
	Load(ctx context.Context, r *Record, dst *Sample) error // makes a sample of a record, under the rules of [Dataset]
}

// A ShardReader reads one shard, in one goroutine at a time.
type ShardReader interface {
	// Next reads the next record into r. After the last record, it returns [io.EOF] itself. Any other error,
	// even one that wraps io.EOF, ends the shard with a *[ShardError].
	Next(ctx context.Context, r *Record) error
	Close() error // called at the end of the shard or earlier
}

// A Skipper passes over records fast. Without Skip, [Loader.Resume] reads the records before the state, and
// ranks that share a shard read each other's.
type Skipper interface {
	ShardReader
	// Skip passes over at most n records, n ≥ 1, and returns how many. If it returns 0 and no error, the
	// loader reads one record with Next. If no record is left, the error is [io.EOF] itself. Any other error
	// ends the shard. Skip must stop before a record that Next can't read, and fail if that one is first.
	Skip(ctx context.Context, n int) (skipped int, err error)
}

// Streamed makes a dataset of a stream. Each rank reads several of its shards at once (see [WithInterleave]),
// and takes a sample from each in turn. [WithShuffle] reorders the shards in each epoch, and mixes samples
// within [WithShuffleWindow]. The order is the same at every worker count. Sample.Index is the position in
// this order, over all ranks. [NewLoader] checks s.
//
// Each rank needs at least one shard. Without [WithEpochSamples], ranks may have different numbers of
// batches. Neither is true of a [CountedStream]. Up to 256 records per shard are read ahead, but at most
// about 256 MiB in all.
func Streamed(s Stream) Dataset { return &streamDataset{streams: []Stream{s}} }

type streamDataset struct {
	streams   []Stream
	mix       *mixture.Mix // nil for a single stream
	seed      uint64
	writesAll bool
}

func (d *streamDataset) WritesAll(Dataset) bool { return d.writesAll }
func (d *streamDataset) Len() int               { return -1 }
func (d *streamDataset) Fields() []Field        { return d.streams[0].Fields() }

func (d *streamDataset) Load(context.Context, int, *Sample) error {
	return errors.New("nwt: a stream has no sample by index")
}

func (d *streamDataset) Fingerprint() string {
	var all []byte
	for _, s := range d.streams {
		if own := fingerprint(s); own != "" {
			all = fmt.Appendf(all, " %q", own)
		}
	}
	return string(all)
}

func (d *streamDataset) invalid() error {
	if d.streams[0] == nil {
		return optionError("Streamed", nil, "the stream is nil")
	}
	if v, ok := d.streams[0].(validated); ok {
		return v.invalid()
	}
	return nil
}

// shards returns the number of shards of each stream. A loader calls it once.
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
	defer panicked(&err, "Stream", s, "Shards")
	if n = s.Shards(); n < 1 {
		err = optionError("Stream.Shards", n, "must be at least 1")
	}
	return n, err
}

// fits returns what is wrong with the options for these streams and their shards.
func (d *streamDataset) fits(shards []int, counts []*recordCounts, o *options) (errs []error) {
	if o.sampler != nil {
		errs = append(errs, optionError("WithSampler", nameOfSampler(o.sampler), "a stream is read in its own order"))
	}
	if d.mix != nil && o.epochSamples == 0 {
		errs = append(errs, optionError("WithEpochSamples", nil, "must be set for MixedStreams, whose epochs have no other end"))
	}
	for k, n := range shards {
		if n < o.world && counts[k] == nil {
			which := ""
			if d.mix != nil {
				which = fmt.Sprintf(" (stream %d of MixedStreams)", k)
			}
			errs = append(errs, optionError("WithRank: world", o.world, "each rank needs a shard, and the stream has %d%s: make more shards, or use a CountedStream", n, which))
		}
	}
	return errs
}

// load loads a sample for a loader.
func (d *streamDataset) load(ctx context.Context, _ int, s *Sample) error {
	r := s.common.records[s.place]
	if r.Err != nil {
		return r.Err
	}
	if d.mix == nil {
		return d.streams[0].Load(ctx, &r.Record, s)
	}
	outer := s.scope
	s.scope = inner(outer, r.Part)
	err := d.streams[r.Part].Load(ctx, &r.Record, s)
	s.scope = outer
	return err
}

// unread reports whether the sample's record couldn't be read. The loader won't try to read it again.
func (s *Sample) unread() bool {
	return s.common.records != nil && s.common.records[s.place].Err != nil
}

// A Mix says how sampler.Mixed and [MixedStreams] mix their parts.
type Mix struct {
	Parts  []int   // number of samples of each part, in the order of Concat; nil for MixedStreams
	Phases []Phase // the phases of training, in order; the last one never ends
	Block  int     // length of a block in positions; in each block, every part has its share, rounded to whole samples; 0 means 1000
}

// A Phase is a stretch of training in which the shares of a [Mix] stay the same.
type Phase struct {
	Samples int       // how many positions the phase lasts, over all epochs and ranks; ignored in the last phase
	Weights []float64 // one weight per part, in any unit; weight 0 leaves a part out
}

// MixedStreams makes a dataset of several streams that have the same fields, and mixes them by weights. In
// every block of Mix.Block samples on a rank, each stream has its share. Fractions of samples are carried to
// the next block. MixedStreams needs [WithEpochSamples]. If the number of ranks hasn't changed, a
// [CountedStream] continues where its previous epoch ended. Any other stream starts from its beginning in
// each epoch, and whenever it has ended. If an epoch takes only a part of a stream, the stream's end is never
// read. In a [ShardError], the shards of all streams are numbered together, in order.
func MixedStreams(m Mix, seed uint64, streams ...Stream) (Dataset, error) {
	var errs []error
	bad := func(value any, format string, args ...any) {
		errs = append(errs, optionError("MixedStreams", value, format, args...))
	}
	if len(m.Parts) > 0 {
		bad(m.Parts, "Mix.Parts must be nil: a stream has no number of samples")
	}
	if len(streams) == 0 {
		bad(nil, "needs at least one stream")
	}
	var first *fieldSet
	for k, s := range streams {
		_, l, err := checkDataset(Streamed(s), 1)
		if err != nil {
			errs = append(errs, within(fmt.Sprintf("MixedStreams: stream %d", k), err))
			continue
		}
		if first == nil {
			first = l
		}
		if diff := difference(first.fields, l.fields); diff != "" {
			bad(nil, "stream %d differs from those before: %s", k, diff)
		}
	}
	mix := mixture.New(m.Block)
	for _, p := range m.Phases {
		mix.Add(p.Samples, p.Weights)
	}
	mix.Check(len(streams), bad)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &streamDataset{streams: slices.Clone(streams), mix: mix, seed: seed}, nil
}

// NewStream makes a stream from two functions. In a goroutine per shard, read(ctx, shard) yields the records
// until ctx ends; an error ends the shard. load(ctx, r, dst) makes a sample of a record, under the rules of
// [Dataset].
//
// A []byte record is copied, so read may reuse it. Any other record must not change until load has seen it.
// Resume reads the records that it passes over. If that is slow, let read yield only each record's place, and
// fetch it in load. A type that embeds the stream and adds Records is a [CountedStream].
func NewStream[R any](fields []Field, shards int, read func(ctx context.Context, shard int) iter.Seq2[R, error], load func(ctx context.Context, r R, dst *Sample) error) Stream {
	return &funcStream[R]{slices.Clone(fields), shards, read, load}
}

type funcStream[R any] struct {
	fields []Field
	shards int
	read   func(ctx context.Context, shard int) iter.Seq2[R, error]
	load   func(ctx context.Context, r R, dst *Sample) error
}

func (s *funcStream[R]) Fields() []Field { return s.fields }
func (s *funcStream[R]) Shards() int     { return s.shards }

func (s *funcStream[R]) invalid() error {
	if s.read == nil || s.load == nil {
		return optionError("NewStream", nil, "read or load is nil")
	}
	return nil
}

// Open reads the first record, so that an error in opening the shard is an error of Open.
func (s *funcStream[R]) Open(ctx context.Context, shard int) (ShardReader, error) {
	r := &funcReader[R]{}
	read := s.read(ctx, shard)
	r.next, r.stop = iter.Pull2(func(yield func(R, error) bool) { defer usercall.Pass(); read(yield) })
	if r.first, r.err, r.more = r.next(); r.err != nil {
		r.stop()
		return nil, r.err
	}
	r.opened = true
	return r, nil
}

func (s *funcStream[R]) Load(ctx context.Context, r *Record, dst *Sample) error {
	if data, ok := any(&r.Data).(*R); ok {
		return s.load(ctx, *data, dst)
	}
	return s.load(ctx, *r.Value.(*R), dst)
}

type funcReader[R any] struct {
	next   func() (R, error, bool)
	stop   func()
	first  R // the record that Open has read
	err    error
	more   bool
	opened bool // first has not been delivered yet
}

func (f *funcReader[R]) Next(_ context.Context, r *Record) error {
	if !f.opened {
		f.first, f.err, f.more = f.next()
	}
	f.opened = false
	switch {
	case !f.more:
		return io.EOF
	case f.err != nil:
		return fmt.Errorf("%w", f.err) // wrapped, because an io.EOF that is yielded isn't the end
	}
	if data, ok := any(f.first).([]byte); ok {
		r.Data = append(r.Data[:0], data...)
		return nil
	}
	value, ok := r.Value.(*R)
	if !ok {
		value = new(R)
		r.Value = value
	}
	*value = f.first
	return nil
}

func (f *funcReader[R]) Close() error {
	f.stop()
	return nil
}

// A CountedStream knows how many records its shards have. So the order of an epoch doesn't depend on the
// ranks. Ranks have equally many batches, and may outnumber the shards. [Loader.Resume] works with any number
// of ranks. With [WithEpochSamples], an epoch begins where the last one ended, so every record comes once
// before any comes again. If a shard has too few, each missing record is a bad sample, with a *[ShardError].
// If it has too many, the last within the count is one. [WithInterleave] counts the shards of all ranks. With
// [MixedStreams], the number of ranks can change only between epochs.
type CountedStream interface {
	Stream
	Records(shard int) int // returns the number of records of a shard, 0 ≤ shard < Shards. If it returns −1 for any shard, the loader ignores all counts. A shard with 0 records isn't opened. A loader asks once
}

// defaultLanes is how many lanes a CountedStream has.
const defaultLanes = 32

// A recordCounts says how many records the shards of a CountedStream have.
type recordCounts struct {
	all   []int // for each shard
	n     int   // the sum
	lanes int
}

// newCounts returns nil if not all records of the stream are counted, or if the counts aren't used.
func newCounts(s Stream, n int, o *options) (_ *recordCounts, err error) {
	told, ok := s.(CountedStream)
	if !ok {
		return nil, nil
	}
	defer panicked(&err, "CountedStream", s, "Records")
	c := &recordCounts{}
	for shard := range n {
		k := told.Records(shard)
		if k < 0 {
			return nil, nil
		}
		if k > lanes.MaxLen-c.n {
			return nil, optionError("CountedStream.Records", k, "shard %d: all shards together must have at most %d records", shard, lanes.MaxLen)
		}
		c.all, c.n = append(c.all, k), c.n+k
	}
	if c.n == 0 {
		return nil, nil // an epoch without a sample is an error anyway
	}
	c.lanes = min(cmp.Or(o.interleave, defaultLanes), n, c.n)
	return c, nil
}

// A streamFill fills the batches of a run with the records of a stream. It belongs to one
// goroutine: the run's reader or, without workers, the consumer.
type streamFill struct {
	run   *run
	l     *engine
	ahead bool        // shards are read ahead, each in its own goroutine, and feed's goroutine fills the batches
	queue chan *batch // the batches that feed has to fill; nil unless ahead
	from  filler
	ended atomic.Bool // a batch was the end: the batches opened after it are empty
}

// A filler is what fills batches: a countedFill for one CountedStream (see setup.counted), an epochFill for all
// other streams.
type filler interface {
	fill(b *batch) // reads the records of a batch, and offers each to the workers as soon as it is read
	stop()         // ends reading
}

func newStreamFill(r *run, ahead bool) *streamFill {
	q := &streamFill{run: r, l: r.l, ahead: ahead}
	if ahead {
		q.queue = make(chan *batch, ring.Capacity) // has room for every batch that can be open
	}
	if r.l.setup.counted {
		q.from = newCountedFill(q)
	} else {
		q.from = newEpochFill(q)
	}
	return q
}

// take fills a batch that the run has opened, or makes feed fill it.
func (q *streamFill) take(b *batch) {
	if q.ahead {
		q.queue <- b
	} else {
		q.fill(b)
	}
}

// feed fills the batches in queue until the run ends.
func (q *streamFill) feed() {
	defer q.from.stop()
	for {
		select {
		case b := <-q.queue:
			q.fill(b)
		case <-q.run.ctx.Done():
			return
		}
	}
}

func (q *streamFill) fill(b *batch) {
	q.l.counters.reading.Start()
	defer q.l.counters.reading.Stop()
	q.from.fill(b)
}

// group returns what the parts of a mixture share.
func (q *streamFill) group() *shards.Group {
	return &shards.Group{
		Context: retry.With(q.run.ctx, q.l.setup.opts.retry), Log: q.l.setup.opts.log, Mixing: q.l.mixing, Ahead: q.ahead, Watchdog: q.l.pool.watchdog,
		Stop: func(err error) {
			q.run.stop(fmt.Errorf("nwt: the epoch ends because of a stream's reader: %w", err))
		},
	}
}

// A mixedMemory tracks the memory that records take in a loader's shuffle windows.
type mixedMemory struct {
	bytes atomic.Int64
	room  func() float64 // how much they may take before a warning, looked up once
}

// mixing counts bytes that enter a shuffle window or, if negative, leave it. It warns when they take much
// of the memory that was left before.
func (l *engine) mixing(bytes int) {
	most := l.mixed.room()
	now := l.mixed.bytes.Add(int64(bytes))
	if float64(now) > most && float64(now-int64(bytes)) <= most && l.setup.once.First("WithShuffleWindow") {
		l.setup.opts.log.Warn("nwt: the records that are mixed take more than an eighth of the memory left: lower WithShuffleWindow",
			"during", l.setup.during(), "WithShuffleWindow", l.setup.opts.window, "bytes", human.Bytes(uint64(now)), "left", human.Bytes(uint64(most/extraShare)))
	}
}

// config returns how to read stream k of the dataset, whose shards are numbered from first.
func (q *streamFill) config(k, first int) shards.Config[Record] {
	s, n, o := q.l.setup.ds.(*streamDataset).streams[k], q.l.setup.shards[k], q.l.setup.opts
	order, key := q.l.setup.shardOrder(k), permute.SeedKey(q.l.setup.seedOfStream(k))
	c := shards.Config[Record]{
		Open:   func(ctx context.Context, shard int) (shards.Reader[Record], error) { return s.Open(ctx, shard-first) },
		Again:  o.retry.Again,
		Size:   func(r *Record) int { return cap(r.Data) },
		Failed: func(shard, record int, err error) error { return &ShardError{Shard: shard, Record: record, Err: err} },
		Shards: func(epoch int) (all []int) {
			for i := o.rank; i < n; i += o.world {
				all = append(all, first+order.At(epoch, i))
			}
			return all
		},
		AtOnce: o.shardsAtOnce(),
		Draw: func(epoch, i, n int) int {
			key := permute.EpochKey(key, epoch) + uint64(i*o.world+o.rank)*permute.Golden
			return int(permute.Mix64(key) % uint64(n)) // a window is so small that the bias doesn't matter
		},
	}
	if o.shuffle {
		c.Window = o.window
	}
	return c
}

// seedOfStream returns the seed from which the order of stream k of a dataset is computed.
func (s *setup) seedOfStream(k int) uint64 {
	seed := s.opts.shuffled + uint64(k)*permute.Golden
	if s.counts[k] != nil {
		seed = permute.OrderKey(seed, s.counts[k].n)
	}
	return seed
}

// shardOrder returns the order of the shards of stream k of a dataset, for all ranks together.
func (s *setup) shardOrder(k int) Sampler {
	if s.opts.shuffle {
		return Shuffled(s.shards[k], s.seedOfStream(k))
	}
	return Sequential(s.shards[k])
}

// perRank returns the order of the batches that a rank takes from a stream with WithEpochSamples.
func (o *options) perRank() order.Order {
	return order.Order{N: o.quota(o.world), Batch: o.batchSize, World: 1, DropLast: o.dropLast}
}

// quota returns how many samples of a stream WithEpochSamples gives to each of world ranks in an epoch; 0
// without it.
func (o *options) quota(world int) int {
	if o.epochSamples == 0 {
		return 0
	}
	return max(1, o.epochSamples/world)
}

// isWholeEpoch reports whether WithEpochSamples ends a stream's epoch once world ranks have had samples of
// its samples, more than 0.
func (o *options) isWholeEpoch(samples, world int) bool {
	if o.epochSamples == 0 || world < 1 || samples%world != 0 {
		return false
	}
	left := o.quota(world) - samples/world
	return left == 0 || left > 0 && left < o.batchSize && o.dropLast
}

// lanesOf returns the order of the records of stream k, whose records are counted and whose shards are
// numbered from first.
func (q *streamFill) lanesOf(k, first int) *lanes.Plan {
	s, o, counts := q.l.setup, q.l.setup.opts, q.l.setup.counts[k]
	p := &lanes.Plan{
		N: counts.n, Counts: counts.all, Shard: s.shardOrder(k).At, First: first, Lanes: counts.lanes,
		Block: 64, Mixes: o.shuffle, Key: permute.SeedKey(s.seedOfStream(k)),
	}
	if o.shuffle {
		p.Block = (o.window-1)/p.Lanes + 1
	}
	if sharing, better := lanes.Sharing(p.Lanes, o.world, o.batchSize, len(counts.all)); sharing > 1 && (o.world > p.Lanes || o.interleave > 0) && q.l.setup.once.First("lanes") {
		mends := "more shards"
		if better != p.Lanes {
			mends = fmt.Sprintf("WithInterleave(%d)", better)
		}
		o.log.Info("nwt: ranks share the shards that are read at once: up to as many ranks as the factor says read each record, and all but one of them drop it, unless the shards' readers can Skip",
			"stream", k, "ranks", o.world, "at once", p.Lanes, "factor", sharing, "less with", mends)
	}
	return p
}

// A countedFill fills batches with the records of one CountedStream, which are in lanes.
type countedFill struct {
	run    *run
	l      *engine
	lanes  *shards.Lanes[Record]
	origin int64 // where in the lanes the first epoch begins
}

func newCountedFill(q *streamFill) *countedFill {
	c, p := q.run.schedule, q.lanesOf(0, 0)
	f := &countedFill{run: q.run, l: q.l, origin: p.Begin(c.First, c.N, c.Base)}
	steps := &lanes.Steps{
		Lanes: p.Lanes, Origin: f.origin, Base: c.Base, Epoch: int64(c.N), Step: c.Step(), Head: c.Head, Whole: c.Whole, Len: c.Len(),
		Span: func(k int) (first, after int64, low, high int) {
			epoch, base, k, _ := c.At(k)
			from, to := c.Bounds(base, k)
			low, high, _ = c.Part(base, k)
			start := f.startOf(epoch)
			return start + int64(from), start + int64(to), low - from, high - from
		},
	}
	f.lanes = shards.NewLanes(q.group(), 0, p, steps, q.config(0, 0), q.l.setup.opts.aheadBytes)
	return f
}

// startOf returns where in the lanes an epoch begins.
func (f *countedFill) startOf(epoch int) int64 {
	c := &f.run.schedule
	return f.origin + int64(epoch-c.First)*int64(c.N)
}

func (f *countedFill) stop() { f.lanes.Stop() }

// fill implements filler. Which part of the epoch the batch is, and so its State, run.place has written, as for
// a dataset.
func (f *countedFill) fill(b *batch) {
	start := f.startOf(b.span.epoch)
	f.lanes.Turn(int(b.seq - f.run.first))
	n := 0
	for ; n < b.opened && !f.l.ring.Stopped(); n++ {
		position, ok := f.lanes.Next(&b.slot.records[n])
		if !ok {
			break
		}
		if b.slot.indices[n] = int(position - start); n == 0 {
			b.span.from = b.slot.indices[0]
		} else {
			f.l.ring.Offer(b.seq, n)
		}
	}
	b.resize(n) // fewer if the run ends: the batch will not be delivered
	f.l.ring.Seal(b.seq, n)
}

// An epochFill fills batches with records of streams whose epochs have an end that isn't known, or of a mixture.
type epochFill struct {
	run         *run
	l           *engine
	epochs      *shards.Epochs[Record]
	epoch, last int
	number      int  // of the next batch in its epoch
	whole       int  // batches of a whole epoch; 0: not known
	before      int  // of a resumed epoch: records that this rank has had, and now passes over
	started     bool // the epoch has begun
	done        bool // no epoch comes after this one
}

func newEpochFill(q *streamFill) *epochFill {
	c, o, s := q.run.schedule, q.l.setup.opts, q.l.setup
	f := &epochFill{run: q.run, l: q.l, epoch: c.First, last: c.Last, before: c.Base / o.world, number: c.Skipped}
	f.epochs = &shards.Epochs[Record]{Group: q.group(), Quota: o.quota(o.world), Mix: s.mixture, Bytes: o.aheadBytes, Lost: q.l.lostAgain}
	if f.epochs.Quota > 0 {
		perRank := o.perRank()
		f.whole = perRank.Steps(0)
		f.number = f.whole - perRank.Steps(f.before)
	}
	first := 0
	for k, n := range s.shards {
		if s.counts[k] == nil {
			f.epochs.Add(q.config(k, first))
		} else {
			f.epochs.AddCounted(q.draws(f.epochs.Group, k, first))
		}
		first += n
	}
	return f
}

// lostAgain returns the error for a record that was delivered before and now can't be read: what follows
// isn't the rest of the epoch. With an error budget it only warns, since the record may have been bad
// then too.
func (l *engine) lostAgain(epoch int, err error) error {
	if l.setup.opts.maxBad == 0 {
		return err
	}
	l.setup.opts.log.Warn("nwt: a record that was delivered before can't be read now: unless it was bad then, samples are lost", "epoch", epoch, "error", err)
	return nil
}

func (f *epochFill) stop() { f.epochs.Stop() }

// fill implements filler. With WithDropLast it offers all records at once, since a short batch must not be
// loaded. If nothing is left to read, b is marked as the end, with the failure if there was one.
func (f *epochFill) fill(b *batch) {
	o := f.l.setup.opts
	n, more := 0, false
	b.failure = nil
	for n == 0 && b.failure == nil && !f.done && !f.l.ring.Stopped() {
		if !f.started {
			if b.failure = f.epochs.Begin(f.epoch, f.before); b.failure != nil {
				b.failure = fmt.Errorf("nwt: %w", b.failure)
			}
			f.started, f.before = true, 0
		}
		b.span.epoch, b.number, b.span.key, b.span.from = f.epoch, f.number, f.l.seedKey, f.epochs.Delivered()*o.world+o.rank
		if b.failure == nil {
			n = f.fillPlaces(b)
			more = n == o.batchSize
		}
		if more {
			f.number++
			break
		}
		if f.run.ctx.Err() != nil {
			b.failure = nil // reading ended because the run did, so this isn't a failure
		} else if b.failure == nil {
			b.failure = f.wrong(n)
		}
		if o.dropLast {
			n = 0
		}
		f.tellOfUnread()
		f.endEpoch()
	}
	f.done = f.done || b.failure != nil
	b.end = n == 0 || b.failure != nil
	b.resize(n)
	b.final = n < o.batchSize || b.number == f.whole-1
	b.reached = f.epochs.Delivered() * o.world
	if dropped := o.batchSize - n; n > 0 && dropped > 0 {
		b.loadedPlaces(dropped, 0)
	}
	if b.end {
		f.run.stream.ended.Store(true)
	}
	f.l.ring.Seal(b.seq, n)
}

// tellOfUnread warns if records of a stream haven't come in the loader's first whole epoch of
// WithEpochSamples, and won't in any other.
func (f *epochFill) tellOfUnread() {
	whole := f.epochs.Quota > 0 && f.epochs.Delivered() == f.epochs.Quota && (f.epoch > f.run.schedule.First || f.run.schedule.Base == 0)
	if !whole || f.run.ctx.Err() != nil || !f.l.setup.once.First("WithEpochSamples") {
		return
	}
	if parts := f.epochs.Unended(f.l.setup.opts.shuffle); len(parts) > 0 {
		f.l.setup.opts.log.Warn("nwt: an epoch has ended before its streams did. The next one begins them anew, so their ends are never read: "+
			"raise WithEpochSamples, or give the counts of a CountedStream", "during", f.l.setup.during(), "WithEpochSamples", f.l.setup.opts.epochSamples, "streams", parts, "shards of each", f.l.setup.shards)
	}
}

// endEpoch moves on to the next epoch, if there is one.
func (f *epochFill) endEpoch() {
	f.epochs.End()
	f.started, f.number = false, 0
	if f.epoch == f.last {
		f.done = true
	} else {
		f.epoch++
	}
}

// fillPlaces reads records until the batch is full or the epoch ends. It returns how many it has read.
func (f *epochFill) fillPlaces(b *batch) (n int) {
	o := f.l.setup.opts
	for n < o.batchSize && !f.l.ring.Stopped() && f.epochs.Next(&b.slot.records[n]) {
		b.slot.indices[n] = (f.epochs.Delivered()-1)*o.world + o.rank
		n++
		if n < o.batchSize && !o.dropLast {
			f.l.ring.Offer(b.seq, n)
		}
	}
	return n
}

// wrong returns what is wrong with an epoch whose last batch has n records. An epoch without a batch is
// an error: otherwise nobody would notice, and the other ranks would wait for this one.
func (f *epochFill) wrong(n int) error {
	o, delivered, dry := f.l.setup.opts, f.epochs.Delivered(), max(0, f.epochs.Dry())
	shards := fmt.Sprintf("for rank %d of %d: its shards (of %d in all)", o.rank, o.world, f.l.setup.shards[dry])
	switch {
	case f.l.setup.mixture != nil && f.epochs.Dry() >= 0:
		return fmt.Errorf("nwt: epoch %d has no sample of stream %d %s are empty", f.epoch, dry, shards)
	case delivered > 0 && delivered < f.epochs.Quota:
		return fmt.Errorf("nwt: epoch %d has only %d of %d samples %s have become empty", f.epoch, delivered, f.epochs.Quota, shards)
	case f.number > 0 || n > 0 && !o.dropLast:
		return nil
	case n > 0:
		return fmt.Errorf("nwt: epoch %d has no batch for rank %d: WithDropLast, and fewer samples (%d) than one batch of %d", f.epoch, o.rank, n, o.batchSize)
	}
	return fmt.Errorf("nwt: epoch %d has no sample %s are empty", f.epoch, shards)
}

// draws prepares a CountedStream that is part k of a mixture. Each step contains the same number of
// records of each lane, and each rank draws the same number of records from a step, so that ranks seldom
// share a lane.
func (q *streamFill) draws(g *shards.Group, k, first int) *shards.Draws[Record] {
	rank, world, n := q.l.setup.opts.rank, q.l.setup.opts.world, q.l.setup.counts[k].lanes
	each := lanes.PerStep(n, world)
	return &shards.Draws[Record]{Each: each, Open: func(step uint64, bound int64) *shards.Lanes[Record] {
		p := q.lanesOf(k, first)
		origin, all := p.Begin(int(step), each*world, 0), each*world
		steps := &lanes.Steps{
			Lanes: n, Origin: origin, Epoch: math.MaxInt64, Step: all, Head: math.MaxInt, Len: math.MaxInt,
			Span: func(k int) (first, after int64, low, high int) {
				first = origin + int64(k)*int64(all)
				return first, first + int64(all), rank * each, (rank + 1) * each
			},
		}
		return shards.NewLanes(g, k, p, steps, q.config(k, first), bound)
	}}
}
