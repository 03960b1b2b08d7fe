package packing

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/usercall"
)

// NewStream packs the documents of a stream into rows of the given length. The rows have the same fields as
// the rows of [New]. Documents come one after the other, so all rows are full except the last row of each
// shard. A document that doesn't fit continues in the next row.
//
// The function size returns the length of the document in a record. If the argument docs comes from
// [nwt.NewStream], a document of type []byte is in the record's Data. For any other type, the record's Value
// is a pointer to the document. The length should be the number of tokens, not a bound such as the number of
// bytes: tokenise in this function, as the recipe tokenise.go does. If Load of docs sets a smaller length than
// size returned, the row isn't full. If rows are mostly or wholly empty, a log line says so.
//
// The function total returns the sum of the lengths of a shard's documents, or −1 if that isn't known. If
// total isn't nil, the rows are a [nwt.CountedStream]. If total is nil, the rows aren't counted, even if docs
// is a [nwt.CountedStream]: the number of documents doesn't say how many rows there are. Resume reads the
// records that it passes over, but doesn't load them.
func NewStream(docs nwt.Stream, length int, size func(r *nwt.Record) int, total func(shard int) int) (nwt.Stream, error) {
	switch {
	case docs == nil:
		return nil, optionError("NewStream", nil, "the stream is nil")
	case size == nil:
		return nil, optionError("NewStream", nil, "size is nil")
	}
	rows, err := rowsOf("NewStream", docs.Fields(), length, "size")
	if err != nil {
		return nil, err
	}
	s := &rowStream{rows, docs, size, math.MaxInt32}
	for _, f := range rows.docs {
		s.longest = min(s.longest, f.Shape[0])
	}
	if total != nil {
		return &countedRows{s, total}, nil
	}
	return s, nil
}

type rowStream struct {
	rowFields
	docs    nwt.Stream
	size    func(r *nwt.Record) int
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
	return fmt.Sprintf("packing.NewStream(%d) %q", s.length, fingerprint(s.docs))
}

func (s *rowStream) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.docs.Open(ctx, shard)
	if err != nil {
		return nil, err
	}
	return &rowReader{ShardReader: r, rowStream: s, number: -1}, nil
}

// A packedRow is the Value of a row's record; the row's Data is the Data of all its pieces.
type packedRow struct{ pieces []packedPiece }

type packedPiece struct {
	nwt.Record // the document's record; Load sets its Data
	piece
	size int // how long the document is
	end  int // where it ends in the row's Data
}

// A document is a dataset of one document, whose record is known when it is loaded.
type document struct {
	docs   nwt.Stream
	record *nwt.Record
}

func (d *document) Len() int            { return 1 }
func (d *document) Fields() []nwt.Field { return d.docs.Fields() }
func (d *document) Load(ctx context.Context, _ int, dst *nwt.Sample) error {
	return d.docs.Load(ctx, d.record, dst)
}

func (s *rowStream) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	only, err := nwt.Scratch(dst, func() (*document, error) { return &document{docs: s.docs}, nil })
	if err != nil {
		return err
	}
	begin, row := 0, r.Value.(*packedRow)
	at, id, told := 0, 1, 0
	for k := range row.pieces {
		p := &row.pieces[k]
		p.Data, begin = r.Data[begin:p.end:p.end], p.end
		only.record = &p.Record
		n, err := s.loadPiece(ctx, only, p, dst, id, at)
		if err != nil {
			return fmt.Errorf("document %d of the shard: %w", p.doc, err)
		}
		at, told = at+n, told+int(p.len)
		if n > 0 {
			id++
		}
	}
	s.end(dst, at)
	s.count(at, told)
	return nil
}

// loadPiece loads a piece of a document into a row: see put.
func (s *rowStream) loadPiece(ctx context.Context, only *document, p *packedPiece, dst *nwt.Sample, id, at int) (n int, err error) {
	defer usercall.Naming(func() string { return fmt.Sprint("document ", p.doc) })
	doc, err := nwt.LoadPart(ctx, only, 0, dst)
	if err != nil {
		return 0, err
	}
	return s.put(dst, doc, p.piece, p.size, id, at)
}

// A rowReader reads the rows of a shard.
type rowReader struct {
	nwt.ShardReader // reads the documents
	*rowStream
	doc        nwt.Record // the document that the rows have reached
	number     int        // its number in the shard
	from, size int        // how much of it is in rows already, and its size
	ended      bool       // no document is left
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
		if r.from, r.size = 0, r.sizeOf(); r.size < 0 || r.size > r.longest {
			return taken, fmt.Errorf("document %d: its size is %d: must be 0 … %d", r.number, r.size, r.longest)
		}
	}
	if taken == 0 {
		return 0, io.EOF
	}
	return taken, nil
}

// sizeOf returns the size of the document that the rows have reached.
func (r *rowReader) sizeOf() int {
	defer usercall.Naming(func() string { return fmt.Sprint("document ", r.number) })
	return r.rowStream.size(&r.doc)
}

func (r *rowReader) Next(ctx context.Context, row *nwt.Record) error {
	own, ok := row.Value.(*packedRow)
	if !ok {
		own = &packedRow{}
		row.Value = own
	}
	own.pieces, row.Data = own.pieces[:0], row.Data[:0]
	_, err := r.take(ctx, r.length, func(from, n int) {
		row.Data = append(row.Data, r.doc.Data...)
		p := piece{uint32(r.number), uint32(from), uint32(n)}
		own.pieces = append(own.pieces, packedPiece{nwt.Record{Value: r.doc.Value}, p, r.size, len(row.Data)})
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
