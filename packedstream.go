package nwt

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/nwt-go/nwt/internal/rowpacking"
)

// PackedStream packs the documents of a stream into rows of length elements, with the same fields as the
// rows of [Packed]. Documents come one after the other, so all rows are full except the last of each
// shard. A document that doesn't fit continues in the next row, where it counts as another document; each
// of its rows loads it again.
//
// size returns how long a document is, from its record: of a [NewStream] from Data, or from a *R in Value.
// Load may set a smaller length, which leaves room
// in the row. total returns the sum of the lengths of a shard's documents, or −1 if that isn't known. If
// total isn't nil, the rows are a [CountedStream]; the counts of docs can't be used, since they don't say
// how many rows there are. Resume reads the records that it passes over, but doesn't load them.
func PackedStream(docs Stream, length int, size func(r *Record) int, total func(shard int) int) (Stream, error) {
	_, l, err := checkDataset(Streamed(docs))
	if err != nil {
		return nil, within("PackedStream", err)
	}
	shared, err := newPacking("PackedStream", l, length, "size")
	if err != nil {
		return nil, err
	}
	if size == nil {
		return nil, optionError("PackedStream", nil, "size must not be nil")
	}
	s := &rowStream{shared, docs, size, math.MaxInt32}
	for _, c := range l.Columns {
		s.longest = min(s.longest, c.Dims[0])
	}
	if total != nil {
		return &countedRows{s, total}, nil
	}
	return s, nil
}

type rowStream struct {
	packing
	docs    Stream
	size    func(r *Record) int
	longest int // length of the longest document that its fields allow
}

type countedRows struct {
	*rowStream
	total func(shard int) int
}

func (s *countedRows) Records(shard int) int {
	n := s.total(shard)
	if n < 0 {
		return -1
	}
	return n/s.length + min(1, n%s.length)
}

func (s *rowStream) Shards() int { return s.docs.Shards() }

func (s *rowStream) Fingerprint() string {
	return fmt.Sprintf("PackedStream(%d) %q", s.length, fingerprint(s.docs))
}

func (s *rowStream) Open(ctx context.Context, shard int) (ShardReader, error) {
	r, err := s.docs.Open(ctx, shard)
	if err != nil {
		return nil, err
	}
	return &rowReader{ShardReader: r, rowStream: s, number: -1}, nil
}

// A packedRow is the Value of a row's record; the row's Data is the Data of all its pieces.
type packedRow struct{ pieces []packedPiece }

type packedPiece struct {
	Record // the document's record; Load sets its Data
	rowpacking.Piece
	size int // how long the document is
	end  int // where it ends in the row's Data
}

func (s *rowStream) Load(ctx context.Context, r *Record, dst *Sample) error {
	at, begin, row := 0, 0, r.Value.(*packedRow)
	for k := range row.pieces {
		p := &row.pieces[k]
		p.Data, begin = r.Data[begin:p.end:p.end], p.end
		doc := scratchFor(s.src.Layout, true, dst)[0]
		err := s.docs.Load(ctx, &p.Record, doc)
		if err == nil {
			var n int
			n, err = s.put(dst, doc, p.Piece, p.size, k, at)
			at += n
		}
		if err != nil {
			return fmt.Errorf("document %d of the shard: %w", p.Doc, err)
		}
	}
	s.end(dst, at)
	return nil
}

// A rowReader reads the rows of a shard.
type rowReader struct {
	ShardReader // reads the documents
	*rowStream
	doc        Record // the document that the rows have reached
	number     int    // its number in the shard
	from, size int    // how much of it is in rows already, and its size
	ended      bool   // no document is left
}

// take passes over up to n elements, and calls each for every piece of them. It returns io.EOF if none is
// left.
func (r *rowReader) take(ctx context.Context, n int, each func(from, n int)) (taken int, err error) {
	for taken < n && !r.ended {
		if r.from < r.size {
			k := min(n-taken, r.size-r.from)
			each(r.from, k)
			r.from, taken = r.from+k, taken+k
			continue
		}
		r.doc.Value = nil // the old one may belong to a row
		if err := r.ShardReader.Next(ctx, &r.doc); err == io.EOF {
			r.ended = true
			break
		} else if err != nil {
			return taken, err
		}
		r.number++
		if r.from, r.size = 0, r.rowStream.size(&r.doc); r.size < 0 || r.size > r.longest {
			return taken, fmt.Errorf("document %d: its size is %d: must be 0 … %d", r.number, r.size, r.longest)
		}
	}
	if taken == 0 {
		return 0, io.EOF
	}
	return taken, nil
}

func (r *rowReader) Next(ctx context.Context, row *Record) error {
	own, ok := row.Value.(*packedRow)
	if !ok {
		own = &packedRow{}
		row.Value = own
	}
	own.pieces, row.Data = own.pieces[:0], row.Data[:0]
	_, err := r.take(ctx, r.length, func(from, n int) {
		row.Data = append(row.Data, r.doc.Data...)
		piece := rowpacking.Piece{Doc: uint32(r.number), From: uint32(from), Len: uint32(n)}
		own.pieces = append(own.pieces, packedPiece{Record{Value: r.doc.Value}, piece, r.size, len(row.Data)})
	})
	return err
}

// Skip passes over a few rows at a time, so that no call takes long.
func (r *rowReader) Skip(ctx context.Context, n int) (skipped int, err error) {
	taken, err := r.take(ctx, min(n, 64, math.MaxInt/r.length)*r.length, func(int, int) {})
	if err != nil {
		return taken / r.length, err
	}
	return (taken-1)/r.length + 1, nil
}
