package search

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/stat"
)

// DefaultTime is the longest that a search takes by default.
const DefaultTime = 2 * time.Minute

// A visit leaves out its first batches: until all workers are at work, their slots have
// memory, and the kernel has found a CPU for each thread.
const (
	WarmBatches = 2
	WarmTime    = 10 * time.Millisecond
)

// WarmSamples is how many samples a worker loads before it counts as warm: it
// may have connections to make, files to open and caches to fill.
const WarmSamples = 12

// A Visit takes in the iterations at one worker count, one after the other, and
// tells when there are enough. While the count still becomes faster, the visit
// leaves out its earlier iterations: caches, connections and clocks were warming up.
type Visit struct {
	Wanted int           // iterations
	Least  int           // iterations that are measured even past the limit: a wave, which workers finish together
	Limit  time.Duration // ends it early; 0: none
	Part   time.Duration // a part takes at least this long, because the clock steps
	Pause  time.Duration // of the time spent, doesn't count for Limit

	took  []float64 // of the iterations after those that were left out
	sum   float64
	spent float64 // the same, with the iterations that were left out
	cut   int     // how often the beginning was left out
	Trend bool    // it was still becoming faster when it ended
}

const (
	mostCuts = 4    // how often a visit may leave out its beginning
	stillBy  = 0.10 // share by which the first half must be slower than the second …
	stillSE  = 2    // … and by how many standard errors
	partOf   = 5    // iterations of a part, at least …
	partTime = time.Millisecond
	slowest  = 20 // the slowest of this many iterations doesn't count for a visit's level
)

// Add takes an iteration in.
func (v *Visit) Add(d time.Duration) {
	v.took = append(v.took, float64(d))
	v.sum += float64(d)
	v.spent += float64(d)
	if len(v.took) < v.Wanted {
		return
	}
	if v.Trend = v.falling(); v.Trend && v.cut < mostCuts {
		half := len(v.took) / 2
		for _, t := range v.took[:half] {
			v.sum -= t
		}
		v.took = v.took[half:]
		v.cut++
	}
}

// Again forgets all iterations.
func (v *Visit) Again() {
	*v = Visit{Wanted: v.Wanted, Least: v.Least, Limit: v.Limit, Part: v.Part}
}

// More tells whether to go on.
func (v *Visit) More() bool {
	return len(v.took) < v.Wanted && (v.Limit == 0 || len(v.took) < max(1, v.Least) || v.spent-float64(v.Pause) < float64(v.Limit))
}

// falling tells whether the first half took longer than the second, beyond chance.
func (v *Visit) falling() bool {
	half := len(v.took) / 2
	if half < 2 {
		return false
	}
	first, firstSE := meanAndSE(v.took[:half])
	second, secondSE := meanAndSE(v.took[half:])
	return first > (1+stillBy)*second && first-second > stillSE*math.Hypot(firstSE, secondSE)
}

func meanAndSE(xs []float64) (mean, se float64) {
	for _, x := range xs {
		mean += x / float64(len(xs))
	}
	for _, x := range xs {
		se += (x - mean) * (x - mean)
	}
	n := float64(len(xs))
	return mean, math.Sqrt(se / (n - 1) / n)
}

// Shorten takes a share off what each of the iterations that count has waited, say because
// others were loaded meanwhile that later ones won't wait for.
func (v *Visit) Shorten(waits []time.Duration, share float64) {
	for i, wait := range waits {
		less := share * float64(wait)
		v.took[i] -= less
		v.sum -= less
	}
}

// Kept is how many of the last iterations count.
func (v *Visit) Kept() int { return len(v.took) }

// Level is the mean without the slowest one in twenty iterations, at least one; 0 if there are
// fewer than three. If workers finish batches in waves, it is the mean without the slowest waves,
// and 0 if there are fewer than three: the slowest iteration of a wave is the wait for all of it.
func (v *Visit) Level() time.Duration {
	wave := max(1, v.Least)
	if len(v.took) < 3*wave {
		return 0
	}
	sums := make([]float64, len(v.took)-wave+1) // of the waves that may begin at each iteration
	begin := make([]int, len(sums))             // those iterations, the slowest wave's first
	sum := 0.0
	for i, t := range v.took {
		if sum += t; i >= wave {
			sum -= v.took[i-wave]
		}
		if at := i - wave + 1; at >= 0 {
			sums[at], begin[at] = sum, at
		}
	}
	slices.SortFunc(begin, func(a, b int) int { return cmp.Or(cmp.Compare(sums[b], sums[a]), a-b) })
	rest, left, out := v.sum, len(v.took), make([]bool, len(v.took))
	for most := max(1, len(v.took)/(slowest*wave)); most > 0; begin = begin[1:] {
		if at := begin[0]; !out[at] && !out[at+wave-1] { // waves share no iteration
			rest, left, most = rest-sums[at], left-wave, most-1
			for i := range wave {
				out[at+i] = true
			}
		}
	}
	return time.Duration(rest / float64(left))
}

// Parts are the means of a few iterations each. A single iteration says little, because workers
// finish the batches of a wave together. But if there are no waves, and the iterations make only
// one part, the slowest iteration is a part of its own: it may be a stall.
func (v *Visit) Parts() []stat.Part {
	if n := len(v.took); n >= 3 && n < 2*partOf && v.Least <= 1 {
		slowest := slices.Max(v.took)
		if rest := (v.sum - slowest) / float64(n-1); rest >= float64(v.Part) && rest*float64(n-1) >= float64(partTime) {
			return []stat.Part{{Mean: rest, Weight: float64(n - 1)}, {Mean: slowest, Weight: 1}}
		}
	}
	var parts []stat.Part
	sum, n, left := 0.0, 0, v.sum
	for i, t := range v.took {
		sum, n, left = sum+t, n+1, left-t
		enough := func(n int, sum float64) bool {
			return n >= max(partOf, v.Least) && sum >= float64(max(partTime, v.Part))
		}
		// What would be too little for a part goes into the last.
		if rest := len(v.took) - i - 1; rest == 0 || enough(n, sum) && enough(rest, left) {
			parts = append(parts, stat.Part{Mean: max(sum/float64(n), 1), Weight: float64(n)})
			sum, n = 0, 0
		}
	}
	return parts
}
