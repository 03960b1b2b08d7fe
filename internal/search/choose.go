package search

import (
	"cmp"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/stat"
)

// How hard the evidence is pressed.
const (
	doubt     = 0.5   // standard errors in whose favour a count with fewer workers is judged …
	surely    = 1     // … and by which a count must be within alpha for no rounder one with more workers to be preferred
	certain   = 0.4   // share of alpha below which a standard error is small
	ofAlpha   = 0.25  // share of alpha that this standard error counts for at most
	SureAt    = 0.97  // share of the votes at which measuring ends
	mostSure  = 0.99  // the highest confidence that is claimed
	redraws   = 200   // re-runs drawn to find who is in the race
	answers   = 2000  // and to say how sure the choice is
	persevere = 10    // times its iterations that a count in an undecided race may get …
	longer    = 2     // times its iterations that the choice and the fastest get in the end
	patience  = 4.2   // … while all together took no longer than this many counts as fast as the fastest,
	ofSweep   = 0.08  // or than this share of measuring every count …
	atMost    = 1.5   // … each of which takes this many times its fastest visit at most
	worthIt   = 0.025 // expected loss for which two counts that settle whether stalls set in elsewhere are measured, per time of patience
	halfOf    = 0.5   // share of the other's iterations that each of the two gets at a time
	midway    = 0.5   // chance that a count between two is without the stalls of the higher
	seenAgain = 0.5   // share of the chance that stalls set in elsewhere with which another run would see them do so
	wary      = 2     // times the variances, in votes on whether to go on: measuring must not end at a lucky moment
	unknownSE = 0.25  // standard error of a count while nothing was measured twice

	// A search takes at least this long: what disturbs may last as long as a shorter one.
	leastTime = 600 * time.Millisecond

	// The halves of a count's visits differ if each has shiftLooks and they are apart by
	// more than shiftBy and by more than shiftSE standard errors.
	shiftLooks = 4
	shiftBy    = 0.05
	shiftSE    = 2

	// Counts may be equal if they are so within a number of standard errors of the fastest,
	// each of them less than a share of alpha.
	equalSE   = 1.5
	equalBy   = 0.6
	equalLeft = 0.05 // share of their variance that is left at least, in saying how much slower the choice may be

	// If time ended the search, another count replaces training's own only if it is
	// worse by more than alpha and worseBy with a probability of mayBeWorse at most.
	worseBy    = 0.02
	mayBeWorse = 0.05
)

// A Choice is the outcome of a search.
type Choice struct {
	Workers    int           // fewest within alpha of the fastest; −1 if nothing allowed was measured
	Fastest    int           // the time-best count
	Alpha      time.Duration // accumulated over the space's iterations
	Confidence float64       // how often another run would choose the same, 0 … 1; 0: nothing was measured twice
	Rounded    bool          // fewer workers may be within alpha too, and Workers is the rounder count
	Kept       bool          // Workers is training's own count: time ended before another was surely better
	Slower     float64       // share by which the choice is slower than the best count tried, at most, at 95 %
	Estimates  []Estimate    // one per count measured, ascending
}

// An Estimate is what a series says about its count: total time over iterations,
// without the drift that all counts of a round share.
type Estimate struct {
	Workers   int
	Mean      time.Duration // per iteration
	Low, High time.Duration // its 95 % interval; both Mean if nothing was measured twice
}

// Around is the estimate's interval, moved to lie about a plain mean and as wide in
// proportion: the estimate itself may lie elsewhere, since drift was taken out of it.
func (e Estimate) Around(mean time.Duration) (low, high time.Duration) {
	times := float64(mean) / float64(max(e.Mean, 1))
	return time.Duration(math.Round(float64(e.Low) * times)), time.Duration(math.Round(float64(e.High) * times))
}

