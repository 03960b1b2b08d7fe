package human

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDurationsHaveThreeDigits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ns", 999: "999 ns", 1200: "1.2 µs", 999_400: "999 µs", 999_990: "1 ms", 5e6: "5 ms", 12_345_678: "12.3 ms",
		999_999_999: "1 s", 14_250_000_000: "14.2 s", 200e6: "200 ms", 61_400_000_000: "1m1s",
	} {
		require.Equal(t, want, Duration(d))
	}
}

func TestSizesHaveThreeDigits(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 999: "999 B", 1000: "1 kB", 1500e6: "1.5 GB", 2025320000: "2.03 GB",
		24.68e6: "24.7 MB", 99.96e6: "100 MB", 152.6e6: "153 MB", 999.6e6: "1 GB", 2 << 20: "2.1 MB",
		math.MaxUint64: "18.4 EB",
	} {
		require.Equal(t, want, Bytes(n))
	}
}

func TestSizesThatAreComparedDiffer(t *testing.T) {
	for _, tt := range []struct {
		a, b      uint64
		one, both string
	}{
		{46e6, 20e6, "46 MB", "20 MB"}, {47.2e6, 47e6, "47.2 MB", "47 MB"}, {47.04e6, 47e6, "47.04 MB", "47 MB"}, {1001e6, 1000e6, "1.001 GB", "1 GB"},
		{1_000_000_001, 1_000_000_000, "1.000000001 GB", "1 GB"}, {5e6, 5e6, "5 MB", "5 MB"}, {math.MaxUint64, math.MaxUint64 - 1, "18.446744073709552936 EB", "18.446744073709552936 EB"},
	} {
		one, both := Apart(tt.a, tt.b)
		require.Equal(t, []string{tt.one, tt.both}, []string{one, both})
	}
}

func TestSmallSharesHaveADecimal(t *testing.T) {
	for x, want := range map[float64]string{0: "0.0 %", 0.025: "2.5 %", 0.0994: "9.9 %", 0.0996: "10 %", 0.976: "98 %", 1: "100 %"} {
		require.Equal(t, want, Share(x))
	}
}

func TestThousandsStandApart(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.1 + 0.2: "0.3", 999: "999", 1000: "1\u00a0000", -1234.5: "-1\u00a0234.5", 2e6: "2\u00a0000\u00a0000"} {
		require.Equal(t, want, Number(x))
	}
}
