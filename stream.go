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

// A Stream is shards that are read in sequence, such as tar files or the parts of a query;
// [Streamed] makes it a dataset. Reading a shard should be cheap: workers make samples by Load,
// side by side.
type Stream interface {
	Fields() []Field // the layout of one sample, which must not change
	Shards() int     // at least one for each rank, except of a [CountedStream]; a loader asks once
	// Open begins to read a shard, 0 ≤ shard < Shards. It is called again as [WithRetry] says, and
	// for a minute if too many files are open. With any other error the shard is one bad sample.
	// It is also called again after such an error of the reader: the records that the shard has
	// given are then passed over, so they must be the same each time.
	Open(ctx context.Context, shard int) (ShardReader, error)
	Load(ctx context.Context, r *Record, dst *Sample) error // makes a sample of a record, under the rules of [Dataset]'s Load
}

// A ShardReader reads one shard, in one goroutine at a time.
type ShardReader interface {
	// Next reads the next record into r. After the last one it returns [io.EOF] itself. Any other
	// error, including one that wraps io.EOF, ends the shard with a *[ShardError].
	Next(ctx context.Context, r *Record) error
	Close() error // at the end of the shard or before
}

// A Skipper passes over records fast. If all readers do, Resume starts almost at once.
type Skipper interface {
	ShardReader
	// Skip passes over at most the next n records, n ≥ 1, and returns how many; after 0 the loader
	// reads one by Next. The errors are those of Next: [io.EOF] itself if no record is left; any
	// other ends the shard, and must come wherever Next would fail.
	Skip(ctx context.Context, n int) (skipped int, err error)
}

// Streamed makes a dataset of a stream. Each rank reads its shards in turn, [WithInterleave] of
// them at once, a sample of each. [WithShuffle] changes the order of the shards in each epoch,
// and mixes samples within [WithShuffleWindow]. [Sample.Index] is the place in this order, over
// all ranks, the same at every worker count.
//
// Each rank needs a shard; without [WithEpochSamples] ranks may have different numbers of
// batches: a [CountedStream] has neither limit. [Loader.Resume] reads and drops what came
// before, unless its readers are Skippers. Up to 256 records per shard are read ahead, at most
// about 256 MiB of Data in all.
func Streamed(s Stream) Dataset { return &streamDataset{streams: []Stream{s}} }

type streamDataset struct {
	overwriting
	streams []Stream
	mix     *mixture.Mix // nil without MixedStreams
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

// check does for a stream what checkDataset does, but for the length.
func (d *streamDataset) check() error {
	if d.streams[0] == nil {
		return optionError("Streamed", nil, "the stream must not be nil")
	}
	return nil
}

// shards returns the number of shards of each stream, which a loader asks for once.
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

// load is a loader's load.
func (d *streamDataset) load(ctx context.Context, _ int, s *Sample) error {
	r := s.records[s.place]
	if r.Err != nil {
		return r.Err
	}
	part := 0
	if d.mix != nil {
		part = r.Part
	}
	return d.streams[part].Load(ctx, &r.Record, s)
}

// unread reports whether the sample's record couldn't be read. It won't be read
// again.
func (s *Sample) unread() bool { return s.records != nil && s.records[s.place].Err != nil }

// A Mix says how sampler.Mixed and [MixedStreams] mix their parts.
type Mix struct {
	Parts  []int   // samples of each part, in the order of Concat; nil for MixedStreams
	Phases []Phase // phases of training, one after the other; the last one never ends
	Block  int     // positions per block, within which the shares are exact; 0 = 1000
}

// A Phase is a stretch of training in which the shares of a [Mix] stay the same.
type Phase struct {
	Samples int       // how many positions it lasts, over all epochs and ranks; of no meaning for the last phase
	Weights []float64 // one per part, in any unit; 0 leaves a part out
}

// MixedStreams makes a dataset of several streams of the same fields, mixed by weights. Each
// [Mix].Block samples of a rank have exactly the share of every part. It needs
// [WithEpochSamples]. A [CountedStream] goes on where the epoch before ended, as long as the
// number of ranks is the same. Any other stream begins anew in each epoch, and again if it ends
// within one. Make epochs long: the end of a longer stream is never read. A [ShardError] counts
// the shards of all streams in turn.
func MixedStreams(m Mix, seed uint64, streams ...Stream) (Dataset, error) {
	var errs []error
	bad := func(value any, format string, args ...any) {
		errs = append(errs, optionError("MixedStreams", value, format, args...))
	}
	if len(m.Parts) > 0 {
		bad(m.Parts, "Mix.Parts must be nil: a stream has no number of samples")
	}
	if len(streams) == 0 {
		bad(streams, "needs at least one stream")
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
			bad(k, "stream %d differs from those before: %s", k, diff)
		}
	}
	checked := mixture.New(m.Phases, m.Block)
	checked.Check(len(streams), bad)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &streamDataset{streams: slices.Clone(streams), mix: &checked, seed: seed}, nil
}

// NewStream makes a stream of two functions. read yields the records of a shard, in a goroutine
// of its own; an error ends the shard. load makes a sample of a record, by the rules of
// [Dataset]. ctx ends when reading does.
//
// A []byte is copied, so read may reuse it; any other R must stay as it is until load has seen
// it. Resume reads the records that it passes over: where that is slow, yield their places and
// let load read them. A type that embeds the stream and has a method Records is a
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

func (s *funcStream[R]) Shards() int {
	if s.read == nil || s.load == nil {
		panic("NewStream: read and load must not be nil")
	}
	return s.shards
}

// Open reads the first record, so that what is wrong with opening is Open's error.
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
	first  R // what Open has read
	err    error
	more   bool
	opened bool // first is still to be handed out
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
		return fmt.Errorf("%w", f.err) // an io.EOF that is yielded isn't the end
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

// A CountedStream knows how many records its shards have. So the order of an epoch doesn't
// depend on the ranks: all have the same number of batches, [Loader.Resume] goes on with any
// number of them, and there may be more than shards. With [WithEpochSamples] an epoch begins
// where the one before ended, so each record comes once before any comes again. Records too few
// or too many make bad samples, with a *[ShardError]. [WithInterleave] counts over all ranks;
// those that share a shard pass over each other's records, faster if readers are Skippers.
// [MixedStreams] goes on with another number of ranks between epochs only.
type CountedStream interface {
	Stream
	Records(shard int) int // of a shard, 0 ≤ shard < Shards, or −1: not known, as if the stream had no counts; with 0 it isn't opened; a loader asks once
}

// defaultLanes is how many lanes a CountedStream has.
const defaultLanes = 32

// A recordCounts is how many records the shards of a CountedStream have.
type recordCounts struct {
	all   []int // of each shard
	n     int   // of all together
	lanes int
}

// newCounts is nil if the records of the stream aren't all counted, or the counts aren't used.
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
		return nil, nil // an epoch without a sample is an error in any case
	}
	c.lanes = min(cmp.Or(o.interleave, defaultLanes), n, c.n)
	return c, nil
}
