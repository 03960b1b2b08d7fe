package objects_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/objects"
)

// The samples of these tests are numbers whose bytes have many lengths: the
// decimal digits of i, i%97+1 times.
func content(i int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%08d", i), i%97+1)
}

var fields = []nwt.Field{{Name: "number", Type: nwt.Int64}, {Name: "bytes", Type: nwt.Int32}}

var errContent = errors.New("not the content of any sample")

func decode(_ context.Context, _ string, data []byte, dst *nwt.Sample) error {
	var i int
	if _, err := fmt.Sscanf(string(data[:min(len(data), 8)]), "%d", &i); err != nil || !bytes.Equal(data, content(i)) {
		return errContent
	}
	nwt.Values[int64](dst, 0)[0] = int64(i)
	nwt.Values[int32](dst, 1)[0] = int32(len(data))
	return nil
}

// epoch returns the numbers of an epoch, in order of delivery.
func epoch(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) (all []int64) {
	t.Helper()
	l, err := nwt.NewLoader(ds, append(opts, nwt.WithLogger(silent))...)
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		for i, n := range nwt.Values[int64](b, 0) {
			require.Len(t, content(int(n)), int(nwt.Values[int32](b, 1)[i]))
			all = append(all, n)
		}
	}
	return all
}

func upTo(n int) (all []int64) {
	for i := range n {
		all = append(all, int64(i))
	}
	return all
}

// faults returns how the server answers: differently by the key's last digit, and
// well at the third attempt at last.
func faults(key string, attempt int) fault {
	scripts := [][]fault{{}, {busy}, {mute}, {cut}, {busy, cut}, {}, {cut, mute}}
	script := scripts[int(key[len(key)-1])%len(scripts)]
	if attempt < len(script) {
		return script[attempt]
	}
	return none
}

func trainSet(t *testing.T, bucket *blob.Bucket, n int) nwt.Dataset {
	t.Helper()
	for i := range n {
		put(t, bucket, fmt.Sprintf("train/%05d", i), content(i))
	}
	keys, err := objects.List(t.Context(), bucket, "train/", nil)
	require.NoError(t, err)
	require.Equal(t, n, keys.Len())
	ds, err := objects.New(bucket, keys, fields, decode)
	require.NoError(t, err)
	return ds
}

func TestNoObjectIsLostOrDoubledWhereTheServerFails(t *testing.T) {
	for _, c := range []struct {
		name  string
		tries int // of the client: with one, all that fails is left to the loader
	}{{"the loader tries again", 1}, {"client and loader try again", 3}} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t)
			ds := trainSet(t, s.bucket(t, c.tries), 300)
			s.fail(faults)
			s.latency = 20 * time.Millisecond
			got := epoch(t, ds, nwt.WithBatchSize(16), nwt.WithWorkers(24), nwt.WithShuffle(1))
			slices.Sort(got)
			require.Equal(t, upTo(300), got)
			require.Greater(t, len(s.asked()), 300)
			s.mu.Lock()
			defer s.mu.Unlock()
			require.Greater(t, s.busiest, 8, "workers wait side by side")
		})
	}
}

// pack puts n samples into objects of per samples each, with gaps between them.
func pack(t *testing.T, bucket *blob.Bucket, n, per int) *objects.Index {
	t.Helper()
	var index objects.Index
	var object []byte
	for i := range n {
		key := fmt.Sprintf("packed/%d", i/per)
		object = append(object, make([]byte, i%5)...)
		index.Add(key, int64(len(object)), int64(len(content(i))))
		object = append(object, content(i)...)
		if i%per == per-1 || i == n-1 {
			put(t, bucket, key, object)
			object = nil
		}
	}
	require.Equal(t, n, index.Len())
	return &index
}

