package search

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/nwt-go/nwt/internal/stat"
)

const (
	redraws   = 200  // re-runs drawn to find who is in the race
	answers   = 2000 // and to say how sure the choice is
	seenAgain = 0.5  // chance that another run would notice stalls that set in elsewhere

	// A count may be equal to the fastest if they differ by at most equalSE standard errors,
	// and the count's own error is less than the share equalBy of alpha.
	equalSE   = 1.5
	equalBy   = 0.6
	equalLeft = 0.02 // share of the variance of equal counts that is left at least, when it is told how much slower the choice may be
)

// vote draws what other runs would measure, and returns the share of them in which
// each count would be chosen. What was measured misses the truth by its error, and
// another run misses it again. Both variances are multiplied by times. Stalls set in elsewhere
// with their chance, multiplied by share. If share isn't 0, another run may also meet none of
// the stalls that have decided here.
func (e evidence) vote(draws int, times, share float64) []float64 {
	votes := make([]float64, len(e.counts))
	likely, left := e.likely()
	for i := range left {
		left[i] = times * (left[i] + 1)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	var missed []float64
	if share > 0 {
		missed = e.missed()
	}
	e.draw(likely, left, draws, func(mean []float64) {
		if share > 0 {
			luck := rng.Float64()
			for i, chance := range missed {
				if luck < chance {
					mean[i] *= e.usual[i] / e.mean[i]
				}
			}
			e.change(mean, share, rng)
		}
		votes[e.another(mean)] += 1 / float64(draws)
	})
	return votes
}

// likely is what the counts' times are most likely to be, and the share that is left of
// their variance: those that may be as fast as the fastest are more alike than they seem,
// since chance made them differ.
func (e evidence) likely() (mean, left []float64) {
	mean, left = slices.Clone(e.mean), slices.Repeat([]float64{1}, len(e.mean))
	_, fastest := e.pick(e.mean)
	best := e.mean[fastest]
	var equal []int
	var values, errors []float64
	for i, m := range e.mean {
		se := best * e.se[i]
		if se < equalBy*e.sp.Alpha.Of(best, e.sp.Iterations) && math.Abs(m-best) <= equalSE*math.Hypot(se, best*e.se[fastest]) {
			equal, values, errors = append(equal, i), append(values, m), append(errors, se)
		}
	}
	if len(equal) < 2 {
		return mean, left
	}
	pooled, shares := stat.Pooled(values, errors)
	for n, i := range equal {
		mean[i], left[i] = pooled[n], shares[n]
	}
	return mean, left
}

// draw draws times about the given ones. Each has the error of what was measured, with its
// variance multiplied by times. Errors are shares, so logarithms are drawn: a time that is
// hardly known may be half or twice as long, but never next to nothing.
func (e evidence) draw(about, times []float64, draws int, each func(mean []float64)) {
	rng := rand.New(rand.NewPCG(1, 2))
	mean := make([]float64, len(e.counts))
	for range draws {
		for i, m := range about {
			mean[i] = m * math.Exp(math.Sqrt(times[i])*e.se[i]*rng.NormFloat64())
		}
		each(mean)
	}
}

// drawTruth draws what the counts' times may be, given what was measured.
func (e evidence) drawTruth(draws int, each func(mean []float64)) {
	e.draw(e.mean, slices.Repeat([]float64{1}, len(e.mean)), draws, each)
}

// missed is the chance, for each count, that another run's iterations meet no stall there. It
// is 0 unless the count surely has more stalls than those below it.
func (e evidence) missed() []float64 {
	_, fastest := e.pick(e.mean)
	chance := make([]float64, len(e.counts))
	for i, often := range e.often {
		if often > 0 {
			chance[i] = math.Exp(-often * float64(e.sp.enough(e.mean[fastest])))
		}
	}
	return chance
}

// change moves drawn times to where they would be if stalls set in elsewhere. It draws whether
// and where they do: each change has its chance, multiplied by share. If a count is in two
// lists, the later one decides, so that what its stalls cost is taken away only once.
func (e evidence) change(mean []float64, share float64, rng *rand.Rand) {
	drawn := slices.Clone(mean)
	for _, list := range e.elsewhere {
		left := rng.Float64()
		for _, c := range list {
			if left -= share * c.Chance; left < 0 {
				for r, m := range c.Means {
					mean[c.From+r] = drawn[c.From+r] * m / e.mean[c.From+r]
				}
				break
			}
		}
	}
}

// another is what another run with these times would choose. It can choose a count within a
// step only if something promises that count there too.
func (e evidence) another(mean []float64) (chosen int) {
	if !slices.Contains(e.fine, true) {
		chosen, _ = e.pick(mean)
		return chosen
	}
	there := slices.Clone(mean)
	for i := range there {
		if e.fine[i] {
			there[i] = math.Inf(1)
		}
	}
	for {
		chosen, _ = e.pick(there)
		w, found := e.finer(there)
		i := slices.Index(e.counts, w)
		if !found || i < 0 || there[i] == mean[i] {
			return chosen
		}
		there[i] = mean[i]
	}
}

// slower is the share by which a count is at most slower than the best in 95 % of
// cases. Counts that may be equal are more alike than they seem, as in the votes, but are
// never taken to be just equal. And stalls may set in elsewhere. Choosing supposes that counts
// stall alike until they surely don't; the bound supposes that the chosen count may stall more.
func (e evidence) slower(chosen int) float64 {
	var by []float64
	likely, left := e.likely()
	for i := range left {
		left[i] = max(left[i], equalLeft)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	e.draw(likely, left, answers, func(mean []float64) {
		mean[chosen] += likely[chosen] * e.lent[chosen] * rng.NormFloat64()
		e.change(mean, 1, rng)
		by = append(by, mean[chosen]/slices.Min(mean)-1)
	})
	return stat.Quantile(by, 0.95)
}