// Choose finds the fewest workers within alpha of the fastest.
func Choose(sp Space, seen []Series) Choice {
	e := weigh(sp, seen)
	if len(e.counts) == 0 {
		return Choice{Workers: -1, Fastest: -1}
	}
	c := Choice{Estimates: make([]Estimate, len(e.counts))}
	for i, w := range e.counts {
		mean, margin := e.mean[i], 0.0
		if e.twice {
			margin = e.own[i] * stat.StudentT(0.95, e.free[i])
		}
		c.Estimates[i] = Estimate{w, time.Duration(mean), time.Duration(mean * max(0, 1-margin)), time.Duration(min(mean*(1+margin), math.MaxInt64/2))}
	}
	chosen, fastest := e.pick(e.mean)
	for i := range chosen {
		may, _ := e.within(e.mean, i, fastest)
		c.Rounded = c.Rounded || may
	}
	if sp.Time > 0 && sp.Left <= 0 {
		own := e.orTheStart(chosen)
		c.Kept = own != chosen
		chosen = own
	}
	c.Workers, c.Fastest = e.counts[chosen], e.counts[fastest]
	c.Alpha = math.MaxInt64
	if alpha := sp.Alpha.Of(e.mean[fastest], sp.Iterations) * float64(sp.Iterations); alpha < math.MaxInt64 {
		c.Alpha = time.Duration(alpha)
	}
	if e.twice {
		done := float64(e.done[chosen]) // what is rare may not have been met in these iterations
		c.Confidence = min(max(e.vote(answers, 1, seenAgain)[chosen], 1./answers), done/(done+1), mostSure)
		c.Slower = e.slower(chosen)
	}
	return c
}

// The evidence is what all series together say about the counts that may be
// chosen, in ascending order.
type evidence struct {
	sp        Space
	counts    []int
	visits    []int
	done      []int           // iterations measured
	fine      []bool          // it lies within a step: only a promise led to it
	low       []float64       // the fastest visit, nanoseconds per iteration
	mean      []float64       // nanoseconds per iteration
	usual     []float64       // the same, without stalls
	often     []float64       // stalls per iteration, if counts below surely have fewer
	se        []float64       // standard error as a share of the mean, as far as counts may differ by it
	own       []float64       // standard error of the mean itself
	free      []float64       // degrees of freedom behind own
	df        float64         // degrees of freedom behind all of se; 0: no count was visited twice
	elsewhere [][]stat.Change // where stalls may set in instead
	twice     bool            // at least one count has two visits that are used; one that was alone in its round may not be
	spent     float64         // nanoseconds, drift and warm-up included; without each visit's slowest iterations, or stalls would use up the patience that they make necessary
}

