package nwt_test

import (
	"context"
	"encoding/json"
	"expvar"
	"fmt"
	"log"

	"github.com/nwt-go/nwt"
)

// A program that serves HTTP shows its loader's figures at /debug/vars.
func ExampleLoader_Stats_expvar() {
	fields := []nwt.Field{{Name: "x", Type: nwt.Float32}}
	ds := nwt.NewDataset(100, fields, func(context.Context, int, *nwt.Sample) error { return nil })
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(32), nwt.WithWorkers(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	expvar.Publish("loader", expvar.Func(func() any { return loader.Stats() }))

	for _, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
	}
	var shown struct{ Batches, Samples, Workers int }
	if err := json.Unmarshal([]byte(expvar.Get("loader").String()), &shown); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%+v\n", shown)
	// Output: {Batches:4 Samples:100 Workers:2}
}
