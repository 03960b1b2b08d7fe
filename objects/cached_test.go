package objects_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/objects"
)

// cache returns a cache of a bucket in dir.
func cache(t *testing.T, bucket *blob.Bucket, dir string, n int64) *blob.Bucket {
	t.Helper()
	c, err := objects.Cached(bucket, dir, n)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

const plenty = 1 << 30

// noise returns an object of n bytes.
func noise(seed, n int) []byte {
	data := make([]byte, n)
	_, _ = io.ReadFull(rand.NewChaCha8([32]byte{byte(seed)}), data)
	return data
}

func readAll(t *testing.T, bucket *blob.Bucket, key string) []byte {
	t.Helper()
	data, err := bucket.ReadAll(t.Context(), key)
	require.NoError(t, err)
	return data
}

func read(t *testing.T, bucket *blob.Bucket, key string, offset, length int64) []byte {
	t.Helper()
	r, err := bucket.NewRangeReader(t.Context(), key, offset, length, nil)
	require.NoError(t, err)
	defer r.Close()
	data, err := io.ReadAll(r)
	require.NoError(t, err)
	return data
}

// remove removes a cache's folder, in which a look may be under way.
func remove(t *testing.T, dir string) {
	t.Helper()
	require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, time.Minute, time.Millisecond)
}

// cacheFiles are those in a cache's folder.
func cacheFiles(t *testing.T, dir string) (all []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "lock" && d.Name() != "taken" {
			all = append(all, path)
		}
		return err
	}))
	return all
}

func TestASecondEpochComesFromTheCache(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	for i := range 100 {
		put(t, bucket, fmt.Sprintf("train/%05d", i), content(i))
	}
	index := pack(t, bucket, 300, 50)
	dir := t.TempDir()
	for range 2 { // the second time another process
		c := cache(t, bucket, dir, plenty)
		keys, err := objects.List(t.Context(), c, "train/", nil)
		require.NoError(t, err)
		whole, err := objects.New(c, keys, fields, decode)
		require.NoError(t, err)
		packed, err := objects.Packed(c, index, fields, decode)
		require.NoError(t, err)
		require.Equal(t, upTo(100), epoch(t, whole, nwt.WithBatchSize(16), nwt.WithWorkers(4)))
		require.Equal(t, upTo(300), epoch(t, packed, nwt.WithBatchSize(64), nwt.WithWorkers(4)))
		asked := len(s.asked())
		s.fail(func(string, int) fault { return denied })
		for seed := range uint64(3) {
			got := epoch(t, whole, nwt.WithShuffle(seed), nwt.WithWorkers(4))
			slices.Sort(got)
			require.Equal(t, upTo(100), got)
			got = epoch(t, packed, nwt.WithShuffle(seed), nwt.WithBatchSize(50), nwt.WithWorkers(4))
			slices.Sort(got)
			require.Equal(t, upTo(300), got)
		}
		require.Len(t, s.asked(), asked)
	}
}

func TestEachSampleOfACachedFirstEpochComesWhereTheServerFails(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	for i := range 300 {
		put(t, bucket, fmt.Sprintf("train/%05d", i), content(i))
	}
	index := pack(t, bucket, 300, 50)
	c := cache(t, bucket, t.TempDir(), plenty)
	keys, err := objects.List(t.Context(), c, "train/", nil)
	require.NoError(t, err)
	whole, err := objects.New(c, keys, fields, decode)
	require.NoError(t, err)
	packed, err := objects.Packed(c, index, fields, decode)
	require.NoError(t, err)
	s.fail(func(key string, n int) fault {
		if strings.HasPrefix(key, "train") {
			return faults(key, n)
		}
		return []fault{none, busy, none, cut, none, mute, stalled, none, stalledWithin}[n%9]
	})
	for range 2 {
		got := epoch(t, whole, nwt.WithShuffle(1), nwt.WithWorkers(8), nwt.WithRetry(20, 0))
		slices.Sort(got)
		require.Equal(t, upTo(300), got)
		got = epoch(t, packed, nwt.WithShuffle(1), nwt.WithWorkers(8), nwt.WithRetry(20, 0), nwt.WithTimeout(2*time.Second))
		slices.Sort(got)
		require.Equal(t, upTo(300), got)
	}
}

