package nwt_test

import (
	"context"
	"fmt"
	"log"

	"github.com/nwt-go/nwt"
)

// Fields are declared once; the columns then read and write them, in samples and
// in batches.
func ExampleSchema() {
	var schema nwt.Schema
	point := nwt.AddField[float32](&schema, "point", 2)
	label := nwt.AddField[int64](&schema, "label")
	ds := nwt.NewDataset(3, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		point.Of(dst)[0], point.Of(dst)[1] = float32(i), float32(i*i)
		label.Of(dst)[0] = int64(i % 2)
		return nil
	})
	loader, err := nwt.NewLoader(ds)
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(point.Of(batch), label.Of(batch))
	}
	// Output: [0 0 1 1 2 4] [0 1 0]
}

// A sample of text has as many tokens as SetLen says.
func ExampleAddRagged() {
	texts := []string{"so", "it", "goes on"}
	var schema nwt.Schema
	text := nwt.AddRagged[uint16](&schema, "text", 8)
	ds := nwt.NewDataset(len(texts), schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(text.Index(), len(texts[i]))
		for k, token := range texts[i] {
			text.Of(dst)[k] = uint16(token)
		}
		return nil
	})
	sample, err := nwt.LoadSample(context.Background(), ds, 2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(text.Of(sample), sample.Len(text.Index()))
	// Output: [103 111 101 115 32 111 110 0] 7
}

// Arrays in memory are a dataset without a Load.
func ExampleFromSlices() {
	points := []float32{0, 0, 1, 1, 2, 4, 3, 9}
	labels := []int64{0, 1, 0, 1}
	ds, err := nwt.FromSlices(nwt.SliceOf("point", points, 2), nwt.SliceOf("label", labels))
	if err != nil {
		log.Fatal(err)
	}
	sample, err := nwt.LoadSample(context.Background(), ds, 3)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ds.Len(), nwt.Values[float32](sample, 0), nwt.Values[int64](sample, 1))
	// Output: 4 [3 9] [1]
}

// A tenth is kept for validation. It is drawn by the seed, so that every run has
// the same.
func ExampleSplit() {
	labels := make([]int64, 1000)
	for i := range labels {
		labels[i] = int64(i)
	}
	ds, err := nwt.FromSlices(nwt.SliceOf("label", labels))
	if err != nil {
		log.Fatal(err)
	}
	parts, err := nwt.Split(ds, 42, 0.9, 0.1)
	if err != nil {
		log.Fatal(err)
	}
	training, validation := parts[0], parts[1]
	fmt.Println(training.Len(), validation.Len())
	// Output: 900 100
}

// Two datasets over one set of files: training augments what validation takes as
// it is. The files are decoded by the same code.
func ExampleMap_trainingAndValidation() {
	var schema nwt.Schema
	image := nwt.AddField[uint8](&schema, "image", 3)
	files := nwt.NewDataset(10, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		copy(image.Of(dst), []uint8{uint8(i), uint8(10 * i), uint8(20 * i)}) // decoded from file i
		return nil
	})
	parts, err := nwt.Split(files, 42, 0.8, 0.2)
	if err != nil {
		log.Fatal(err)
	}
	validation := parts[1]
	training := nwt.Map(parts[0], schema.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		copy(image.Of(dst), image.Of(src))
		if dst.Rand().IntN(2) == 1 {
			image.Of(dst)[0], image.Of(dst)[2] = image.Of(src)[2], image.Of(src)[0]
		}
		return nil
	})
	for name, ds := range map[string]nwt.Dataset{"training": training, "validation": validation} {
		sample, err := nwt.LoadSample(context.Background(), ds, 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(name, ds.Len(), image.Of(sample))
	}
	// Unordered output:
	// training 8 [120 60 6]
	// validation 2 [5 50 100]
}

// Each worker has a buffer of its own, made when it is first needed.
func ExampleScratch() {
	newBuffer := func() ([]float32, error) { return make([]float32, 512), nil }
	ds := nwt.NewDataset(3, []nwt.Field{{Name: "mean", Type: nwt.Float32}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		signal, err := nwt.Scratch(dst, newBuffer)
		if err != nil {
			return err
		}
		sum := float32(0)
		for k := range signal {
			signal[k] = float32(i * k) // what a file or a decoder fills it with
			sum += signal[k]
		}
		nwt.Values[float32](dst, 0)[0] = sum / float32(len(signal))
		return nil
	})
	sample, err := nwt.LoadSample(context.Background(), ds, 2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(nwt.Values[float32](sample, 0))
	// Output: [511]
}
