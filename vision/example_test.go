package vision_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// A folder of photographs, one folder per class, as for ImageNet.
func ExampleOpenFolder() {
	pipeline, err := vision.New([]vision.Transform{
		vision.RandomResizedCrop{Size: vision.Square(224)},
		vision.RandomHorizontalFlip{P: 0.5},
		vision.ImageNetNormalize,
	})
	if err != nil {
		log.Fatal(err)
	}
	folder, err := vision.OpenFolder(context.Background(), filepath.Join("testdata", "classes"), pipeline)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := nwt.NewLoader(folder, nwt.WithBatchSize(4), nwt.WithShuffle(1), nwt.WithWorkers(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	image, err := nwt.ColumnOf[float32](folder, "image")
	if err != nil {
		log.Fatal(err)
	}
	label, err := nwt.ColumnOf[int64](folder, "label")
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(image.Shape(batch), label.Of(batch))
		break
	}
	// Output: [4 3 224 224] [1 0 1 0]
}

// Pictures that don't lie in files: the pipeline takes their bytes.
func ExamplePipeline_Load() {
	pipeline, err := vision.New([]vision.Transform{vision.Resize{Shorter: 256}, vision.CenterCrop{Size: vision.Square(224)}, vision.ImageNetNormalize})
	if err != nil {
		log.Fatal(err)
	}
	photo, err := os.ReadFile("testdata/photo.jpg")
	if err != nil {
		log.Fatal(err)
	}
	var schema nwt.Schema
	image := nwt.AddField[float32](&schema, "image", pipeline.Field("image").Shape...)
	ds := nwt.NewDataset(1, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		return pipeline.Load(dst, image.Field(), photo) // bytes of a database, a shard, an object
	})
	s, err := nwt.LoadSample(context.Background(), ds, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(pipeline.Field("image").Shape, len(image.Of(s)))
	// Output: [3 224 224] 150528
}

// Segmentation: a photograph and its mask are cropped and mirrored alike.
func ExamplePipeline_Choose() {
	pictures, err := vision.New([]vision.Transform{
		vision.RandomResizedCrop{Size: vision.Square(128)}, vision.RandomHorizontalFlip{P: 0.5}, vision.ColorJitter{Brightness: .2}, vision.ImageNetNormalize,
	})
	if err != nil {
		log.Fatal(err)
	}
	masks, err := pictures.Masks(nwt.Int64, 255)
	if err != nil {
		log.Fatal(err)
	}
	names := []string{"photo.jpg"}
	fields := []nwt.Field{pictures.Field("image"), masks.Field("mask")}
	ds := nwt.NewDataset(len(names), fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		photo, err := os.ReadFile(filepath.Join("testdata", names[i]))
		if err != nil {
			return err
		}
		mask, err := os.ReadFile("testdata/mask.png")
		if err != nil {
			return err
		}
		draw, err := pictures.Choose(dst, 0, photo)
		if err != nil {
			return err
		}
		return draw.Load(masks, 1, mask)
	})
	s, err := nwt.LoadSample(context.Background(), ds, 0)
	if err != nil {
		log.Fatal(err)
	}
	classes := map[int64]bool{}
	for _, class := range nwt.Values[int64](s, 1) {
		classes[class] = true
	}
	fmt.Println(masks.Field("mask").Shape, classes)
	// Output: [128 128] map[0:true 1:true 2:true 3:true 4:true 5:true 6:true]
}

// Detection: boxes of which little is left are left out, with their labels.
func ExampleChoices_Box() {
	pictures, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Square(200)}, vision.Resize{Size: vision.Square(100)}, vision.ImageNetNormalize})
	if err != nil {
		log.Fatal(err)
	}
	photo, err := os.ReadFile("testdata/photo.jpg") // 500 × 375
	if err != nil {
		log.Fatal(err)
	}
	annotated, numbers := []vision.Box{{200, 100, 260, 160}, {300, 200, 400, 300}, {0, 0, 50, 50}}, []int64{7, 8, 9}
	var schema nwt.Schema
	image := nwt.AddField[float32](&schema, "image", pictures.Field("image").Shape...)
	boxes := nwt.AddRagged[float32](&schema, "boxes", 1, 10, 4)
	labels := nwt.AddRagged[int64](&schema, "labels", 1, 10)
	ds := nwt.NewDataset(1, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		draw, err := pictures.Choose(dst, image.Field(), photo)
		if err != nil {
			return err
		}
		n := 0
		for i, b := range annotated {
			if box, share := draw.Box(b); share > .1 {
				copy(boxes.Of(dst)[4*n:], box[:])
				labels.Of(dst)[n] = numbers[i]
				n++
			}
		}
		boxes.SetLen(dst, n)
		labels.SetLen(dst, n)
		return nil
	})
	s, err := nwt.LoadSample(context.Background(), ds, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(boxes.Of(s)[:8], labels.Of(s)[:2])
	// Output: [25 6 55 36 75 56 100 100] [7 8]
}

