package objects

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// Cached wraps a bucket. It keeps all data that is read from the bucket's objects in the folder dir, in
// blocks of 16 KiB with a checksum each. The last argument is how many bytes all files in dir may take
// together. The bound is for all processes that use dir. If it is less than 8 MiB for each worker of these
// processes, the files may take more. The least recently read data is removed first. Give each bucket its
// own folder.
//
// Cached checks each object once, at the first of these events: a list names it, its attributes are requested,
// or it is read. The kept data is used only if the object's size, time of modification, and MD5 or ETag are
// the same. With the bytes of an object, stores send only its size, and its time of modification in whole
// seconds. So if an object was modified less than a minute before the call of Cached, or later, its
// attributes are also compared after each request for the object. A list through the returned bucket checks
// all its objects again, 1000 with each request. So pass the returned bucket to [List] too. An object takes
// about 50 bytes of memory.
//
// The cache never makes a read fail. If data is missing, damaged or can't be kept, it is read from bucket.
// If data can't be kept, one line in [log/slog.Default] says so.
//
// The returned bucket only reads. Closing it doesn't close bucket.
func Cached(bucket *blob.Bucket, dir string, bytes int64) (*blob.Bucket, error) {
	switch {
	case bucket == nil:
		return nil, argument("Cached: bucket", nil, "is nil")
	case dir == "":
		return nil, argument("Cached: dir", dir, "must not be empty")
	case bytes < 1:
		return nil, argument("Cached: bytes", bytes, "must be at least 1")
	}
	kept, err := openFolder(dir, bytes)
	if err != nil {
		return nil, fmt.Errorf("objects: Cached: %w", err)
	}
	c := &cached{
		bucket: bucket, kept: kept, seed: maphash.MakeSeed(), settled: time.Now().Add(-time.Minute).Unix(),
		editions: map[uint64]edition{},
	}
	kept.mu.Lock()
	kept.lookSoon()
	kept.mu.Unlock()
	return blob.NewBucket(c), nil
}

// cached is the driver of a bucket that Cached returns.
type cached struct {
	bucket  *blob.Bucket
	kept    *folder
	seed    maphash.Seed
	settled int64 // an object modified by this second can't be replaced within the same second any more

	mu       sync.Mutex
	editions map[uint64]edition // by the hash of the key; if two keys have the same hash, their objects are read as if they had changed
}

// Two editions of an object differ in something.
type edition struct {
	size, modified int64  // in bytes; in seconds, because lists and answers round differently
	tag            uint64 // of the MD5, or of the ETag if there is no MD5
}

func editionOf(size int64, modified time.Time, md5 []byte, etag string) edition {
	if len(md5) > 0 {
		etag = "" // as it is in a list
	}
	sum := sha256.Sum256(append([]byte(etag), md5...))
	return edition{size, modified.Unix(), binary.LittleEndian.Uint64(sum[:])}
}

// is reports whether a reader's answer comes from this edition, as far as the answer shows.
func (e edition) is(r *blob.Reader) bool {
	return r.Size() == e.size && r.ModTime().Unix() == e.modified
}

func (c *cached) hash(key string) uint64 { return maphash.String(c.seed, key) }

func (c *cached) remember(key string, a *blob.Attributes) edition {
	e := editionOf(a.Size, a.ModTime, a.MD5, a.ETag)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.editions[c.hash(key)] = e
	return e
}

func (c *cached) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.editions, c.hash(key))
}

// edition returns the edition of an object that is to be read. It asks the store if need be.
func (c *cached) edition(ctx context.Context, key string) (e edition, ok bool) {
	c.mu.Lock()
	e, ok = c.editions[c.hash(key)]
	c.mu.Unlock()
	if ok {
		return e, true
	}
	a, err := c.attributes(ctx, key)
	if err != nil {
		return e, false
	}
	return c.remember(key, a), true
}

// attributes asks again after a temporary error, because blob.Bucket.Open takes any error to mean that
// there is no such file.
func (c *cached) attributes(ctx context.Context, key string) (a *blob.Attributes, err error) {
	err = again(ctx, func() (err error) {
		a, err = c.bucket.Attributes(ctx, key)
		return err
	})
	return a, err
}

