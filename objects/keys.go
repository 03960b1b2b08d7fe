package objects

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"gocloud.dev/blob"
)

// Keys is a list of object keys in one piece of memory, which all workers share. A key takes its own bytes
// plus 8. The garbage collector sees two objects, however many keys there are. The zero value is an empty
// list. Don't copy a list, and don't add keys to a list that a dataset uses.
type Keys struct {
	text strings.Builder // the keys, one after the other
	ends []int           // the end of each key in text
}

// Add appends a key.
func (k *Keys) Add(key string) {
	k.text.WriteString(key)
	k.ends = append(k.ends, k.text.Len())
}

// Len returns the number of keys.
func (k *Keys) Len() int { return len(k.ends) }

// At returns key i, 0 ≤ i < Len. It allocates nothing.
func (k *Keys) At(i int) string {
	from := 0
	if i > 0 {
		from = k.ends[i-1]
	}
	return k.text.String()[from:k.ends[i]]
}

// sorted returns a list of the same keys in order.
func (k *Keys) sorted() *Keys {
	order := make([]int, k.Len())
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(k.At(a), k.At(b)) })
	s := &Keys{ends: make([]int, 0, len(order))}
	s.text.Grow(k.text.Len())
	for _, i := range order {
		s.Add(k.At(i))
	}
	return s
}

const (
	pageSize = 1000 // the most that S3 lists at once
	// folderPageSize is the page size that is tried first for a folder.
	folderPageSize = 1 << 16
	// pageTimeout bounds the wait for a store that sends empty pages for ever.
	pageTimeout = 10 * time.Minute
	maxListed   = min(4<<30, math.MaxInt/2)
	maxKey      = 64 << 10 // object stores allow about 1 KiB, file systems a few
	tries       = 5
	firstPause  = 100 * time.Millisecond
)

// List lists the objects whose keys begin with prefix, sorted by key. It leaves out the objects for which
// keep returns false; if keep is nil, it keeps all. It also leaves out keys that end in "/", which stand
// for folders. After a temporary error it tries again.
//
// List returns an error if the store lists a key twice, a key without the prefix, or a key longer than 64
// KiB. The same page of keys twice is also an error. If the keys take more than 4 GiB, List returns an
// error too: then list several prefixes.
//
// If a folder is local, its driver fileblob silently leaves out subfolders that it can't read, and List
// can't notice that. So for shards in a local folder, use os.DirFS and wds.Glob.
//
// Each page of 1000 keys is one request, which begins after the previous request has ended. All ranks of a
// training must have the same list. If objects may be added meanwhile, list once and give the list to all
// ranks.
func List(ctx context.Context, bucket *blob.Bucket, prefix string, keep func(key string, size int64) bool) (*Keys, error) {
	if bucket == nil {
		return nil, argument("List: bucket", nil, "is nil")
	}
	l := listing{prefix: prefix, keep: keep}
	if err := eachPage(ctx, bucket, blob.ListOptions{Prefix: prefix}, l.add); err != nil {
		return nil, fmt.Errorf("objects: List: prefix %q, after %d keys: %w", prefix, l.keys.Len(), err)
	}
	keys := &l.keys
	if l.disordered {
		keys = keys.sorted()
	}
	for i := 1; i < keys.Len(); i++ {
		if keys.At(i-1) == keys.At(i) {
			return nil, fmt.Errorf("objects: List: prefix %q: the store names the key %q twice", prefix, keys.At(i))
		}
	}
	return keys, nil
}

// eachPage hands the pages of a list to add. After temporary errors it asks again. If the store names a
// page twice, that is an error.
func eachPage(ctx context.Context, bucket *blob.Bucket, options blob.ListOptions, add func(page []*blob.ListObject) error) error {
	size := pageSize
	if isFolder(bucket) {
		size = folderPageSize
	}
	seed := maphash.MakeSeed()
	seen := map[uint64]bool{} // pages seen, by their tokens and by their content
	for token := blob.FirstPageToken; len(token) > 0; {
		var page []*blob.ListObject
		var next []byte
		err := again(ctx, func() (err error) {
			page, next, err = askPage(ctx, bucket, token, options, size)
			return err
		})
		if err == nil && len(next) > 0 && size > pageSize {
			size *= 4
			continue
		}
		var content maphash.Hash
		content.SetSeed(seed)
		for _, o := range page {
			_, _ = content.WriteString(o.Key)
			_ = content.WriteByte(0)
		}
		named, held := maphash.Bytes(seed, token), content.Sum64()
		if err == nil && (seen[named] || len(page) > 0 && seen[held]) {
			err = errors.New("the store goes round in a circle: it names a page twice")
		}
		if err == nil {
			err = add(page)
		}
		if err != nil {
			return err
		}
		seen[named], seen[held] = true, true
		token = next
	}
	return nil
}

// A listing holds the keys read so far.
type listing struct {
	prefix string
	keep   func(key string, size int64) bool
	keys   Keys

	last       string // the key that was added last
	disordered bool
}

func (l *listing) add(page []*blob.ListObject) error {
	if l.keys.text.Len() > maxListed {
		return fmt.Errorf("more than %d bytes of keys: list several prefixes", maxListed)
	}
	for _, o := range page {
		switch {
		case !strings.HasPrefix(o.Key, l.prefix):
			return fmt.Errorf("the store names a key without the prefix: %.200q", o.Key)
		case len(o.Key) > maxKey:
			return fmt.Errorf("the store names a key of %d bytes: must be at most %d", len(o.Key), maxKey)
		}
		if !strings.HasSuffix(o.Key, "/") && (l.keep == nil || l.keep(o.Key, o.Size)) {
			l.disordered = l.disordered || o.Key < l.last
			l.last = o.Key
			l.keys.Add(o.Key)
		}
	}
	return nil
}

// isFolder reports whether a bucket is a folder of files. Its driver walks the whole folder
// for each page, and names the keys that come after the last key of the page before. But it
// doesn't name them in order, so later pages lack keys: all keys must be on one page.
func isFolder(bucket *blob.Bucket) bool {
	var info os.FileInfo
	return bucket.As(&info)
}

// again calls ask again after temporary errors.
func again(ctx context.Context, ask func() error) error {
	for try, pause := 1, firstPause; ; try, pause = try+1, 2*pause {
		err := ask()
		if err == nil || try == tries || !temporary(err) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// askPage asks for a page once. Drivers panic at some answers: S3's driver does if the time of
// modification is missing.
func askPage(ctx context.Context, bucket *blob.Bucket, token []byte, options blob.ListOptions, size int) (page []*blob.ListObject, next []byte, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errPanic, cause)
		}
	}()
	// A page may take several requests: the driver goes on asking until the page is
	// full.
	ctx, cancel := context.WithTimeoutCause(ctx, pageTimeout, errEndless)
	defer cancel()
	page, next, err = bucket.ListPage(ctx, token, size, &options)
	if err != nil && context.Cause(ctx) == errEndless {
		err = errEndless
	}
	return page, next, err
}
