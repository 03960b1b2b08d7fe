package nwt

import (
	"context"
	"fmt"
	"math"

	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/rowpacking"
	"github.com/nwt-go/nwt/internal/usercall"
)

// Packed packs documents into rows of length elements, for language models. docs must be a
// [SizedDataset] whose fields are ragged in one dimension, equally long in each document. A row
// has the same fields, and two of type Int32: "segment_ids" numbers its documents from 1, and is
// 0 where the row is empty; "positions" counts from 0 in each document. A longer document is
// cut: its pieces count as documents, and each loads it anew. Which pieces share a row depends
// on sizes, length and seed alone: [WithShuffle] shuffles the rows.
func Packed(docs Dataset, length int, seed uint64) (Dataset, error) {
	n, l, err := checkIndexed(docs)
	if err != nil {
		return nil, within("Packed", err)
	}
	if length < 1 || length > math.MaxInt32 {
		return nil, optionError("Packed", length, "the length of a row must be 1 … %d", math.MaxInt32)
	}
	d := &rows{docs: docs, src: l, length: length, seed: seed, clears: !bool(overwrites(docs)), tell: sizesOf(docs)}
	for _, f := range l.fields {
		if f.raggedDims() != 1 {
			return nil, optionError("Packed", f.Name, "each field of the documents must be ragged in one dimension")
		}
		f.Ragged, f.Shape = false, append([]int{length}, f.Shape[1:]...)
		d.fields = append(d.fields, f)
	}
	d.fields = append(d.fields, Field{Name: "segment_ids", Type: Int32, Shape: []int{length}}, Field{Name: "positions", Type: Int32, Shape: []int{length}})
	if _, err := newFieldSet(d.fields); err != nil {
		return nil, within("Packed", err)
	}
	pieces, err := piecesOf(docs, n, l, length, seed)
	if err != nil {
		return nil, err
	}
	d.rows = rowpacking.Pack(pieces, length)
	return d, nil
}

// piecesOf returns the pieces of all documents, in an order drawn by seed.
func piecesOf(docs Dataset, n int, l *fieldSet, length int, seed uint64) (pieces []rowpacking.Piece, err error) {
	tell := sizesOf(docs)
	if tell == nil {
		return nil, optionError("Packed", fmt.Sprintf("%T", docs), "must be a SizedDataset: wrap it in Sized")
	}
	if uint64(n) > math.MaxUint32 {
		return nil, optionError("Packed", n, "must have at most %d documents", uint32(math.MaxUint32))
	}
	order, key, sizes := permute.New(n), permute.SeedKey(seed), make([]int, l.Ragged)
	bad := func(doc int, err error) error { return fmt.Errorf("nwt: Packed: Sizes of document %d: %w", doc, err) }
	for i := range n {
		doc := order.At(key, i)
		for dim := range sizes {
			sizes[dim] = layout.Untold
		}
		if usercall.Call(func() error { tell(doc, sizes); return l.checkSizes(doc, sizes) }, func(_ []byte, cause error) { err = bad(doc, cause) }); err != nil {
			return nil, err
		}
		for _, size := range sizes[1:] {
			if size != sizes[0] {
				return nil, bad(doc, fmt.Errorf("%d and %d: its fields must be equally long", sizes[0], size))
			}
		}
		for from := 0; from < sizes[0]; from += length {
			pieces = append(pieces, rowpacking.Piece{Doc: uint32(doc), From: uint32(from), Len: uint32(min(length, sizes[0]-from))})
		}
	}
	if len(pieces) == 0 || uint64(len(pieces)) > math.MaxUint32 {
		return nil, optionError("Packed", len(pieces), "the documents must make 1 … %d pieces", uint32(math.MaxUint32))
	}
	return pieces, nil
}

// rows is the dataset that Packed makes.
type rows struct {
	docs   Dataset
	src    *fieldSet
	fields []Field
	length int
	seed   uint64
	clears bool
	tell   func(doc int, sizes []int)
	rows   *rowpacking.Rows
}

func (d *rows) Len() int         { return d.rows.Len() }
func (d *rows) Fields() []Field  { return cloneFields(d.fields) }
func (d *rows) parts() []Dataset { return []Dataset{d.docs} }
func (d *rows) Fingerprint() string {
	return fingerprintOf(fmt.Sprintf("Packed(%d, seed %d)", d.length, d.seed), d.docs)
}
func (d *rows) overwrites() bool { return true }

func (d *rows) Load(ctx context.Context, index int, dst *Sample) error {
	at, own := 0, len(d.src.Columns)
	segments, positions := Values[int32](dst, own), Values[int32](dst, own+1)
	for k, p := range d.rows.At(index) {
		n, err := d.loadPiece(ctx, p, dst, at)
		if err != nil {
			return fmt.Errorf("document %d: %w", p.Doc, err)
		}
		for i := range n {
			segments[at+i], positions[at+i] = int32(k+1), int32(i)
		}
		at += n
	}
	clear(segments[at:])
	clear(positions[at:])
	for f, c := range d.src.Columns {
		clear(dst.Bytes(f)[at*c.Step:])
	}
	return nil
}

// told is what Sizes tells of a document.
type told []int

// loadPiece loads a piece into a row from place at on, and returns how long it is: Load may set a
// smaller size than was told.
func (d *rows) loadPiece(ctx context.Context, p rowpacking.Piece, dst *Sample, at int) (n int, err error) {
	doc := scratchFor(d.src.Layout, d.clears, dst)[0]
	doc.index = int(p.Doc)
	if err := d.docs.Load(ctx, int(p.Doc), doc); err != nil {
		return 0, err
	}
	if err := doc.end(); err != nil {
		return 0, err
	}
	told, err := Scratch(dst, func() (told, error) { return make(told, d.src.Ragged), nil })
	if err != nil {
		return 0, err
	}
	d.tell(int(p.Doc), told)
	from, all := int(p.From), doc.Len(0)
	if all > told[0] {
		return 0, fmt.Errorf("its length %d is more than the %d that Sizes told", all, told[0])
	}
	n = max(0, min(int(p.Len), all-from))
	for f, c := range d.src.Columns {
		if doc.Len(f) != all {
			return 0, fmt.Errorf("field %q has length %d, %q has %d: they must be equal", c.Name, doc.Len(f), d.src.Columns[0].Name, all)
		}
		copy(dst.Bytes(f)[at*c.Step:(at+n)*c.Step], doc.Bytes(f)[from*c.Step:])
	}
	return n, nil
}
