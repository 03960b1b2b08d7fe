// Package objects makes datasets from an object store: S3, Google Cloud Storage, Azure, a folder, memory, or
// anything else for which [gocloud.dev/blob] has a driver.
//
// The program opens a bucket with the driver it wants, usually by URL:
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
// [New] makes a dataset with one sample per object. [Packed] makes one of many samples in large objects,
// and finds them by offset and length. A request takes tens of milliseconds and no CPU time. So tens of
// workers are best, more than there are CPUs; nwt.Tune finds the number. Package wds of nwt reads
// WebDataset's shards in a bucket as a stream: give it the file system of [FS].
//
// # Connections
//
// Each worker has one request under way. The HTTP client must keep as many idle connections to the host
// as there are workers; otherwise workers open a new connection for each sample. Go's default is 2
// (http.Transport.MaxIdleConnsPerHost); the default of the AWS SDK is 10.
//
// # A cache on disk
//
// [Cached] wraps a bucket: what is read from its objects is kept in a local folder, so that a second
// epoch doesn't need the store. The cache works for everything that reads a bucket: [New], [Packed], and,
// through [FS], package wds and functions that take an fs.FS.
//
//	cached, err := objects.Cached(bucket, "/scratch/photos", 200<<30)
//	keys, err := objects.List(ctx, cached, "train/", nil)
//	ds, err := objects.New(cached, keys, fields, decode)
//
// The processes of a host may share the folder; its bound holds for all of them together. Workers that
// read an object at once each fetch it. If reading is interrupted, the next attempt continues where it
// ended. If everything is in the folder, a cache with [WithOffline] needs no store.
//
// # Failures
//
// Clients of object stores retry by themselves. If a request still fails, the error is an [*Error] with
// the key. If another attempt may succeed, the error calls itself temporary, and the loader tries again:
// see nwt.WithRetry. One such error is a connection that is cut in the middle of an object: clients
// leave this case to their callers. Another one is a request that stalls, as requests to stores
// sometimes do: such a request is given up and made again, see [WithStallTimeout]. After such an error,
// a shard that is read through [FS] is opened again, and reading continues at the same place.
//
// # Stores that aren't trusted
//
// [WithMaxBytes] bounds the size of objects, and every request ends with its context or with
// nwt.WithTimeout. Two things are left to the program's HTTP client. First, drivers read each page of a
// list into memory as a whole: to bound the page's size, let the client wrap each body in
// [net/http.MaxBytesReader]. Second, the client can compare Content-Range with the range that was asked
// for. gocloud.dev's S3 driver doesn't, so it accepts bytes of another range if their number is right.
package objects
