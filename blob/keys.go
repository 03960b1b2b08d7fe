package blob

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"time"

	"gocloud.dev/blob"
)

// Keys is a list of object keys, in one piece of memory that all workers share:
// a key costs its bytes and 8 more, and the garbage collector sees two objects
// however many keys there are. The zero value is an empty list. Don't copy a list;
// once a dataset uses it, add nothing to it.
type Keys struct {
	text strings.Builder // the keys, one after the other
	ends []int           // the end of each key in text
}

// Add appends a key.
func (k *Keys) Add(key string) {
	k.text.WriteString(key)
	k.ends = append(k.ends, k.text.Len())
}

// Len is the number of keys.
func (k *Keys) Len() int { return len(k.ends) }

// At is key i, 0 ≤ i < Len. It allocates nothing.
func (k *Keys) At(i int) string {
	from := 0
	if i > 0 {
		from = k.ends[i-1]
	}
	return k.text.String()[from:k.ends[i]]
}

const (
	pageSize = 1000 // the most that S3 lists at once
	// pageTimeout is for a store that sends empty pages for ever.
	pageTimeout = 10 * time.Minute
	maxListed   = min(4<<30, math.MaxInt/2)
	listTries   = 5
	firstPause  = 100 * time.Millisecond
)

// List lists the objects whose keys begin with prefix, in the order of their keys.
// It leaves out those for which keep returns false (nil keeps all), and those whose
// keys end in "/", which stand for folders. After a temporary error it tries again.
//
// It is an error if a page comes again, or if the keys take more than 4 GiB: list
// several prefixes then.
//
// Each page of 1000 keys is a request, and must wait for the request before it. All
// ranks of a training must have the same list: if objects may be added meanwhile,
// list once and give all ranks the result.
func List(ctx context.Context, bucket *blob.Bucket, prefix string, keep func(key string, size int64) bool) (*Keys, error) {
	if bucket == nil {
		return nil, argument("List", "bucket", "must not be nil")
	}
	keys := &Keys{}
	seed, seen := maphash.MakeSeed(), map[uint64]bool{} // of pages' tokens
	for token := blob.FirstPageToken; len(token) > 0; {
		page, next, err := listPage(ctx, bucket, token, prefix)
		hash := maphash.Bytes(seed, token)
		switch {
		case err != nil:
		case seen[hash]:
			err = errors.New("the store goes round in a circle: it names a page twice")
		case keys.text.Len() > maxListed:
			err = fmt.Errorf("more than %d bytes of keys", maxListed)
		}
		if err != nil {
			return nil, fmt.Errorf("blob: list of %q after %d keys: %w", prefix, keys.Len(), err)
		}
		seen[hash] = true
		for _, o := range page {
			if !strings.HasSuffix(o.Key, "/") && (keep == nil || keep(o.Key, o.Size)) {
				keys.Add(o.Key)
			}
		}
		token = next
	}
	return keys, nil
}

func listPage(ctx context.Context, bucket *blob.Bucket, token []byte, prefix string) (page []*blob.ListObject, next []byte, err error) {
	for try, pause := 1, firstPause; ; try, pause = try+1, 2*pause {
		page, next, err = askPage(ctx, bucket, token, prefix)
		if err == nil || try == listTries || !temporary(err) {
			return page, next, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// askPage asks once. Drivers panic at some answers: S3's driver does if the time of
// modification is missing.
func askPage(ctx context.Context, bucket *blob.Bucket, token []byte, prefix string) (page []*blob.ListObject, next []byte, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errPanic, cause)
		}
	}()
	// A page may take several requests: the driver goes on asking until the page is
	// full.
	ctx, cancel := context.WithTimeoutCause(ctx, pageTimeout, errEndless)
	defer cancel()
	page, next, err = bucket.ListPage(ctx, token, pageSize, &blob.ListOptions{Prefix: prefix})
	if err != nil && context.Cause(ctx) == errEndless {
		err = errEndless
	}
	return page, next, err
}
