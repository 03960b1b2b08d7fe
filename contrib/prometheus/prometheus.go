// Package prometheus exports the metrics of a loader to Prometheus.
//
//	import (
//		"github.com/prometheus/client_golang/prometheus"
//
//		nwtprometheus "github.com/nwt-go/nwt/contrib/prometheus"
//	)
//
//	prometheus.MustRegister(nwtprometheus.NewCollector(loader))
//
// If there are several loaders, each needs a label:
//
//	train := prometheus.WrapRegistererWith(prometheus.Labels{"loader": "train"}, prometheus.DefaultRegisterer)
//	train.MustRegister(nwtprometheus.NewCollector(loader))
//
// # Metrics
//
// The metrics are those of nwt.Stats, in base units. Counters start when the loader is made:
//
//	nwt_batches_total          batches delivered
//	nwt_batches_ready_total    batches that were ready when training asked for them
//	nwt_samples_total          samples delivered
//	nwt_samples_bad_total      samples left out, under nwt.WithErrorBudget
//	nwt_wait_seconds_total     time in which training was blocked for batches
//	nwt_batches_copied_total   batches copied to the device
//	nwt_copied_bytes_total     bytes copied to the device
//	nwt_transfer_seconds_total time that copies to the device took
//
// These are gauges:
//
//	nwt_sample_load_median_seconds  median time of loading a sample, since the loader was made
//	nwt_sample_load_p99_seconds     99th percentile of the time of loading a sample
//	nwt_workers                     goroutines that load samples
//	nwt_prefetch_batches            batches that may be ahead of the one in use
//	nwt_slots, nwt_slots_bytes      batch buffers that have memory, and their bytes
//	nwt_batches_retained            batches retained past their iteration
//	nwt_device_bytes                device memory that the loader has
//	nwt_dataset_cache_bytes         memory of cached samples, and of processes that load for the dataset
//	nwt_shuffle_window_bytes        memory of the records that a shuffle window mixes
//
// # Queries
//
// The first query computes the share of time that training waits. The second computes the share of batches
// that were ready, from 0 (never) to 1 (always):
//
//	rate(nwt_wait_seconds_total[1m])
//	rate(nwt_batches_ready_total[1m]) / rate(nwt_batches_total[1m])
//
// The next queries compute the samples per second, and the time of one copy to the device:
//
//	rate(nwt_samples_total[1m])
//	rate(nwt_transfer_seconds_total[1m]) / rate(nwt_batches_copied_total[1m])
//
// # OpenTelemetry
//
// OpenTelemetry has a bridge that exports these metrics under the same names. Register the collector as
// above, and give your reader a producer of go.opentelemetry.io/contrib/bridges/prometheus:
//
//	reader := metric.NewPeriodicReader(exporter, metric.WithProducer(bridge.NewMetricProducer()))
package prometheus

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nwt-go/nwt"
)

// NewCollector makes a collector for a loader's metrics. The collector reads the metrics when Prometheus
// asks for them, which costs the loader nothing. After the loader's Close, the collector keeps the last
// values until you unregister it.
func NewCollector(l *nwt.Loader) prometheus.Collector { return collector{l} }

type collector struct{ l *nwt.Loader }

func (c collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range metrics {
		to <- m.desc
	}
}

func (c collector) Collect(to chan<- prometheus.Metric) {
	s := c.l.Stats()
	for _, m := range metrics {
		to <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s))
	}
}

type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *nwt.Stats) float64
}

// metrics lists everything that is exported.
var metrics = []metric{
	counter("nwt_batches_total", "Batches delivered.",
		func(s *nwt.Stats) float64 { return float64(s.Batches) }),
	counter("nwt_batches_ready_total", "Batches that were ready when training asked for them.",
		func(s *nwt.Stats) float64 { return math.Round(s.Occupancy * float64(s.Batches)) }),
	counter("nwt_samples_total", "Samples delivered.",
		func(s *nwt.Stats) float64 { return float64(s.Samples) }),
	counter("nwt_samples_bad_total", "Samples left out because they couldn't be loaded.",
		func(s *nwt.Stats) float64 { return float64(s.Bad) }),
	counter("nwt_wait_seconds_total", "Time in which training was blocked for batches.",
		func(s *nwt.Stats) float64 { return s.Wait.Seconds() }),
	counter("nwt_batches_copied_total", "Batches copied to the device.",
		func(s *nwt.Stats) float64 { return float64(s.Copied) }),
	counter("nwt_copied_bytes_total", "Bytes copied to the device.",
		func(s *nwt.Stats) float64 { return float64(s.CopiedBytes) }),
	counter("nwt_transfer_seconds_total", "Time that copies to the device took.",
		func(s *nwt.Stats) float64 { return s.Transfer.Seconds() }),
	gauge("nwt_sample_load_median_seconds", "Median of the time that loading a sample took.",
		func(s *nwt.Stats) float64 { return s.LoadMedian.Seconds() }),
	gauge("nwt_sample_load_p99_seconds", "99th percentile of the time that loading a sample took.",
		func(s *nwt.Stats) float64 { return s.LoadP99.Seconds() }),
	gauge("nwt_workers", "Goroutines that load samples.",
		func(s *nwt.Stats) float64 { return float64(s.Workers) }),
	gauge("nwt_prefetch_batches", "Batches that may be ahead of the one in use.",
		func(s *nwt.Stats) float64 { return float64(s.Prefetch) }),
	gauge("nwt_slots", "Batches that have memory, retained ones included.",
		func(s *nwt.Stats) float64 { return float64(s.Slots) }),
	gauge("nwt_slots_bytes", "Host memory of all slots.",
		func(s *nwt.Stats) float64 { return float64(s.SlotBytes) }),
	gauge("nwt_batches_retained", "Batches retained past their iteration.",
		func(s *nwt.Stats) float64 { return float64(s.Retained) }),
	gauge("nwt_device_bytes", "Memory of the device that the loader has.",
		func(s *nwt.Stats) float64 { return float64(s.DeviceBytes) }),
	gauge("nwt_dataset_cache_bytes", "Memory of cached samples.",
		func(s *nwt.Stats) float64 { return float64(s.DatasetBytes) }),
	gauge("nwt_shuffle_window_bytes", "Memory of the records that are mixed.",
		func(s *nwt.Stats) float64 { return float64(s.WindowBytes) }),
}

func counter(name, help string, value func(*nwt.Stats) float64) metric {
	return metric{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, value}
}

func gauge(name, help string, value func(*nwt.Stats) float64) metric {
	return metric{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, value}
}
