package prometheus_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nwt-go/nwt"
	nwtprometheus "github.com/nwt-go/nwt/contrib/prometheus"
)

func ExampleNewCollector() {
	fields := []nwt.Field{{Name: "x", Type: nwt.Float32}}
	ds := nwt.NewDataset(100, fields, func(context.Context, int, *nwt.Sample) error { return nil })
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(32), nwt.WithWorkers(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(nwtprometheus.NewCollector(loader))
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()

	for _, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
	}
	page, err := http.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer page.Body.Close()
	text, err := io.ReadAll(page.Body)
	if err != nil {
		log.Fatal(err)
	}
	for _, line := range regexp.MustCompile(`(?m)^nwt_(batches|samples)_total .*`).FindAllString(string(text), -1) {
		fmt.Println(line)
	}
	// Output:
	// nwt_batches_total 4
	// nwt_samples_total 100
}
