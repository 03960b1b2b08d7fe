package nwt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/nwt-go/nwt/internal/lanes"
	"github.com/nwt-go/nwt/internal/mixture"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A Stream is a set of shards that are read in sequence, such as tar files or the parts of a query.
// [Streamed] makes a dataset of it. Reading a shard should be cheap; expensive work belongs in Load,
// which many workers call at once.
type Stream interface {
	Fields() []Field // the layout of one sample, which must not change
	Shards() int     // the number of shards, at least one for each rank unless it is a [CountedStream]; each loader asks only once
	// Open begins to read a shard, 0 ≤ shard < Shards. After a temporary error of Open or of the reader,
	// the loader calls Open again, as [WithRetry] says; while too many files are open, it tries for a
	// minute. The shard must give the same records again: those already read are dropped. After any other
	// error of Open the shard counts as one bad sample.
	Open(ctx context.Context, shard int) (ShardReader, error)
	Load(ctx context.Context, r *Record, dst *Sample) error // makes a sample of a record, under the rules for Load of a [Dataset]
}

// A ShardReader reads one shard, in one goroutine at a time.
type ShardReader interface {
	// Next reads the next record into r. After the last one it returns [io.EOF] itself. Any other
	// error, including one that wraps io.EOF, ends the shard with a *[ShardError].
	Next(ctx context.Context, r *Record) error
	Close() error // called at the end of the shard or earlier
}

// A Skipper passes over records fast. Without Skip, [Loader.Resume] reads and drops the records before
// the state, and ranks that share a shard read and drop each other's records.
type Skipper interface {
	ShardReader
	// Skip passes over at most the next n records, n ≥ 1, and returns how many. If that is 0, the loader
	// reads one record with Next. If no record is left, the error is [io.EOF] itself; any other error ends
	// the shard. Skip must not pass over a record that Next can't read: if that record is next, Skip fails.
	Skip(ctx context.Context, n int) (skipped int, err error)
}

// Streamed makes a dataset of a stream. Each rank reads several of its shards at once (see
// [WithInterleave]), and takes one sample from each in turn. [WithShuffle] changes the order of the
// shards in each epoch, and mixes samples within [WithShuffleWindow]. [Sample.Index] is the position in
// this order, over all ranks. The order is the same at every worker count.
//
// Each rank needs a shard, and without [WithEpochSamples] ranks may have different numbers of batches.
// Neither is true of a [CountedStream]. Up to 256 records per shard are read ahead, at most about 256
// MiB of Data in all.
func Streamed(s Stream) Dataset { return &streamDataset{streams: []Stream{s}} }

type streamDataset struct {
	overwriting
	streams []Stream
	mix     *mixture.Mix // nil for a single stream
	seed    uint64
}

func (d *streamDataset) Len() int { return -1 }

func (d *streamDataset) Fields() []Field { return d.streams[0].Fields() }

func (d *streamDataset) Load(context.Context, int, *Sample) error {
	return errors.New("nwt: a stream has no sample by index")
}

func (d *streamDataset) Fingerprint() (all string) {
	for _, s := range d.streams {
		if own := fingerprint(s); own != "" {
			all += fmt.Sprintf(" %q", own)
		}
	}
	return all
}

// check does for a stream what checkDataset does, except for the length.
func (d *streamDataset) check() error {
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
	r := s.records[s.place]
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
func (s *Sample) unread() bool { return s.records != nil && s.records[s.place].Err != nil }

// A Mix says how sampler.Mixed and [MixedStreams] mix their parts.
type Mix struct {
	Parts  []int   // number of samples of each part, in the order of Concat; nil for MixedStreams
	Phases []Phase // the phases of training, in order; the last one never ends
	Block  int     // positions per block, within which the shares are exact; 0 means 1000
}

// A Phase is a stretch of training in which the shares of a [Mix] stay the same.
type Phase struct {
	Samples int       // how many positions it lasts, over all epochs and ranks; ignored in the last phase
	Weights []float64 // one per part, in any unit; with 0 a part is left out
}

// MixedStreams makes a dataset of several streams with the same fields, mixed by weights: in every block
// of Mix.Block samples on a rank, each stream has exactly its share. It needs [WithEpochSamples]. A
// [CountedStream] continues where its last epoch ended, if the number of ranks is the same. Any other
// stream starts from its beginning in each epoch, and again if it ends within an epoch. If an epoch
// takes only a part of a stream, the stream's end is never read. A [ShardError] numbers the shards of
// all streams in turn.
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
		_, l, err := checkDataset(Streamed(s))
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
	checked := mixture.New(m.Phases, m.Block)
	checked.Check(len(streams), bad)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &streamDataset{streams: slices.Clone(streams), mix: &checked, seed: seed}, nil
}

// NewStream makes a stream from two functions. In a goroutine per shard, read(ctx, shard) yields the
// records until ctx ends; an error ends the shard. load(ctx, r, dst) makes a sample of a record, under
// the rules of [Dataset].
//
// A []byte is copied, so function read may reuse it; any other record must stay as it is until load has
// seen it. Resume reads the records that it passes over. If that is slow, yield only each record's
// place, and fetch the record in load. A type that embeds the stream and has a method Records is a
// [CountedStream].
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

func (s *funcStream[R]) Shards() int { return s.shards }

func (s *funcStream[R]) invalid() error {
	if s.read == nil || s.load == nil {
		return optionError("NewStream", nil, "read or load is nil")
	}
	return nil
}

// Open reads the first record, so that an error in opening the shard is an error of Open.
func (s *funcStream[R]) Open(ctx context.Context, shard int) (ShardReader, error) {
	r := &funcReader[R]{}
	r.next, r.stop = iter.Pull2(s.read(ctx, shard))
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

// A CountedStream knows how many records its shards have, so the order of an epoch doesn't depend on the
// ranks: all ranks have the same number of batches, [Loader.Resume] works with any number of ranks, and
// there may be more ranks than shards. With [WithEpochSamples] an epoch begins where the one before
// ended, so no record comes again before every record has come once. If a shard has too few or too many
// records, the difference becomes bad samples, with a *[ShardError]. [WithInterleave] counts the shards
// that all ranks together read. With [MixedStreams] the number of ranks can change only between epochs.
type CountedStream interface {
	Stream
	Records(shard int) int // returns the number of records of a shard, 0 ≤ shard < Shards, or −1 if it isn't known; then the loader ignores all counts of the stream. A shard with 0 records isn't opened. A loader asks once
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
func newCounts(s Stream, n int, o *options) (c *recordCounts, err error) {
	told, ok := s.(CountedStream)
	if !ok {
		return nil, nil
	}
	defer func() {
		if p := recover(); p != nil {
			_, cause := usercall.Recovered(p)
			c, err = nil, optionError("CountedStream.Records", fmt.Sprintf("%T", s), "%v", cause)
		}
	}()
	c = &recordCounts{}
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
