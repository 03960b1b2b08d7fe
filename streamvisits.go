package nwt

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/guard"
	"github.com/nwt-go/nwt/internal/shards"
)

// streamVisits are a tuner's visits to a stream. Each begins an epoch: to go on within one,
// it would have to read what comes before. But its shards are rotated, so that rounds begin
// at places spread over the stream. Within a round a visit goes on where the one before
// ended, in the same shards, which stay open in between. An epoch has all its records: what
// was read of a shard before comes at the shard's end.
//
// With WithEpochSamples but without WithShuffle, every epoch reads the first shards, and
// nobody knows how many. So each round begins with these.
type streamVisits struct {
	*source
	ctx     context.Context // of all readers
	cancel  context.CancelFunc
	streams []*visitedStream
	shift   int // by how many records the plan of MixedStreams is rotated
	read    int // of the rank's records in an epoch, how many the round has read
}

// newStreamVisits returns nil if the dataset is no stream.
func newStreamVisits(ctx context.Context, s *source) *streamVisits {
	ds, ok := s.ds.(*streamDataset)
	if !ok {
		return nil
	}
	v, first := &streamVisits{source: s}, 0
	v.ctx, v.cancel = context.WithCancel(ctx)
	for k, stream := range ds.streams {
		v.streams = append(v.streams, &visitedStream{
			Stream: stream, opts: s.opts, ctx: v.ctx, first: first, order: s.opts.shardOrder(s.shards[k], k),
			kept: make(map[int]*visitedReader), ended: make(map[int]bool),
		})
		first += s.shards[k]
	}
	return v
}

// turn begins a round at a place, 0 … 1, of the epoch.
func (v *streamVisits) turn(place float64) {
	quota := v.opts.quota(v.opts.world)
	v.shift, v.read = int(place*float64(quota)), 0
	for _, s := range v.streams {
		if s.from = 0; quota == 0 || v.opts.shuffle {
			s.from = int(place * float64(s.order.n))
		}
		clear(s.ended)
	}
	if quota > 0 {
		v.drop()
	}
}

// begin begins a visit at the beginning of an epoch. It ends at the deadline.
func (v *streamVisits) begin(epoch int, deadline time.Time) {
	for _, s := range v.streams {
		s.begin(epoch, deadline)
	}
}

// opening makes a measurement's opening. Training opens the shards that it begins with, and
// fills the windows of WithShuffle, once in an epoch; a visit may last for no more batches
// than that takes. What is open meanwhile is left out too. A stream of a mixture that isn't
// drawn from soon isn't waited for.
func (v *streamVisits) opening(l *Loader, wave int) func() int {
	left, since, batches := v.missing(), 0, 0
	if left == 0 {
		return nil
	}
	return func() int {
		since, batches = since+1, batches+1
		if now := v.missing(); now < left {
			left, since = now, 0
		}
		if left == 0 || since > max(l.depth(), openingMost) {
			return 0
		}
		return l.open(batches, wave)
	}
}

// openingMost is how many batches at least may bring no record that is missing until none
// is waited for.
const openingMost = 16

// missing is how many records must still be read before the visit reads as training does.
func (v *streamVisits) missing() (n int) {
	for _, s := range v.streams {
		n += max(0, int(s.missing.Load()))
	}
	return n
}

// end ends a visit that began with an epoch and has come to a state.
func (v *streamVisits) end(epoch int, reached State) {
	quota, read := v.opts.quota(v.opts.world), reached.Samples/v.opts.world
	if quota == 0 {
		return
	}
	v.shift = (v.shift + read) % quota
	if v.read += read; v.read >= quota || reached.Epoch != epoch {
		v.read = 0
		v.drop() // where training would begin the next epoch
	}
}

// drop closes all readers that are kept.
func (v *streamVisits) drop() {
	for _, s := range v.streams {
		s.drop(nil)
	}
}

// close ends the last visit, and calls of readers that were given up.
func (v *streamVisits) close() {
	for _, s := range v.streams {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
	}
	v.drop()
	v.cancel()
}

