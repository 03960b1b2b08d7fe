package host

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFractionOfAQuotaIsWorthACPU(t *testing.T) {
	for _, tt := range []struct {
		affinity int
		quota    float64
		want     int
	}{{8, 0, 8}, {8, 2, 2}, {8, 2.5, 3}, {8, 0.1, 1}, {2, 16, 2}} {
		require.Equal(t, tt.want, CPUFacts{Affinity: tt.affinity, Quota: tt.quota}.Usable(), "%+v", tt)
	}
}

func TestThisMachineHasCPUs(t *testing.T) {
	f := CPUs()
	require.NotEmpty(t, f.Model)
	require.Positive(t, f.Physical)
	require.GreaterOrEqual(t, f.Logical, f.Physical)
	require.Equal(t, runtime.NumCPU(), f.Affinity)
	require.Equal(t, runtime.GOMAXPROCS(0), f.GOMAXPROCS)
	require.LessOrEqual(t, f.Usable(), f.Affinity)
}
