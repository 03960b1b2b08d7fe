package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
)

// A cachedReader reads a part of an object: kept data from the folder, the rest from the store.
type cachedReader struct {
	*cached
	ctx     context.Context
	key     string
	options *blob.ReaderOptions
	object  *object
	edition edition

	pos, end int64
	pending  []byte           // the bytes that begin at pos, as far as they are known
	segment  *segment         // the segment that contains pos, or nil
	block    *[blockSize]byte // for a block that is wanted only in part; nil until there is one

	// While a request is under way:
	store     *blob.Reader
	first, to int64  // it is for the bytes first … to−1
	from      int64  // place of buf in the object
	buf       []byte // data that has come and isn't kept yet
	failed    error  // the error of store
}

const (
	// chunkSize is how much data is kept at once. It divides segmentSize.
	chunkSize = 256 << 10
	// maxUnproved bounds a request that doesn't begin at an object's beginning: it is known only at the
	// end of the answer whether the store ignores ranges, so nothing is kept before.
	maxUnproved = maxRange + 2*blockSize
)

var (
	errReplaced = errors.New("the object was replaced while it was read") // is temporary
	errExcess   = fmt.Errorf("%w: the store sends more bytes than were asked for: it may not know ranges", errLong)
)

func (r *cachedReader) As(any) bool { return false }

func (r *cachedReader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{ContentType: unknownType, Size: r.edition.size, ModTime: time.Unix(r.edition.modified, 0).UTC()}
}

func (r *cachedReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.pending) == 0 {
		switch {
		case r.store != nil: // read to the end, even if nobody wants the rest of the block
			if err := r.fetch(); err != nil {
				return 0, err
			}
		case r.pos == r.end:
			return 0, io.EOF
		default:
			if err := r.find(); err != nil {
				return 0, err
			}
			if n := r.load(p); n > 0 {
				return n, nil
			}
		}
	}
	n := copy(p, r.pending)
	r.pending = r.pending[n:]
	r.pos += int64(n)
	return n, nil
}

func (r *cachedReader) Close() error {
	r.leave(r.first == 0)
	r.drop()
	if r.block != nil {
		blocks.Put(r.block)
		r.block, r.pending = nil, nil
	}
	return nil
}

var blocks sync.Pool // of *[blockSize]byte

// find makes sure that the block at pos seems to be kept, or that a request for it is under way.
func (r *cachedReader) find() error {
	if r.pos == r.end || r.store != nil {
		return nil
	}
	if at := r.pos - r.pos%blockSize; !r.isKept(at) {
		return r.request(at, r.reach(at))
	}
	return nil
}

// isKept reports whether the block at a place seems to be kept.
func (r *cachedReader) isKept(at int64) bool {
	if number := at / segmentSize; r.segment == nil || r.segment.number != number {
		r.drop()
		r.segment = r.object.open(number)
	}
	return r.segment.has(at, at+1) > 0
}

func (r *cachedReader) drop() {
	if r.segment != nil {
		r.segment.close()
		r.segment = nil
	}
}

// reach returns where a request that begins at a place ends: after the last block that is wanted, or at
// the first segment that is already kept as far as it is wanted.
func (r *cachedReader) reach(at int64) int64 {
	to := min((r.end+blockSize-1)/blockSize*blockSize, r.edition.size)
	if at > 0 {
		to = min(to, at+maxUnproved)
	}
	for next := (at/segmentSize + 1) * segmentSize; next < to; next += segmentSize {
		if r.object.has(next, min(to, next+segmentSize)) {
			return next
		}
	}
	return to
}

// request asks the store for bytes.
func (r *cachedReader) request(from, to int64) error {
	length := to - from
	if from == 0 && to == r.edition.size {
		length = -1
	}
	store, err := r.ask(from, length)
	if err != nil {
		return err
	}
	r.store, r.first, r.to, r.from, r.failed = store, from, to, from, nil
	r.buf = slices.Grow(r.buf[:0], int(min(to-from, chunkSize)))
	return nil
}

