package objects_test

import (
	"context"
	"io/fs"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

// shardEpoch returns an epoch of a stream of shards, in order.
func shardEpoch(t *testing.T, fsys fs.FS, shards []string, opts ...nwt.Option) []int64 {
	t.Helper()
	stream, err := wds.New(fsys, shards, fields, func(ctx context.Context, r *wds.Record, dst *nwt.Sample) error {
		data, err := r.File("bin")
		if err != nil {
			return err
		}
		return decode(ctx, r.Key, data, dst)
	})
	require.NoError(t, err)
	got := epoch(t, nwt.Streamed(stream), append(opts, nwt.WithShuffle(1), nwt.WithWorkers(4))...)
	slices.Sort(got)
	return got
}

func TestWebDatasetShardsAreReadFromABucket(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 3)
	shards := putShards(t, bucket, 10)
	require.Equal(t, upTo(30), shardEpoch(t, bucket, shards))
	require.Len(t, s.asked(), 3, "a request for each shard")
}

// putShards writes three shards of n samples each, and returns their keys.
func putShards(t *testing.T, bucket *blob.Bucket, n int) []string {
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
			before := len(s.asked())
			require.Equal(t, upTo(900), shardEpoch(t, fsys, shards, nwt.WithRetry(3, 0)))
			require.Greater(t, len(s.asked())-before, 6, "connections were cut")
		})
	}
}

func TestShardsOfABucketAreReadThoughRequestsStallIfTheClientHasATimeout(t *testing.T) {
	s := newServer(t)
	shards := putShards(t, s.bucket(t, 1), 300)
	bucket, err := s3blob.OpenBucketV2(t.Context(), s3.New(s3.Options{
		BaseEndpoint: aws.String(s.URL), Region: "x", UsePathStyle: true, Credentials: aws.AnonymousCredentials{},
		HTTPClient: &http.Client{Timeout: time.Second}, Retryer: aws.NopRetryer{},
	}), bucketName, nil)
	require.NoError(t, err)
	defer bucket.Close()
	defer s.CloseClientConnections()
	for name, fsys := range map[string]fs.FS{"bucket": bucket, "cache": cache(t, bucket, t.TempDir(), plenty)} {
		t.Run(name, func(t *testing.T) {
			s.fail(func(_ string, n int) fault { return []fault{stalledWithin, none, none, stalled, none, none, none}[n%7] })
			require.Equal(t, upTo(900), shardEpoch(t, fsys, shards, nwt.WithRetry(3, 0)))
		})
	}
}
