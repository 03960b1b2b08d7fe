// Package otel exports the metrics of a loader to OpenTelemetry.
//
//	import (
//		"go.opentelemetry.io/otel"
//
//		nwtotel "github.com/nwt-go/nwt/contrib/otel"
//	)
//
//	registration, err := nwtotel.Register(loader, otel.Meter("trainer"))
//
// If there are several loaders, each needs an attribute; otherwise their metrics are mixed:
//
//	nwtotel.Register(loader, otel.Meter("trainer"), attribute.String("loader", "train"))
//
// # Metrics
//
// The metrics are those of nwt.Stats, in base units. Counters start when the loader is made:
//
//	nwt.batches          batches delivered
//	nwt.batches_ready    of these, ready when training asked for them
//	nwt.samples          samples delivered
//	nwt.samples_bad      samples left out, under nwt.WithErrorBudget
//	nwt.wait             seconds in which training was blocked for batches
//	nwt.batches_copied   batches copied to the device
//	nwt.copied_bytes     bytes of these copies
//	nwt.transfer         seconds that these copies took
//
// These counters go up and down:
//
//	nwt.workers                  goroutines that load samples
//	nwt.prefetch_batches         batches that may be ahead of the one in use
//	nwt.slots, nwt.slots_bytes   batches that have memory, and how much they have
//	nwt.batches_retained         of these, retained past their iteration
//	nwt.device_bytes             device memory that the loader has
//	nwt.dataset_cache_bytes      memory of cached samples
//	nwt.shuffle_window_bytes     memory of the records that a shuffle window mixes
//
// These are gauges:
//
//	nwt.sample_load_median  median seconds of loading a sample, since the loader was made
//	nwt.sample_load_p99     99th percentile of this time
//
// OpenTelemetry's exporter to Prometheus gives these metrics the same names as package
// github.com/nwt-go/nwt/contrib/prometheus does, so the same queries work for both.
package otel

import (
	"context"
	"errors"
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/nwt-go/nwt"
)

// Register makes instruments for a loader's metrics, with the given attributes. The metrics are read
// when the meter's reader collects, which costs the loader nothing. After Close, the loader's last
// values are exported until Unregister is called.
func Register(l *nwt.Loader, meter metric.Meter, attributes ...attribute.KeyValue) (metric.Registration, error) {
	i := instruments{meter: meter, with: metric.WithAttributes(attributes...)}
	i.counter("nwt.batches", "{batch}", "Batches delivered.",
		func(s *nwt.Stats) int64 { return int64(s.Batches) })
	i.counter("nwt.batches_ready", "{batch}", "Batches that were ready when training asked for them.",
		func(s *nwt.Stats) int64 { return int64(math.Round(s.Occupancy * float64(s.Batches))) })
	i.counter("nwt.samples", "{sample}", "Samples delivered.",
		func(s *nwt.Stats) int64 { return s.Samples })
	i.counter("nwt.samples_bad", "{sample}", "Samples left out because they couldn't be loaded.",
		func(s *nwt.Stats) int64 { return int64(s.Bad) })
	i.seconds("nwt.wait", "Time in which training was blocked for batches.",
		func(s *nwt.Stats) time.Duration { return s.Wait })
	i.counter("nwt.batches_copied", "{batch}", "Batches copied to the device.",
		func(s *nwt.Stats) int64 { return int64(s.Copied) })
	i.counter("nwt.copied_bytes", "By", "Bytes copied to the device.",
		func(s *nwt.Stats) int64 { return s.CopiedBytes })
	i.seconds("nwt.transfer", "Time that copies to the device took.",
		func(s *nwt.Stats) time.Duration { return s.Transfer })
	i.level("nwt.workers", "{goroutine}", "Goroutines that load samples.",
		func(s *nwt.Stats) int64 { return int64(s.Workers) })
	i.level("nwt.prefetch_batches", "{batch}", "Batches that may be ahead of the one in use.",
		func(s *nwt.Stats) int64 { return int64(s.Prefetch) })
	i.level("nwt.slots", "{slot}", "Batches that have memory, retained ones included.",
		func(s *nwt.Stats) int64 { return int64(s.Slots) })
	i.level("nwt.slots_bytes", "By", "Host memory of all slots.",
		func(s *nwt.Stats) int64 { return s.SlotBytes })
	i.level("nwt.batches_retained", "{batch}", "Batches retained past their iteration.",
		func(s *nwt.Stats) int64 { return int64(s.Retained) })
	i.level("nwt.device_bytes", "By", "Memory of the device that the loader has.",
		func(s *nwt.Stats) int64 { return s.DeviceBytes })
	i.level("nwt.dataset_cache_bytes", "By", "Memory of cached samples.",
		func(s *nwt.Stats) int64 { return s.DatasetBytes })
	i.level("nwt.shuffle_window_bytes", "By", "Memory of the records that are mixed.",
		func(s *nwt.Stats) int64 { return s.WindowBytes })
	i.gauge("nwt.sample_load_median", "Median of the time that loading a sample took.",
		func(s *nwt.Stats) time.Duration { return s.LoadMedian })
	i.gauge("nwt.sample_load_p99", "99th percentile of the time that loading a sample took.",
		func(s *nwt.Stats) time.Duration { return s.LoadP99 })
	if err := errors.Join(i.errs...); err != nil {
		return nil, err
	}
	return meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		s := l.Stats()
		for _, observe := range i.observe {
			observe(to, &s)
		}
		return nil
	}, i.all...)
}

// instruments are the instruments of one loader.
type instruments struct {
	meter   metric.Meter
	with    metric.MeasurementOption
	all     []metric.Observable
	observe []func(metric.Observer, *nwt.Stats)
	errs    []error
}

func (i *instruments) counter(name, unit, help string, value func(*nwt.Stats) int64) {
	c, err := i.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	i.add(c, err, i.count(c, value))
}

// level makes a counter that goes up and down.
func (i *instruments) level(name, unit, help string, value func(*nwt.Stats) int64) {
	c, err := i.meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	i.add(c, err, i.count(c, value))
}

func (i *instruments) seconds(name, help string, value func(*nwt.Stats) time.Duration) {
	c, err := i.meter.Float64ObservableCounter(name, metric.WithUnit("s"), metric.WithDescription(help))
	i.add(c, err, i.time(c, value))
}

func (i *instruments) gauge(name, help string, value func(*nwt.Stats) time.Duration) {
	g, err := i.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(help))
	i.add(g, err, i.time(g, value))
}

func (i *instruments) count(c metric.Int64Observable, value func(*nwt.Stats) int64) func(metric.Observer, *nwt.Stats) {
	return func(to metric.Observer, s *nwt.Stats) { to.ObserveInt64(c, value(s), i.with) }
}

func (i *instruments) time(c metric.Float64Observable, value func(*nwt.Stats) time.Duration) func(metric.Observer, *nwt.Stats) {
	return func(to metric.Observer, s *nwt.Stats) { to.ObserveFloat64(c, value(s).Seconds(), i.with) }
}

func (i *instruments) add(instrument metric.Observable, err error, observe func(metric.Observer, *nwt.Stats)) {
	i.all, i.errs, i.observe = append(i.all, instrument), append(i.errs, err), append(i.observe, observe)
}