func TestNeighboursInLargeObjectsAreReadInOneRequest(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	ds, err := objects.Packed(bucket, pack(t, bucket, 640, 128), fields, decode)
	require.NoError(t, err)
	require.Equal(t, upTo(640), epoch(t, ds, nwt.WithBatchSize(64), nwt.WithWorkers(2)))
	require.LessOrEqual(t, len(s.asked()), 640/32)
}

func TestWhichPartsShareARequest(t *testing.T) {
	type part struct {
		key            string
		offset, length int64
	}
	const far = 64 << 10
	for _, c := range []struct {
		name  string
		parts []part
		want  []string
	}{
		{"in one another", []part{{"a", 0, 1000}, {"a", 10, 10}, {"a", 0, 1000}}, []string{"bytes=0-999"}},
		{"overlapping", []part{{"a", 0, 1000}, {"a", 990, 20}}, []string{"bytes=0-1009"}},
		{"backwards", []part{{"a", 20, 10}, {"a", 10, 10}, {"a", 0, 10}}, []string{"bytes=0-29"}},
		{"as far apart as may be", []part{{"a", 0, 10}, {"a", 10 + far, 10}}, []string{"bytes=0-65555"}},
		{"further", []part{{"a", 0, 10}, {"a", 11 + far, 10}}, []string{"bytes=0-9", "bytes=65547-65556"}},
		{"in two objects", []part{{"b", 5, 5}, {"a", 0, 10}, {"b", 0, 5}}, []string{"bytes=0-9", "bytes=0-9"}},
		{"more than 8 MiB", []part{{"a", 0, 8 << 20}, {"a", 8 << 20, 1}}, []string{"bytes=0-8388607", "bytes=8388608-8388608"}},
		{"nothing at all", []part{{"a", 7, 0}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t)
			bucket := s.bucket(t, 1)
			put(t, bucket, "a", make([]byte, 8<<20+1))
			put(t, bucket, "b", make([]byte, 10))
			var index objects.Index
			for _, p := range c.parts {
				index.Add(p.key, p.offset, p.length)
			}
			length := []nwt.Field{{Name: "length", Type: nwt.Int64}}
			ds, err := objects.Packed(bucket, &index, length, func(_ context.Context, _ string, data []byte, dst *nwt.Sample) error {
				nwt.Values[int64](dst, 0)[0] = int64(len(data))
				return nil
			})
			require.NoError(t, err)
			l, err := nwt.NewLoader(ds, nwt.WithWorkers(0))
			require.NoError(t, err)
			defer l.Close()
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				for i, p := range c.parts {
					require.Equal(t, p.length, nwt.Values[int64](b, 0)[i])
				}
			}
			require.Equal(t, c.want, s.asked())
		})
	}
}

func TestNoPackedSampleIsLostOrDoubledWhereTheServerFails(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	ds, err := objects.Packed(bucket, pack(t, bucket, 300, 50), fields, decode)
	require.NoError(t, err)
	s.fail(func(_ string, n int) fault { return []fault{none, busy, none, cut, none, mute}[n%6] })
	got := epoch(t, ds, nwt.WithBatchSize(32), nwt.WithWorkers(4), nwt.WithShuffle(1), nwt.WithRetry(20, 0))
	slices.Sort(got)
	require.Equal(t, upTo(300), got)
}

