package blob

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gocloud.dev/blob"
)

// Keys is a list of object keys, in one piece of memory that all workers share:
// a key costs its bytes and 8 more, and the garbage collector sees two objects
// however many there are. The zero value is an empty list. It must not be copied
// nor, once a dataset uses it, added to.
type Keys struct {
	text strings.Builder // the keys, one after the other
	ends []int           // of each in text
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
	pageSize   = 1000 // the most that S3 lists at once
	listTries  = 5
	firstPause = 100 * time.Millisecond
)

// List lists the objects whose keys begin with prefix, in the order of their
// keys, but for those that keep refuses (nil: none) and those whose keys end in
// "/", which stand for folders. Temporary errors are tried again.
//
// A page of 1000 keys is a request, and each must wait for the one before. All
// ranks of a training must have the same list: where objects may be added
// meanwhile, list once and hand the result on.
func List(ctx context.Context, bucket *blob.Bucket, prefix string, keep func(key string, size int64) bool) (*Keys, error) {
	if bucket == nil {
		return nil, argument("List", "bucket", "must not be nil")
	}
	keys := &Keys{}
	for token := blob.FirstPageToken; len(token) > 0; {
		page, next, err := listPage(ctx, bucket, token, prefix)
		if err != nil {
			return nil, fmt.Errorf("blob: list of %q after %d keys: %w", prefix, keys.Len(), err)
		}
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
		page, next, err = bucket.ListPage(ctx, token, pageSize, &blob.ListOptions{Prefix: prefix})
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
