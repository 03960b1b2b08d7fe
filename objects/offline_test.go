package objects_test

import (
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/objects"
)

func TestWhatIsInTheCacheNeedsNoStore(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	put(t, bucket, "empty", nil)
	put(t, bucket, "large", noise(1, 20<<20))
	for i := range 1500 { // two pages of a list
		put(t, bucket, fmt.Sprintf("photos/%05d", i), content(i))
	}
	index := pack(t, bucket, 300, 50)
	shards := putShards(t, bucket, 100)
	dir := t.TempDir()
	run := func(c *blob.Bucket) {
		keys, err := objects.List(t.Context(), c, "photos/", nil)
		require.NoError(t, err)
		require.Equal(t, 1500, keys.Len())
		whole, err := objects.New(c, keys, fields, decode)
		require.NoError(t, err)
		require.Equal(t, upTo(1500), epoch(t, whole, nwt.WithBatchSize(16), nwt.WithWorkers(4)))
		packed, err := objects.Packed(c, index, fields, decode)
		require.NoError(t, err)
		require.Equal(t, upTo(300), epoch(t, packed, nwt.WithBatchSize(64), nwt.WithWorkers(4)))
		require.Equal(t, upTo(300), shardEpoch(t, c, shards))
		entries, err := fs.ReadDir(c, "train")
		require.NoError(t, err)
		require.Len(t, entries, 3)
		require.Empty(t, readAll(t, c, "empty"))
		require.Equal(t, noise(1, 20<<20)[18<<20:18<<20+100], read(t, c, "large", 18<<20, 100))
	}
	for range 2 {
		c := cache(t, bucket, dir, plenty)
		run(c)
		require.NoError(t, c.Close())
	}
	s.Close()
	c, err := objects.Cached(bucket, dir, plenty, objects.WithOffline())
	require.NoError(t, err)
	defer c.Close()
	run(c)

	_, err = c.ReadAll(t.Context(), "none")
	require.ErrorContains(t, err, "objects.WithOffline asks no store")
	_, err = c.ReadAll(t.Context(), "large")
	require.ErrorContains(t, err, "or not all of it")
	_, err = objects.List(t.Context(), c, "other/", nil)
	require.ErrorContains(t, err, "objects.WithOffline asks no store")
	_, err = c.Open("other/a")
	require.ErrorContains(t, err, "objects.WithOffline asks no store")
	require.NotErrorIs(t, err, fs.ErrNotExist)
	var keys objects.Keys
	keys.Add("none")
	ds, err := objects.New(c, &keys, fields, decode)
	require.NoError(t, err)
	_, err = nwt.LoadSample(t.Context(), ds, 0)
	var named *objects.Error
	require.ErrorAs(t, err, &named)
	require.False(t, named.Temporary())
	_, err = objects.Cached(bucket, dir, plenty, nil)
	require.ErrorContains(t, err, "objects: Cached: options[0]: is nil")
}

// The run that was broken off by the store has a new first page, and no second one.
func TestAListThatBrokeOffLeavesTheOneBeforeWhole(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	for i := range 1500 {
		put(t, bucket, fmt.Sprintf("%05d", i), nil)
	}
	dir := t.TempDir()
	c := cache(t, bucket, dir, plenty)
	_, err := objects.List(t.Context(), c, "", nil)
	require.NoError(t, err)
	put(t, bucket, "00500", []byte("another"))
	c = cache(t, bucket, dir, plenty)
	_, _, err = c.ListPage(t.Context(), blob.FirstPageToken, 1000, nil)
	require.NoError(t, err)
	s.Close()
	c, err = objects.Cached(bucket, dir, plenty, objects.WithOffline())
	require.NoError(t, err)
	defer c.Close()
	keys, err := objects.List(t.Context(), c, "", nil)
	require.NoError(t, err)
	require.Equal(t, 1500, keys.Len())
}
