package kit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// MixedOf returns a mixture of streams.
func MixedOf(t *testing.T, m nwt.Mix, streams ...nwt.Stream) nwt.Dataset {
	t.Helper()
	ds, err := nwt.MixedStreams(m, 7, streams...)
	require.NoError(t, err)
	return ds
}

// Breaking is shelves whose calls do something else first.
type Breaking struct {
	*Shelves
	OnShards func() int
	OnOpen   func(shard int) error
	OnNext   func(shard, record int) error
	OnClose  func(shard int) error
	OnLoad   func(dst *nwt.Sample)
}

func (s *Breaking) Shards() int {
	if s.OnShards != nil {
		return s.OnShards()
	}
	return s.Shelves.Shards()
}

func (s *Breaking) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	if s.OnOpen != nil {
		if err := s.OnOpen(shard); err != nil {
			return nil, err
		}
	}
	r, err := s.Shelves.Open(ctx, shard)
	return &breakingReader{ShardReader: r, s: s, shard: shard}, err
}

func (s *Breaking) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	if s.OnLoad != nil {
		s.OnLoad(dst)
	}
	return s.Shelves.Load(ctx, r, dst)
}

// Shelves is a stream of numbered samples in shards of given lengths.
type Shelves struct {
	Lengths []int
	Opened  atomic.Int32
	FailAt  int // number of a record that can't be read; −1: none
}

func (s *Shelves) Fields() []nwt.Field {
	return []nwt.Field{{Name: "i", Type: nwt.Int64}, {Name: "noise", Type: nwt.Int64}}
}

func (s *Shelves) Shards() int { return len(s.Lengths) }

func (s *Shelves) Open(_ context.Context, shard int) (nwt.ShardReader, error) {
	s.Opened.Add(1)
	first := 0
	for _, n := range s.Lengths[:shard] {
		first += n
	}
	return &shelf{s: s, next: first, end: first + s.Lengths[shard]}, nil
}

func (s *Shelves) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) error {
	nwt.Values[int64](dst, 0)[0] = int64(binary.LittleEndian.Uint64(r.Data))
	nwt.Values[int64](dst, 1)[0] = dst.Rand().Int64()
	return nil
}

// NewShelves returns a stream of shards of these lengths that can all be read.
func NewShelves(lengths ...int) *Shelves { return &Shelves{Lengths: lengths, FailAt: -1} }

// Wide is a stream whose records have more bytes than needed.
type Wide struct {
	nwt.Stream
	Bytes        int
	Size         func(shard, nth int) int // of a record, if it isn't Bytes
	Keeps        int                      // Load keeps the memory of records of so many bytes or more; 0: of none
	Read, Loaded atomic.Int32
	Made         atomic.Int32 // records that got memory
	OnMade       func(data []byte)
}

func (s *Wide) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.Stream.Open(ctx, shard)
	return &WideReader{ShardReader: r, s: s, shard: shard}, err
}

func (s *Wide) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	s.Loaded.Add(1)
	err := s.Stream.Load(ctx, r, dst)
	if s.Keeps > 0 && cap(r.Data) >= s.Keeps {
		r.Data = nil
	}
	return err
}

// Ahead returns how many records were read and not loaded.
func (s *Wide) Ahead() int { return int(s.Read.Load() - s.Loaded.Load()) }

// WideReader reads a shard of Wide.
type WideReader struct {
	nwt.ShardReader
	s          *Wide
	shard, nth int
}

func (r *WideReader) Next(ctx context.Context, rec *nwt.Record) error {
	bytes := r.s.Bytes
	if r.s.Size != nil {
		bytes = r.s.Size(r.shard, r.nth)
	}
	r.nth++
	if cap(rec.Data) < bytes {
		rec.Data = make([]byte, 0, bytes)
		r.s.Made.Add(1)
		if r.s.OnMade != nil {
			r.s.OnMade(rec.Data)
		}
	}
	err := r.ShardReader.Next(ctx, rec)
	if err == nil {
		r.s.Read.Add(1)
	}
	return err
}

// CountedShelves is shelves whose records are counted: Told, or as many as there are.
type CountedShelves struct {
	*Shelves
	Told  []int
	Skips bool
}

// NewCounted returns shelves that tell how long their shards are.
func NewCounted(lengths ...int) *CountedShelves {
	return &CountedShelves{Shelves: NewShelves(lengths...)}
}

func (c *CountedShelves) Records(shard int) int {
	if c.Told != nil {
		return c.Told[shard]
	}
	return c.Lengths[shard]
}

