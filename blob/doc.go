// Package blob makes datasets from an object store: S3, Google Cloud Storage, Azure,
// a folder, memory, or whatever else [gocloud.dev/blob] has a driver for.
//
// The program opens a bucket with the driver it wants, usually by URL:
//
//	import (
//		"gocloud.dev/blob"
//		_ "gocloud.dev/blob/s3blob"
//
//		nwtblob "github.com/nwt-go/nwt/blob"
//	)
//
//	bucket, err := blob.OpenBucket(ctx, "s3://photos?region=eu-central-1")
//	keys, err := nwtblob.List(ctx, bucket, "train/", nil)
//	ds, err := nwtblob.Objects(bucket, keys, fields, decode)
//
// [Objects] has one sample per object. [Packed] has many samples in large objects,
// and finds them by offset and length. A request takes tens of milliseconds and no
// CPU. So tens of workers are best, more than there are CPUs; nwt.Tune finds how
// many. Package wds of nwt reads WebDataset's shards in a bucket as a stream: it
// takes the bucket as a file system.
//
// # Connections
//
// Each worker has one request under way. The HTTP client must keep as many idle
// connections to the host; otherwise workers dial anew for each sample. Go's default
// is 2 (http.Transport.MaxIdleConnsPerHost), the AWS SDK's is 10.
//
// # A cache on disk
//
// [Cached] wraps a bucket: what is read of its objects stays in a local folder, so that a
// second epoch doesn't need the store. It serves all that read a bucket: [Objects], [Packed],
// package wds, and whatever takes an fs.FS.
//
//	cached, err := nwtblob.Cached(bucket, "/scratch/photos", 200<<30)
//	keys, err := nwtblob.List(ctx, cached, "train/", nil)
//	ds, err := nwtblob.Objects(cached, keys, fields, decode)
//
// The processes of a host may share the folder, and its bound. An object that several read at
// once is fetched once by each process. If its reading is broken off, the next attempt goes on
// where it ended. If everything is in the folder, [Offline] needs no store.
//
// # Failures
//
// Clients try again by themselves. What still fails is an [*Error] with the key. If
// another attempt may succeed, the error calls itself temporary, and the loader tries
// again: see nwt.WithRetry. A connection that is cut in the middle of an object is
// such a case: clients leave it to their callers. So is a request that stalls, of which
// stores have one now and then: it is given up and made again, see [WithStallTimeout]. Package
// wds waits for it: give the HTTP client a Timeout, after which a shard is opened again and read
// on from that place, as nwt.WithRetry says.
//
// # Stores that aren't trusted
//
// Objects are bounded by [WithMaxBytes], and every request ends with its context or
// with nwt.WithTimeout. Two things only the program's HTTP client can do. It can bound
// the pages of a list, which drivers read into memory as a whole: let it wrap each
// body by [net/http.MaxBytesReader]. And it can compare Content-Range with the range
// that was asked for: gocloud.dev's S3 driver doesn't, so that bytes of another range,
// of the right length, would be taken for the right ones.
package blob