func TestPartsMayLieAnyhow(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 20<<20) // of which every 8 bytes tell where they are
	for i := 0; i < len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], uint64(i))
	}
	put(t, bucket, "a", data)
	put(t, bucket, "b", data[8:])

	var index objects.Index
	type place struct{ first, length int64 }
	var want []place
	for i := range 600 {
		length := 8 * rng.Int64N(100)
		if i%50 == 7 {
			length = 9 << 20 // more than a request for several parts may be
		}
		offset := 8 * rng.Int64N((int64(len(data))-length)/8)
		if i%3 > 0 && i%50 != 7 {
			offset /= 100 // many near each other, some in each other
			offset -= offset % 8
		}
		if i%2 == 0 {
			index.Add("a", offset, length)
			want = append(want, place{offset, length})
		} else {
			index.Add("b", offset, length)
			want = append(want, place{offset + 8, length})
		}
	}
	fields := []nwt.Field{{Name: "first", Type: nwt.Int64}, {Name: "length", Type: nwt.Int64}}
	ds, err := objects.Packed(bucket, &index, fields, func(_ context.Context, key string, data []byte, dst *nwt.Sample) error {
		first := want[dst.Index()].first
		for i := 0; i < len(data); i += 8 {
			if got := binary.LittleEndian.Uint64(data[i:]); got != uint64(first)+uint64(i) {
				return fmt.Errorf("at %d: %d", i, got)
			}
		}
		nwt.Values[int64](dst, 0)[0], nwt.Values[int64](dst, 1)[0] = first, int64(len(data))
		return nil
	})
	require.NoError(t, err)
	for _, workers := range []int{0, 1, 3} {
		l, err := nwt.NewLoader(ds, nwt.WithBatchSize(100), nwt.WithWorkers(workers), nwt.WithShuffle(3))
		require.NoError(t, err)
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for i, index := range b.Indices() {
				require.Equal(t, want[index], place{nwt.Values[int64](b, 0)[i], nwt.Values[int64](b, 1)[i]})
			}
		}
		require.NoError(t, l.Close())
	}
}

func TestWhatIsPermanentIsNotTriedAgainAndNamesItsKey(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	put(t, bucket, "good", content(1))
	put(t, bucket, "broken", []byte("12345678 and no more"))
	put(t, bucket, "forbidden", content(2))
	s.fail(func(key string, _ int) fault {
		if key == "forbidden" {
			return denied
		}
		return none
	})
	load := func(ds nwt.Dataset, err error) *objects.Error {
		t.Helper()
		require.NoError(t, err)
		l, err := nwt.NewLoader(ds, nwt.WithWorkers(0), nwt.WithBatchSize(1), nwt.WithRetry(3, 0))
		require.NoError(t, err)
		defer l.Close()
		for _, err = range l.Epoch(t.Context(), 0) {
		}
		var named *objects.Error
		require.ErrorAs(t, err, &named)
		require.False(t, named.Temporary())
		return named
	}
	whole := func(key string) *objects.Error {
		t.Helper()
		var keys objects.Keys
		keys.Add(key)
		err := load(objects.New(bucket, &keys, fields, decode))
		require.Equal(t, key, err.Key)
		require.ErrorContains(t, err, fmt.Sprintf("object %q", key))
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Equal(t, 1, s.attempts[key])
		return err
	}
	whole("absent")
	whole("forbidden")
	require.ErrorIs(t, whole("broken"), errContent)

	part := func(offset, length int64) *objects.Error {
		t.Helper()
		var index objects.Index
		index.Add("good", offset, length)
		return load(objects.Packed(bucket, &index, fields, decode))
	}
	require.EqualError(t, part(10, 100), `object "good", 100 bytes at 10: the object has only 16 bytes`)
	require.ErrorContains(t, part(100, 10), `object "good", 10 bytes at 100`)
	require.ErrorIs(t, part(0, 7), errContent)
}

func TestWhatStaysTemporaryIsTriedAsOftenAsTheLoaderIsTold(t *testing.T) {
	for _, f := range []fault{busy, cut} { // net/http tries once more what is mute
		s := newServer(t)
		ds := trainSet(t, s.bucket(t, 1), 1)
		s.fail(func(string, int) fault { return f })
		l, err := nwt.NewLoader(ds, nwt.WithWorkers(1), nwt.WithRetry(4, 0))
		require.NoError(t, err)
		for _, err = range l.Epoch(t.Context(), 0) {
		}
		var named *objects.Error
		require.ErrorAs(t, err, &named)
		require.True(t, named.Temporary())
		require.Equal(t, "train/00000", named.Key)
		require.Equal(t, 5, len(s.asked()))
		require.NoError(t, l.Close())
	}
}