// ask begins a request for a part of the edition.
func (r *cachedReader) ask(from, length int64) (*blob.Reader, error) {
	store, err := r.bucket.NewRangeReader(r.ctx, r.key, from, length, r.options)
	if err != nil {
		return nil, err
	}
	is := r.edition.is(store)
	if is && r.edition.modified > r.settled {
		var a *blob.Attributes
		if a, err = r.attributes(r.ctx, r.key); err == nil {
			is = r.edition == editionOf(a.Size, a.ModTime, a.MD5, a.ETag)
		}
	}
	if err == nil && !is {
		r.forget(r.key)
		err = errReplaced
	}
	if err != nil {
		store.Close()
		return nil, err
	}
	return store, nil
}

// fetch reads some bytes of the request that is under way.
func (r *cachedReader) fetch() error {
	if r.failed != nil {
		return r.failed
	}
	had := len(r.buf)
	if had >= chunkSize && r.first == 0 {
		r.object.keep(r.from, r.buf)
		r.from, r.buf, had = r.from+int64(had), r.buf[:0], 0
	} else if had == cap(r.buf) {
		r.buf = slices.Grow(r.buf, 1)
	}
	at := r.from + int64(had)
	room := min(int64(cap(r.buf)), int64(had)+r.to-at)
	if r.first == 0 {
		room = min(room, chunkSize)
	}
	n, err := r.store.Read(r.buf[had:room])
	r.buf = r.buf[:had+n]
	if at += int64(n); at == r.to {
		err = r.finish(err)
	} else if err == io.EOF {
		err = fmt.Errorf("%d bytes of a request for %d: %w", at-r.first, r.to-r.first, io.ErrUnexpectedEOF)
	}
	r.failed = err
	if from := at - int64(n); at > r.pos && from < r.end {
		r.pending = r.buf[had+int(max(r.pos-from, 0)) : had+int(min(r.end, at)-from)]
	}
	if n == 0 {
		return r.failed
	}
	return nil
}

// finish ends a request once all its bytes have come and the store confirms the end.
func (r *cachedReader) finish(err error) error {
	for range 100 {
		if err != nil {
			break
		}
		var more [1]byte
		var n int
		if n, err = r.store.Read(more[:]); n > 0 {
			return errExcess
		}
	}
	if err != io.EOF {
		return err
	}
	r.leave(true)
	return nil
}

// leave ends the request that is under way. keep says whether the data that came is right.
func (r *cachedReader) leave(keep bool) {
	if r.store == nil {
		return
	}
	if n := len(r.buf); keep {
		if r.from+int64(n) < r.edition.size {
			n -= n % blockSize
		}
		r.object.keep(r.from, r.buf[:n])
	}
	r.store.Close()
	r.store = nil
	r.drop() // what it knows is outdated
}

// load reads blocks that seem to be kept. If they fit into p, it reads them into p, and returns how many
// bytes. Otherwise it makes the block at pos pending, unless the block is damaged.
func (r *cachedReader) load(p []byte) (n int) {
	if r.store != nil || r.pos == r.end {
		return 0
	}
	if r.pos%blockSize == 0 {
		to := r.pos + min(int64(len(p)), r.end-r.pos)
		if to < r.edition.size {
			to -= to % blockSize
		}
		if n := r.segment.has(r.pos, to); n > 0 {
			n := r.segment.read(p[:n], r.pos)
			r.pos += int64(n)
			return n
		}
	}
	at := r.pos - r.pos%blockSize
	if r.block == nil {
		r.block, _ = blocks.Get().(*[blockSize]byte)
		if r.block == nil {
			r.block = new([blockSize]byte)
		}
	}
	block := r.block[:min(blockSize, r.edition.size-at)]
	if r.segment.read(block, at) == len(block) {
		r.pending = block[r.pos-at : min(r.end-at, int64(len(block)))]
	}
	return 0
}
