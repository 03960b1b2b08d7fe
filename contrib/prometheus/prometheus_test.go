package prometheus

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// loader has gone over ten samples, one of them bad.
func loader(t *testing.T) *nwt.Loader {
	t.Helper()
	fields := []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{64}}}
	ds := nwt.NewDataset(10, fields, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 7 {
			return errors.New("bad")
		}
		return nil
	})
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(4), nwt.WithWorkers(0), nwt.WithErrorBudget(1), nwt.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	for _, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
	}
	return l
}

func TestACollectorTellsWhatItsLoaderDid(t *testing.T) {
	l := loader(t)
	c := NewCollector(l)
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP nwt_batches_total Batches delivered.
# TYPE nwt_batches_total counter
nwt_batches_total 3
# HELP nwt_batches_ready_total Batches that were ready when training asked for them.
# TYPE nwt_batches_ready_total counter
nwt_batches_ready_total 0
# HELP nwt_samples_total Samples delivered.
# TYPE nwt_samples_total counter
nwt_samples_total 9
# HELP nwt_samples_bad_total Samples left out because they couldn't be loaded.
# TYPE nwt_samples_bad_total counter
nwt_samples_bad_total 1
# HELP nwt_workers Goroutines that load samples.
# TYPE nwt_workers gauge
nwt_workers 0
# HELP nwt_slots Batches that have memory, retained ones included.
# TYPE nwt_slots gauge
nwt_slots 1
# HELP nwt_slots_bytes Host memory of all slots.
# TYPE nwt_slots_bytes gauge
nwt_slots_bytes 256
`), "nwt_batches_total", "nwt_batches_ready_total", "nwt_samples_total", "nwt_samples_bad_total", "nwt_workers", "nwt_slots", "nwt_slots_bytes"))

	require.NoError(t, l.SetWorkers(2))
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP nwt_workers Goroutines that load samples.
# TYPE nwt_workers gauge
nwt_workers 2
`), "nwt_workers"))
}

func TestNamesKeepToPrometheussConventions(t *testing.T) {
	problems, err := testutil.CollectAndLint(NewCollector(loader(t)))
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestSeveralLoadersAreToldApartByALabel(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for _, name := range []string{"train", "validation"} {
		prometheus.WrapRegistererWith(prometheus.Labels{"loader": name}, registry).MustRegister(NewCollector(loader(t)))
	}
	n, err := testutil.GatherAndCount(registry, "nwt_batches_total")
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

func TestEveryFigureOfStatsIsExported(t *testing.T) {
	exported := func(s nwt.Stats) (values []float64) {
		for _, m := range metrics {
			values = append(values, m.value(&s))
		}
		return values
	}
	base := nwt.Stats{Batches: 10, Occupancy: 0.5}
	for i := range reflect.TypeFor[nwt.Stats]().NumField() {
		if !reflect.TypeFor[nwt.Stats]().Field(i).IsExported() {
			continue
		}
		changed := base
		field := reflect.ValueOf(&changed).Elem().Field(i)
		if field.CanInt() {
			field.SetInt(7)
		} else {
			field.SetFloat(0.7)
		}
		require.NotEqual(t, exported(base), exported(changed), reflect.TypeFor[nwt.Stats]().Field(i).Name)
	}
	require.Equal(t, 5.0, exported(base)[1], "half of ten batches were ready")
}