// weigh takes out the drift that all counts of a round share, and computes means
// and their errors from what is left. A mean is total time over iterations: what
// training would pay, a count's own stalls included. Few looks either miss a rare
// stall or overrate it, so the mean is estimated in two parts: the usual time, by
// Huber's estimate, and the excess of the total over it. The excess is taken to be
// the same at all counts as far as chance may have made the difference
// (DerSimonian & Laird, "Meta-analysis in clinical trials", 1986).
func weigh(sp Space, seen []Series) evidence {
	e := evidence{sp: sp}
	var obs []stat.Obs
	var rows []Series
	rounds, company := 0, map[int]int{}
	for _, s := range slices.SortedFunc(slices.Values(seen), byWorkers) {
		if len(s.Blocks) == 0 || !sp.allows(s.Workers) {
			continue
		}
		for _, b := range s.Blocks {
			if b.Round < 0 {
				continue
			}
			obs = append(obs, stat.Obs{Row: len(rows), Time: b.Round, Value: math.Log(level(b))})
			rounds = max(rounds, b.Round+1)
			company[b.Round]++
		}
		rows = append(rows, s)
	}
	drift := stat.Drift(obs, len(rows), rounds)
	if sp.Fixed { // counts that have their iterations leave others alone
		for round := 1; round < rounds; round++ {
			if company[round] < 2 {
				drift[round] = drift[round-1]
			}
		}
	}
	values := make([][]stat.Part, len(rows))
	for r, s := range rows {
		done, counted, low := 0, 0, math.Inf(1)
		alone := func(b Block) bool { return company[b.Round] == 1 && !sp.Fixed } // it may be all drift
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
				values[r] = append(values[r], stat.Part{Mean: (p.Mean + mean - whole) * still, Weight: p.Weight})
			}
		}
		e.df += float64(len(s.Blocks) - 1)
		e.twice = e.twice || counted > 1
		e.counts, e.visits = append(e.counts, s.Workers), append(e.visits, len(s.Blocks))
		e.done, e.low = append(e.done, done), append(e.low, low)
		e.fine = append(e.fine, s.Blocks[0].Round > 0 && sp.fine(s.Workers)) // an exhaustive search begins with all counts
	}
	totals, elsewhere := stat.Totals(values)
	e.elsewhere = elsewhere
	for _, total := range totals {
		e.mean, e.usual, e.often = append(e.mean, total.Mean), append(e.usual, total.Usual), append(e.often, total.Often)
		if e.df == 0 {
			total.SE = unknownSE
		}
		e.se, e.own, e.free = append(e.se, min(total.SE, 1)), append(e.own, total.Own), append(e.free, total.Free)
	}
	left := leftOver(rows, drift)
	for r, s := range rows {
		if by := shift(s.Blocks, left); by > 0 {
			e.se[r], e.own[r] = min(math.Hypot(e.se[r], by/2), 1), math.Hypot(e.own[r], by/2)
		}
	}
	return e
}

// level is what drift is judged by.
func level(b Block) float64 { return float64(max(cmp.Or(b.Level, b.Mean), 1)) }

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

// shift is by which share a count's later visits differ from its earlier ones, drift
// aside, or 0 if chance may explain that. What only this count meets has changed
// meanwhile, say because the credits of a store are used up. Then its visits aren't so
// many samples of one mean.
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

// leftOver is the drift of each round with what most counts of a round still have in
// common: drift that is no more than its noise isn't taken out.
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

func overall(parts []stat.Part) float64 {
	sum, weights := 0.0, 0.0
	for _, p := range parts {
		sum, weights = sum+p.Mean*p.Weight, weights+p.Weight
	}
	return sum / weights
}

func byWorkers(a, b Series) int { return cmp.Compare(a.Workers, b.Workers) }

// pick applies the rule to one set of times: the fewest workers that aren't
// slower than the fastest by more than alpha, as far as the measuring tells. Where it
// doesn't tell which of several counts that is, it is the roundest of them, since other
// runs then choose the same: rounding is what makes a result replicable (Impagliazzo,
// Lei, Pitassi & Sorrell, "Reproducibility in learning", STOC 2022).
// A count is the fastest only if it is so by more than a standard error; otherwise
// luck would choose among equals.
func (e evidence) pick(mean []float64) (chosen, fastest int) {
	for i, m := range mean {
		if m*(1+e.se[i]) < mean[fastest]*(1+e.se[fastest]) {
			fastest = i
		}
	}
	chosen = -1
	for i := range mean {
		may, sure := e.within(mean, i, fastest)
		if may && (chosen < 0 || e.sp.roundness(e.counts[i]) > e.sp.roundness(e.counts[chosen])) {
			chosen = i
		}
		if sure {
			break
		}
	}
	return chosen, fastest
}

// within tells whether the i-th count may be within alpha of the fastest, and whether it
// surely is, as far as the measuring tells.
func (e evidence) within(mean []float64, i, fastest int) (may, sure bool) {
	best := mean[fastest]
	alpha := e.sp.Alpha.Of(best, e.sp.Iterations)
	se := min(best*math.Hypot(e.se[i], e.se[fastest]), ofAlpha*alpha)
	may = mean[i] <= best+alpha+doubt*se
	return may, mean[i] <= best+alpha-surely*se || may && e.df == 0
}