// A visitedStream is a stream as a tuner's loaders see it. It keeps readers open from
// visit to visit.
type visitedStream struct {
	Stream
	opts  *options
	ctx   context.Context // of all readers
	first int             // number of its first shard among those of all streams
	order shardOrder
	from  int // the place in the order that a visit begins with; changed between visits only

	// missing is how many records must still be read before the visit reads as training
	// does: one of each shard that is read at once, or a window full; may be less than 0.
	missing atomic.Int64

	mu       sync.Mutex
	visit    int                    // guarded by mu; its number
	deadline time.Time              // guarded by mu; of the visit; zero: none
	opened   int                    // guarded by mu; shards, in the visit
	kept     map[int]*visitedReader // guarded by mu; by shard: those that are open and that nobody uses
	ended    map[int]bool           // guarded by mu; shards to whose end the round has come
	closed   bool                   // guarded by mu; there are no more visits
}

// begin begins a visit. If all shards that the one before began with have ended, this one
// begins with those after them.
func (s *visitedStream) begin(epoch int, deadline time.Time) {
	s.mu.Lock()
	s.visit, s.deadline, s.opened = s.visit+1, deadline, 0
	n := min(s.opts.interleave, s.order.n)
	first := make(map[int]bool, n)
	for {
		over := true
		for i := range n {
			shard := s.order.at(epoch, (s.from+i)%s.order.n)
			first[shard] = true
			over = over && s.ended[shard]
		}
		if !over {
			break
		}
		for shard := range first {
			delete(s.ended, shard)
		}
		clear(first)
		s.from = (s.from + n) % s.order.n
	}
	missing := n
	if s.opts.shuffle {
		missing = max(n, s.opts.window) // of each visit
	} else {
		for shard := range first {
			if r := s.kept[shard]; r != nil && r.read > 0 {
				missing--
			}
		}
	}
	s.missing.Store(int64(missing))
	s.mu.Unlock()
	s.drop(first)
}

// drop closes the readers that are kept, except those of some shards.
func (s *visitedStream) drop(but map[int]bool) {
	s.mu.Lock()
	var dropped []*visitedReader
	for shard, r := range s.kept {
		if !but[shard] {
			dropped = append(dropped, r)
			delete(s.kept, shard)
		}
	}
	s.mu.Unlock()
	var closing sync.WaitGroup
	for _, r := range dropped {
		closing.Go(r.drop)
	}
	closing.Wait()
}

// take returns the reader of a shard that an earlier visit has kept; nil if there is none.
func (s *visitedStream) take(shard int) *visitedReader {
	s.mu.Lock()
	r, visit := s.kept[shard], s.visit
	delete(s.kept, shard)
	if s.opened++; s.opened > s.order.n {
		s.missing.Store(0) // all was read, and comes again
	}
	s.mu.Unlock()
	if r != nil && r.visit == visit { // another epoch of this visit begins at the front
		r.drop()
		return nil
	}
	return r
}

// keep keeps a reader for the next visit, if it can go on there.
func (s *visitedStream) keep(r *visitedReader) bool {
	s.mu.Lock()
	if s.closed || r.over || r.again || r.ctx.Err() != nil {
		s.mu.Unlock()
		return false
	}
	other := s.kept[r.shard]
	s.kept[r.shard], r.visit = r, s.visit
	s.mu.Unlock()
	if other != nil {
		other.drop()
	}
	return true
}

// hasEnded notes that the round has come to a shard's end.
func (s *visitedStream) hasEnded(shard int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[shard] = true
}

// patience is how long a call that is under way may still take when its visit has ended.
func (s *visitedStream) patience() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deadline.IsZero() {
		return visitPatience
	}
	return min(visitPatience, max(0, time.Until(s.deadline)))
}

const visitPatience = 100 * time.Millisecond

// Open opens a shard, or goes on with it.
func (s *visitedStream) Open(ctx context.Context, shard int) (ShardReader, error) {
	if r := s.take(shard); r != nil {
		r.before = r.read
		r.watch(ctx)
		return r, nil
	}
	r := &visitedReader{s: s, shard: shard}
	r.ctx, r.cancel = context.WithCancelCause(s.ctx)
	r.watch(ctx)
	opened := false
	defer func() {
		if !opened {
			r.unwatch()
			r.cancel(nil)
		}
	}()
	reader, err := s.Stream.Open(r.ctx, shard)
	if err != nil || reader == nil {
		return nil, err
	}
	r.reader, opened = reader, true
	return r, nil
}

