package blob_test

import (
	"context"
	"io/fs"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	gcblob "gocloud.dev/blob"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

func TestWebDatasetShardsAreReadFromABucket(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 3)
	shards := putShards(t, bucket, 10)
	stream, err := wds.New(bucket, shards, fields, func(ctx context.Context, r *wds.Record, dst *nwt.Sample) error {
		data, err := r.File("bin")
		if err != nil {
			return err
		}
		return decode(ctx, r.Key, data, dst)
	})
	require.NoError(t, err)
	got := epoch(t, nwt.Streamed(stream), nwt.WithShuffle(1), nwt.WithWorkers(4))
	slices.Sort(got)
	require.Equal(t, upTo(30), got)
	require.Len(t, s.asked(), 3, "a request for each shard")
}

// putShards writes three shards of n samples each, and returns their keys.
func putShards(t *testing.T, bucket *gcblob.Bucket, n int) []string {
	shards := []string{"train/0.tar", "train/1.tar", "train/2.tar"}
	for i, shard := range shards {
		object, err := bucket.NewWriter(t.Context(), shard, nil)
		require.NoError(t, err)
		w := wds.NewWriter(object)
		for k := range n {
			require.NoError(t, w.Write(string(content(n*i + k)[:8]), wds.File{Ext: "bin", Data: content(n*i + k)}))
		}
		require.NoError(t, w.Close())
		require.NoError(t, object.Close())
	}
	return shards
}

func TestShardsOfABucketAreReadThoughConnectionsAreCut(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	shards := putShards(t, bucket, 300)
	for name, fsys := range map[string]fs.FS{"bucket": bucket, "cache": cache(t, bucket, t.TempDir(), plenty)} {
		t.Run(name, func(t *testing.T) {
			s.fail(func(_ string, n int) fault { return []fault{cut, cut, mute, busy, cut, none}[n%6] })
			stream, err := wds.New(fsys, shards, fields, func(ctx context.Context, r *wds.Record, dst *nwt.Sample) error {
				data, err := r.File("bin")
				if err != nil {
					return err
				}
				return decode(ctx, r.Key, data, dst)
			})
			require.NoError(t, err)
			before := len(s.asked())
			got := epoch(t, nwt.Streamed(stream), nwt.WithShuffle(1), nwt.WithWorkers(4), nwt.WithRetry(3, 0))
			slices.Sort(got)
			require.Equal(t, upTo(900), got)
			require.Greater(t, len(s.asked())-before, 6, "connections were cut")
		})
	}
}