// roundness is how often a count can be halved; 0 is the roundest. What training would
// have without tuning is at least as round as one more (63 of 64 CPUs).
func (sp Space) roundness(workers int) int {
	round := bits.TrailingZeros(uint(workers))
	if workers == sp.Start {
		round = max(round, bits.TrailingZeros(uint(workers+1)))
	}
	return round
}

// orTheStart returns the choice. If the choice may well be worse than training's own
// count, measuring has ended too early, and it returns training's own.
func (e evidence) orTheStart(chosen int) int {
	start := slices.Index(e.counts, e.sp.Start)
	if start < 0 || start == chosen {
		return chosen
	}
	if chosen < start && e.visits[chosen] < 2 {
		return start // one look is no reason to choose fewer workers
	}
	worse := 0
	e.drawTruth(redraws, func(mean []float64) {
		best := mean[start]
		if mean[chosen] > best+e.sp.Alpha.Of(best, e.sp.Iterations)+worseBy*best {
			worse++
		}
	})
	if float64(worse) > mayBeWorse*redraws {
		return start
	}
	return chosen
}

// draw draws times about the given ones. Each has the error of what was measured, its
// variance counted a number of times. Errors are shares, so logarithms are drawn: a time
// that is hardly known may be half or twice as long, but never next to nothing.
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

// vote draws what other runs would measure, and returns the share of them in which
// each count would be chosen. What was measured misses the truth by its error, and
// another run misses it again. Both variances count a number of times. Stalls that may set
// in elsewhere do so in a share of the draws that their chance would give. If that share isn't
// 0, another run may also meet none of the stalls that have decided here.
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

