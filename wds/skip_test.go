package wds_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

// keysAfter returns the keys of a shard after the first n records, and the error that ends
// it. The first are skipped or read.
func keysAfter(t *testing.T, data []byte, n int, skip bool) (keys []string, err error) {
	t.Helper()
	s, err := wds.New(fstest.MapFS{"a.tar": {Data: data}}, []string{"a.tar"}, fields, load)
	require.NoError(t, err)
	r, err := s.Open(t.Context(), 0)
	require.NoError(t, err)
	defer r.Close()
	var rec nwt.Record
	if skip {
		skipped, err := r.(nwt.Skipper).Skip(t.Context(), n)
		if err != nil {
			return []string{strconv.Itoa(skipped)}, err
		}
		require.Equal(t, n, skipped)
	} else {
		for k := range n {
			if err := r.Next(t.Context(), &rec); err != nil {
				return []string{strconv.Itoa(k)}, err
			}
		}
	}
	for {
		if err := r.Next(t.Context(), &rec); err != nil {
			return keys, err
		}
		keys = append(keys, rec.Value.(*wds.Record).Key)
	}
}

func TestSkippingInAShardIsReadingAndDropping(t *testing.T) {
	whole := shard(t, 0, 20)
	for name, data := range map[string][]byte{
		"whole":       whole,
		"compressed":  compressed(t, whole),
		"cut":         whole[:10*2048+1024],
		"cut in one":  whole[:10*2048+700],
		"other files": entries(t, "0.txt", "0", "README", "", "0.cls", "0", "1.txt", "1", "1.txt", "again", "2.cls", "2"),
		"damaged":     append(append(bytes.Clone(whole[:5*2048]), bytes.Repeat([]byte{7}, 600)...), whole[5*2048+600:]...),
	} {
		for n := 1; n < 23; n++ {
			read, readErr := keysAfter(t, data, n, false)
			skipped, err := keysAfter(t, data, n, true)
			require.Equal(t, read, skipped, "%s, %d", name, n)
			require.Equal(t, readErr, err, "%s, %d", name, n)
		}
	}
}

func TestSkippingReadsNoLargeFileOfALocalShard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.tar")
	f, err := os.Create(path)
	require.NoError(t, err)
	w := wds.NewWriter(f)
	for i := range 40 {
		n := []byte(strconv.Itoa(i))
		require.NoError(t, w.Write(strconv.Itoa(i), wds.File{Ext: "jpg", Data: make([]byte, 200_000)}, wds.File{Ext: "txt", Data: n}, wds.File{Ext: "cls", Data: n}))
	}
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
	counted := &countedFS{FS: os.DirFS(filepath.Dir(path))}
	l, err := nwt.NewLoader(dataset(t, counted), nwt.WithBatchSize(1))
	require.NoError(t, err)
	defer l.Close()
	var got []int64
	for b, err := range l.Resume(t.Context(), nwt.State{Samples: 38}) {
		require.NoError(t, err)
		got = append(got, nwt.Values[int64](b, 0)...)
	}
	require.Equal(t, []int64{38, 39}, got)
	require.Less(t, counted.read.Load(), int64(2_000_000), "of 8 MB")
}
