package search

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	SureAt  = 0.97  // share of the votes at which measuring ends
	wary    = 2     // times the variances, in votes on whether to go on: measuring must not end at a lucky moment
	worthIt = 0.025 // expected loss from which on contested counts are measured; after patience it grows with the time spent
	halfOf  = 0.5   // a contested count gets this share of the other's iterations at a time
	midway  = 0.5   // chance that a count between two is without the stalls of the higher

	// Patience ends once the search has taken as long as this many counts as fast as the
	// fastest, or this share of the time of measuring every count, if that is longer. Each of
	// these counts takes at most atMost times its fastest visit.
	patienceCounts = 4.2
	patienceShare  = 0.08
	atMost         = 1.5
	// An extension follows, until the search has taken this many times as long.
	extension = 2

	// How many times its iterations a count gets at most, if once isn't enough.
	inPatience  = 20 // while the choice isn't sure: the choice, the fastest, and what another run might choose
	inExtension = 2  // while the choice isn't sure: the choice and the fastest
	ifContested = 10 // each of two contested counts

	// As many counts as this are in a round, if they can: until patience ends, and afterwards.
	companyAtFirst = 3
	companyLater   = 2

	// A search takes at least this long: what disturbs may last as long as a shorter one.
	leastTime = 600 * time.Millisecond
)

// undecided returns the counts to go on measuring, in ascending order: those that
// another run might choose, those that may be better than they seem, and the choice's
// neighbours, until they have their iterations. While the choice isn't sure, the choice, the
// fastest and the first kind get more. In the end every count that isn't hopeless gets a last
// look: its first looks may have had bad luck.
func (e evidence) undecided() []int {
	chosen, fastest := e.pick(e.mean)
	best := e.mean[fastest]
	want := e.sp.enough(best)
	votes := e.vote(redraws, wary, 0)
	patience := e.patience(want)
	patient := e.sp.Fixed || e.spent < patience
	most := want
	if votes[chosen] < SureAt {
		most *= e.effort(patience)
	}
	var race, lastLooks []int
	for i, w := range e.counts {
		leads := i == chosen || i == fastest
		mayBeChosen := votes[i] > 1-SureAt && (patient || e.fine[i] && e.visits[i] < 2*firstLooks)
		hopeful := e.mean[i] < hopeless*best
		neighbour := hopeful && (i == chosen-1 || i == chosen+1)
		switch {
		case leads || mayBeChosen:
			if e.done[i] < most {
				race = append(race, w)
			}
		case !patient: // the others are out of the race
		case neighbour || e.mayBeBetter(i, chosen, best):
			if e.done[i] < want {
				race = append(race, w)
			}
		case hopeful && e.visits[i] <= firstLooks && !e.sp.Fixed:
			lastLooks = append(lastLooks, w)
		}
	}
	if len(race) == 0 {
		race = lastLooks
	}
	if len(race) == 0 || e.sp.Fixed {
		return race
	}
	company := companyLater
	if patient {
		company = companyAtFirst
	}
	return e.together(race, company, chosen, fastest, votes)
}

// effort is how many times its iterations a count gets while the choice isn't sure.
func (e evidence) effort(patience float64) int {
	switch {
	case e.sp.Fixed:
		return 1
	case e.spent < patience:
		return inPatience
	case e.spent < extension*patience:
		return inExtension
	}
	return 1
}

// mayBeBetter tells whether the i-th count may be better than it seems: faster than the fastest,
// at best, or within alpha of it with fewer workers than the choice.
func (e evidence) mayBeBetter(i, chosen int, best float64) bool {
	alpha := e.sp.Alpha.Of(best, e.sp.Iterations)
	atBest := min(e.low[i], e.mean[i]*(1-2*e.se[i]))
	return atBest < best-alpha/2 || i < chosen && e.low[i] < best+alpha
}

// tooSoon returns the choice and its company until leastTime has been spent.
func (e evidence) tooSoon() []int {
	if e.sp.Fixed || len(e.counts) == 1 || e.spent >= float64(leastTime) {
		return nil
	}
	chosen, fastest := e.pick(e.mean)
	return e.together([]int{e.counts[chosen]}, companyAtFirst, chosen, fastest, e.vote(redraws, wary, 0))
}

// together adds the choice and the fastest to a round's counts. Until the round has enough
// company, it then adds the counts that another run would choose most often, and neighbours:
// drift is seen only in what several counts have in common.
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

// contested returns two counts that tell whether stalls set in elsewhere, if much depends on
// it: the choice, and the count with the highest expected gain, which is the share by which it
// would then be better, times the chance. mean is how long an iteration of the choice would then
// take. After patience, the more time the search has taken, the more must depend on it.
func (e evidence) contested() (low, high int, mean float64, found bool) {
	chosen, fastest := e.pick(e.mean)
	want := e.sp.enough(e.mean[fastest])
	loss := worthIt * max(1, e.spent/e.patience(want))
	hasMost := func(i int) bool { return min(e.done[chosen], e.done[i]) >= ifContested*want }
	if e.sp.Fixed {
		loss = worthIt
		hasMost = func(i int) bool { return e.done[i] >= want }
	}
	var rival int
	// consider takes w for the rival if the choice would lose most to it, with that chance.
	consider := func(w int, itsMean, choices, chance float64) {
		i := slices.Index(e.counts, w)
		measurable := i < 0 || !hasMost(i)
		if by := chance * (choices/itsMean - 1); by > loss && measurable {
			rival, loss, mean, found = w, by, choices, true
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

// patience is the time of measuring after which the race goes on only with the choice, the
// fastest and finer counts.
func (e evidence) patience(want int) float64 {
	_, fastest := e.pick(e.mean)
	return max(patienceShare*e.sweep(want), patienceCounts*e.mean[fastest]*float64(want))
}

// sweep is about how long measuring all counts, up to the highest one measured, would take.
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
