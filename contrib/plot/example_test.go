package plot_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/contrib/plot"
)

// What Tune has measured, as a picture.
func ExampleSave() {
	var schema nwt.Schema
	x := nwt.AddField[float32](&schema, "x")
	ds := nwt.NewDataset(1000, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		x.Of(dst)[0] = float32(i)
		return nil
	})
	res, err := nwt.Tune(context.Background(), ds, nwt.WithMaxWorkers(2), nwt.WithIterations(10))
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "workers.svg")
	if err := plot.Save(res, path); err != nil {
		log.Fatal(err)
	}
	_, err = os.Stat(path)
	fmt.Println("written:", err == nil)
	// Output: written: true
}
