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

func TestOthersTakeCPUsOnceTheRestIsNotEnoughForThem(t *testing.T) {
	for _, tt := range []struct {
		name            string
		facts           CPUFacts
		processes, cpus int
		others, want    float64
	}{
		{"all CPUs are its own", CPUFacts{Affinity: 4}, 1, 4, 0.35, 0.35},
		{"one of eight processes; others have room", CPUFacts{Affinity: 64}, 8, 8, 0.4, 0},
		{"they need all of the rest", CPUFacts{Affinity: 64}, 8, 8, 0.875, 0},
		{"and more", CPUFacts{Affinity: 64}, 8, 8, 0.95, 0.6},
		{"all", CPUFacts{Affinity: 64}, 8, 8, 1, 1},
		{"GOMAXPROCS is less", CPUFacts{Affinity: 2}, 1, 1, 0.75, 0.5},
		{"half a CPU", CPUFacts{Affinity: 2, Quota: 0.5}, 1, 2, 0.75, 0.5},
		{"a part of a quota", CPUFacts{Affinity: 8, Quota: 4}, 2, 4, 0.75, 0.5},
	} {
		require.InDelta(t, tt.want, tt.facts.OthersShare(tt.others, tt.processes, tt.cpus), 1e-9, tt.name)
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
