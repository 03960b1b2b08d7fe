package objects_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/objects"
	"github.com/nwt-go/nwt/wds"
)

type localFiles struct {
	read   func(i int, use func([]byte) error) error
	fields []nwt.Field
	n      int
}

func (d localFiles) Len() int            { return d.n }
func (d localFiles) Fields() []nwt.Field { return d.fields }
func (d localFiles) Load(_ context.Context, i int, dst *nwt.Sample) error {
	return d.read(i, func(data []byte) error { copy(dst.Bytes(0), data); return nil })
}

// A farStore answers after 50 ms, one request in a hundred with 503, and sends 50 MB/s in all.
type farStore struct {
	objects map[string][]byte
	etags   map[string]string
	asked   atomic.Int64
	mu      sync.Mutex
	free    time.Time // when what was promised so far is sent
}

const farBandwidth = 50e6

func (s *farStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(50 * time.Millisecond)
	if s.asked.Add(1)%100 == 99 {
		fail(w, http.StatusServiceUnavailable, "SlowDown")
		return
	}
	key := strings.TrimPrefix(r.URL.Path, "/"+bucketName+"/")
	data, ok := s.objects[key]
	if r.URL.Query().Get("list-type") != "" {
		var b strings.Builder
		for key, data := range s.objects {
			fmt.Fprintf(&b, `<Contents><Key>%s</Key><ETag>%s</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>%d</Size></Contents>`, key, s.etags[key], len(data))
		}
		_, _ = io.WriteString(w, "<ListBucketResult>"+b.String()+"</ListBucketResult>")
		return
	}
	if !ok {
		fail(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	w.Header().Set("ETag", s.etags[key])
	http.ServeContent(slowly{w, s}, r, "", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), bytes.NewReader(data))
}

// slowly shares the store's bandwidth.
type slowly struct {
	http.ResponseWriter
	s *farStore
}

func (w slowly) Write(p []byte) (n int, err error) {
	for piece := range slices.Chunk(p, 32<<10) {
		w.s.mu.Lock()
		if now := time.Now(); w.s.free.Before(now) {
			w.s.free = now
		}
		w.s.free = w.s.free.Add(time.Duration(float64(len(piece)) / farBandwidth * 1e9))
		free := w.s.free
		w.s.mu.Unlock()
		time.Sleep(time.Until(free))
		m, err := w.ResponseWriter.Write(piece)
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// BenchmarkCached compares a first epoch with the store's bandwidth, and later ones with the
// same files read from a local folder.
func BenchmarkCached(b *testing.B) {
	const size, samples, perShard = 100_000, 2000, 100
	pixels := []nwt.Field{{Name: "pixels", Type: nwt.Uint8, Shape: []int{size}}}
	decode := func(_ context.Context, _ string, data []byte, dst *nwt.Sample) error {
		if len(data) != size {
			return errContent
		}
		copy(dst.Bytes(0), data)
		return nil
	}
	local := b.TempDir()
	store := &farStore{objects: map[string][]byte{}, etags: map[string]string{}}
	var shard bytes.Buffer
	w := wds.NewWriter(&shard)
	var index objects.Index
	var packed []byte
	for i := range samples {
		data := noise(i, size)
		store.objects[fmt.Sprintf("files/%04d", i)] = data
		require.NoError(b, w.Write(fmt.Sprintf("%04d", i), wds.File{Ext: "bin", Data: data}))
		packed = append(packed, data...)
		object := fmt.Sprintf("packed/%02d", i/perShard)
		index.Add(object, int64(i%perShard*size), size)
		if i%perShard == perShard-1 {
			require.NoError(b, w.Close())
			store.objects[fmt.Sprintf("shards/%02d.tar", i/perShard)] = bytes.Clone(shard.Bytes())
			store.objects[object] = packed
			shard.Reset()
			w, packed = wds.NewWriter(&shard), nil
		}
	}
	for key, data := range store.objects {
		store.etags[key] = fmt.Sprintf(`"%x"`, md5.Sum(data))
		path := filepath.Join(local, filepath.FromSlash(key))
		require.NoError(b, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(b, os.WriteFile(path, data, 0o644))
	}
	var keys objects.Keys
	var shards []string
	for i := range samples {
		keys.Add(fmt.Sprintf("files/%04d", i))
	}
	for i := range samples / perShard {
		shards = append(shards, fmt.Sprintf("shards/%02d.tar", i))
	}
	streamed := func(fsys fs.FS) nwt.Dataset {
		s, err := wds.New(fsys, shards, pixels, func(ctx context.Context, r *wds.Record, dst *nwt.Sample) error {
			data, err := r.File("bin")
			if err != nil {
				return err
			}
			return decode(ctx, r.Key, data, dst)
		})
		require.NoError(b, err)
		return nwt.Streamed(s)
	}
	var buffers sync.Pool
	buffered := func(use func([]byte) error, read func([]byte) error) error {
		buf, ok := buffers.Get().(*[size]byte)
		if !ok {
			buf = new([size]byte)
		}
		defer buffers.Put(buf)
		if err := read(buf[:]); err != nil {
			return err
		}
		return use(buf[:])
	}
	files := localFiles{func(i int, use func([]byte) error) error {
		f, err := os.Open(filepath.Join(local, keys.At(i)))
		if err != nil {
			return err
		}
		defer f.Close()
		return buffered(use, func(p []byte) error { _, err := io.ReadFull(f, p); return err })
	}, pixels, samples}
	var open []*os.File
	for i := range samples / perShard {
		f, err := os.Open(filepath.Join(local, fmt.Sprintf("packed/%02d", i)))
		require.NoError(b, err)
		defer f.Close()
		open = append(open, f)
	}
	parts := localFiles{func(i int, use func([]byte) error) error {
		return buffered(use, func(p []byte) error { _, err := open[i/perShard].ReadAt(p, int64(i%perShard*size)); return err })
	}, pixels, samples}

	s := &server{Server: httptest.NewServer(store)}
	defer s.Close()
	run := func(ds nwt.Dataset, workers int) (first, all time.Duration) {
		l, err := nwt.NewLoader(ds, nwt.WithBatchSize(64), nwt.WithWorkers(workers), nwt.WithShuffle(1), nwt.WithLogger(silent))
		require.NoError(b, err)
		defer l.Close()
		start, n := time.Now(), 0
		for batch, err := range l.Epoch(b.Context(), 0) {
			require.NoError(b, err)
			if n += batch.Len(); first == 0 {
				first = time.Since(start)
			}
		}
		return first, time.Since(start)
	}
	for _, c := range []struct {
		name    string
		workers int
		listed  bool
		local   func() nwt.Dataset
	}{
		{"objects", 64, true, func() nwt.Dataset { return files }},
		{"objects that weren't listed", 64, false, func() nwt.Dataset { return files }},
		{"shards", 16, false, func() nwt.Dataset { return streamed(os.DirFS(local)) }},
		{"packed", 64, false, func() nwt.Dataset { return parts }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				bucket := s.bucket(b, 3)
				cached, err := objects.Cached(bucket, b.TempDir(), plenty)
				require.NoError(b, err)
				defer cached.Close()
				if c.listed {
					_, err := objects.List(b.Context(), cached, "", nil)
					require.NoError(b, err)
				}
				dataset := func(bucket *blob.Bucket) (ds nwt.Dataset) {
					switch c.name {
					case "shards":
						return streamed(bucket)
					case "packed":
						ds, err = objects.Packed(bucket, &index, pixels, decode)
					default:
						ds, err = objects.New(bucket, &keys, pixels, decode)
					}
					require.NoError(b, err)
					return ds
				}
				ds := dataset(cached)
				first, all := run(ds, c.workers)
				firstUncached, uncached := run(dataset(bucket), c.workers)
				b.ReportMetric(firstUncached.Seconds(), "s/first-batch-uncached")
				b.ReportMetric(uncached.Seconds()/all.Seconds(), "of-uncached")
				b.ReportMetric(first.Seconds(), "s/first-batch")
				b.ReportMetric(size*samples/farBandwidth/all.Seconds(), "of-bandwidth")
				var ours, theirs []float64
				for range 7 {
					_, there := run(c.local(), 2)
					_, here := run(ds, 2)
					theirs, ours = append(theirs, there.Seconds()), append(ours, here.Seconds())
				}
				slices.Sort(theirs)
				slices.Sort(ours)
				b.ReportMetric(theirs[3]/ours[3], "of-local")
				b.ReportMetric(size*samples/ours[3]/1e9, "GB/s")
			}
		})
	}
}
