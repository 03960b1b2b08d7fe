package search

import (
	"math"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/stat"
)

const (
	unknownSE = 0.25 // standard error of a count as long as nothing was measured twice
	byChance  = 2    // a variance may be too large by this many of its standard errors
)

// An evidence is what all series together show of the counts that may be chosen, in ascending order.
type evidence struct {
	sp      Space
	counts  []int
	able    int // how many of counts, from the first, may be chosen: the last of them wants all CPUs, and more workers only take CPUs from other processes
	windows []int
	done    []int     // iterations measured
	mean    []float64 // in nanoseconds per iteration
	se      []float64 // standard error as a share of the mean, without the part that counts share
	df      float64   // degrees of freedom of all se together; 0: no count was measured twice
	twice   bool      // at least one count has two windows that count (a window that was alone in its round may not count)
	spent   float64   // in nanoseconds
	waits   []float64 // the part of mean that isn't the loop's own, as it was measured
}

// weigh removes the drift that all counts of a round share, and computes means and their errors from what
// is left. A mean is total time over iterations, which is what training would pay, including a count's
// own stalls: see [stat.Totals]. What changes between windows changes their parts alike. So if windows
// differ by more than their parts tell, by more than chance, the errors are those of whole windows. Where few
// iterations take far longer than others, which windows have them is chance.
func weigh(sp Space, seen []Series) evidence {
	var rows []Series
	for _, s := range slices.SortedFunc(slices.Values(seen), func(a, b Series) int { return a.Workers - b.Workers }) {
		if len(s.Blocks) > 0 && sp.admits(s.Workers) {
			rows = append(rows, s)
		}
	}
	drift, company := sharedDrift(sp, rows)
	e := evidence{sp: sp}
	parts, windows := make([][]stat.Part, len(rows)), make([][]stat.Part, len(rows))
	for r, s := range rows {
		parts[r], windows[r] = e.add(s, drift, company)
	}
	var rare float64
	e.mean, e.se, rare = stat.Totals(parts)
	_, between, _ := stat.Totals(windows)
	perWindow := float64(max(1, len(slices.Concat(parts...)))) / float64(max(1, len(slices.Concat(windows...))))
	chance := math.Sqrt(1 + byChance*math.Sqrt((2+rare/perWindow)/max(e.df, 1)))
	for i := range e.se {
		e.se[i] = min(max(e.se[i], between[i]/chance), 1)
		if e.df == 0 {
			e.se[i] = unknownSE
		}
	}
	for cpus, r := usersOf(rows), 0; r < len(rows); r++ {
		if r > 0 && e.counts[r-1] >= sp.CPUs && cpus.takes(rows[r-1].Blocks, e.mean[r-1], sp.Shared) {
			break
		}
		e.able = r + 1
	}
	return e
}

// sharedDrift returns the drift of each round, as a logarithm, and the number of windows in each round.
func sharedDrift(sp Space, rows []Series) (drift []float64, company map[int]int) {
	var obs []stat.Obs
	rounds, company := 0, map[int]int{}
	for r, s := range rows {
		for _, b := range s.Blocks {
			if b.Round < 0 {
				continue
			}
			obs = append(obs, stat.Obs{Row: r, Time: b.Round, Value: math.Log(float64(max(b.Mean, 1)))})
			rounds = max(rounds, b.Round+1)
			company[b.Round]++
		}
	}
	drift = stat.Drift(obs, len(rows), rounds)
	if sp.Fixed { // counts that have had their iterations are measured no more, so others are alone
		for round := 1; round < rounds; round++ {
			if company[round] < 2 {
				drift[round] = drift[round-1]
			}
		}
	}
	return drift, company
}

// add adds a count, and returns the times of its windows without drift, whole and in parts.
func (e *evidence) add(s Series, drift []float64, company map[int]int) (parts, windows []stat.Part) {
	var done int
	var took, waited float64
	alone := func(b Block) bool { return company[b.Round] == 1 && !e.sp.Fixed } // its difference may be drift alone
	compared := slices.ContainsFunc(s.Blocks, func(b Block) bool { return !alone(b) })
	for _, b := range s.Blocks {
		mean, n, still := float64(max(b.Mean, 1)), max(b.Iterations, 1), 1.0
		if b.Round >= 0 {
			still = math.Exp(-drift[b.Round])
		}
		done, took, waited = done+n, took+float64(n)*mean, waited+float64(n)*float64(b.Wait)
		if compared && alone(b) {
			continue
		}
		whole := stat.Part{Mean: mean * still, Weight: float64(n)}
		if windows = append(windows, whole); b.Parts == nil {
			b.Parts = []stat.Part{whole}
		}
		of, _ := stat.Mean(b.Parts)
		scale := whole.Mean / of
		for _, p := range b.Parts {
			parts = append(parts, stat.Part{Mean: p.Mean * scale, Weight: p.Weight})
		}
	}
	e.spent += took
	e.df += float64(len(s.Blocks) - 1)
	e.twice = e.twice || len(windows) > 1
	e.counts, e.windows, e.done = append(e.counts, s.Workers), append(e.windows, len(s.Blocks)), append(e.done, done)
	e.waits = append(e.waits, waited/float64(done))
	return parts, windows
}

// even removes the chance differences between the loop's bodies from windows in which training waited. They
// then take as long as loading, but wait no longer than was measured, or as long as the count's mean body. A
// count at which no body ended has the mean of all. Windows in which training hardly waited stay as they were
// measured: what changes between them is the error of the body.
func even(seen []Series) []Series {
	all, n := 0.0, 0
	for _, s := range seen {
		sum, bodies := s.bodies()
		all, n = all+sum, n+bodies
	}
	out := make([]Series, len(seen))
	for i, s := range seen {
		body := all / float64(max(n, 1))
		if sum, bodies := s.bodies(); bodies > 0 {
			body = sum / float64(bodies)
		}
		out[i] = Series{Workers: s.Workers, Blocks: slices.Clone(s.Blocks)}
		for k := range s.Blocks {
			b := &out[i].Blocks[k]
			if b.Wait == 0 {
				b.Parts = nil
				if b.Bodies == 0 {
					b.Mean = time.Duration(body)
				}
				continue
			}
			mean := body + float64(b.Wait)
			if s.Workers > 0 { // loading goes on during the body
				mean = min(mean, max(float64(b.Mean), body))
			}
			b.Mean, b.Wait = time.Duration(mean), time.Duration(mean-body)
			b.Parts = slices.Clone(b.Parts)
			for p := range b.Parts {
				b.Parts[p].Mean = max(1, body+b.Parts[p].Mean)
			}
		}
	}
	return out
}

// bodies returns the time of the loop's bodies that ended at a count, and their number.
func (s Series) bodies() (sum float64, n int) {
	for _, b := range s.Blocks {
		sum, n = sum+float64(b.Bodies)*b.body(), n+b.Bodies
	}
	return sum, n
}

// body returns how long the body of the loop took, if one has ended.
func (b Block) body() float64 { return float64(b.Mean - b.Wait) }
