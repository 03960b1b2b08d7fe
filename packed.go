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

// Packed packs documents into rows of length elements, for language models. docs must be a [SizedDataset]
// whose fields are ragged in one dimension and, within a document, equally long. A row has the same
// fields, and two fields of type Int32: "segment_ids" numbers the documents of the row from 1, and is 0
// where the row is empty; "positions" counts the elements of each document from 0. A document longer than
// a row is cut: its pieces count as documents, and each piece loads the whole document again. Which
// pieces share a row depends only on sizes, length and seed: [WithShuffle] shuffles the rows. For streams
// see [PackedStream].
func Packed(docs Dataset, length int, seed uint64) (Dataset, error) {
	if _, ok := docs.(*streamDataset); ok {
		return nil, optionError("Packed", nil, "a stream has no sample by index: pack it by PackedStream")
	}
	n, l, err := checkIndexed(docs)
	if err != nil {
		return nil, within("Packed", err)
	}
	shared, err := newPacking("Packed", l, length, "Sizes")
	if err != nil {
		return nil, err
	}
	d := &rows{packing: shared, docs: docs, seed: seed, clears: !bool(overwrites(docs)), tell: sizesOf(docs)}
	pieces, err := piecesOf(docs, n, l, length, seed)
	if err != nil {
		return nil, err
	}
	d.rows = rowpacking.Pack(pieces, length)
	return d, nil
}

// A packing holds what the rows of Packed and of PackedStream have in common.
type packing struct {
	src    *fieldSet // of the documents
	fields []Field   // fields of a row
	length int
	sizes  string // names the function that returns how long a document is
}

func newPacking(of string, src *fieldSet, length int, sizes string) (packing, error) {
	p := packing{src: src, length: length, sizes: sizes}
	if length < 1 || length > math.MaxInt32 {
		return p, optionError(of, length, "the length of a row must be 1 … %d", math.MaxInt32)
	}
	for _, f := range src.fields {
		if f.raggedDims() != 1 {
			return p, optionError(of, f.Name, "each field of the documents must be ragged in one dimension")
		}
		f.Ragged, f.Shape = false, append([]int{length}, f.Shape[1:]...)
		p.fields = append(p.fields, f)
	}
	p.fields = append(p.fields, Field{Name: "segment_ids", Type: Int32, Shape: []int{length}}, Field{Name: "positions", Type: Int32, Shape: []int{length}})
	if _, err := newFieldSet(p.fields); err != nil {
		return p, within(of, err)
	}
	return p, nil
}

func (p *packing) Fields() []Field { return cloneFields(p.fields) }

// put copies a piece of a loaded document into a row, as the row's piece number k, beginning at place at.
// It returns how long the piece is: Load may set a smaller size than the dataset gave before.
func (p *packing) put(dst, doc *Sample, piece rowpacking.Piece, told, k, at int) (n int, err error) {
	if err := doc.end(); err != nil {
		return 0, err
	}
	from, all := int(piece.From), doc.Len(0)
	if all > told {
		return 0, fmt.Errorf("its length %d is more than the %d that %s told", all, told, p.sizes)
	}
	n = max(0, min(int(piece.Len), all-from))
	for f, c := range p.src.Columns {
		if doc.Len(f) != all {
			return 0, fmt.Errorf("field %q has length %d, %q has %d: they must be equal", c.Name, doc.Len(f), p.src.Columns[0].Name, all)
		}
		copy(dst.Bytes(f)[at*c.Step:(at+n)*c.Step], doc.Bytes(f)[from*c.Step:])
	}
	segments, positions := p.numbers(dst)
	for i := range n {
		segments[at+i], positions[at+i] = int32(k+1), int32(i)
	}
	return n, nil
}

// end clears a row, beginning at place at.
func (p *packing) end(dst *Sample, at int) {
	segments, positions := p.numbers(dst)
	clear(segments[at:])
	clear(positions[at:])
	for f, c := range p.src.Columns {
		clear(dst.Bytes(f)[at*c.Step:])
	}
}

func (p *packing) numbers(dst *Sample) (segments, positions []int32) {
	own := len(p.src.Columns)
	return Values[int32](dst, own), Values[int32](dst, own+1)
}

// piecesOf returns the pieces of all documents, in a random order that depends on seed.
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

// rows is the dataset that Packed returns.
type rows struct {
	packing
	docs   Dataset
	seed   uint64
	clears bool
	tell   func(doc int, sizes []int)
	rows   *rowpacking.Rows
}

func (d *rows) Len() int         { return d.rows.Len() }
func (d *rows) parts() []Dataset { return []Dataset{d.docs} }
func (d *rows) Fingerprint() string {
	return fingerprintOf(fmt.Sprintf("Packed(%d, seed %d)", d.length, d.seed), d.docs)
}
func (d *rows) overwrites() bool { return true }

// locate finds nothing: a row has parts of many documents.
func (d *rows) locate(int) (ds Dataset, there int, in string) { return nil, 0, "" }

func (d *rows) Load(ctx context.Context, index int, dst *Sample) error {
	at := 0
	for k, p := range d.rows.At(index) {
		n, err := d.loadPiece(ctx, p, dst, k, at)
		if err != nil {
			return fmt.Errorf("document %d: %w", p.Doc, err)
		}
		at += n
	}
	d.end(dst, at)
	return nil
}

// told is the size that Sizes sets for a document.
type told []int

// loadPiece loads a piece into a row: see put.
func (d *rows) loadPiece(ctx context.Context, p rowpacking.Piece, dst *Sample, k, at int) (n int, err error) {
	doc := scratchFor(d.src.Layout, d.clears, dst)[0]
	doc.index = int(p.Doc)
	if err := d.docs.Load(ctx, int(p.Doc), doc); err != nil {
		return 0, err
	}
	told, err := Scratch(dst, func() (told, error) { return make(told, d.src.Ragged), nil })
	if err != nil {
		return 0, err
	}
	d.tell(int(p.Doc), told)
	return d.put(dst, doc, p, told[0], k, at)
}
