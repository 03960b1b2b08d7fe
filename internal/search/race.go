package search

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	SureAt = 0.97 // share of the votes at which measuring ends
	wary   = 2    // times the variances, in votes on whether to go on: measuring must not end at a lucky moment

	// Contested counts are measured if so much is expected to be lost; after patience, worthIt
	// grows with the time spent. Until the extension ends, they also are if the choice may be
	// slower by more than grave with this chance, which grows too.
	worthIt     = 0.025
	grave       = 0.2
	graveChance = 0.005

	halfOf = 0.5 // a contested count gets this share of the other's iterations at a time
	midway = 0.5 // chance that a count between two is without the stalls of the higher

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
// fastest and the first kind get more.
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
	var race []int
	for i, w := range e.counts {
		leads := i == chosen || i == fastest
		mayBeChosen := votes[i] > 1-SureAt && (patient || e.fine[i] && e.visits[i] < 2*firstLooks)
		neighbour := (i == chosen-1 || i == chosen+1) && e.mean[i] < hopeless*best
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
		}
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

// contested returns two counts that tell whether another count is better than the choice, if
// much depends on it: the choice, and the count by which most is expected to be lost. Stalls may
// set in elsewhere, or the count's own error may be large. mean is how long an iteration of the
// choice would then take.
func (e evidence) contested() (low, high int, mean float64, found bool) {
	chosen, fastest := e.pick(e.mean)
	want := e.sp.enough(e.mean[fastest])
	grown := max(1, e.spent/e.patience(want))
	hasMost := func(i int) bool { return min(e.done[chosen], e.done[i]) >= ifContested*want }
	if e.sp.Fixed {
		grown = 1
		hasMost = func(i int) bool { return e.done[i] >= want }
	}
	var rival int
	var most float64 // expected to be lost
	// consider takes w for the rival if most is lost to it: the choice would be slower by a share,
	// with that chance, and take here.
	consider := func(w int, chance, slower, here float64) {
		i := slices.Index(e.counts, w)
		loss := chance * slower
		worth := loss > grown*worthIt || grown < extension && slower > grave && chance > grown*graveChance
		if worth && loss > most && (i < 0 || !hasMost(i)) {
			rival, most, mean, found = w, loss, here, true
		}
	}
	for _, list := range e.elsewhere {
		for _, c := range list {
			there := slices.Clone(e.mean)
			copy(there[c.From:], c.Means)
			best, _ := e.pick(there)
			here := there[chosen]
			consider(e.counts[best], c.Chance, here/there[best]-1, here)
			below, above := e.counts[c.Row-1], e.counts[c.Row]
			if w, apart := Middle(below, above); apart && e.sp.allows(w) {
				consider(w, midway*c.Chance, here/(there[c.Row-1]*e.fallen(c.Row, w))-1, here)
			}
		}
	}
	if !e.sp.Fixed {
		for i, gain := range e.gains(chosen) {
			if e.done[i] < want {
				consider(e.counts[i], 1, gain, e.mean[chosen])
			}
		}
	}
	return min(rival, e.counts[chosen]), max(rival, e.counts[chosen]), mean, found
}

// gains are the shares of time by which each count is expected to win, where it wins by more
// than alpha, if it were known exactly (the value of information: Howard, "Information value
// theory", 1966).
func (e evidence) gains(chosen int) []float64 {
	gains := make([]float64, len(e.counts))
	e.drawTruth(redraws, func(mean []float64) {
		for i, m := range mean {
			limit := m + e.sp.Alpha.Of(m, e.sp.Iterations)
			gains[i] += max(0, min(mean[chosen]/limit-1, 1)) / redraws
		}
	})
	return gains
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
