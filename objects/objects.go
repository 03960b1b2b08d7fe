package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"gocloud.dev/blob"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
)

// A Decode makes a sample from its bytes, under the rules of nwt.Dataset's Load. The bytes are valid only
// during the call. dst.Index returns the index of the sample.
type Decode func(ctx context.Context, key string, data []byte, dst *nwt.Sample) error

// An Option changes how objects are read. If an option is repeated, the last one wins.
type Option func(*store)

// WithMaxBytes sets how many bytes a sample may have. The default is 1 GiB. If an object is larger, loading
// fails before the object is read. If the store doesn't know the object's size, the error comes once the
// data exceeds the limit.
func WithMaxBytes(n int64) Option { return func(s *store) { s.maxBytes = n } }

// New makes a dataset of whole objects: sample i is the object keys.At(i).
func New(bucket *blob.Bucket, keys *Keys, fields []nwt.Field, decode Decode, opts ...Option) (nwt.Dataset, error) {
	if keys == nil || keys.Len() == 0 {
		return nil, argument("New: keys", nil, "must hold at least one key: List finds none if no key begins with its prefix")
	}
	s, err := newStore("New", bucket, fields, decode, opts)
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
	defer d.give(buf)
	if _, err := d.fetch(ctx, buf, key, 0, -1, version{}); err != nil {
		return &Error{Key: key, Length: -1, Err: err, temporary: temporary(err)}
	}
	if err := d.decode(ctx, key, buf.data, dst); err != nil {
		return &Error{Key: key, Length: -1, Err: err}
	}
	return nil
}

// A store holds what the datasets of one bucket have in common.
type store struct {
	bucket   *blob.Bucket
	fields   []nwt.Field
	decode   Decode
	maxBytes int64     // of one sample
	buffers  sync.Pool // of *buffer: there are about as many as workers
}

// A buffer holds what one call needs.
type buffer struct {
	data   []byte
	places []int // for a LoadMany
}

func newStore(function string, bucket *blob.Bucket, fields []nwt.Field, decode Decode, opts []Option) (*store, error) {
	s := &store{bucket: bucket, fields: slices.Clone(fields), decode: decode, maxBytes: 1 << 30}
	for i, option := range opts {
		if option == nil {
			return nil, argument(fmt.Sprintf("%s: options[%d]", function, i), nil, "is nil")
		}
		option(s)
	}
	switch {
	case bucket == nil:
		return nil, argument(function+": bucket", nil, "is nil")
	case decode == nil:
		return nil, argument(function+": decode", nil, "is nil")
	case s.maxBytes < 1 || s.maxBytes > math.MaxInt-1:
		return nil, argument("WithMaxBytes", s.maxBytes, "must be 1 … %d", math.MaxInt-1)
	}
	return s, nil
}

func (s *store) Fields() []nwt.Field { return s.fields }

func (s *store) take() *buffer {
	if b, ok := s.buffers.Get().(*buffer); ok {
		return b
	}
	return &buffer{}
}

// give makes a buffer available to other calls.
func (s *store) give(buf *buffer) {
	if cap(buf.data) > maxTrusted {
		buf.data = nil // so that one huge object doesn't keep its memory for ever
	}
	s.buffers.Put(buf)
}

const (
	stallTries   = 4
	defaultStall = 5 * time.Second
)

// fetch reads a part of an object into buf; length −1 means all of it. The object must be of
// version must, unless must is zero. A request that stalls is made again.
func (s *store) fetch(ctx context.Context, buf *buffer, key string, offset, length int64, must version) (is version, err error) {
	buf.data = buf.data[:0]
	if length == 0 {
		return is, nil
	}
	wait := cmp.Or(driver.TimeoutOf(ctx)/10, defaultStall)
	for try := 1; ; try, wait = try+1, 2*wait {
		request, cancel := context.WithCancelCause(ctx)
		stalled := time.AfterFunc(wait, func() { cancel(errStalled) })
		is, err = s.ask(request, buf, key, offset, length, must, func() { stalled.Reset(wait) })
		stalled.Stop()
		switch cause := context.Cause(request); {
		case err == nil || cause != errStalled:
			cancel(nil)
			return is, err
		case try == stallTries: // without err, which only reports the cancellation
			return is, fmt.Errorf("nothing came for %v, after %d requests that %w too", wait, try-1, errStalled)
		}
	}
}

