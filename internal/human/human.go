// Package human formats bytes, durations and shares for people: one form of each for the table, the
// advice, the warnings, the plot and the examples.
package human

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration returns d with three digits: "1.2 µs", "200 ms", "1m1s".
func Duration(d time.Duration) string {
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return ScaleOf(d).full(float64(d))
}

// Bytes returns n with three digits, in decimal units: "1.57 MB", "153 MB", "512 B".
func Bytes(n uint64) string { return ScaleOfBytes(n).full(float64(n)) }

// Apart returns two sizes with as many digits as it takes to tell them apart, three at least.
func Apart(a, b uint64) (string, string) {
	one, other := ScaleOfBytes(a), ScaleOfBytes(b)
	for a != b && one.full(float64(a)) == other.full(float64(b)) && one.decimals < mostDecimals {
		one.decimals, other.decimals = one.decimals+1, other.decimals+1
	}
	return one.full(float64(a)), other.full(float64(b))
}

const mostDecimals = 18 // of the largest sizes, in exabytes

// Share returns x, 0 … 1, with about two digits: "2.5 %", "98 %".
func Share(x float64) string {
	decimals := 0
	if x < 0.0995 {
		decimals = 1
	}
	return strconv.FormatFloat(100*x, 'f', decimals, 64) + " %"
}

// Workers returns "1 worker", "2 workers".
func Workers(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return strconv.Itoa(n) + " workers"
}

// CPUs returns "1 CPU", "1.5 CPUs".
func CPUs(n float64) string {
	switch {
	case n == 1:
		return "1 CPU"
	case n >= 100:
		return strconv.FormatFloat(n, 'f', 0, 64) + " CPUs"
	}
	return strconv.FormatFloat(n, 'g', 3, 64) + " CPUs"
}

// Number returns x with up to six digits and thousands apart: "1 000", "0.25". No line breaks at these
// spaces.
func Number(x float64) string {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 6, 64), 64)
	whole, decimals, _ := strings.Cut(strconv.FormatFloat(math.Abs(x), 'f', -1, 64), ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "\u00a0" + whole[i:]
	}
	if decimals != "" {
		whole += "." + decimals
	}
	if x < 0 {
		return "-" + whole
	}
	return whole
}

// A Scale says how the figures of a column, or of an axis, are written.
type Scale struct {
	Unit     string
	Size     float64 // of the unit
	decimals int
}

// Write returns x in the scale's unit, without the unit's name.
func (s Scale) Write(x float64) string { return strconv.FormatFloat(x/s.Size, 'f', s.decimals, 64) }

// full returns x with the unit's name, without superfluous zeros.
func (s Scale) full(x float64) string {
	number := s.Write(x)
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number + " " + s.Unit
}

// ScaleOf returns the scale in which a duration has three digits.
func ScaleOf(d time.Duration) Scale {
	return scaleFor(float64(d), []Scale{{Unit: "ns", Size: 1}, {Unit: "µs", Size: 1e3}, {Unit: "ms", Size: 1e6}, {Unit: "s", Size: 1e9}})
}

// ScaleOfBytes returns the scale in which a size has three digits.
func ScaleOfBytes(n uint64) Scale {
	return scaleFor(float64(n), []Scale{{Unit: "B", Size: 1}, {Unit: "kB", Size: 1e3}, {Unit: "MB", Size: 1e6},
		{Unit: "GB", Size: 1e9}, {Unit: "TB", Size: 1e12}, {Unit: "PB", Size: 1e15}, {Unit: "EB", Size: 1e18}})
}

func scaleFor(x float64, units []Scale) Scale {
	s := units[0]
	for _, u := range units[1:] {
		if x >= 0.9995*u.Size {
			s = u
		}
	}
	switch x /= s.Size; {
	case s.Size == 1 || x >= 99.95:
	case x >= 9.995:
		s.decimals = 1
	default:
		s.decimals = 2
	}
	return s
}
