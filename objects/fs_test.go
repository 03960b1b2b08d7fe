package objects_test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/objects"
	"github.com/nwt-go/nwt/wds"
)

// refusing makes the server answer the next n requests that name a thing with a status.
func (s *server) refusing(name string, n, status int, code string) {
	left := atomic.Int64{}
	left.Store(int64(n))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = func(r *http.Request) (int, string) {
		if strings.Contains(r.URL.String(), name) && left.Add(-1) >= 0 {
			return status, code
		}
		return 0, ""
	}
}

// eachFileSystem tests each way to read three shards of a bucket, of n samples each.
func eachFileSystem(t *testing.T, n int, test func(t *testing.T, name string, s *server, bucket *blob.Bucket, fsys fs.FS, shards []string)) {
	for name, of := range map[string]func(bucket *blob.Bucket) fs.FS{
		"FS":            objects.FS,
		"FS of a cache": func(bucket *blob.Bucket) fs.FS { return objects.FS(cache(t, bucket, t.TempDir(), plenty)) },
		"bucket":        func(bucket *blob.Bucket) fs.FS { return bucket },
		"cache":         func(bucket *blob.Bucket) fs.FS { return cache(t, bucket, t.TempDir(), plenty) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // a cache waits before it asks again
			s := newServer(t)
			bucket := s.bucket(t, 1)
			test(t, name, s, bucket, of(bucket), putShards(t, bucket, n))
		})
	}
}

func isTemporary(t *testing.T, err error) {
	t.Helper()
	temporary, _ := driver.Temporary(err)
	require.True(t, temporary, "%v", err)
}

func TestAShardThatCannotBeOpenedForAMomentIsNotMissing(t *testing.T) {
	eachFileSystem(t, 10, func(t *testing.T, name string, s *server, _ *blob.Bucket, fsys fs.FS, shards []string) {
		for i, status := range []int{503, 429, 500, 502, 504} {
			if i == 0 || !strings.HasSuffix(name, "cache") {
				s.refusing("1.tar", 3, status, "SlowDown")
				require.Equal(t, upTo(30), shardEpoch(t, fsys, shards, nwt.WithRetry(3, 0), nwt.WithErrorBudget(1)), status)
			}
		}
	})
}

func TestAShardThatCannotBeOpenedIsNotMissing(t *testing.T) {
	eachFileSystem(t, 10, func(t *testing.T, name string, s *server, _ *blob.Bucket, fsys fs.FS, shards []string) {
		s.refusing("2.tar", 1<<30, 503, "SlowDown")
		if strings.HasPrefix(name, "FS") { // a bucket says itself that there is no such file
			_, err := fs.ReadFile(fsys, "train/2.tar")
			require.NotErrorIs(t, err, fs.ErrNotExist)
			require.ErrorContains(t, err, "503")
			isTemporary(t, err)
		}
		if strings.HasSuffix(name, "cache") {
			return // waits for long
		}
		_, err := wds.Index(t.Context(), fsys, shards)
		require.NotErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, "503")
		require.ErrorContains(t, err, "train/2.tar")
	})
}

