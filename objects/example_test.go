package objects_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/memblob" // or s3blob, gcsblob, azureblob, fileblob

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/objects"
	"github.com/nwt-go/nwt/vision"
)

// Each object is a sample: here a grey image of 2 × 2 pixels, whose class is in
// its key.
func ExampleNew() {
	ctx := context.Background()
	bucket, err := blob.OpenBucket(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer bucket.Close()
	_ = bucket.WriteAll(ctx, "train/0/a.raw", []byte{1, 2, 3, 4}, nil)
	_ = bucket.WriteAll(ctx, "train/7/b.raw", []byte{5, 6, 7, 8}, nil)

	keys, err := objects.List(ctx, bucket, "train/", nil)
	if err != nil {
		log.Fatal(err)
	}
	var schema nwt.Schema
	image := nwt.AddField[uint8](&schema, "image", 2, 2)
	label := nwt.AddField[int64](&schema, "label")
	ds, err := objects.New(bucket, keys, schema.Fields(), func(_ context.Context, key string, data []byte, dst *nwt.Sample) error {
		image.Set(dst, data...)
		_, err := fmt.Sscanf(key, "train/%d/", &label.Of(dst)[0])
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(2), nwt.WithWorkers(32))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(image.Of(batch), label.Of(batch))
	}
	// Output: [1 2 3 4 5 6 7 8] [0 7]
}

// An object of records of the same length, as those of CIFAR-10, needs no list
// of offsets: the index is computed from its size.
func ExamplePacked() {
	const record = 3 // a label and two pixels
	ctx := context.Background()
	bucket, err := blob.OpenBucket(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer bucket.Close()
	_ = bucket.WriteAll(ctx, "data_batch_1.bin", []byte{0, 11, 12, 1, 21, 22, 2, 31, 32}, nil)

	about, err := bucket.Attributes(ctx, "data_batch_1.bin")
	if err != nil {
		log.Fatal(err)
	}
	var index objects.Index
	for at := int64(0); at < about.Size; at += record {
		index.Add("data_batch_1.bin", at, record)
	}
	fields := []nwt.Field{
		{Name: "label", Type: nwt.Uint8},
		{Name: "pixels", Type: nwt.Uint8, Shape: []int{2}},
	}
	ds, err := objects.Packed(bucket, &index, fields, func(_ context.Context, _ string, data []byte, dst *nwt.Sample) error {
		copy(dst.Bytes(0), data[:1])
		copy(dst.Bytes(1), data[1:])
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}

	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(3), nwt.WithWorkers(1))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.Bytes(0), batch.Bytes(1))
	}
	// Output: [0 1 2] [11 12 21 22 31 32]
}

// A second epoch reads what the first one has kept on disk.
func ExampleCached() {
	ctx := context.Background()
	bucket, err := blob.OpenBucket(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer bucket.Close()
	_ = bucket.WriteAll(ctx, "train/7.raw", []byte{1, 2, 3, 4}, nil)
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	cached, err := objects.Cached(bucket, dir, 100<<30) // of all processes that use the folder
	if err != nil {
		log.Fatal(err)
	}
	defer cached.Close()
	keys, err := objects.List(ctx, cached, "train/", nil) // also tells which objects have changed
	if err != nil {
		log.Fatal(err)
	}
	fields := []nwt.Field{{Name: "pixels", Type: nwt.Uint8, Shape: []int{4}}}
	ds, err := objects.New(cached, keys, fields, func(_ context.Context, _ string, data []byte, dst *nwt.Sample) error {
		copy(dst.Bytes(0), data)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	loader, err := nwt.NewLoader(ds)
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for epoch := range 2 {
		for batch, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(batch.Bytes(0))
		}
		_ = bucket.Delete(ctx, "train/7.raw") // nobody misses it
	}
	// Output:
	// [1 2 3 4]
	// [1 2 3 4]
}

// Photographs in a bucket: the function hands their bytes to a pipeline of vision.
func ExampleNew_photographs() {
	ctx := context.Background()
	bucket, err := blob.OpenBucket(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer bucket.Close()
	photo, err := os.ReadFile("../vision/testdata/photo.jpg")
	if err != nil {
		log.Fatal(err)
	}
	_ = bucket.WriteAll(ctx, "train/3/coffee.jpg", photo, nil)

	pipeline, err := vision.New([]vision.Transform{
		vision.RandomResizedCrop{Size: vision.Square(224)},
		vision.RandomHorizontalFlip{P: 0.5},
		vision.ImageNetNormalize,
	})
	if err != nil {
		log.Fatal(err)
	}
	keys, err := objects.List(ctx, bucket, "train/", nil)
	if err != nil {
		log.Fatal(err)
	}
	var schema nwt.Schema
	image := nwt.AddField[float32](&schema, "image", pipeline.Field("image").Shape...)
	label := nwt.AddField[int64](&schema, "label")
	ds, err := objects.New(bucket, keys, schema.Fields(), func(_ context.Context, key string, data []byte, dst *nwt.Sample) error {
		if _, err := fmt.Sscanf(key, "train/%d/", &label.Of(dst)[0]); err != nil {
			return err
		}
		return pipeline.Load(dst, image.Field(), data)
	})
	if err != nil {
		log.Fatal(err)
	}
	sample, err := nwt.LoadSample(ctx, ds, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(image.Of(sample)), label.Of(sample))
	// Output: 150528 [3]
}