// ask makes one request for fetch. It calls came when data has come.
func (s *store) ask(ctx context.Context, buf *buffer, key string, offset, length int64, must version, came func()) (is version, err error) {
	buf.data = buf.data[:0]
	r, err := s.bucket.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return is, err
	}
	came()
	defer r.Close()
	is = version{r.Size(), r.ModTime()}
	if must != (version{}) {
		if err := must.holds(is); err != nil {
			return is, err
		}
	}
	want, most := length, length
	if want < 0 {
		want, most = r.Size(), s.maxBytes // −1 if the store doesn't know it before the end
	}
	switch {
	case want > s.maxBytes && length < 0:
		return is, fmt.Errorf("%w: it has %d bytes, WithMaxBytes allows %d", errLong, want, s.maxBytes)
	case length > 0 && r.Size() >= 0 && offset+length > r.Size():
		return is, fmt.Errorf("%w %d bytes", errShort, r.Size())
	}
	buf.data = slices.Grow(buf.data, int(min(max(want, 0), maxTrusted))+1)
	switch err := buf.readToEnd(r, most, came); {
	case err == errMore && length > 0:
		return is, fmt.Errorf("%w: the store sends more than the %d bytes that were asked for: it may not know ranges", errLong, length)
	case err == errMore:
		return is, fmt.Errorf("%w: it has more than the %d bytes that WithMaxBytes allows", errLong, most)
	case err != nil:
		return is, fmt.Errorf("after %d bytes: %w", len(buf.data), err)
	}
	if got := int64(len(buf.data)); want >= 0 && got != want {
		return is, fmt.Errorf("%d bytes came, not %d: %w", got, want, io.ErrUnexpectedEOF)
	}
	return is, nil
}

// readToEnd reads into data until r ends, or returns errMore after more than most bytes. It reads the end
// itself, not only the last byte, because checksums are compared, and the connection can be reused, only
// then.
func (b *buffer) readToEnd(r io.Reader, most int64, came func()) error {
	for {
		n, err := r.Read(b.data[len(b.data):cap(b.data)])
		if n > 0 {
			came()
		}
		b.data = b.data[:len(b.data)+n]
		switch {
		case int64(len(b.data)) > most:
			return errMore
		case err == io.EOF: // only io.EOF itself: an error that wraps it, such as a lost connection, is no end
			return nil
		case err != nil:
			return err
		}
		if len(b.data) == cap(b.data) {
			b.data = slices.Grow(b.data, 1)
		}
	}
}

var errMore = errors.New("more bytes than allowed")

// A version holds what every answer says about its object.
type version struct {
	size     int64
	modified time.Time
}

// holds returns an error if now is another version than v.
func (v version) holds(now version) error {
	if v.size == now.size && v.modified.Equal(now.modified) {
		return nil
	}
	return fmt.Errorf("%w: it had %v, and has %v", errChanged, v, now)
}

func (v version) String() string { return fmt.Sprintf("%d bytes of %v", v.size, v.modified.UTC()) }

var (
	errShort   error = permanent("the object has only") // the range lies beyond the object's end
	errLong    error = permanent("too long")
	errEndless error = permanent(fmt.Sprintf("no page of the list in %v", pageTimeout))
	errPanic   error = permanent("the driver panicked at the answer")
	errChanged error = permanent("the object has changed since it was first read")
)

var errStalled = errors.New("stalled") // is temporary

// maxTrusted is how much memory a buffer gets because of a header's size, before any byte has come, and
// how much it keeps for the next call. It grows further as bytes come.
const maxTrusted = 64 << 20
