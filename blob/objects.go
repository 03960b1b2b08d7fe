package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"gocloud.dev/blob"

	"github.com/nwt-go/nwt"
)

// A Decode makes a sample of its bytes, under the rules of nwt.Dataset's Load.
// The data is valid during the call only. dst.Index tells which sample it is.
type Decode func(ctx context.Context, key string, data []byte, dst *nwt.Sample) error

// Objects is a dataset of objects: sample i is all of the object keys.At(i).
func Objects(bucket *blob.Bucket, keys *Keys, fields []nwt.Field, decode Decode) (nwt.Dataset, error) {
	if keys == nil || keys.Len() == 0 {
		return nil, argument("Objects", "keys", "must hold at least one key")
	}
	s, err := newStore("Objects", bucket, fields, decode)
	if err != nil {
		return nil, err
	}
	return &objects{s, keys}, nil
}

type objects struct {
	*store
	keys *Keys
}

func (d *objects) Len() int { return d.keys.Len() }

func (d *objects) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	key := d.keys.At(index)
	buf := d.take()
	defer d.buffers.Put(buf)
	err := d.fetch(ctx, buf, key, 0, -1)
	if err != nil {
		return &Error{Key: key, Length: -1, Err: err, temporary: temporary(err)}
	}
	if err := d.decode(ctx, key, buf.data, dst); err != nil {
		return &Error{Key: key, Length: -1, Err: err}
	}
	return nil
}

// A store is what datasets of one bucket have in common.
type store struct {
	bucket  *blob.Bucket
	fields  []nwt.Field
	decode  Decode
	buffers sync.Pool // of *buffer: about as many as there are workers
}

// A buffer is what one call needs.
type buffer struct {
	data   []byte
	places []int // of a LoadBatch
}

func newStore(function string, bucket *blob.Bucket, fields []nwt.Field, decode Decode) (*store, error) {
	switch {
	case bucket == nil:
		return nil, argument(function, "bucket", "must not be nil")
	case decode == nil:
		return nil, argument(function, "decode", "must not be nil")
	}
	return &store{bucket: bucket, fields: slices.Clone(fields), decode: decode}, nil
}

func (s *store) Fields() []nwt.Field { return s.fields }

func (s *store) take() *buffer {
	if b, ok := s.buffers.Get().(*buffer); ok {
		return b
	}
	return &buffer{}
}

// fetch reads a part of an object into buf; length −1 means all of it.
func (s *store) fetch(ctx context.Context, buf *buffer, key string, offset, length int64) error {
	buf.data = buf.data[:0]
	if length == 0 {
		return nil
	}
	r, err := s.bucket.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	want := length
	if want < 0 {
		want = r.Size() // −1 where the store doesn't know it before the end
	}
	// To the end, not to the last byte: there checksums are compared, and only
	// then is the connection used again.
	buf.data = slices.Grow(buf.data, int(min(max(want, 0), maxTrusted))+1)
	for {
		n, err := r.Read(buf.data[len(buf.data):cap(buf.data)])
		buf.data = buf.data[:len(buf.data)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", len(buf.data), err)
		}
		if len(buf.data) == cap(buf.data) {
			buf.data = slices.Grow(buf.data, 1)
		}
	}
	if got := int64(len(buf.data)); want >= 0 && got != want {
		if length > 0 && offset+got == r.Size() {
			return fmt.Errorf("%w %d bytes", errShort, r.Size())
		}
		return fmt.Errorf("%d bytes came, not %d: %w", got, want, io.ErrUnexpectedEOF)
	}
	return nil
}

// errShort is permanent: the range lies beyond the object's end.
var errShort = errors.New("the object has only")

// maxTrusted is how much memory a buffer gets on a header's word; more as bytes
// come.
const maxTrusted = 64 << 20
