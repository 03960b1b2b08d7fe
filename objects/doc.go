// Package objects makes datasets from an object store, for example S3, Google Cloud Storage or Azure. It
// also reads local folders, memory, and every other store for which [gocloud.dev/blob] has a driver.
//
// The program opens a bucket with the driver of its store, usually by URL:
//
//	import (
//		"gocloud.dev/blob"
//		_ "gocloud.dev/blob/s3blob"
//
//		"github.com/nwt-go/nwt/objects"
//	)
//
//	bucket, err := blob.OpenBucket(ctx, "s3://photos?region=eu-central-1")
//	keys, err := objects.List(ctx, bucket, "train/", nil)
//	ds, err := objects.New(bucket, keys, fields, decode)
//
// [New] makes a dataset with one sample per object. [Packed] makes a dataset of many samples in large
// objects, and finds each sample by its offset and length. A request takes tens of milliseconds and no CPU
// time. So tens of workers are best, more than there are CPUs; nwt.Tune finds the number. To read
// WebDataset's shards in a bucket as a stream, give [FS] to package wds of nwt.
//
// # Connections
//
// Each worker has one request under way. Let the HTTP client keep as many idle connections to the host as
// there are workers; otherwise workers open a new connection for most samples. Go's default is 2
// (http.Transport.MaxIdleConnsPerHost). The default of the AWS SDK is 10.
//
// # A cache on disk
//
// [Cached] wraps a bucket and keeps the data that is read from its objects in a local folder. So a second
// epoch doesn't need the store. The cache works with [New], with [Packed] and, through [FS], with package
// wds and functions that take an fs.FS.
//
//	cached, err := objects.Cached(bucket, "/scratch/photos", 200<<30)
//	keys, err := objects.List(ctx, cached, "train/", nil)
//	ds, err := objects.New(cached, keys, fields, decode)
//
// The processes of a host may share the folder; its bound is for all of them together. If several workers
// read an object for the first time at once, each fetches it. If reading is interrupted, the next attempt
// continues at the same place.
//
// # Failures
//
// A store's client retries failed requests by itself. If a request still fails, the error is an [*Error]
// with the key. If another attempt may succeed, the error is temporary, and the loader tries again: see
// nwt.WithRetry. For example, a connection that breaks in the middle of an object is a temporary error,
// because clients don't retry then. If a request brings no data for a tenth of nwt.WithTimeout, or for 5 s
// without it, the request is given up and repeated, up to 3 times. Each repetition may stall twice as long as
// the request before it. If reading a shard through [FS] fails with a temporary error, the shard is opened
// again, and reading continues at the same place.
//
// # Stores that aren't trusted
//
// [WithMaxBytes] bounds the size of objects. Every request ends with its context or with nwt.WithTimeout. The
// program's HTTP client must do two things itself. First, it must bound the size of a page of keys, because
// drivers read each page into memory as a whole: wrap each body in [net/http.MaxBytesReader]. Second, it must
// compare Content-Range with the range that was requested. The S3 driver of gocloud.dev doesn't, so it accepts
// bytes of another range if their number is right.
package objects
