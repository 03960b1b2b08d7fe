package nwt_test

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/nwt-go/nwt"
)

// A delivery is a batch as a loop over the samples has it.
type delivery struct {
	epoch, delivered    int
	index, id, position []int // of each sample: what Indices tells, what it is, its place in the epoch's order
	all                 []int // what was loaded for it, bad samples included
}

// A plainLoop is the plainest loader there is: it says what an epoch must deliver.
type plainLoop struct {
	n                          int
	shuffle                    bool          // by seed 5
	ends                       []int         // of a BatchSampler's batches; nil: all are equally large
	streams                    *plainStreams // nil: a dataset of n samples
	batch, rank, world, budget int
	dropLast                   bool
	bad                        func(id int) bool // nil: none is
}

// How a run ends, unless it is with the sample that is one too many: then with its index, from 0.
const (
	well    = -1
	refused = -2 // with an epoch that has no batch or too few samples, which the other ranks would wait for
)

// batches is what a run from position base of epoch first delivers, and how it ends.
func (p *plainLoop) batches(first, count, base int) (out []delivery, end int) {
	for epoch := first; epoch < first+count; epoch, base = epoch+1, 0 {
		order, steps, whole := p.order(epoch, base)
		if p.streams != nil && p.dropLast && base == 0 && len(steps) == 0 {
			return out, refused
		}
		bad := 0
		for _, s := range steps {
			d, worst := delivery{epoch: epoch, delivered: s.end}, 0
			for i := s.from; i < s.to; i++ {
				id, index, position := order(i)
				d.all = append(d.all, id)
				if id >= 0 && (p.bad == nil || !p.bad(id)) {
					d.index, d.id, d.position = append(d.index, index), append(d.id, id), append(d.position, position)
				} else if bad, worst = bad+1, index; bad > p.budget {
					return out, index
				}
			}
			if len(d.id) > 0 {
				out = append(out, d)
			} else if p.world > 1 && p.budget != unlimited {
				return out, worst // the other ranks would wait for it
			}
		}
		if !whole {
			return out, refused
		}
	}
	return out, well
}

// A step is the places from … to−1 of a rank's batch, and how many samples all ranks have had then.
type step struct{ from, to, end int }

// order is what lies at each place of an epoch, and the rank's batches from position base on.
func (p *plainLoop) order(epoch, base int) (at func(place int) (id, index, position int), steps []step, whole bool) {
	if p.streams != nil {
		ids, whole := p.streams.epoch(epoch)
		for from := base / p.world; from < len(ids); from += p.batch {
			to := min(from+p.batch, len(ids))
			if (p.dropLast || !whole) && to < from+p.batch {
				break
			}
			steps = append(steps, step{from, to, to * p.world})
		}
		return func(i int) (int, int, int) { return ids[i], i*p.world + p.rank, i*p.world + p.rank }, steps, whole
	}
	var sampler nwt.Sampler = nwt.Sequential(p.n)
	if p.shuffle {
		sampler = nwt.Shuffled(p.n, 5)
	}
	if steps = p.cut(base); p.ends == nil {
		steps = p.divide(base)
	}
	return func(i int) (int, int, int) { id := sampler.At(epoch, i); return id, id, i }, steps, true
}

// divide makes batches of equal size: each step's samples are divided among the ranks.
func (p *plainLoop) divide(base int) (steps []step) {
	var all []step
	for from := base; from < p.n; from += p.batch * p.world {
		all = append(all, step{from, min(from+p.batch*p.world, p.n), 0})
	}
	if last := len(all) - 1; last >= 0 && p.dropLast && all[last].to-all[last].from < p.batch*p.world {
		all = all[:last]
	} else if last > 0 && p.batch > 1 {
		for all[last].to-all[last].from < p.world { // each rank has a sample
			all[last-1].to--
			all[last].from--
		}
	}
	for _, s := range all {
		n := s.to - s.from
		mine := step{s.from + n*p.rank/p.world, s.from + n*(p.rank+1)/p.world, s.to}
		if n < p.world {
			mine.from = s.from + p.rank%n
			mine.to = mine.from + 1
		}
		steps = append(steps, mine)
	}
	return steps
}

// cut deals a BatchSampler's batches to the ranks. Where fewer are left than there are ranks,
// ranks share a batch.
func (p *plainLoop) cut(base int) (steps []step) {
	b := 0
	for b < len(p.ends) && base > 0 && p.ends[b] <= base {
		b++
	}
	for ; b < len(p.ends); b += p.world {
		left := min(p.world, len(p.ends)-b)
		if p.dropLast && left < p.world {
			break
		}
		mine := b + p.rank*left/p.world
		from, to := 0, p.ends[mine]
		if mine > 0 {
			from = p.ends[mine-1]
		}
		var ranks []int // that share the batch
		for r := range p.world {
			if b+r*left/p.world == mine {
				ranks = append(ranks, r)
			}
		}
		if n, at := len(ranks), slices.Index(ranks, p.rank); to-from < n {
			from += at % (to - from)
			to = from + 1
		} else {
			from, to = from+(to-from)*at/n, from+(to-from)*(at+1)/n
		}
		steps = append(steps, step{from, to, p.ends[b+left-1]})
	}
	return steps
}

// noiseOf is the first number that a sample's Rand gives.
func noiseOf(seed uint64, epoch, position int) int64 {
	const pi = 0x243f6a8885a308d3 // its fraction
	key := mixed64(mixed64(seed+ratio)+uint64(epoch)*ratio) ^ pi + uint64(position)*ratio
	return rand.New(rand.NewPCG(mixed64(key), mixed64(key^ratio))).Int64()
}

// unlimited is a budget that is never used up: without order more may come before a run ends.
const unlimited = math.MaxInt
