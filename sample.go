package nwt

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/oncelog"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/shards"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A Sample is a place in a batch, valid only during the Load that gets it.
type Sample struct {
	common       *common
	place, index int
	scope        uint64 // distinguishes parts of a dataset, for Scratch: see inner

	seeded bool
	rand   *rand.Rand // draws from pcg, which is seeded when a sample first uses it
	pcg    rand.PCG

	outer  *Sample     // for a scratch sample: the sample that it is loaded for, and whose Rand it shares
	blocks [][]*Sample // one block for each layout that scratchFor or a Zip has asked for
	block  int         // the one that was asked for last
	alone  *common     // used by loadAlone
}

// A span says which positions of which epoch the places of a slot are. Apart from the dataset, a sample
// depends on nothing else.
type span struct {
	epoch     int
	from      int    // position of place 0 in the epoch, over all ranks
	positions []int  // position of each place, if they don't follow one another, as in a stream; otherwise nil
	key       uint64 // seeds Sample.Rand; it stands for the seed
}

// position returns the position of a place.
func (s *span) position(place int) int {
	if s.positions != nil {
		return s.positions[place]
	}
	return s.from + place
}

// common holds what is the same for all samples that one worker loads into one slot. Only place and index
// must then be set for each sample. common doesn't change while any of them is being loaded, since a
// LoadMany may load them in several goroutines.
type common struct {
	mem     layout.Memory // the slot's, which the batch reads as places
	records []*record     // the batch's records, for a stream

	span   span
	worker int

	scratch *scratchValues // the values that Scratch keeps, and the call's context
	log     *slog.Logger
	drawn   func(log *slog.Logger) // called by Rand and Epoch; nil unless the samples are to be kept
}

// Bytes returns the memory of a field of the sample.
func (s *Sample) Bytes(field int) []byte {
	b, _ := s.bytesOf(field)
	return b
}

func (s *Sample) bytesOf(field int) ([]byte, *layout.Column) {
	c := s.common.column(field)
	from := s.common.mem.Offsets[field] + s.place*c.Size
	return s.common.mem.Bytes[from : from+c.Size : from+c.Size], c
}

func (c *common) column(field int) *layout.Column {
	if uint(field) >= uint(len(c.mem.Columns)) {
		panicOutOfRange(c.mem.Layout, field)
	}
	return &c.mem.Columns[field]
}

// Shape returns the shape of a field's memory, which fits the longest sample allowed. With a [SizedDataset],
// it fits the batch's longest sample. A smaller sample begins at index 0 of each dimension. Don't change the
// slice.
func (s *Sample) Shape(field int) []int { return s.common.column(field).Dims }

// Fields returns the dataset's fields, with the shapes of [Sample.Shape].
func (s *Sample) Fields() (fields []Field) {
	for _, c := range s.common.mem.Columns {
		fields = append(fields, Field{Name: c.Name, Type: DType(c.Type), Shape: slices.Clone(c.Dims), RaggedDims: c.Free})
	}
	return fields
}

// adjoin reports whether samples are contiguous in memory.
func adjoin(samples []*Sample) bool {
	first := samples[0]
	for i, s := range samples {
		if s.common != first.common || s.place != first.place+i {
			return false
		}
	}
	return true
}

// copyTo copies the loaded content of s to a sample with the same fields.
func (s *Sample) copyTo(dst *Sample) error {
	if err := s.end(); err != nil {
		return err
	}
	return tooLong(s.common.mem.CopySample(s.place, &dst.common.mem, dst.place), dst.index)
}

// tooLong returns an error that names a sample longer than its sizes.
func tooLong(err error, index int) error {
	if _, ok := err.(layout.TooLongError); ok {
		return fmt.Errorf("nwt: %w for sample %d", err, index)
	}
	return err
}

// unpack calls [layout.Memory.Unpack] for s.
func (s *Sample) unpack(src []byte) (rest []byte, err error) {
	rest, err = s.common.mem.Unpack(s.place, src)
	return rest, tooLong(err, s.index)
}

