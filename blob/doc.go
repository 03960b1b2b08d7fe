// Package blob makes datasets of what lies in an object store: S3, Google Cloud
// Storage, Azure, a folder or memory, whatever [gocloud.dev/blob] has a driver
// for.
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
// [Objects] is a sample per object, [Packed] many samples in large objects,
// found by offset and length. A request takes tens of milliseconds and no CPU:
// tens of workers are best, more than there are CPUs, and nwt.Tune finds how
// many. Shards of WebDataset in a bucket are read as a stream by package wds of
// nwt, for which a bucket is a file system.
//
// # Connections
//
// Each worker has one request under way. The HTTP client must keep as many idle
// connections to the host, or workers dial anew for each sample: Go's default is
// 2 (http.Transport.MaxIdleConnsPerHost), that of the AWS SDK 10.
//
// # Failures
//
// Clients try again by themselves; what still fails is an [*Error] with the key.
// It calls itself temporary where another attempt may succeed, and the loader
// makes one: see nwt.WithRetry. Connections cut in the middle of an object are
// among these, which clients leave to their callers.
package blob
