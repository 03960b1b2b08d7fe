package search

import (
	"cmp"
	"math"
	"slices"

	"github.com/nwt-go/nwt/internal/stat"
)

const (
	unknownSE = 0.25 // standard error of a count while nothing was measured twice

	// The halves of a count's visits differ if each has at least shiftLooks visits, and they
	// are apart by more than shiftBy and by more than shiftSE standard errors.
	shiftLooks = 4
	shiftBy    = 0.05
	shiftSE    = 2
)

// An evidence is what all series together say about the counts that may be chosen, in
// ascending order.
type evidence struct {
	sp        Space
	counts    []int
	visits    []int
	done      []int           // iterations measured
	fine      []bool          // the count lies within a step: only a promise led to it
	low       []float64       // the fastest visit, nanoseconds per iteration
	mean      []float64       // nanoseconds per iteration
	usual     []float64       // the same, without stalls
	often     []float64       // stalls per iteration, if counts below surely have fewer; else 0
	se        []float64       // standard error as a share of the mean, as far as counts may differ by it
	own       []float64       // standard error of the mean itself
	lent      []float64       // what se lacks if a count's stalls are its own
	free      []float64       // degrees of freedom behind own
	df        float64         // degrees of freedom behind all of se; 0: no count was visited twice
	elsewhere [][]stat.Change // where stalls may set in instead
	twice     bool            // at least one count has two visits that count (one that was alone in its round may not count)
	spent     float64         // nanoseconds, drift and warm-up included; each visit's slowest iterations are left out, or stalls would use up the patience that they make necessary
}

// weigh takes out the drift that all counts of a round share, and computes means
// and their errors from what is left. A mean is total time over iterations: what
// training would pay, a count's own stalls included. Few looks either miss a rare
// stall or overrate it, so the mean is estimated in two parts: the usual time, by
// Huber's estimate, and the excess of the total over it. The excess is taken to be the same
// at all counts, as far as chance may have made the difference (DerSimonian & Laird,
// "Meta-analysis in clinical trials", 1986).
func weigh(sp Space, seen []Series) evidence {
	var rows []Series
	for _, s := range slices.SortedFunc(slices.Values(seen), byWorkers) {
		if len(s.Blocks) > 0 && sp.allows(s.Workers) {
			rows = append(rows, s)
		}
	}
	drift, company := sharedDrift(sp, rows)
	e := evidence{sp: sp}
	values := make([][]stat.Part, len(rows))
	for r, s := range rows {
		values[r] = e.add(s, drift, company)
	}
	totals, elsewhere := stat.Totals(values)
	e.elsewhere = elsewhere
	for _, total := range totals {
		e.mean, e.usual, e.often = append(e.mean, total.Mean), append(e.usual, total.Usual), append(e.often, total.Often)
		if e.df == 0 {
			total.SE = unknownSE
		}
		e.se, e.own, e.free = append(e.se, min(total.SE, 1)), append(e.own, total.Own), append(e.free, total.Free)
		e.lent = append(e.lent, total.Lent)
	}
	left := leftOver(rows, drift)
	for r, s := range rows {
		if by := shift(s.Blocks, left); by > 0 {
			e.se[r], e.own[r] = min(math.Hypot(e.se[r], by/2), 1), math.Hypot(e.own[r], by/2)
		}
	}
	return e
}

// sharedDrift is the drift of each round, as a logarithm, and how many visits a round has.
func sharedDrift(sp Space, rows []Series) (drift []float64, company map[int]int) {
	var obs []stat.Obs
	rounds, company := 0, map[int]int{}
	for r, s := range rows {
		for _, b := range s.Blocks {
			if b.Round < 0 {
				continue
			}
			obs = append(obs, stat.Obs{Row: r, Time: b.Round, Value: math.Log(level(b))})
			rounds = max(rounds, b.Round+1)
			company[b.Round]++
		}
	}
	drift = stat.Drift(obs, len(rows), rounds)
	if sp.Fixed { // counts that have their iterations leave others alone
		for round := 1; round < rounds; round++ {
			if company[round] < 2 {
				drift[round] = drift[round-1]
			}
		}
	}
	return drift, company
}