// SetLen sets the length of a field with one ragged dimension. Load must call it for each such field. It
// panics for other fields, and if n is out of range or above the size that Sizes gave.
func (s *Sample) SetLen(field, n int) {
	c := s.common.column(field)
	if c.Free != 1 {
		s.panicNotRagged("SetLen", c, field, n)
	}
	s.setLen(field, c, 0, n)
}

// SetShape sets all ragged dimensions of a field, as SetLen does for one.
func (s *Sample) SetShape(field int, dims ...int) {
	c := s.common.column(field)
	if c.Free == 0 || c.Free != len(dims) {
		s.panicNotRagged("SetShape", c, field, dims...)
	}
	for d, n := range dims {
		s.setLen(field, c, d, n)
	}
}

func (s *Sample) setLen(field int, c *layout.Column, dim, n int) {
	if longest := s.common.mem.LongestOf(c, dim, s.place); n < 0 || n > longest {
		s.panicTooLong(field, c, dim, n, longest)
	}
	*s.common.mem.Len(c, dim, s.place) = int32(n)
}

// panicNotRagged and panicTooLong are separate functions, so that the arguments of their messages don't
// escape to the heap.
//
//go:noinline
func (s *Sample) panicNotRagged(method string, c *layout.Column, field int, dims ...int) {
	call := fmt.Sprintf("nwt: %s(%d, %s)", method, field, strings.Trim(fmt.Sprint(slices.Clone(dims)), "[]"))
	if c.Free == 0 {
		panic(fmt.Sprintf("%s: field %q isn't ragged: AddRagged or Field.RaggedDims makes it so", call, c.Name))
	}
	panic(fmt.Sprintf("%s: field %q has %d ragged dimensions: call SetShape with a length for each", call, c.Name, c.Free))
}

//go:noinline
func (s *Sample) panicTooLong(field int, c *layout.Column, dim, n, longest int) {
	call := fmt.Sprintf("nwt: SetLen(%d, %d)", field, n)
	if c.Free > 1 {
		call = fmt.Sprintf("nwt: SetShape(%d, …): dimension %d", field, dim)
	}
	if s.common.mem.Told != nil && n > 0 {
		panic(fmt.Sprintf("%s: length %d of field %q is more than the %d that Sizes gave for sample %d", call, n, c.Name, longest, s.index))
	}
	panic(fmt.Sprintf("%s: length %d of field %q is out of range 0 … %d", call, n, c.Name, longest))
}

// Len returns the length that was set in ragged dimension dim of a field, or −1 if none was set. The first
// dimension has number 0.
func (s *Sample) Len(field, dim int) int {
	c := s.common.column(field)
	checkRagged(c, "Len", field, dim)
	return int(*s.common.mem.Len(c, dim, s.place))
}

// checkRagged panics if a dimension isn't ragged.
func checkRagged(c *layout.Column, method string, field, dim int) {
	if dim < 0 || dim >= c.Free {
		panic(fmt.Sprintf("nwt: %s(%d, %d): field %q has %d ragged dimensions", method, field, dim, c.Name, c.Free))
	}
}

// Rand returns a generator for augmentation. Its seed depends only on the loader's seed, the epoch and
// [Sample.Position], not on workers or timing.
func (s *Sample) Rand() *rand.Rand {
	if s.outer != nil {
		return s.outer.Rand()
	}
	if !s.seeded {
		if s.seeded = true; s.rand == nil {
			s.rand = rand.New(&s.pcg)
		}
		key := permute.EpochKey(s.common.span.key, s.common.span.epoch) ^ sampleRand + uint64(s.Position())*permute.Golden
		s.pcg.Seed(permute.Mix64(key), permute.Mix64(key^permute.Golden))
		if s.common.drawn != nil {
			s.common.drawn(s.common.log)
		}
	}
	return s.rand
}