func TestAShardThatIsDeniedIsNotMissing(t *testing.T) {
	eachFileSystem(t, 10, func(t *testing.T, name string, s *server, _ *blob.Bucket, fsys fs.FS, shards []string) {
		s.refusing("1.tar", 1<<30, 403, "AccessDenied")
		_, err := wds.Index(t.Context(), fsys, shards)
		require.NotErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, "403")
		require.NotContains(t, err.Error(), "attempt")
		if strings.HasPrefix(name, "FS") {
			require.ErrorIs(t, err, fs.ErrPermission)
		}
		_, err = wds.Index(t.Context(), fsys, []string{"train/none.tar"})
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
}

func TestAnIndexIsReadThoughTheStoreFailsForAMoment(t *testing.T) {
	eachFileSystem(t, 300, func(t *testing.T, name string, s *server, bucket *blob.Bucket, fsys fs.FS, shards []string) {
		s.refusing("1.tar", 3, 503, "SlowDown")
		s.fail(func(_ string, n int) fault { return []fault{cut, none}[min(n, 1)] })
		counts, err := wds.Index(t.Context(), fsys, shards)
		require.NoError(t, err)
		require.Equal(t, 300, counts[1].Samples)
		var index strings.Builder
		require.NoError(t, wds.WriteIndex(&index, counts))
		put(t, bucket, "index.json", []byte(index.String()))
		put(t, bucket, "other.json", []byte(index.String()))
		load := func(context.Context, *wds.Record, *nwt.Sample) error { return nil }
		s.refusing("index.json", 3, 503, "SlowDown")
		stream, err := wds.New(fsys, shards, fields, load, wds.WithIndex("index.json"))
		require.NoError(t, err)
		require.Equal(t, 300, stream.(nwt.CountedStream).Records(2))
		if strings.HasSuffix(name, "cache") {
			return // waits for long
		}
		s.refusing("other.json", 1<<30, 503, "SlowDown")
		_, err = wds.New(fsys, shards, fields, load, wds.WithIndex("other.json"))
		require.NotErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, "503")
	})
}

func TestABucketAsFilesKeepsTheRulesOfFileSystems(t *testing.T) {
	folder, err := fileblob.OpenBucket(t.TempDir(), &fileblob.Options{NoTempDir: true})
	require.NoError(t, err)
	defer folder.Close()
	mem := memblob.OpenBucket(nil)
	defer mem.Close()
	for name, bucket := range map[string]*blob.Bucket{"S3": newServer(t).bucket(t, 1), "folder": folder, "memory": mem} {
		t.Run(name, func(t *testing.T) {
			for _, key := range []string{"a", "b/c.tar", "b/d/e", "b/d.tar", "f/g"} {
				put(t, bucket, key, []byte("content of "+key))
			}
			if name != "folder" {
				put(t, bucket, "b/", nil) // consoles mark folders in this way
				put(t, bucket, "h//i", nil)
			}
			for _, b := range []*blob.Bucket{bucket, cache(t, bucket, t.TempDir(), plenty)} {
				require.NoError(t, fstest.TestFS(objects.FS(b), "a", "b/c.tar", "b/d/e", "b/d.tar", "f/g"))
			}
		})
	}
	require.Nil(t, objects.FS(nil))
}

func TestAFolderOfABucketHasAllItsFilesOrAnError(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	for i := range 1500 { // two pages
		put(t, bucket, fmt.Sprintf("photos/%05d", i), nil)
	}
	fsys := objects.FS(bucket)
	s.refusing("list-type", 2, 503, "SlowDown")
	entries, err := fs.ReadDir(fsys, "photos")
	require.NoError(t, err)
	require.Len(t, entries, 1500)
	s.refusing("continuation-token", 1<<30, 503, "SlowDown")
	entries, err = fs.ReadDir(fsys, "photos")
	require.ErrorContains(t, err, "503")
	require.NotErrorIs(t, err, fs.ErrNotExist)
	require.Empty(t, entries)
}

func TestARequestForAShardThatStallsIsGivenUpAndMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answerer{wait: func(_, n int) (before, within time.Duration) {
			return []time.Duration{-1, 0, 0, 0}[n], []time.Duration{0, -1, 10 * time.Second, 0}[n]
		}}
		fsys := objects.FS(a.bucket(t))
		_, err := fsys.Open("5")
		require.ErrorContains(t, err, "nothing came for 20s")
		isTemporary(t, err)
		_, err = fs.ReadFile(fsys, "5")
		require.ErrorContains(t, err, "read 5: nothing came for 20s")
		file, err := fsys.Open("5")
		require.NoError(t, err)
		time.Sleep(time.Hour) // the reader's own time is no stall
		data, err := io.ReadAll(file)
		require.NoError(t, err)
		require.Equal(t, content(5), data)
		require.NoError(t, file.Close())
	})
}

