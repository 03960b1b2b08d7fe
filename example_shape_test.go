package nwt_test

import (
	"context"
	"fmt"
	"log"

	"github.com/nwt-go/nwt"
)

// A batch of texts is as long as its longest text, rounded up to a multiple of 4.
func ExampleSized() {
	texts := []string{"so", "it", "goes on", "and", "on"}
	var schema nwt.Schema
	text := nwt.AddRagged[uint8](&schema, "text", 1000)
	ds := nwt.NewDataset(len(texts), schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(text.Index(), copy(text.Of(dst), texts[i]))
		return nil
	})
	sized := nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = (len(texts[i]) + 3) / 4 * 4 })
	loader, err := nwt.NewLoader(sized, nwt.WithBatchSize(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %q\n", batch.Shape(text.Index()), text.Of(batch))
	}
	// Output:
	// [2 4] "so\x00\x00it\x00\x00"
	// [2 8] "goes on\x00and\x00\x00\x00\x00\x00"
	// [1 4] "on\x00\x00"
}

// Pictures of different height and width share a batch: each begins in the corner of
// its place, whose rows may be longer than the picture's.
func ExampleAddRaggedDims() {
	pictures := [][]string{{"aa", "aa", "aa"}, {"bbbb"}}
	var schema nwt.Schema
	picture := nwt.AddRaggedDims[uint8](&schema, "picture", 2, 600, 800)
	ds := nwt.NewDataset(len(pictures), schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		rows, width := pictures[i], dst.Shape(picture.Index())[1]
		dst.SetShape(picture.Index(), len(rows), len(rows[0]))
		for y, row := range rows {
			copy(picture.Of(dst)[y*width:], row)
		}
		return nil
	})
	sized := nwt.Sized(ds, func(i int, sizes []int) { sizes[0], sizes[1] = len(pictures[i]), len(pictures[i][0]) })
	loader, err := nwt.NewLoader(sized, nwt.WithBatchSize(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.Shape(picture.Index()), batch.LensOf(picture.Index(), 0), batch.LensOf(picture.Index(), 1))
		for row := range 6 {
			fmt.Printf("%q\n", picture.Of(batch)[row*4:row*4+4])
		}
	}
	// Output:
	// [2 3 4] [3 1] [2 4]
	// "aa\x00\x00"
	// "aa\x00\x00"
	// "aa\x00\x00"
	// "bbbb"
	// "\x00\x00\x00\x00"
	// "\x00\x00\x00\x00"
}
