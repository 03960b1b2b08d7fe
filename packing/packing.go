// Package packing packs documents of different lengths into rows of one length, for language models. [New]
// packs the documents of a dataset, with almost no empty space. [NewStream] puts the documents of a stream
// one after the other.
//
// The documents' fields must be ragged in one dimension. Within a document, all fields must be equally long.
// A row has the same fields, and two more of type [nwt.Int32]:
//
//   - "segment_ids" numbers the documents of the row from 1, without a gap. It is 0 where the row is empty.
//   - "positions" counts the elements of each document from 0.
//
// If a document is cut, or continues in the next row, each piece counts as a document. The whole document is
// loaded anew for each piece.
package packing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/usercall"
)

func optionError(option string, value any, format string, args ...any) error {
	return &nwt.ArgumentError{Name: "packing." + option, Value: value, Reason: fmt.Sprintf(format, args...)}
}

// New packs the documents of a [nwt.SizedDataset] into rows of the given length, in elements. If a document
// is longer than a row, New cuts it into pieces. Only sizes, length and seed decide which pieces share a row.
// [nwt.WithShuffle] then shuffles whole rows. New asks for the sizes of all documents, and keeps 12 bytes per
// piece.
func New(docs nwt.Dataset, length int, seed uint64) (nwt.Dataset, error) {
	all, err := nwt.Concat(docs) // checks docs; unlike Cached, it is a SizedDataset if its part has sizes
	if err != nil {
		return nil, within(err)
	}
	rows, err := rowsOf("New", docs.Fields(), length, "Sizes")
	if err != nil {
		return nil, err
	}
	sized, ok := all.(nwt.SizedDataset)
	if !ok {
		return nil, optionError("New", fmt.Sprintf("%T", docs), "must be a SizedDataset: wrap it in nwt.Sized")
	}
	pieces, err := piecesOf(sized, rows, seed)
	if err != nil {
		return nil, err
	}
	return nwt.WritesAll(&dataset{rows, docs, sized, seed, pack(pieces, length)}), nil
}

// within makes an error of nwt.Concat one of New.
func within(err error) error {
	var wrong *nwt.ArgumentError
	if !errors.As(err, &wrong) {
		return err
	}
	c := *wrong
	c.Name = "packing.New: " + strings.TrimPrefix(c.Name, "Concat: dataset 0: ")
	return &c
}

// rowFields are the fields of rows, which hold pieces of documents.
type rowFields struct {
	docs   []nwt.Field
	rows   []nwt.Field
	length int
	sizes  string // names the function that returns how long a document is
	room   *room
}

// A room counts the rows that have more room than their documents' sizes said, and says so once.
type room struct {
	rows, mostly atomic.Int64 // mostly: more than half of what the sizes said is room
	said         atomic.Bool
}

// fewMostly is how many rows may be mostly room before that is said.
const fewMostly = 4

// count counts a row that has n elements, where the sizes of its documents promised told.
func (r *rowFields) count(n, told int) {
	rows, mostly := r.room.rows.Add(1), r.room.mostly.Load()
	if 2*n < told {
		mostly = r.room.mostly.Add(1)
	}
	if mostly > fewMostly && mostly > rows/16 && !r.room.said.Swap(true) {
		slog.Default().Warn("packing: rows are mostly room: "+r.sizes+" returns more than the lengths that Load sets", "rows", rows, "mostly room", mostly)
	}
}

func rowsOf(of string, docs []nwt.Field, length int, sizes string) (r rowFields, err error) {
	r = rowFields{docs: docs, length: length, sizes: sizes, room: &room{}}
	if length < 1 || length > math.MaxInt32 {
		return r, optionError(of, length, "the length of a row must be 1 … %d", math.MaxInt32)
	}
	for _, f := range docs {
		if f.RaggedDims != 1 || len(f.Shape) == 0 {
			return r, optionError(of, strconv.Quote(f.Name), "isn't ragged in one dimension, as each field of the documents must be")
		}
		f.RaggedDims, f.Shape = 0, append([]int{length}, f.Shape[1:]...)
		r.rows = append(r.rows, f)
	}
	for _, name := range []string{"segment_ids", "positions"} {
		if slices.ContainsFunc(docs, func(f nwt.Field) bool { return f.Name == name }) {
			return r, optionError(of, strconv.Quote(name), "rows get a field of that name: the documents must not have one")
		}
		r.rows = append(r.rows, nwt.Field{Name: name, Type: nwt.Int32, Shape: []int{length}})
	}
	return r, nil
}

// Fields returns the fields of a row.
func (r *rowFields) Fields() []nwt.Field { return slices.Clone(r.rows) }