func TestShardsOfABucketAreReadThoughRequestsStall(t *testing.T) {
	mem := memblob.OpenBucket(nil)
	defer mem.Close()
	shards := [][]byte{}
	for _, key := range putShards(t, mem, 100) {
		shards = append(shards, readAll(t, mem, key))
	}
	synctest.Test(t, func(t *testing.T) {
		a := &answerer{data: shards, wait: func(_, n int) (before, within time.Duration) {
			if n > 1 {
				return 0, 0
			}
			return []time.Duration{-1, 0}[n], []time.Duration{0, -1}[n]
		}}
		require.Equal(t, upTo(300), shardEpoch(t, objects.FS(a.bucket(t)), []string{"0", "1", "2"}))
		require.EqualValues(t, 4, a.attempts[1].Load())
	})
}

func TestRefusalsOfS3ThatPassAreTemporary(t *testing.T) {
	for code, status := range map[string]int{
		"ExpiredToken": 400, "RequestTimeout": 400, "TokenRefreshRequired": 400, "RequestTimeTooSkewed": 403, "RequestExpired": 400,
	} {
		t.Run(code, func(t *testing.T) {
			s := newServer(t)
			bucket := s.bucket(t, 1)
			ds, shards := trainSet(t, bucket, 4), putShards(t, bucket, 10)
			s.refusing("train/", 3, status, code)
			require.Equal(t, upTo(4), epoch(t, ds, nwt.WithRetry(3, 0), nwt.WithWorkers(1)))
			for _, fsys := range []fs.FS{objects.FS(bucket), bucket} {
				if fsys == bucket && status == 403 {
					continue // HEAD, by which a bucket looks for a file, gets no reason
				}
				s.refusing("1.tar", 3, status, code)
				require.Equal(t, upTo(30), shardEpoch(t, fsys, shards, nwt.WithRetry(3, 0)))
			}
			s.refusing("list-type", 3, status, code)
			keys, err := objects.List(t.Context(), bucket, "train/", nil)
			require.NoError(t, err)
			require.Equal(t, 7, keys.Len())
		})
	}
	s := newServer(t)
	bucket := s.bucket(t, 1)
	ds := trainSet(t, bucket, 1)
	for code, status := range map[string]int{"AccessDenied": 403, "InvalidAccessKeyId": 403, "SignatureDoesNotMatch": 403, "InvalidArgument": 400} {
		s.refusing("train/", 1<<30, status, code)
		_, err := nwt.LoadSample(t.Context(), ds, 0)
		var named *objects.Error
		require.ErrorAs(t, err, &named)
		require.False(t, named.Temporary(), code)
		_, err = fs.ReadFile(objects.FS(bucket), "train/00000")
		temporary, _ := driver.Temporary(err)
		require.False(t, temporary, code)
	}
}

func TestGlobOfABucketHasAllShardsOrAnError(t *testing.T) {
	eachFileSystem(t, 1, func(t *testing.T, name string, s *server, bucket *blob.Bucket, fsys fs.FS, shards []string) {
		put(t, bucket, "more/0.tar", nil)
		all := append([]string{"more/0.tar"}, shards...)
		for _, pattern := range []string{"*/*.tar", "{more,train}/*.tar"} {
			for _, status := range []int{503, 429} {
				s.refusing("list-type", 3, status, "SlowDown")
				got, err := wds.Glob(fsys, pattern)
				require.NoError(t, err)
				require.Equal(t, all, got)
			}
		}
		for status, code := range map[int]string{503: "SlowDown", 403: "AccessDenied"} {
			s.refusing("prefix=train", 1<<30, status, code)
			_, err := wds.Glob(fsys, "*/*.tar")
			require.ErrorContains(t, err, code)
			require.NotErrorIs(t, err, fs.ErrNotExist)
		}
		s.refusing("", 0, 0, "")
		require.NoError(t, bucket.Delete(t.Context(), "train/1.tar")) // since Glob named it
		_, err := wds.Index(t.Context(), fsys, shards)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, "train/1.tar")
	})
}