func (c *cached) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	a, err := c.attributes(ctx, key)
	if err != nil {
		return nil, err
	}
	c.remember(key, a)
	return &driver.Attributes{
		CacheControl: a.CacheControl, ContentDisposition: a.ContentDisposition, ContentEncoding: a.ContentEncoding,
		ContentLanguage: a.ContentLanguage, ContentType: a.ContentType, Metadata: a.Metadata,
		CreateTime: a.CreateTime, ModTime: a.ModTime, Size: a.Size, MD5: a.MD5, ETag: a.ETag, AsFunc: a.As,
	}, nil
}

func (c *cached) ListPaged(ctx context.Context, o *driver.ListOptions) (*driver.ListPage, error) {
	token := o.PageToken
	if len(token) == 0 {
		token = blob.FirstPageToken
	}
	objects, next, err := c.bucket.ListPage(ctx, token, cmp.Or(o.PageSize, pageSize), &blob.ListOptions{Prefix: o.Prefix, Delimiter: o.Delimiter, BeforeList: o.BeforeList})
	if err != nil {
		return nil, err
	}
	page := &driver.ListPage{Objects: make([]*driver.ListObject, len(objects)), NextPageToken: next}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, l := range objects {
		page.Objects[i] = &driver.ListObject{Key: l.Key, ModTime: l.ModTime, Size: l.Size, MD5: l.MD5, IsDir: l.IsDir, AsFunc: l.As}
		if len(l.MD5) > 0 {
			c.editions[c.hash(l.Key)] = editionOf(l.Size, l.ModTime, l.MD5, "")
		} else { // an object of several parts: only its attributes have its ETag
			delete(c.editions, c.hash(l.Key))
		}
	}
	return page, nil
}

func (c *cached) NewRangeReader(ctx context.Context, key string, offset, length int64, opts *driver.ReaderOptions) (driver.Reader, error) {
	options := &blob.ReaderOptions{BeforeRead: opts.BeforeRead}
	for try := range 2 {
		e, ok := c.edition(ctx, key)
		if !ok || offset > e.size || length == 0 {
			break // the store returns the error
		}
		end := e.size
		if length > 0 {
			end = offset + min(length, e.size-offset)
		}
		r := &cachedReader{
			cached: c, ctx: ctx, key: key, options: options,
			object: c.kept.object(key, e), edition: e, pos: offset, end: end,
		}
		err := r.find()
		if err == nil {
			return r, nil
		}
		r.Close()
		if !errors.Is(err, errReplaced) {
			return nil, err
		}
		if try > 0 { // the attributes never match the answers: the object isn't kept
			c.mu.Lock()
			c.editions[c.hash(key)] = edition{size: -1}
			c.mu.Unlock()
		}
	}
	r, err := c.bucket.NewRangeReader(ctx, key, offset, length, options)
	if err != nil {
		return nil, err
	}
	return uncached{r}, nil
}

// uncached is a read without the cache.
type uncached struct{ *blob.Reader }

func (u uncached) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{
		ContentType: cmp.Or(u.ContentType(), unknownType), Size: u.Size(), ModTime: time.Unix(u.ModTime().Unix(), 0).UTC(), // as of a cachedReader
	}
}

const unknownType = "application/octet-stream"

func (c *cached) As(i any) bool                 { return c.bucket.As(i) }
func (c *cached) ErrorAs(err error, i any) bool { return c.bucket.ErrorAs(err, i) }
func (c *cached) ErrorCode(err error) gcerrors.ErrorCode {
	if errors.Is(err, errReadOnly) {
		return gcerrors.Unimplemented
	}
	return gcerrors.Code(err)
}

// Close waits until the folder is no longer being cleaned.
func (c *cached) Close() error {
	c.kept.looks.Wait()
	return nil
}

var errReadOnly = errors.New("the bucket of objects.Cached only reads: write to the bucket that it was made of")

func (c *cached) NewTypedWriter(context.Context, string, string, *driver.WriterOptions) (driver.Writer, error) {
	return nil, errReadOnly
}
func (c *cached) Copy(context.Context, string, string, *driver.CopyOptions) error { return errReadOnly }
func (c *cached) Delete(context.Context, string, *driver.DeleteOptions) error     { return errReadOnly }
func (c *cached) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", errReadOnly
}