// Whatever is read in whatever order, by several caches of a folder that is too small.
func TestAnyPartsReadThroughACacheAreRight(t *testing.T) {
	const mib = 1 << 20
	mem := memblob.OpenBucket(nil)
	defer mem.Close()
	var all [][]byte
	for i, n := range []int{0, 1, 16<<10 - 1, 16 << 10, 16<<10 + 1, 300_000, 8 * mib, 8*mib + 1, 20*mib + 12345} {
		all = append(all, noise(i, n))
		put(t, mem, fmt.Sprint(i), all[i])
	}
	dir := t.TempDir()
	caches := []*blob.Bucket{cache(t, mem, dir, 24*mib), cache(t, mem, dir, 24*mib)}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 150 {
				i := rng.IntN(len(all))
				want := all[i]
				offset := rng.Int64N(int64(len(want)) + 1)
				length := rng.Int64N(100_000) >> rng.IntN(17)
				if rng.IntN(10) == 0 {
					length = rng.Int64N(10 * mib)
				}
				if rng.IntN(4) == 0 {
					offset, length = 0, -1
				}
				want = want[offset:]
				if length >= 0 {
					want = want[:min(length, int64(len(want)))]
				}
				r, err := caches[rng.IntN(2)].NewRangeReader(t.Context(), fmt.Sprint(i), offset, length, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if rng.IntN(8) == 0 {
					want = want[:rng.IntN(len(want)+1)] // and leave
				}
				got := make([]byte, len(want))
				for n := 0; n < len(got); {
					m, err := r.Read(got[n:min(len(got), n+1+rng.IntN(200_000))])
					if n += m; err != nil && n < len(got) {
						t.Error(i, offset, length, n, err)
						break
					}
				}
				if !bytes.Equal(got, want) {
					t.Error(i, offset, length)
				}
				_ = r.Close()
			}
		})
	}
	wg.Wait()
}

func TestADamagedCacheGivesNoOtherBytes(t *testing.T) {
	mem := memblob.OpenBucket(nil)
	defer mem.Close()
	want := noise(1, 9<<20+777)
	put(t, mem, "a", want)
	put(t, mem, "b", want[5:])
	rng := rand.New(rand.NewPCG(1, 2))
	for name, damage := range map[string]func(path string, data []byte) error{
		"cut": func(path string, data []byte) error { return os.Truncate(path, rng.Int64N(int64(len(data)))) },
		"bits": func(path string, data []byte) error {
			for range 20 {
				data[rng.IntN(len(data))] ^= 1 << rng.IntN(8)
			}
			return os.WriteFile(path, data, 0o600)
		},
		"zeros": func(path string, data []byte) error {
			from := rng.IntN(len(data))
			clear(data[from:min(len(data), from+1<<20)])
			return os.WriteFile(path, data, 0o600)
		},
		"blocks in each other's place": func(path string, data []byte) error {
			a, b := data[len(data)-2<<14:len(data)-1<<14], data[len(data)-1<<14:]
			for i := range a {
				a[i], b[i] = b[i], a[i]
			}
			return os.WriteFile(path, data, 0o600)
		},
		"empty":    func(path string, _ []byte) error { return os.Truncate(path, 0) },
		"removed":  func(path string, _ []byte) error { return os.Remove(path) },
		"a folder": func(path string, _ []byte) error { _ = os.Remove(path); return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := cache(t, mem, dir, plenty)
			for range 3 {
				require.True(t, bytes.Equal(want, readAll(t, c, "a")))
				require.True(t, bytes.Equal(want[5:], readAll(t, c, "b")))
				for _, path := range cacheFiles(t, dir) {
					data, err := os.ReadFile(path)
					require.NoError(t, err)
					require.NoError(t, damage(path, data))
				}
				require.True(t, bytes.Equal(want[1000:9000], read(t, c, "a", 1000, 8000)))
			}
			if name != "a folder" {
				require.True(t, bytes.Equal(want, readAll(t, c, "a")))
				require.NoError(t, mem.Delete(t.Context(), "a"))
				defer put(t, mem, "a", want)
				require.True(t, bytes.Equal(want, readAll(t, c, "a")), "what was damaged is kept anew")
			}
		})
	}
}

