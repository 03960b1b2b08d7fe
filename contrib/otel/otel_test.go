package otel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/nwt-go/nwt"
	nwtotel "github.com/nwt-go/nwt/contrib/otel"
	"github.com/nwt-go/nwt/driver"
)

// An accelerator is a device whose copies take a millisecond.
type accelerator struct{}

func (accelerator) String() string                     { return "accelerator" }
func (accelerator) AllocHost(size int) ([]byte, error) { return make([]byte, size), nil }
func (accelerator) FreeHost([]byte) error              { return nil }
func (accelerator) Alloc(int) (uintptr, error)         { return 4096, nil }
func (accelerator) Free(uintptr) error                 { return nil }
func (accelerator) NewEvent() (uintptr, error)         { return 0, nil }
func (accelerator) FreeEvent(uintptr) error            { return nil }
func (a accelerator) Open() (driver.Session, error)    { return a, nil }
func (accelerator) Copy([]driver.Copy, uintptr) error  { return nil }
func (accelerator) Wait(uintptr) error                 { time.Sleep(time.Millisecond); return nil }
func (accelerator) Close() error                       { return nil }

// loader has gone over ten samples that are cached, one of them bad, copied them to a device,
// and retained the first batch.
func loader(t *testing.T) *nwt.Loader {
	t.Helper()
	fields := []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{64}}}
	ds := nwt.Cached(nwt.NewDataset(10, fields, func(_ context.Context, i int, _ *nwt.Sample) error {
		time.Sleep(time.Millisecond)
		if i == 7 {
			return errors.New("bad")
		}
		return nil
	}), 1<<20)
	t.Cleanup(func() { _ = ds.Close() })
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(2), nwt.WithWorkers(1), nwt.WithErrorBudget(1), nwt.WithDevice(accelerator{}), nwt.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	for batch, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if batch.Number() == 0 {
			batch.Retain()
			t.Cleanup(batch.Release)
		}
		if batch.Number() == 2 {
			time.Sleep(50 * time.Millisecond) // so that a batch is ready
		}
	}
	return l
}

// meter is read by collect.
func meter(t *testing.T) (metric.Meter, func() []metricdata.Metrics) {
	t.Helper()
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	return provider.Meter("test"), func() (all []metricdata.Metrics) {
		var collected metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &collected))
		for _, scope := range collected.ScopeMetrics {
			all = append(all, scope.Metrics...)
		}
		return all
	}
}

// A point is a value with its attributes; counter or level is what kind of sum it is.
type point struct {
	kind  string
	value any
	with  attribute.Set
}

func pointsOf(t *testing.T, m metricdata.Metrics) (points []point) {
	t.Helper()
	kind := func(monotonic bool, temporality metricdata.Temporality) string {
		require.Equal(t, metricdata.CumulativeTemporality, temporality)
		if monotonic {
			return "counter"
		}
		return "level"
	}
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			points = append(points, point{kind(data.IsMonotonic, data.Temporality), int(p.Value), p.Attributes})
		}
	case metricdata.Sum[float64]:
		for _, p := range data.DataPoints {
			points = append(points, point{kind(data.IsMonotonic, data.Temporality), p.Value, p.Attributes})
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			points = append(points, point{"gauge", p.Value, p.Attributes})
		}
	default:
		require.Fail(t, "another kind", "%s: %T", m.Name, data)
	}
	return points
}

func TestEveryFigureOfStatsIsExportedAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := loader(t)
		m, collect := meter(t)
		_, err := nwtotel.Register(l, m)
		require.NoError(t, err)
		s := l.Stats()
		type figure struct {
			kind, unit string
			value      any
		}
		want := map[string]figure{
			"nwt.batches":              {"counter", "{batch}", s.Batches},
			"nwt.batches_ready":        {"counter", "{batch}", int(s.Occupancy*float64(s.Batches) + 0.5)},
			"nwt.samples":              {"counter", "{sample}", int(s.Samples)},
			"nwt.samples_bad":          {"counter", "{sample}", s.Bad},
			"nwt.wait":                 {"counter", "s", s.Wait.Seconds()},
			"nwt.batches_copied":       {"counter", "{batch}", s.Copied},
			"nwt.copied_bytes":         {"counter", "By", int(s.CopiedBytes)},
			"nwt.transfer":             {"counter", "s", s.Transfer.Seconds()},
			"nwt.workers":              {"level", "{goroutine}", s.Workers},
			"nwt.prefetch_batches":     {"level", "{batch}", s.Prefetch},
			"nwt.slots":                {"level", "{slot}", s.Slots},
			"nwt.slots_bytes":          {"level", "By", int(s.SlotBytes)},
			"nwt.batches_retained":     {"level", "{batch}", s.Retained},
			"nwt.device_bytes":         {"level", "By", int(s.DeviceBytes)},
			"nwt.dataset_cache_bytes":  {"level", "By", int(s.DatasetBytes)},
			"nwt.shuffle_window_bytes": {"level", "By", int(s.WindowBytes)},
			"nwt.sample_load_median":   {"gauge", "s", s.LoadMedian.Seconds()},
			"nwt.sample_load_p99":      {"gauge", "s", s.LoadP99.Seconds()},
		}
		figures := 0
		for f := range reflect.TypeFor[nwt.Stats]().Fields() {
			if f.IsExported() {
				figures++
			}
		}
		require.Len(t, want, figures, "each figure has its metric")
		got := map[string]figure{}
		for _, m := range collect() {
			points := pointsOf(t, m)
			require.Len(t, points, 1, m.Name)
			if m.Name != "nwt.shuffle_window_bytes" { // of streams
				require.NotZero(t, points[0].value, "%s: the loader did all there is", m.Name)
			}
			require.NotEmpty(t, m.Description, m.Name)
			got[m.Name] = figure{points[0].kind, m.Unit, points[0].value}
		}
		require.Equal(t, want, got)
	})
}

func TestWhatIsCollectedIsWhatTheLoaderHasDoneByThen(t *testing.T) {
	l := loader(t)
	m, collect := meter(t)
	registration, err := nwtotel.Register(l, m)
	require.NoError(t, err)
	value := func(name string) any {
		for _, m := range collect() {
			if m.Name == name {
				return pointsOf(t, m)[0].value
			}
		}
		return nil
	}
	require.Equal(t, 1, value("nwt.workers"))
	require.NoError(t, l.SetWorkers(2))
	require.Equal(t, 2, value("nwt.workers"))
	require.NoError(t, l.Close())
	require.Equal(t, 9, value("nwt.samples"), "a closed loader's figures stay")
	require.NoError(t, registration.Unregister())
	require.Empty(t, collect())
}

func TestSeveralLoadersAreToldApartByAnAttribute(t *testing.T) {
	m, collect := meter(t)
	for _, name := range []string{"train", "validation"} {
		_, err := nwtotel.Register(loader(t), m, attribute.String("loader", name))
		require.NoError(t, err)
	}
	for _, m := range collect() {
		var names []string
		for _, p := range pointsOf(t, m) {
			name, _ := p.with.Value("loader")
			names = append(names, name.AsString())
		}
		require.ElementsMatch(t, []string{"train", "validation"}, names, m.Name)
	}
}

// The conventions: lower case, parts divided by dots, no name that is also another's namespace,
// no "total" and no "seconds".
func TestNamesKeepToOpenTelemetrysConventions(t *testing.T) {
	m, collect := meter(t)
	_, err := nwtotel.Register(loader(t), m)
	require.NoError(t, err)
	all := collect()
	require.NotEmpty(t, all)
	for _, m := range all {
		require.Regexp(t, `^nwt\.[a-z0-9]+(_[a-z0-9]+)*$`, m.Name)
		require.NotRegexp(t, "total|seconds", m.Name)
	}
}

// refusing makes no instrument of one name.
type refusing struct {
	metric.Meter
	name string
}

func (r refusing) Int64ObservableCounter(name string, options ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	if name == r.name {
		return nil, fmt.Errorf("%s: refused", name)
	}
	return r.Meter.Int64ObservableCounter(name, options...)
}

func TestAnInstrumentThatCannotBeMadeIsAnError(t *testing.T) {
	m, collect := meter(t)
	registration, err := nwtotel.Register(loader(t), refusing{Meter: m, name: "nwt.samples"})
	require.ErrorContains(t, err, "nwt.samples: refused")
	require.Nil(t, registration)
	require.Empty(t, collect())
}
