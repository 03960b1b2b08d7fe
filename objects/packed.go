package objects

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"

	"gocloud.dev/blob"

	"github.com/nwt-go/nwt"
)

// An Index holds the places of samples in large objects. A sample takes 16 bytes. The zero value is an
// empty index. Don't add samples to an index that a dataset uses.
type Index struct {
	objects Keys
	numbers map[string]uint32 // numbers of the objects, by key
	parts   []part
	bad     error // the error about the first impossible part
	longest uint32
}

type part struct {
	offset int64
	length uint32
	object uint32
}

// Add appends a sample. The sample begins at the given offset in the object named key. A sample has at most
// 2³²−1 bytes. [Packed] returns an error if offset or length is negative or too large.
func (x *Index) Add(key string, offset, length int64) {
	if x.bad == nil && (offset < 0 || length < 0 || length > math.MaxUint32 || offset > math.MaxInt64-length) {
		x.bad = argument("Index.Add", key, "%d bytes at %d: the offset must be at least 0, the length 0 … %d", length, offset, uint32(math.MaxUint32))
	}
	object, known := x.numbers[key]
	if !known {
		if x.numbers == nil {
			x.numbers = map[string]uint32{}
		}
		object = uint32(x.objects.Len())
		x.objects.Add(key)
		x.numbers[key] = object
	}
	x.parts = append(x.parts, part{offset, uint32(length), object})
	x.longest = max(x.longest, uint32(length))
}

// Len returns the number of samples.
func (x *Index) Len() int { return len(x.parts) }

// Packed makes a dataset of samples that are packed in large objects. Sample i is the i-th sample that was
// added to the index, from 0. Samples are read with range requests. If a worker loads several samples of an
// object together, and they lie at most 64 KiB apart, it reads them in one request of up to 8 MiB. An epoch
// in the order of the objects therefore needs fewer requests than a shuffled epoch.
//
// If an object's size or time of modification changes after it was first read, reading the object fails.
func Packed(bucket *blob.Bucket, index *Index, fields []nwt.Field, decode Decode, opts ...Option) (nwt.BatchDataset, error) {
	switch {
	case index == nil || index.Len() == 0:
		return nil, argument("Packed: index", nil, "must hold at least one sample")
	case index.bad != nil:
		return nil, index.bad
	}
	s, err := newStore("Packed", bucket, fields, decode, opts)
	if err != nil {
		return nil, err
	}
	if int64(index.longest) > s.maxBytes {
		return nil, argument("Packed: index", nil, "a sample has %d bytes, WithMaxBytes allows %d", index.longest, s.maxBytes)
	}
	return &packed{store: s, index: index, versions: make([]version, index.objects.Len())}, nil
}

const (
	// maxGap is the largest gap between parts that are read in one request: reading 64 KiB in vain takes
	// about a millisecond, another request takes tens of milliseconds.
	maxGap = 64 << 10
	// maxRange bounds a request for several parts, and so a worker's buffer.
	maxRange = 8 << 20
)

type packed struct {
	*store
	index *Index

	mu       sync.Mutex
	versions []version // of the objects when they were first read; guarded by mu
}

// fetch reads a part of an object. All parts of an object must come from one version, because the offsets
// in the index would be wrong for another.
func (d *packed) fetch(ctx context.Context, buf *buffer, object uint32, offset, length int64) error {
	d.mu.Lock()
	first := d.versions[object]
	d.mu.Unlock()
	is, err := d.store.fetch(ctx, buf, d.index.objects.At(int(object)), offset, length, first)
	if err != nil || length == 0 || first != (version{}) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.versions[object] == (version{}) { // otherwise another worker was faster
		d.versions[object] = is
	}
	return d.versions[object].holds(is)
}

func (d *packed) Len() int { return d.index.Len() }

func (d *packed) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	p := d.index.parts[index]
	key := d.index.objects.At(int(p.object))
	buf := d.take()
	defer d.give(buf)
	if err := d.fetch(ctx, buf, p.object, p.offset, int64(p.length)); err != nil {
		return d.error(p, err, temporary(err))
	}
	if err := d.decode(ctx, key, buf.data, dst); err != nil {
		return d.error(p, err, false)
	}
	return nil
}

// LoadMany reads parts that are neighbours together, in the order of the objects.
func (d *packed) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	parts := d.index.parts
	buf := d.take()
	defer d.give(buf)
	buf.places = buf.places[:0]
	for place := range indices {
		buf.places = append(buf.places, place)
	}
	slices.SortFunc(buf.places, func(a, b int) int {
		p, q := parts[indices[a]], parts[indices[b]]
		return cmp.Or(cmp.Compare(p.object, q.object), cmp.Compare(p.offset, q.offset))
	})
	for rest := buf.places; len(rest) > 0; {
		first := parts[indices[rest[0]]]
		end, n := first.end(), 1
		for ; n < len(rest); n++ {
			p := parts[indices[rest[n]]]
			if p.object != first.object || p.offset-end > maxGap || p.end()-first.offset > maxRange {
				break
			}
			end = max(end, p.end())
		}
		key := d.index.objects.At(int(first.object))
		if err := d.fetch(ctx, buf, first.object, first.offset, end-first.offset); err != nil {
			return d.error(first, err, temporary(err))
		}
		for _, place := range rest[:n] {
			p := parts[indices[place]]
			from, to := p.offset-first.offset, p.end()-first.offset
			if err := d.decode(ctx, key, buf.data[from:to:to], dst[place]); err != nil {
				return d.error(p, err, false)
			}
		}
		rest = rest[n:]
	}
	return nil
}

func (p part) end() int64 { return p.offset + int64(p.length) }

func (d *packed) error(p part, err error, temporary bool) error {
	return &Error{Key: d.index.objects.At(int(p.object)), Offset: p.offset, Length: int64(p.length), Err: err, temporary: temporary}
}
