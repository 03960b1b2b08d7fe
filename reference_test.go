package nwt_test

import "github.com/nwt-go/nwt"

// A delivery is a batch as a loop over the samples has it.
type delivery struct {
	epoch, delivered int
	index, id        []int // of each sample: its place in the epoch's order, and what it is
	all              []int // what was loaded for it, bad samples included
}

// A reference is the plainest loader there is: a loop.
type reference struct {
	program
	op // the "new" it is of
}

// batches is what a run from position base of epoch first delivers, and the
// bad sample that ends it, or −1; or −2 where a rank is left without samples.
func (r *reference) batches(first, count, base int) (out []delivery, end int) {
	sampler := nwt.Sequential(r.n)
	if r.shuffle {
		sampler = nwt.Shuffled(r.n, 5)
	}
	for epoch := first; epoch < first+count; epoch, base = epoch+1, 0 {
		var steps [][2]int
		for from := base; from < r.n; from += r.op.batch * r.world {
			steps = append(steps, [2]int{from, min(from+r.op.batch*r.world, r.n)})
		}
		if last := len(steps) - 1; last >= 0 && r.dropLast && steps[last][1]-steps[last][0] < r.op.batch*r.world {
			steps = steps[:last]
		} else if last > 0 && r.op.batch > 1 {
			for steps[last][1]-steps[last][0] < r.world { // each rank has a sample
				steps[last-1][1]--
				steps[last][0]--
			}
		}
		bad := 0
		for _, s := range steps {
			n := s[1] - s[0]
			from, to := s[0]+n*r.rank/r.world, s[0]+n*(r.rank+1)/r.world
			if n < r.world {
				from = s[0] + r.rank%n
				to = from + 1
			}
			d := delivery{epoch: epoch, delivered: s[1]}
			for i := from; i < to; i++ {
				index := sampler.At(epoch, i)
				d.all = append(d.all, index)
				if r.program.bad[index] == "" {
					d.index, d.id = append(d.index, index), append(d.id, index)
				} else if bad++; bad > r.budget {
					return out, index
				}
			}
			if len(d.id) > 0 {
				out = append(out, d)
			} else if r.world > 1 {
				return out, -2
			}
		}
	}
	return out, -1
}