func TestAnEpochThatIsLeftLeavesNoRequestBehind(t *testing.T) {
	s := newServer(t)
	ds := trainSet(t, s.bucket(t, 1), 100)
	started := make(chan struct{}, 100)
	var hanging atomic.Int32
	answers := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path.Base(r.URL.Path) < "00008" {
			answers.ServeHTTP(w, r)
			return
		}
		hanging.Add(1)
		defer hanging.Add(-1)
		started <- struct{}{}
		<-r.Context().Done() // the client is gone
	})
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(8), nwt.WithWorkers(8), nwt.WithLogger(silent))
	require.NoError(t, err)
	for _, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		<-started
		break // while requests hang: the loop ends all the same
	}
	require.NoError(t, l.Close())
	require.Eventually(t, func() bool { return hanging.Load() == 0 }, time.Minute, time.Millisecond, "the server sees that nobody waits")
}

func TestFieldsAndArgumentsThatCannotBeAreNamed(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	var keys, none objects.Keys
	keys.Add("a")
	var index, negative, long, far objects.Index
	index.Add("a", 0, 1)
	negative.Add("a", -1, 1)
	long.Add("a", 0, 1<<32)
	far.Add("key", 1<<62, 1<<31)
	far.Add("key", 1<<63-1, 1)
	for _, c := range []struct {
		want string
		make func() (any, error)
	}{
		{"bucket", func() (any, error) { return objects.List(t.Context(), nil, "", nil) }},
		{"bucket", func() (any, error) { return objects.New(nil, &keys, fields, decode) }},
		{"keys", func() (any, error) { return objects.New(bucket, nil, fields, decode) }},
		{"keys", func() (any, error) { return objects.New(bucket, &none, fields, decode) }},
		{"decode", func() (any, error) { return objects.New(bucket, &keys, fields, nil) }},
		{"bucket", func() (any, error) { return objects.Packed(nil, &index, fields, decode) }},
		{"index", func() (any, error) { return objects.Packed(bucket, nil, fields, decode) }},
		{"index", func() (any, error) { return objects.Packed(bucket, &objects.Index{}, fields, decode) }},
		{"1 bytes at -1", func() (any, error) { return objects.Packed(bucket, &negative, fields, decode) }},
		{"4294967296 bytes at 0", func() (any, error) { return objects.Packed(bucket, &long, fields, decode) }},
		{"1 bytes at 9223372036854775807", func() (any, error) { return objects.Packed(bucket, &far, fields, decode) }},
		{"Fields", func() (any, error) {
			ds, err := objects.New(bucket, &keys, nil, decode)
			require.NoError(t, err)
			return nwt.NewLoader(ds)
		}},
	} {
		_, err := c.make()
		var bad *nwt.ArgumentError
		require.ErrorAs(t, err, &bad)
		require.ErrorContains(t, err, c.want)
	}
}

func TestObjectsOfAnyLengthArriveWhole(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	rng := rand.NewChaCha8([32]byte{})
	var keys objects.Keys
	var want [][]byte
	for i, n := range []int{0, 1, 511, 512, 100_000, 3, 65 << 20} {
		data := make([]byte, n)
		_, _ = io.ReadFull(rng, data)
		key := fmt.Sprint(i)
		put(t, bucket, key, data)
		keys.Add(key)
		want = append(want, data)
	}
	equal := []nwt.Field{{Name: "equal", Type: nwt.Bool}}
	ds, err := objects.New(bucket, &keys, equal, func(_ context.Context, _ string, data []byte, dst *nwt.Sample) error {
		nwt.Values[bool](dst, 0)[0] = bytes.Equal(data, want[dst.Index()])
		return nil
	})
	require.NoError(t, err)
	for i := range want {
		sample, err := nwt.LoadSample(t.Context(), ds, i)
		require.NoError(t, err)
		require.True(t, nwt.Values[bool](sample, 0)[0], i)
	}
}