// add adds a count, and returns what its visits took without drift.
func (e *evidence) add(s Series, drift []float64, company map[int]int) (values []stat.Part) {
	done, counted, low := 0, 0, math.Inf(1)
	alone := func(b Block) bool { return company[b.Round] == 1 && !e.sp.Fixed } // it may be all drift
	compared := slices.ContainsFunc(s.Blocks, func(b Block) bool { return !alone(b) })
	for _, b := range s.Blocks {
		mean, still := float64(max(b.Mean, 1)), 1.0
		if b.Round >= 0 {
			still = math.Exp(-drift[b.Round])
		}
		if b.Parts == nil {
			b.Parts = []stat.Part{{Mean: mean, Weight: float64(max(b.Iterations, 1))}}
		}
		done += max(b.Iterations, 1)
		e.spent += level(b)*float64(max(b.Iterations, 1)) + warmUp(mean)
		if compared && alone(b) {
			continue
		}
		counted++
		low = min(low, mean*still)
		whole := overall(b.Parts)
		for _, p := range b.Parts {
			// What parts don't show of the mean is shared evenly.
			values = append(values, stat.Part{Mean: (p.Mean + mean - whole) * still, Weight: p.Weight})
		}
	}
	e.df += float64(len(s.Blocks) - 1)
	e.twice = e.twice || counted > 1
	e.counts, e.visits = append(e.counts, s.Workers), append(e.visits, len(s.Blocks))
	e.done, e.low = append(e.done, done), append(e.low, low)
	e.fine = append(e.fine, s.Blocks[0].Round > 0 && e.sp.fine(s.Workers)) // an exhaustive search begins with all counts
	return values
}

// level is what drift is judged by.
func level(b Block) float64 { return float64(max(cmp.Or(b.Level, b.Mean), 1)) }

func overall(parts []stat.Part) float64 {
	sum, weights := 0.0, 0.0
	for _, p := range parts {
		sum, weights = sum+p.Mean*p.Weight, weights+p.Weight
	}
	return sum / weights
}

func byWorkers(a, b Series) int { return cmp.Compare(a.Workers, b.Workers) }

// driftless are the logarithms of the levels of a count's blocks that are in rounds, drift
// taken out.
func driftless(blocks []Block, drift []float64) (values []float64) {
	for _, b := range blocks {
		if b.Round >= 0 {
			values = append(values, math.Log(level(b))-drift[b.Round])
		}
	}
	return values
}

// shift is by which share a count's later visits differ from its earlier ones, drift aside;
// 0 if chance may explain that. Otherwise something has changed that only this count meets, say
// because the credits of a store are used up. Then its visits aren't samples of one mean.
func shift(blocks []Block, drift []float64) float64 {
	values := driftless(blocks, drift)
	half := len(values) / 2
	if half < shiftLooks {
		return 0
	}
	first, firstSE := meanAndSE(values[:half])
	second, secondSE := meanAndSE(values[half:])
	by := math.Abs(first - second)
	if by <= shiftBy || by <= shiftSE*math.Hypot(firstSE, secondSE) {
		return 0
	}
	return by
}

// leftOver is the drift of each round, and what most counts of the round still have in common
// beyond it: drift that may be noise wasn't taken out.
func leftOver(rows []Series, drift []float64) []float64 {
	all := slices.Clone(drift)
	byRound := make([][]float64, len(drift))
	for _, s := range rows {
		values := driftless(s.Blocks, drift)
		mean := stat.Mean(values)
		for _, b := range s.Blocks {
			if b.Round >= 0 {
				byRound[b.Round] = append(byRound[b.Round], values[0]-mean)
				values = values[1:]
			}
		}
	}
	for round, rest := range byRound {
		slices.Sort(rest)
		low, high := 0.0, 0.0
		if n := len(rest); n > 1 {
			low, high = rest[(n-1)/2], rest[n/2]
		}
		all[round] += max(0, low) + min(0, high)
	}
	return all
}
