package search

import (
	"cmp"
	"slices"
)

const (
	SureAt = 0.95 // share of the votes at which measuring ends
	wary   = 2    // times the variances, in votes on whether to go on: measuring must not end at a lucky moment

	effort  = 2 // times its iterations that a count gets while the choice isn't sure
	company = 2 // counts in a round, if there are so many: drift is seen in what they share
)

// undecided returns the counts to go on measuring, in ascending order: the choice, the fastest and
// what another run might choose or find faster, until they have their iterations, and longer while
// the choice isn't sure.
func (e evidence) undecided() []int {
	chosen, fastest := e.pick(e.mean)
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
	if len(race) == 0 || e.sp.Fixed {
		return race
	}
	return e.together(race, company, chosen, fastest, votes)
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