// A visitedReader reads a shard in one visit, or in several.
type visitedReader struct {
	s      *visitedStream
	shard  int
	reader ShardReader
	visit  int  // that it was kept in
	read   int  // records since the shard was opened
	before int  // of these, in earlier visits
	again  bool // the shard was opened again, for the records of earlier visits
	over   bool // a call has failed, or nothing is left

	// The context of its calls doesn't end with a visit: a reader whose call was
	// interrupted couldn't go on. It ends if a call that is under way then takes too long,
	// or when the reader is closed.
	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   func() bool // ends the watch on the visit's context

	mu      sync.Mutex
	watches int // guarded by mu: what is left of an earlier watch does nothing
}

// watch has the reader's context end if the reader is still in use a while after a visit's
// context has ended.
func (r *visitedReader) watch(ctx context.Context) {
	r.mu.Lock()
	r.watches++
	number := r.watches
	r.mu.Unlock()
	r.stop = context.AfterFunc(ctx, func() {
		patience := time.Duration(0) // none if a call was given up
		if context.Cause(ctx) == context.Canceled {
			patience = r.s.patience()
		}
		time.AfterFunc(patience, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.watches == number {
				r.cancel(context.Cause(ctx))
			}
		})
	})
}

func (r *visitedReader) unwatch() {
	r.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watches++
}

func (r *visitedReader) Next(_ context.Context, rec *Record) error {
	if r.again && r.read == r.before {
		return io.EOF
	}
	r.over = true // unless the call succeeds
	err := r.reader.Next(r.ctx, rec)
	if err == io.EOF && !r.again {
		r.s.hasEnded(r.shard)
		if r.before > 0 {
			err = r.nextOfFront(rec)
		}
	}
	if err == nil {
		r.read++
		r.over = false
		if (r.read == 1 || r.s.opts.shuffle) && r.s.missing.Load() > 0 {
			r.s.missing.Add(-1)
		}
	}
	return err
}

// nextOfFront opens the shard again, for the records of earlier visits, and reads the
// first one.
func (r *visitedReader) nextOfFront(rec *Record) (err error) {
	old := r.reader
	r.reader, r.again, r.read = nil, true, 0
	guard.Call(old.Close, func(_ []byte, err error) { r.warnOfClose(err) })
	if r.reader, err = r.s.reopen(r.ctx, r.shard); err != nil {
		return err
	}
	return r.reader.Next(r.ctx, rec)
}

// reopen opens a shard of the stream itself.
func (s *visitedStream) reopen(ctx context.Context, shard int) (ShardReader, error) {
	c := shards.Config[Record]{Open: opener(s.Stream), Retries: s.opts.retries, Backoff: s.opts.backoff, Temporary: temporary}
	return c.OpenShard(ctx, shard, shards.Pause)
}

// readsOfVisits is how many records of a shard visits have read.
func readsOfVisits(r shards.Reader[Record]) int { return r.(*visitedReader).read }

// Close ends the visit, and reading if no other visit can go on.
func (r *visitedReader) Close() error {
	r.unwatch()
	if r.reader == nil || r.s.keep(r) {
		return nil
	}
	if !r.over {
		r.cancel(nil)
	}
	defer r.cancel(nil)
	return r.reader.Close()
}

// drop closes a reader that was kept. With WithTimeout it doesn't wait longer than that.
func (r *visitedReader) drop() {
	r.cancel(nil)
	closed := make(chan struct{})
	go func() { // which Close may end
		defer close(closed)
		guard.Call(r.reader.Close, func(_ []byte, err error) { r.warnOfClose(err) })
	}()
	var late <-chan time.Time
	if timeout := r.s.opts.timeout; timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-closed:
	case <-late:
		r.warnOfClose(r.s.opts.noAnswer())
	}
}

func (r *visitedReader) warnOfClose(err error) { r.s.opts.warnOfClose(r.s.first+r.shard, err) }