func (c *CountedShelves) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := c.Shelves.Open(ctx, shard)
	if c.Skips {
		r = skippingShelf{r.(*shelf)}
	}
	return r, err
}

type skippingShelf struct{ *shelf }

func (s skippingShelf) Skip(_ context.Context, n int) (int, error) {
	n = min(n, s.end-s.next)
	if n == 0 {
		return 0, io.EOF
	}
	s.next += n
	return n, nil
}

type breakingReader struct {
	nwt.ShardReader
	s             *Breaking
	shard, record int
}

func (r *breakingReader) Next(ctx context.Context, rec *nwt.Record) error {
	if r.s.OnNext != nil {
		if err := r.s.OnNext(r.shard, r.record); err != nil {
			return err
		}
	}
	r.record++
	return r.ShardReader.Next(ctx, rec)
}

func (r *breakingReader) Close() error {
	err := r.ShardReader.Close()
	if r.s.OnClose != nil {
		return r.s.OnClose(r.shard)
	}
	return err
}

// Tallies is a stream whose shards count: shard k begins at 1000 k.
type Tallies struct {
	Lengths []int
	Torn    map[int]string        // how a record can't be read, by its number
	Hang    map[int]chan struct{} // until when a record can't be read
	Hangs   string                // "open": the shard of such a record can't be opened
	Opened  atomic.Int32
	OnSkip  func(r *TallyReader, n int) (int, error)
	Read    atomic.Int64
}

func (s *Tallies) Fields() []nwt.Field { return []nwt.Field{{Name: "number", Type: nwt.Int64}} }
func (s *Tallies) Shards() int         { return len(s.Lengths) }

func (s *Tallies) Open(_ context.Context, shard int) (nwt.ShardReader, error) {
	if s.Torn[1000*shard] == "open" {
		return nil, ErrTorn
	}
	if release := s.Hang[1000*shard]; release != nil && s.Hangs == "open" {
		<-release
	}
	s.Opened.Add(1)
	r := &TallyReader{Stream: s, At: 1000 * shard, End: 1000*shard + s.Lengths[shard]}
	if s.OnSkip == nil {
		return struct{ nwt.ShardReader }{r}, nil // without its Skip
	}
	return r, nil
}

func (s *Tallies) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) error {
	nwt.Values[int64](dst, 0)[0] = int64(binary.LittleEndian.Uint64(r.Data))
	return nil
}

// TallyReader reads a shard of Tallies.
type TallyReader struct {
	Stream  *Tallies
	At, End int
}

func (r *TallyReader) Pass() error {
	if release := r.Stream.Hang[r.At]; release != nil {
		<-release
	}
	switch r.Stream.Torn[r.At] {
	case "error":
		return fmt.Errorf("a checksum: %w", io.EOF)
	case "panic":
		panic(ErrTorn)
	}
	if r.At == r.End {
		return io.EOF
	}
	r.At++
	return nil
}

func (r *TallyReader) Next(_ context.Context, rec *nwt.Record) error {
	r.Stream.Read.Add(1)
	if err := r.Pass(); err != nil {
		return err
	}
	rec.Data = binary.LittleEndian.AppendUint64(rec.Data[:0], uint64(r.At-1))
	return nil
}

func (r *TallyReader) Skip(_ context.Context, n int) (int, error) { return r.Stream.OnSkip(r, n) }
func (r *TallyReader) Close() error                               { r.Stream.Opened.Add(-1); return nil }

type shelf struct {
	s         *Shelves
	next, end int
}

func (s *shelf) Next(_ context.Context, r *nwt.Record) error {
	if s.next == s.end {
		return io.EOF
	}
	if s.next++; s.next-1 == s.s.FailAt {
		return ErrTorn
	}
	r.Data = binary.LittleEndian.AppendUint64(r.Data[:0], uint64(s.next-1))
	return nil
}

// ErrTorn is the error of a record that cannot be read.
var ErrTorn = errors.New("torn")

func (s *shelf) Close() error { s.s.Opened.Add(-1); return nil }

// Timed returns a stream of numbers. times says how long each record of each shard takes to read.
func Timed(times [][]time.Duration) *Breaking {
	var lengths []int
	for _, shard := range times {
		lengths = append(lengths, len(shard))
	}
	return &Breaking{Shelves: NewShelves(lengths...), OnNext: func(shard, record int) error {
		if record < len(times[shard]) {
			time.Sleep(times[shard][record])
		}
		return nil
	}}
}
