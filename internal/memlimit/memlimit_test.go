package memlimit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/host"
)

func TestACountThatWouldPassTheMemoryLimitIsNotTried(t *testing.T) {
	limit := Limit{Bytes: 1000e6, From: "set by WithMemoryLimit"}
	for _, tt := range []struct {
		name     string
		measured []Peak
		workers  int
		why      string
	}{
		{"nothing known", nil, 64, ""},
		{"only more workers known", []Peak{{8, 2000e6}}, 4, ""},
		{"one count, within", []Peak{{0, 900e6}}, 64, ""},
		{"one count, beyond", []Peak{{0, 1100e6}}, 1,
			"1 worker would take about 1.1 GB (0 took 1.1 GB): over the limit of 1 GB (set by WithMemoryLimit)"},
		{"grows up to the limit", []Peak{{0, 200e6}, {4, 600e6}}, 8, ""},
		{"grows past it", []Peak{{0, 200e6}, {4, 600e6}}, 9,
			"9 workers would take about 1.1 GB (4 took 600 MB): over the limit of 1 GB (set by WithMemoryLimit)"},
		{"flat at first", []Peak{{0, 400e6}, {1, 400e6}, {2, 400e6}, {4, 400e6}, {8, 800e6}}, 16,
			"16 workers would take about 1.6 GB (8 took 800 MB): over the limit of 1 GB (set by WithMemoryLimit)"},
		{"shrinks with workers", []Peak{{0, 950e6}, {4, 900e6}}, 64, ""},
		{"shrinks with workers, but not below what fewer took", []Peak{{0, 1300e6}, {4, 1100e6}}, 64,
			"64 workers would take about 1.1 GB (4 took 1.1 GB): over the limit of 1 GB (set by WithMemoryLimit)"},
		{"shrinks between two counts", []Peak{{4, 1100e6}, {8, 400e6}}, 6,
			"6 workers would take about 1.1 GB (4 took 1.1 GB): over the limit of 1 GB (set by WithMemoryLimit)"},
		{"between two counts", []Peak{{4, 400e6}, {8, 1200e6}}, 7, ""},
		{"between two counts, beyond", []Peak{{8, 1400e6}, {4, 400e6}}, 7,
			"7 workers would take about 1.15 GB (4 took 400 MB): over the limit of 1 GB (set by WithMemoryLimit)"},
		{"measured, within", []Peak{{2, 1100e6}, {4, 900e6}}, 4, ""},
		{"measured, beyond", []Peak{{2, 100e6}, {4, 1001e6}}, 4,
			"4 workers took 1.001 GB: over the limit of 1 GB (set by WithMemoryLimit)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.why, limit.Predict(tt.workers, tt.measured))
		})
	}
}

func TestTuningMayTakeMostOfWhatIsLeft(t *testing.T) {
	limit := Of(500e6, host.Room{Bytes: 10e9, Of: "the container"}, 1)
	require.Equal(t, uint64(8500e6), limit.Bytes)
	needs, most := limit.beside(8501e6)
	require.Equal(t, "8.501 GB of 8.5 GB (80 % of the 10 GB that the container has left)", needs+" of "+most)

	limit = Of(500e6, host.Room{Bytes: 10e9, Of: "the machine"}, 4)
	require.Equal(t, uint64(2500e6), limit.Bytes)
	require.Equal(t, "80 % of the 10 GB that the machine has left, for each of 4 processes", limit.From)

	unknown := Of(0, host.Room{Note: "system memory unknown: no such call"}, 1)
	require.Equal(t, uint64(math.MaxUint64), unknown.Bytes)
	require.Equal(t, "none: system memory unknown: no such call", unknown.From)
	require.Empty(t, unknown.Predict(1<<20, []Peak{{0, 1e9}, {1, 2e9}}))
}