// put copies a piece of a loaded document into a row, as the row's segment id, beginning at place at. It
// returns how long the piece is: Load may set a smaller size than told, which the dataset gave before.
func (r *rowFields) put(dst, doc *nwt.Sample, p piece, told, id, at int) (n int, err error) {
	from, all := int(p.from), doc.Len(0, 0)
	if all > told {
		return 0, fmt.Errorf("its length %d is more than the %d that %s gave", all, told, r.sizes)
	}
	n = max(0, min(int(p.len), all-from))
	for f := range r.docs {
		if doc.Len(f, 0) != all {
			return 0, fmt.Errorf("field %q has length %d, but %q has %d", r.docs[f].Name, doc.Len(f, 0), r.docs[0].Name, all)
		}
		row := dst.Bytes(f)
		step := len(row) / r.length
		copy(row[at*step:(at+n)*step], doc.Bytes(f)[from*step:])
	}
	segments, positions := r.numbers(dst)
	for i := range n {
		segments[at+i], positions[at+i] = int32(id), int32(i)
	}
	return n, nil
}

// end clears a row, beginning at place at.
func (r *rowFields) end(dst *nwt.Sample, at int) {
	for f := range r.rows {
		row := dst.Bytes(f)
		clear(row[at*(len(row)/r.length):])
	}
}

func (r *rowFields) numbers(dst *nwt.Sample) (segments, positions []int32) {
	own := len(r.docs)
	return nwt.Values[int32](dst, own), nwt.Values[int32](dst, own+1)
}

// piecesOf returns the pieces of all documents, in a random order that depends on seed.
func piecesOf(docs nwt.SizedDataset, rows rowFields, seed uint64) (pieces []piece, err error) {
	n := docs.Len()
	if uint64(n) > math.MaxUint32 {
		return nil, optionError("New", n, "there must be at most %d documents", uint32(math.MaxUint32))
	}
	order, key, sizes := permute.New(n), permute.SeedKey(seed), make([]int, len(rows.docs))
	for i := range n {
		doc := order.At(key, i)
		usercall.Call(func() error { return rows.ask(docs, doc, sizes) }, func(_ []byte, cause error) {
			err = fmt.Errorf("packing: New: Sizes of document %d: %w", doc, cause)
		})
		if err != nil {
			return nil, err
		}
		for from := 0; from < sizes[0]; from += rows.length {
			pieces = append(pieces, piece{uint32(doc), uint32(from), uint32(min(rows.length, sizes[0]-from))})
		}
	}
	if len(pieces) == 0 || uint64(len(pieces)) > math.MaxUint32 {
		return nil, optionError("New", len(pieces), "the documents must make 1 … %d pieces", uint32(math.MaxUint32))
	}
	return pieces, nil
}

// ask asks for the sizes of a document's fields, and checks them.
func (r *rowFields) ask(docs nwt.SizedDataset, doc int, sizes []int) error {
	for f := range sizes {
		sizes[f] = -1 // not set
	}
	docs.Sizes(doc, sizes)
	for f, size := range sizes {
		if most := r.docs[f].Shape[0]; size < 0 || size > most {
			return fmt.Errorf("length %d of field %q is out of range 0 … %d", size, r.docs[f].Name, most)
		}
		if size != sizes[0] {
			return fmt.Errorf("%d and %d: its fields must have the same length", sizes[0], size)
		}
	}
	return nil
}

// dataset is the dataset that New returns.
type dataset struct {
	rowFields
	docs  nwt.Dataset
	sized nwt.SizedDataset
	seed  uint64
	plan  *plan
}

func (d *dataset) Len() int { return d.plan.rows() }

// Unwrap returns the documents.
func (d *dataset) Unwrap() []nwt.Dataset { return []nwt.Dataset{d.docs} }

func (d *dataset) Fingerprint() string {
	return fmt.Sprintf("packing.New(%d, seed %d) %q", d.length, d.seed, fingerprint(d.docs))
}

func fingerprint(of any) string {
	if f, ok := of.(nwt.Fingerprinter); ok {
		return f.Fingerprint()
	}
	return ""
}

func (d *dataset) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	at, id, told := 0, 1, 0
	for _, p := range d.plan.at(index) {
		n, err := d.loadPiece(ctx, p, dst, id, at)
		if err != nil {
			return fmt.Errorf("document %d: %w", p.doc, err)
		}
		at, told = at+n, told+int(p.len)
		if n > 0 {
			id++
		}
	}
	d.end(dst, at)
	d.count(at, told)
	return nil
}

// told holds the sizes of a document.
type told []int

// loadPiece loads a piece into a row: see put.
func (d *dataset) loadPiece(ctx context.Context, p piece, dst *nwt.Sample, id, at int) (n int, err error) {
	defer usercall.Naming(func() string { return fmt.Sprint("document ", p.doc) })
	doc, err := nwt.LoadPart(ctx, d.docs, int(p.doc), dst)
	if err != nil {
		return 0, err
	}
	sizes, err := nwt.Scratch(dst, func() (told, error) { return make(told, len(d.rowFields.docs)), nil })
	if err != nil {
		return 0, err
	}
	d.sized.Sizes(int(p.doc), sizes)
	return d.put(dst, doc, p, sizes[0], id, at)
}