// slower is the share by which a count is at most slower than the best in 95 % of
// cases. Counts that may be equal are more alike than they seem, as in the votes, but are
// never taken to be just equal. And stalls may set in elsewhere.
func (e evidence) slower(chosen int) float64 {
	var by []float64
	likely, left := e.likely()
	for i := range left {
		left[i] = max(left[i], equalLeft)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	e.draw(likely, left, answers, func(mean []float64) {
		e.change(mean, 1, rng)
		by = append(by, mean[chosen]/slices.Min(mean)-1)
	})
	return stat.Quantile(by, 0.95)
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

// change moves drawn times to where they are if stalls set in elsewhere, which is drawn too:
// each by a share of its chance. A count that two lists have takes what the later one says:
// what its stalls cost is taken away from it once.
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

// between finds the next count of the bisection: towards the fewest workers within
// alpha, and wherever a faster one may be.
func (e evidence) between() (w int, found bool) {
	chosen, fastest := e.pick(e.mean)
	if w, found = e.gap(chosen - 1); found {
		return w, true
	}
	for i := range e.counts {
		if w, found = e.gap(i); found && e.promises(e.mean, i-1, i, w, fastest) {
			return w, true
		}
	}
	return 0, false
}

// finer finds a count beside the fastest that lies within a step, if it promises to be
// faster by half of alpha and the errors are small beside alpha. A count whose time is
// +Inf isn't there.
func (e evidence) finer(mean []float64) (w int, found bool) {
	_, fastest := e.pick(mean)
	best := mean[fastest]
	sure := func(i int) bool { return e.se[i]*best < certain*e.sp.Alpha.Of(best, e.sp.Iterations) }
	next := func(i, by int) int {
		for i += by; i >= 0 && i < len(mean) && math.IsInf(mean[i], 1); i += by {
		}
		return i
	}
	for _, i := range []int{next(fastest, -1), fastest} {
		if i < 0 || next(i, 1) == len(mean) || !sure(i) || !sure(fastest) {
			continue
		}
		high := e.counts[next(i, 1)]
		w = (e.counts[i] + high + 1) / 2
		if stepAt(w) > 1 && w < high && e.sp.allows(w) && e.promises(mean, next(i, -1), i, w, fastest) {
			return w, true
		}
	}
	return 0, false
}

// fine tells whether a count is neither one of the ladder nor one of the steps.
func (sp Space) fine(w int) bool {
	doubled := w%max(sp.CPUs, 1) == 0 && bits.OnesCount(uint(w/max(sp.CPUs, 1))) == 1
	return w != sp.Start && w != sp.Max && !doubled && w%stepAt(w) != 0
}

// another is what another run with these times would choose: a count within a step only if
// something promises it there too.
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

// of is the time of w workers; +Inf if it isn't known.
func (e evidence) of(w int) float64 {
	if i := slices.Index(e.counts, w); i >= 0 {
		return e.mean[i]
	}
	return math.Inf(1)
}

// promises tells whether w workers, more than the i-th count, would be faster than
// the fastest by more than half of alpha if times went on falling as they do from one
// count before up to the i-th.
func (e evidence) promises(mean []float64, before, i, w, fastest int) bool {
	if before < 0 {
		return false
	}
	falling := math.Log(mean[before]/mean[i]) / math.Log(float64(e.counts[i])/float64(e.counts[before]))
	best := mean[fastest]
	return mean[i]*math.Pow(float64(e.counts[i])/float64(w), falling) < best-0.5*e.sp.Alpha.Of(best, e.sp.Iterations)
}

// gap is the middle between the i-th count and the next.
func (e evidence) gap(i int) (w int, found bool) {
	if i < 0 || i+1 >= len(e.counts) {
		return 0, false
	}
	w, found = Middle(e.counts[i], e.counts[i+1])
	return w, found && e.sp.allows(w)
}

// contested returns two counts that tell whether stalls set in elsewhere, if much depends on
// it: the choice, and the one that would be better by most then, times the chance of it. It
// returns how long an iteration of the slower of them may take, too. The longer the search
// took, the more must depend on it.
func (e evidence) contested() (low, high int, mean float64, found bool) {
	chosen, fastest := e.pick(e.mean)
	want := e.sp.enough(e.mean[fastest])
	loss := worthIt * max(1, e.spent/e.patience(want))
	hasMost := func(i int) bool { return e.done[chosen] >= persevere*want && e.done[i] >= persevere*want }
	if e.sp.Fixed {
		loss = worthIt
		hasMost = func(i int) bool { return e.done[i] >= want }
	}
	var rival int
	consider := func(w int, time, here, chance float64) {
		i := slices.Index(e.counts, w)
		if by := chance * (here/time - 1); by > loss && (i < 0 || !hasMost(i)) {
			rival, loss, mean, found = w, by, here, true
		}
	}
	for _, list := range e.elsewhere {
		for _, c := range list {
			there := slices.Clone(e.mean)
			copy(there[c.From:], c.Means)
			best, _ := e.pick(there)
			consider(e.counts[best], there[best], there[chosen], c.Chance)
			below, above := e.counts[c.Row-1], e.counts[c.Row]
			if w, apart := Middle(below, above); apart && e.sp.allows(w) {
				consider(w, there[c.Row-1]*e.fallen(c.Row, w), there[chosen], midway*c.Chance)
			}
		}
	}
	return min(rival, e.counts[chosen]), max(rival, e.counts[chosen]), mean, found
}

// fallen is the usual time of w workers as a share of that of the count before the i-th, if
// it falls evenly from that to the i-th.
func (e evidence) fallen(i, w int) float64 {
	below, above := float64(max(1, e.counts[i-1])), float64(e.counts[i])
	return math.Pow(e.usual[i]/e.usual[i-1], math.Log(float64(w)/below)/math.Log(above/below))
}

// patience is how long all measuring may take until what is undecided stays so.
func (e evidence) patience(want int) float64 {
	_, fastest := e.pick(e.mean)
	return max(ofSweep*e.sweep(want), patience*e.mean[fastest]*float64(want))
}

// undecided returns the counts to go on measuring, in ascending order: those that
// another run might choose, those that may be the fastest, and the choice's
// neighbours, until they have their iterations. While the choice isn't sure, the
// first two kinds get more. In the end every count that isn't hopeless gets a last look:
// its first looks may have had bad luck.
func (e evidence) undecided() []int {
	chosen, fastest := e.pick(e.mean)
	best := e.mean[fastest]
	alpha := e.sp.Alpha.Of(best, e.sp.Iterations)
	want := e.sp.enough(best)
	votes := e.vote(redraws, wary, 0)
	enough := e.patience(want)
	patient := e.sp.Fixed || e.spent < enough
	most, company := want, 2
	if !e.sp.Fixed && votes[chosen] < SureAt && e.spent < longer*enough {
		most *= longer
	}
	if patient {
		company = 3
		if !e.sp.Fixed && votes[chosen] < SureAt {
			most *= persevere
		}
	}
	var race, last []int
	for i, w := range e.counts {
		mightWin := e.low[i] < best-alpha/2 || i < chosen && e.low[i] < best+alpha || e.mean[i]*(1-2*e.se[i]) < best-alpha/2
		neighbour := (i == chosen-1 || i == chosen+1) && e.mean[i] < hopeless*best
		switch {
		case i == chosen || i == fastest || (patient || e.fine[i] && e.visits[i] < 2*firstLooks) && votes[i] > 1-SureAt:
			if e.done[i] < most {
				race = append(race, w)
			}
		case patient && (mightWin || neighbour):
			if e.done[i] < want {
				race = append(race, w)
			}
		case patient && e.mean[i] < hopeless*best && e.visits[i] <= firstLooks && !e.sp.Fixed:
			last = append(last, w)
		}
	}
	if len(race) == 0 {
		race = last
	}
	if len(race) > 0 && !e.sp.Fixed {
		race = e.together(race, company, chosen, fastest, votes)
	}
	return race
}

// tooSoon returns the choice and its company while less than the least time was spent.
func (e evidence) tooSoon() []int {
	if e.sp.Fixed || len(e.counts) == 1 || e.spent >= float64(leastTime) {
		return nil
	}
	chosen, fastest := e.pick(e.mean)
	return e.together([]int{e.counts[chosen]}, 3, chosen, fastest, e.vote(redraws, wary, 0))
}

// together adds to a round's counts the choice and the fastest and, until there are enough,
// those that another run would choose most often, and neighbours: drift is seen only in
// what several counts have in common.
func (e evidence) together(race []int, company, chosen, fastest int, votes []float64) []int {
	var voted []int
	for i, share := range votes {
		if share > 0 {
			voted = append(voted, i)
		}
	}
	slices.SortStableFunc(voted, func(a, b int) int { return cmp.Compare(votes[b], votes[a]) })
	neighbours := []int{chosen - 1, chosen + 1, fastest - 1, fastest + 1}
	for n, i := range slices.Concat([]int{chosen, fastest}, voted, neighbours) {
		if n >= 2 && len(race) >= company {
			break
		}
		if i >= 0 && i < len(e.counts) && e.mean[i] < hopeless*e.mean[fastest] && !slices.Contains(race, e.counts[i]) {
			race = append(race, e.counts[i])
		}
	}
	if len(race) == 1 { // its neighbours are hopeless, or seem so
		next := -1
		for i, w := range e.counts {
			if w != race[0] && (next < 0 || e.mean[i] < e.mean[next]) {
				next = i
			}
		}
		if next >= 0 {
			race = append(race, e.counts[next])
		}
	}
	slices.Sort(race)
	return race
}

// sweep is about how long measuring all counts would take.
func (e evidence) sweep(iterations int) float64 {
	sum, next := 0.0, 0
	for i, w := range e.counts {
		mean := min(e.mean[i], atMost*e.low[i]) // a stall in each of a few looks is bad luck
		sum += float64(w+1-next) * (mean*float64(iterations) + sweepRounds*warmUp(mean))
		next = w + 1
	}
	return sum
}

// warmUp is how long the warm-up of a visit takes.
func warmUp(mean float64) float64 { return max(WarmBatches*mean, float64(WarmTime)) }
