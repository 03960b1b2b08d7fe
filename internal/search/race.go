package search

import "slices"

const (
	SureAt = 0.95 // share of the votes at which measuring ends
	wary   = 2    // multiplies the variances in votes on whether to go on, so that measuring doesn't end at a lucky moment

	effort = 2 // a count gets this many times its iterations while the choice isn't sure
)

// undecided returns the counts to measure further, in ascending order: the choice, the fastest, and the
// counts that another run might choose or find faster. It returns them until they have their iterations,
// and longer while the choice isn't sure. To end once no count may gain more than alpha over training's own
// was tried: flat curves end no sooner, since errors are larger than alpha there, and others are chosen worse.
func (e evidence) undecided() []int {
	chosen, fastest := e.choose(e.mean)
	best := e.mean[fastest]
	want := e.sp.enough(best)
	votes := e.vote(redraws, wary)
	most := want
	if votes[chosen] < SureAt && !e.sp.Fixed {
		most *= effort
	}
	var race []int
	for i, w := range e.counts {
		leads := i == chosen || i == fastest
		neighbour := (i == chosen-1 || i == chosen+1) && e.mean[i] < hopeless*best
		switch {
		case leads || votes[i] > 1-SureAt:
			if e.done[i] < most {
				race = append(race, w)
			}
		case neighbour && e.done[i] < want/4:
			race = append(race, w)
		}
	}
	if len(race) == 0 && !e.sp.Fixed && len(e.counts) > 1 && e.spent < float64(e.sp.Least) {
		race = []int{e.counts[chosen]}
	}
	if len(race) == 0 || e.sp.Fixed || len(e.counts) < 2 {
		return race
	}
	if len(race) < 2 { // drift can only be seen in what counts share
		race = append(race, e.counts[e.quickestBut(race[0])])
	}
	slices.Sort(race)
	return race
}

// quickestBut returns the fastest of the counts other than w.
func (e evidence) quickestBut(w int) (other int) {
	other = -1
	for i := range e.counts {
		if e.counts[i] != w && (other < 0 || e.mean[i] < e.mean[other]) {
			other = i
		}
	}
	return other
}