func TestACacheThatCannotKeepReadsFromTheStore(t *testing.T) {
	mem := memblob.OpenBucket(nil)
	defer mem.Close()
	want := noise(1, 300_000)
	put(t, mem, "a", want)
	t.Run("its folder goes away", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "cache")
		c := cache(t, mem, dir, plenty)
		for range 3 {
			require.Equal(t, want, readAll(t, c, "a"))
			remove(t, dir)
		}
		require.Equal(t, want, readAll(t, c, "a"))
		require.NotEmpty(t, cacheFiles(t, dir), "it is made again")
	})
	t.Run("a file lies where its folder was", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "cache")
		c := cache(t, mem, dir, plenty)
		remove(t, dir)
		require.NoError(t, os.WriteFile(dir, nil, 0o600))
		require.Equal(t, want, readAll(t, c, "a"))
		require.Equal(t, want[5:105], read(t, c, "a", 5, 100))
		_, err := objects.Cached(mem, dir, plenty)
		require.ErrorContains(t, err, dir, "but it is an error at first")
	})
}

func TestAnObjectThatChangedIsNotServedFromTheCache(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	dir := t.TempDir()
	first, second := noise(1, 100_000), noise(2, 100_000)
	for _, listed := range []bool{false, true} {
		put(t, bucket, "a", first)
		c := cache(t, bucket, dir, plenty)
		require.Equal(t, first, readAll(t, c, "a"))
		put(t, bucket, "a", second) // within the same second, perhaps, and of the same size: its ETag tells
		if listed {
			_, err := objects.List(t.Context(), c, "", nil)
			require.NoError(t, err)
			require.Equal(t, second, readAll(t, c, "a"))
		}
		c = cache(t, bucket, dir, plenty)
		require.Equal(t, second, readAll(t, c, "a"))
		require.Equal(t, second[10:20], read(t, c, "a", 10, 10))
	}
}

func TestAnObjectThatChangesDuringARunIsReadAnew(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	put(t, bucket, "a", noise(1, 100_000))
	c := cache(t, bucket, t.TempDir(), plenty)
	require.Equal(t, noise(1, 100_000)[:10], read(t, c, "a", 0, 10))
	put(t, bucket, "a", noise(2, 100_001))
	_, err := c.ReadAll(t.Context(), "a") // its beginning is kept, and the rest is another object's
	require.ErrorContains(t, err, "the object was replaced while it was read")
	require.Equal(t, noise(2, 100_001), readAll(t, c, "a"))
	require.Equal(t, noise(2, 100_001)[:10], read(t, c, "a", 0, 10))

	var keys objects.Keys
	keys.Add("a")
	put(t, bucket, "a", noise(3, 99_999))
	c = cache(t, bucket, t.TempDir(), plenty)
	require.Equal(t, noise(3, 99_999)[:10], read(t, c, "a", 0, 10))
	put(t, bucket, "a", noise(4, 99_998))
	ds, err := objects.New(c, &keys, length, decodeLength)
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, nwt.WithLogger(silent), nwt.WithRetry(1, 0))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err, "another attempt reads what is there now")
		require.EqualValues(t, 99_998, nwt.Values[int64](b, 0)[0])
	}
}

