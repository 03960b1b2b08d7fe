package packing_test

import (
	"context"
	"fmt"
	"log"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/packing"
)

// Documents share rows of 8 tokens. The segment numbers keep attention within a document.
func ExampleNew() {
	texts := [][]int32{{11, 12, 13, 14, 15}, {21, 22}, {31, 32, 33, 34}, {41, 42, 43}, {51}}
	var schema nwt.Schema
	tokens := nwt.AddRagged[int32](&schema, "tokens", 1, 512)
	docs := nwt.NewDataset(len(texts), schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		tokens.Set(dst, texts[i]...)
		return nil
	})
	docs = nwt.Sized(docs, func(i int, sizes []int) { sizes[0] = len(texts[i]) })
	rows, err := packing.New(docs, 8, 42)
	if err != nil {
		log.Fatal(err)
	}
	for i := range rows.Len() {
		row, err := nwt.LoadSample(context.Background(), rows, i) // or a loader's batches
		if err != nil {
			log.Fatal(err)
		}
		for field, f := range rows.Fields() {
			fmt.Println(f.Name, nwt.Values[int32](row, field))
		}
	}
	// Output:
	// tokens [11 12 13 14 15 41 42 43]
	// segment_ids [1 1 1 1 1 2 2 2]
	// positions [0 1 2 3 4 0 1 2]
	// tokens [31 32 33 34 21 22 51 0]
	// segment_ids [1 1 1 1 2 2 3 0]
	// positions [0 1 2 3 0 1 0 0]
}