// Photographs that are decoded once, to 256 × 256 bytes, and then cropped anew in
// each epoch from a file that is mapped into memory.
func ExamplePipeline_LoadPixels() {
	store, err := vision.New([]vision.Transform{vision.Resize{Shorter: 256}, vision.CenterCrop{Size: vision.Square(256)}}, vision.WithType(nwt.Uint8))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	folder, err := vision.OpenFolder(ctx, filepath.Join("testdata", "classes"), store)
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	stored, err := nwt.Precompute(ctx, folder, filepath.Join(dir, "photos.nwt"), "256, 1")
	if err != nil {
		log.Fatal(err)
	}
	defer stored.Close()
	crop, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(224)}, vision.RandomHorizontalFlip{P: 0.5}, vision.ImageNetNormalize})
	if err != nil {
		log.Fatal(err)
	}
	pixels, err := nwt.ColumnOf[uint8](stored, "image")
	if err != nil {
		log.Fatal(err)
	}
	was, err := nwt.ColumnOf[int64](stored, "label")
	if err != nil {
		log.Fatal(err)
	}
	var schema nwt.Schema
	image := nwt.AddField[float32](&schema, "image", crop.Field("image").Shape...)
	label := nwt.AddField[int64](&schema, "label")
	ds := nwt.Map(stored, schema.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		label.Set(dst, was.Of(src)...)
		return crop.LoadPixels(dst, image.Field(), pixels.Of(src), 256, 256, vision.CHW)
	})
	s, err := nwt.LoadSample(ctx, ds, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(image.Of(s)))
	// Output: 150528
}

// Contrastive learning: two large crops and four small ones of one photograph, which is decoded once.
func ExampleLoadCrops() {
	large, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(224), Scale: [2]float64{.4, 1}}, vision.RandomHorizontalFlip{P: 0.5}, vision.ImageNetNormalize})
	if err != nil {
		log.Fatal(err)
	}
	small, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(96), Scale: [2]float64{.05, .4}}, vision.RandomHorizontalFlip{P: 0.5}, vision.ImageNetNormalize})
	if err != nil {
		log.Fatal(err)
	}
	fields := []nwt.Field{large.Frames("large", 2), small.Frames("small", 4)}
	ds := nwt.NewDataset(1, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		photo, err := os.ReadFile("testdata/photo.jpg")
		if err != nil {
			return err
		}
		return vision.LoadCrops(dst, photo, vision.Crop{Pipeline: large, Field: 0}, vision.Crop{Pipeline: small, Field: 1})
	})
	s, err := nwt.LoadSample(context.Background(), ds, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(fields[0].Shape, len(nwt.Values[float32](s, 0)), fields[1].Shape, len(nwt.Values[float32](s, 1)))
	// Output: [2 3 224 224] 301056 [4 3 96 96] 110592
}

// A folder of photographs without classes: samples are known by their files' names.
func ExamplePipeline_Load_namedFiles() {
	pipeline, err := vision.New([]vision.Transform{vision.Resize{Shorter: 256}, vision.CenterCrop{Size: vision.Square(224)}, vision.ImageNetNormalize})
	if err != nil {
		log.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join("testdata", "exif?.jpg")) // sorted, so the same on each machine
	if err != nil || len(names) == 0 {
		log.Fatal("no photographs: ", err)
	}
	ds := nwt.NewDataset(len(names), []nwt.Field{pipeline.Field("image")}, func(_ context.Context, i int, dst *nwt.Sample) error {
		photo, err := os.ReadFile(names[i])
		if err != nil {
			return err
		}
		if err := pipeline.Load(dst, 0, photo); err != nil {
			return fmt.Errorf("%s: %w", names[i], err)
		}
		return nil
	})
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(3))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		for _, i := range batch.Indices() {
			fmt.Print(filepath.Base(names[i]), " ")
		}
		fmt.Println(len(batch.Bytes(0)))
	}
	// Output:
	// exif1.jpg exif2.jpg exif3.jpg 1806336
	// exif4.jpg exif5.jpg exif6.jpg 1806336
	// exif7.jpg exif8.jpg 1204224
}
