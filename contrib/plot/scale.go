package plot

import "time"

// A scale says how the figures of an axis are written, as in the table of a Result.
type scale struct {
	unit string
	size float64 // of the unit
}

// scaleOf returns the scale in which a duration has up to three digits before the point.
func scaleOf(d time.Duration) scale {
	return largest(float64(d), []scale{{"ns", 1}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}})
}

// scaleOfBytes does the same for a size.
func scaleOfBytes(n uint64) scale {
	return largest(float64(n), []scale{{"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"PB", 1e15}, {"EB", 1e18}})
}

func largest(x float64, scales []scale) scale {
	s := scales[0]
	for _, larger := range scales[1:] {
		if x >= 0.9995*larger.size {
			s = larger
		}
	}
	return s
}