// warnOfDraws returns a function that warns, once, that a sample that is kept depends on its epoch.
func warnOfDraws(by string) func(log *slog.Logger) {
	var once oncelog.Log
	return func(log *slog.Logger) {
		if once.First(by) {
			log.Warn("nwt: a sample that is kept asks for Rand or Epoch, so it stays that of epoch 0: augment in a Map over what keeps it", "by", by)
		}
	}
}

// sampleRand makes Rand differ from the generators of samplers that hash the same seed, epoch and
// position. Without it, the draw of a Weighted sampler would determine the sample's augmentation. It is
// the fractional part of π.
const sampleRand = 0x243f6a8885a308d3

// Index returns the sample's index in its dataset: the index that Load got.
func (s *Sample) Index() int { return s.index }

// Position returns the sample's position in the epoch, over all ranks. For a stream, it returns Index.
func (s *Sample) Position() int {
	if s.outer != nil {
		return s.outer.Position()
	}
	return s.common.span.position(s.place)
}

// Epoch returns the epoch that the sample is loaded for.
func (s *Sample) Epoch() int {
	switch {
	case s.outer != nil:
		return s.outer.Epoch()
	case s.common.drawn != nil:
		s.common.drawn(s.common.log)
	}
	return s.common.span.epoch
}

// Context returns the context of the Load that loads the sample, for code that is given only the sample.
// With workers, [WithTimeout] ends it.
func (s *Sample) Context() context.Context { return s.common.scratch.ctx }

// Worker returns the worker's number, from 0; 0 if no worker loads the sample.
func (s *Sample) Worker() int { return s.common.worker }

// begin makes s another sample of its batch.
func (s *Sample) begin(place, index int) {
	s.setPlace(place, index)
	if s.common.mem.Ragged > 0 {
		s.common.mem.UnsetLens(place, place+1)
	}
}

// setPlace does what begin does, but doesn't reset the lengths of ragged fields. If Load is quick, each
// store costs noticeable time: scope isn't set, since only a panic leaves it changed.
func (s *Sample) setPlace(place, index int) {
	s.place, s.index, s.seeded = place, index, false
}

// end completes a loaded sample: it checks that Load has set the lengths of ragged fields, and clears
// what lies behind them.
func (s *Sample) end() error {
	f := s.common.mem.ClearRest(s.place)
	if f < 0 {
		return nil
	}
	c, call := &s.common.mem.Columns[f], "SetLen(%d, n)"
	if c.Free > 1 {
		call = "SetShape(%d, …)"
	}
	return fmt.Errorf("nwt: Load did not call "+call+" for the ragged field %q", f, c.Name)
}

// newSamples makes n samples whose places are set later.
func newSamples(c *common, n int) []*Sample {
	memory, samples := make([]Sample, n), make([]*Sample, n)
	for i := range memory {
		memory[i].common = c
		samples[i] = &memory[i]
	}
	return samples
}

// newBlock makes n samples with their own memory.
func newBlock(l *layout.Layout, n int) []*Sample {
	return newSamples(&common{mem: layout.New(l, n), span: span{key: permute.SeedKey(0)}, scratch: &scratchValues{}, log: slog.Default()}, n)
}

// scratchFor returns samples of another layout, one for each of dst, which are loaded on the way to dst.
// They have the epoch, indices and worker of dst. They live as long as the first sample of dst, which
// belongs to a worker, so nothing is allocated or locked per sample. If clears is set, they are zero.
func scratchFor(l *layout.Layout, clears bool, dst ...*Sample) []*Sample {
	block := dst[0].blockOf(l, len(dst), newBlock)
	lend(block, clears, dst...)
	return block
}

// lend readies samples that are loaded on the way to dst, one for each.
func lend(block []*Sample, clears bool, dst ...*Sample) {
	first := dst[0]
	block[0].common.span.epoch, block[0].common.worker, block[0].common.scratch, block[0].common.log = first.common.span.epoch, first.common.worker, first.common.scratch, first.common.log
	for k, s := range block {
		s.outer = dst[k]
		s.begin(k, dst[k].index)
		s.scope = inner(dst[k].scope, 0)
	}
	if clears {
		block[0].common.mem.Clear(0, len(block))
	}
}