func TestACacheStaysWithinItsBoundAndForgetsWhatWasUsedLongestAgo(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("what is open can't be removed there")
	}
	const bound = 4 << 20
	mem := memblob.OpenBucket(nil)
	defer mem.Close()
	for i := range 100 {
		put(t, mem, fmt.Sprint(i), noise(i, 100_000))
	}
	dir := t.TempDir()
	foreign := filepath.Join(dir, "ab", "somebody's")
	require.NoError(t, os.MkdirAll(filepath.Dir(foreign), 0o700))
	require.NoError(t, os.WriteFile(foreign, noise(1, 1<<20), 0o600))
	size := func() (n int64) {
		for _, path := range cacheFiles(t, dir) {
			if info, err := os.Stat(path); err == nil && path != foreign {
				n += info.Size()
			}
		}
		return n
	}
	age := func() {
		for i, path := range cacheFiles(t, dir) {
			old := time.Now().Add(-time.Hour - time.Duration(i)*time.Second)
			require.NoError(t, os.Chtimes(path, old, old))
		}
	}
	for i := range 100 {
		age()
		c := cache(t, mem, dir, bound)
		require.Equal(t, noise(0, 100_000), readAll(t, c, "0"), "is used again and again")
		require.Equal(t, noise(i, 100_000), readAll(t, c, fmt.Sprint(i)))
		require.NoError(t, c.Close())
		require.LessOrEqual(t, size(), int64(bound))
	}
	require.Greater(t, size(), int64(bound/2))
	c := cache(t, mem, dir, bound)
	_, err := c.Attributes(t.Context(), "0")
	require.NoError(t, err)
	require.NoError(t, mem.Delete(t.Context(), "0"))
	require.Equal(t, noise(0, 100_000), readAll(t, c, "0"))
	require.NoError(t, c.Close())

	c = cache(t, mem, dir, 1<<20) // less from now on
	require.NoError(t, c.Close())
	require.LessOrEqual(t, size(), int64(1<<20))
	require.FileExists(t, foreign)
}

func TestOfAStoreThatIgnoresRangesNothingIsKept(t *testing.T) {
	data := noise(1, 1<<20)
	s := answering(t, func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, &http.Request{Method: r.Method}, "a", time.Unix(1_800_000_000, 0), bytes.NewReader(data))
	})
	c := cache(t, s.bucket(t, 1), t.TempDir(), plenty)
	for range 2 {
		r, err := c.NewRangeReader(t.Context(), "a", 500_000, 100, nil)
		require.NoError(t, err)
		_, err = io.ReadAll(r)
		require.ErrorContains(t, err, "it may not know ranges")
		require.NoError(t, r.Close())
	}
}

func TestAStoreWhoseAttributesAreNotThoseOfItsAnswersIsReadWithoutACache(t *testing.T) {
	var gets atomic.Int32
	s := answering(t, func(w http.ResponseWriter, r *http.Request) {
		modified := time.Unix(1_800_000_000, 0)
		if r.Method == http.MethodGet {
			gets.Add(1)
			modified = modified.Add(time.Hour)
		}
		http.ServeContent(w, r, "a", modified, bytes.NewReader(hundred))
	})
	c := cache(t, s.bucket(t, 1), t.TempDir(), plenty)
	require.Equal(t, hundred, readAll(t, c, "a"))
	before := gets.Load()
	for range 3 {
		require.Equal(t, hundred[7:9], read(t, c, "a", 7, 2))
	}
	require.EqualValues(t, before+3, gets.Load())
}

func TestAStoreWithoutAttributesIsReadWithoutACache(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	put(t, bucket, "a", hundred)
	answers := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			fail(w, http.StatusForbidden, "AccessDenied")
			return
		}
		answers.ServeHTTP(w, r)
	})
	c := cache(t, bucket, t.TempDir(), plenty)
	for range 2 {
		require.Equal(t, hundred, readAll(t, c, "a"))
		require.Equal(t, hundred[7:9], read(t, c, "a", 7, 2))
	}
}

// objects.Bucket.Open says that a file doesn't exist if it can't be told.
func TestAFileInACachedBucketIsThereWhereTheServerFails(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	put(t, bucket, "a", hundred)
	answers, asked := s.Config.Handler, 0
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			if asked++; asked == 1 {
				fail(w, http.StatusServiceUnavailable, "SlowDown")
				return
			}
		}
		answers.ServeHTTP(w, r)
	})
	data, err := fs.ReadFile(cache(t, bucket, t.TempDir(), plenty), "a")
	require.NoError(t, err)
	require.Equal(t, hundred, data)
}

