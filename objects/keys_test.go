package objects_test

import (
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/objects"
)

func TestAListHasWhatIsToBeKeptInTheOrderOfKeys(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	for _, key := range []string{"b/2.jpg", "b/1.jpg", "b/1.json", "b/", "b/c/3.jpg", "a/4.jpg", "bé.jpg"} {
		put(t, bucket, key, []byte(key))
	}
	list := func(prefix string, keep func(string, int64) bool) (all []string) {
		keys, err := objects.List(t.Context(), bucket, prefix, keep)
		require.NoError(t, err)
		for i := range keys.Len() {
			all = append(all, keys.At(i))
		}
		return all
	}
	require.Equal(t, []string{"b/1.jpg", "b/1.json", "b/2.jpg", "b/c/3.jpg"}, list("b/", nil))
	require.Equal(t, []string{"a/4.jpg", "b/1.jpg", "b/2.jpg", "b/c/3.jpg", "bé.jpg"}, list("", func(key string, size int64) bool {
		require.Len(t, key, int(size))
		return strings.HasSuffix(key, ".jpg")
	}))
	require.Empty(t, list("none/", nil))
}

// million answers a list of n keys, page by page as S3 does, each page at the
// second attempt.
func million(t *testing.T, n int) http.HandlerFunc {
	type object struct {
		Key          string
		LastModified string
		Size         int
	}
	type page struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string   `xml:",omitempty"`
		Contents              []object `xml:"Contents"`
	}
	failed := map[int]bool{}
	return func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get("continuation-token"))
		if !failed[from] && from%100_000 == 0 {
			failed[from] = true
			fail(w, http.StatusServiceUnavailable, "SlowDown")
			return
		}
		p := page{IsTruncated: from+1000 < n}
		for i := from; i < min(from+1000, n); i++ {
			p.Contents = append(p.Contents, object{millionth(i), "2026-01-01T00:00:00.000Z", 8})
		}
		if p.IsTruncated {
			p.NextContinuationToken = strconv.Itoa(from + 1000)
		}
		w.Header().Set("Content-Type", "application/xml")
		if err := xml.NewEncoder(w).Encode(p); err != nil {
			t.Error(err)
		}
	}
}

func millionth(i int) string { return fmt.Sprintf("imagenet/train/n%04d/%08d.jpg", i/1000, i) }

// heap returns the bytes and objects in use.
func heap() (bytes, objects int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc), int(m.HeapObjects)
}

// settled returns the heap in use once it stays the same.
func settled() (bytes int) {
	for last := -1; bytes != last; {
		last = bytes
		time.Sleep(20 * time.Millisecond)
		bytes, _ = heap()
	}
	return bytes
}

func TestAMillionKeysAreCompactAndDoNotGrowWithWorkers(t *testing.T) {
	n := 1_000_000
	if testing.Short() {
		n = 20_000
	}
	s := newServer(t)
	s.list = million(t, n)
	bucket := s.bucket(t, 1)
	text := n * len(millionth(0))
	before, objectsBefore := heap()
	keys, err := objects.List(t.Context(), bucket, "imagenet/", nil)
	require.NoError(t, err)
	require.Equal(t, n, keys.Len())
	after, objectsAfter := heap()
	t.Logf("%d keys of %d bytes: %d bytes in %d objects", n, text, after-before, objectsAfter-objectsBefore)
	require.Less(t, after-before, 3*(text+8*n)/2+1<<20)
	require.Less(t, objectsAfter-objectsBefore, 5000)
	for _, i := range []int{0, 1, 999, 1000, n / 2, n - 1} {
		require.Equal(t, millionth(i), keys.At(i))
	}

	// Loaders of ever more workers, in the middle of an epoch.
	name := []nwt.Field{{Name: "name", Type: nwt.Uint8, Shape: []int{8}}}
	var answered atomic.Int32
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer answered.Add(1)
		_, _ = w.Write([]byte(r.URL.Path[len(r.URL.Path)-12:][:8]))
	})
	ds, err := objects.New(bucket, keys, name, func(_ context.Context, key string, data []byte, dst *nwt.Sample) error {
		if key[len(key)-12:][:8] != string(data) {
			return fmt.Errorf("%q is the content of another object", data)
		}
		copy(dst.Bytes(0), data)
		return nil
	})
	require.NoError(t, err)
	const batch, ahead, at = 32, 8, 20
	var used []int
	for _, workers := range []int{1, 64} {
		answered.Store(0)
		l, err := nwt.NewLoader(ds, nwt.WithBatchSize(batch), nwt.WithWorkers(workers), nwt.WithPrefetch(ahead), nwt.WithShuffle(1), nwt.WithLogger(silent))
		require.NoError(t, err)
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Number() == at {
				// A request takes far more memory than a connection: let the workers finish.
				require.Eventually(t, func() bool { return answered.Load() == (at+1+ahead)*batch }, time.Minute, time.Millisecond)
				used = append(used, settled())
				break
			}
		}
		require.NoError(t, l.Close())
	}
	t.Logf("heap with 1 worker %d, with 64 %d", used[0], used[1])
	// A connection has net/http's buffers, of 4 KiB each, for reading and writing at both
	// of its ends. Allow as much again for all else that belongs to it.
	const connection = 2 * 4 * 4 << 10
	require.Less(t, used[1]-used[0], 63*connection, "63 more connections, and not 63 lists")
}

func TestTheTunerFindsThatTensOfWorkersWin(t *testing.T) {
	if testing.Short() {
		t.Skip("waits")
	}
	s := newServer(t)
	ds := trainSet(t, s.bucket(t, 1), 256)
	s.latency = 20 * time.Millisecond
	result, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(16), nwt.WithShuffle(1), nwt.WithIterations(12), nwt.WithMaxWorkers(32))
	require.NoError(t, err)
	t.Log(result)
	require.GreaterOrEqual(t, result.Workers, 8)
}