// blockOf returns n samples of another layout, which are kept with s. If s has fewer so far, create makes
// n.
func (s *Sample) blockOf(l *layout.Layout, n int, create func(l *layout.Layout, n int) []*Sample) []*Sample {
	for range s.blocks {
		s.block = (s.block + 1) % len(s.blocks) // the parts of a Zip ask in turn
		if b := s.blocks[s.block]; b[0].common.mem.Layout == l {
			if len(b) < n {
				s.blocks[s.block] = create(l, n)
			}
			return s.blocks[s.block][:n]
		}
	}
	s.block = len(s.blocks)
	s.blocks = append(s.blocks, create(l, n))
	return s.blocks[s.block]
}

// Scratch returns a value that Load needs and that goroutines can't share, such as a decoder. The first call
// in a worker calls create to make the value, and later calls return the same value. A worker has one value
// per type T and dataset. If create fails, Scratch keeps no value. A call of create may take ten times as long
// as [WithTimeout] says. If the value is an [io.Closer], it is closed when the worker ends, and after a panic
// in Load.
func Scratch[T any](s *Sample, create func() (T, error)) (T, error) {
	if v := find[T](s); v != nil {
		return *v, nil
	}
	if h := s.common.scratch.clock; h != nil {
		h.pause()
		defer h.resume()
	}
	v, err := create()
	if err != nil {
		return v, err
	}
	kept := &v
	s.common.scratch.list = append(s.common.scratch.list, local{s.scope, kept, func() error {
		if c, ok := any(*kept).(io.Closer); ok {
			return c.Close()
		}
		return nil
	}})
	return v, nil
}

// find returns the value that is kept for s, or nil if there is none.
func find[T any](s *Sample) *T {
	for i := range s.common.scratch.list {
		if kept, ok := s.common.scratch.list[i].value.(*T); ok && s.common.scratch.list[i].scope == s.scope {
			return kept
		}
	}
	return nil
}

// scratchValues holds the values that Scratch keeps for a worker, and the context of its call. It belongs to the
// worker's goroutine.
type scratchValues struct {
	ctx   context.Context // of the call of Load or LoadMany under way
	list  []local
	clock interface { // pauses while a value is made; nil unless WithTimeout bounds calls
		pause()
		resume()
	}
}

// close closes all values, the latest first.
func (l *scratchValues) close(log *slog.Logger) {
	for n := len(l.list) - 1; n >= 0; n-- {
		last := l.list[n]
		l.list[n] = local{}
		l.list = l.list[:n]
		last.end(log)
	}
}

type local struct {
	scope uint64
	value any // a pointer to the value
	close func() error
}

func (l *local) end(log *slog.Logger) {
	usercall.Call(l.close, func(_ []byte, err error) { log.Warn("nwt: what Scratch kept could not be closed", "error", err) })
}

// inner returns the scope of a part of a dataset whose scope is outer; the scope of the loader's own
// dataset is 0.
func inner(scope uint64, part int) uint64 {
	return permute.Mix64(scope + uint64(part+1)*permute.Golden)
}

// failure makes the LoadError of a sample that couldn't be loaded.
func (s *Sample) failure(err error, stack []byte) *LoadError {
	if s.common.records != nil {
		err = s.common.records[s.place].Of(err)
	}
	return &LoadError{Index: s.index, Position: s.Position(), Epoch: s.common.span.epoch, Worker: s.common.worker, Err: err, Stack: stack}
}

// A record is a record of a stream, with what is known of it.
type record = shards.Item[Record]

// A Record is one record of a shard. The loader reuses records: Next gets a record with the contents that an
// earlier call left in it.
type Record struct {
	Data  []byte // append to Data[:0] to reuse its memory
	Value any    // anything else. It doesn't count towards the limit of Data that is read ahead
}