func TestShardsReadThroughACacheAreKeptWhole(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 3)
	shards := putShards(t, bucket, 100)
	c := cache(t, bucket, t.TempDir(), plenty)
	for range 2 {
		require.Equal(t, upTo(300), shardEpoch(t, c, shards))
		require.Len(t, s.asked(), 3, "a request for each shard, once")
	}
}

// Processes that read through one cache are killed at any moment.
func TestACacheOfKilledProcessesIsRight(t *testing.T) {
	const many, size = 40, 700_000
	store, dir := os.Getenv("NWT_TEST_STORE"), os.Getenv("NWT_TEST_CACHE")
	child := store != ""
	if !child {
		store, dir = t.TempDir(), t.TempDir()
		for i := range many {
			require.NoError(t, os.WriteFile(filepath.Join(store, fmt.Sprint(i)), noise(i, size), 0o600))
		}
	}
	bucket, err := fileblob.OpenBucket(store, nil)
	require.NoError(t, err)
	defer bucket.Close()
	epoch := func(order []int) {
		c := cache(t, bucket, dir, many*size/2)
		for _, i := range order {
			require.True(t, bytes.Equal(noise(i, size), readAll(t, c, fmt.Sprint(i))), i)
			require.True(t, bytes.Equal(noise(i, size)[20_000:90_000], read(t, c, fmt.Sprint(i), 20_000, 70_000)), i)
		}
	}
	if child {
		for {
			epoch(rand.Perm(many))
		}
	}
	var wrong atomic.Int32
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(g)))
			for range 8 {
				p := exec.Command(os.Args[0], "-test.run=^TestACacheOfKilledProcessesIsRight$")
				p.Env = append(os.Environ(), "NWT_TEST_STORE="+store, "NWT_TEST_CACHE="+dir)
				if err := p.Start(); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(50+rng.IntN(200)) * time.Millisecond)
				_ = p.Process.Kill()
				if err := p.Wait(); err != nil && err.Error() != "signal: killed" {
					wrong.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if runtime.GOOS != "windows" {
		require.Zero(t, wrong.Load(), "a child found wrong bytes")
	}
	epoch(rand.Perm(many))
	epoch(rand.Perm(many))
}

func TestACachedBucketIsAsItsBucketButOnlyReads(t *testing.T) {
	dir := t.TempDir()
	bucket, err := fileblob.OpenBucket(dir, nil)
	require.NoError(t, err)
	defer bucket.Close()
	put(t, bucket, "a/b", hundred)
	c := cache(t, bucket, t.TempDir(), plenty)
	var info os.FileInfo
	require.True(t, c.As(&info))
	a, err := bucket.Attributes(t.Context(), "a/b")
	require.NoError(t, err)
	b, err := c.Attributes(t.Context(), "a/b")
	require.NoError(t, err)
	require.Equal(t, []any{a.ETag, a.MD5, a.Size, a.ContentType}, []any{b.ETag, b.MD5, b.Size, b.ContentType})
	for range 2 {
		data, err := fs.ReadFile(c, "a/b")
		require.NoError(t, err)
		require.Equal(t, hundred, data)
		entries, err := fs.ReadDir(c, "a")
		require.NoError(t, err)
		require.Len(t, entries, 1)
		_, err = fs.ReadFile(c, "none")
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = c.NewRangeReader(t.Context(), "none", 0, 5, nil)
		require.ErrorContains(t, err, "none")
	}
	require.ErrorContains(t, c.WriteAll(t.Context(), "x", nil, nil), "only reads")
	require.ErrorContains(t, c.Delete(t.Context(), "a/b"), "only reads")
	require.ErrorContains(t, c.Copy(t.Context(), "x", "a/b", nil), "only reads")

	for _, bad := range []struct {
		bucket *blob.Bucket
		dir    string
		bytes  int64
		want   string
	}{{nil, dir, 1, "bucket"}, {bucket, "", 1, "dir"}, {bucket, dir, 0, "at least 1"}} {
		_, err := objects.Cached(bad.bucket, bad.dir, bad.bytes)
		require.ErrorContains(t, err, bad.want)
	}
}
