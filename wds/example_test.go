package wds_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"strconv"
	"testing/fstest"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

func Example() {
	var file bytes.Buffer
	w := wds.NewWriter(&file)
	for i, text := range []string{"zero", "one", "two"} {
		err := w.Write(fmt.Sprintf("%06d", i), wds.File{Ext: "txt", Data: []byte(text)}, wds.File{Ext: "cls", Data: strconv.AppendInt(nil, int64(i), 10)})
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}

	fsys := fstest.MapFS{"train-000000.tar": {Data: file.Bytes()}} // or os.DirFS, or the FS of a bucket
	var schema nwt.Schema
	text := nwt.AddRagged[uint8](&schema, "text", 1, 5)
	label := nwt.AddField[int64](&schema, "label")
	shards, err := wds.Glob(fsys, "train-*.tar")
	if err != nil {
		log.Fatal(err)
	}
	stream, err := wds.New(fsys, shards, schema.Fields(), func(_ context.Context, r *wds.Record, dst *nwt.Sample) error {
		data, err := r.File("txt", "text")
		if err != nil {
			return err
		}
		text.Set(dst, data...)
		number, err := r.File("cls")
		if err != nil {
			return err
		}
		label.Of(dst)[0], err = strconv.ParseInt(string(number), 10, 64)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	loader, err := nwt.NewLoader(nwt.Streamed(stream), nwt.WithBatchSize(2), nwt.WithWorkers(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q %v %v\n", text.Of(batch), text.Lens(batch, 0), label.Of(batch))
	}
	// Output:
	// "zero\x00one\x00\x00" [4 3] [0 1]
	// "two\x00\x00" [3] [2]
}
