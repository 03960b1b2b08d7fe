package otel_test

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/nwt-go/nwt"
	nwtotel "github.com/nwt-go/nwt/contrib/otel"
)

func ExampleRegister() {
	fields := []nwt.Field{{Name: "x", Type: nwt.Float32}}
	ds := nwt.NewDataset(100, fields, func(context.Context, int, *nwt.Sample) error { return nil })
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(32), nwt.WithWorkers(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	reader := metric.NewManualReader() // a program has a PeriodicReader, and an exporter
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	registration, err := nwtotel.Register(loader, provider.Meter("trainer"))
	if err != nil {
		log.Fatal(err)
	}
	defer registration.Unregister()

	for _, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
	}
	var collected metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &collected); err != nil {
		log.Fatal(err)
	}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		if m.Name == "nwt.batches" || m.Name == "nwt.samples" {
			fmt.Println(m.Name, m.Data.(metricdata.Sum[int64]).DataPoints[0].Value)
		}
	}
	// Output:
	// nwt.batches 4
	// nwt.samples 100
}
