package nwt_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// A relay is training at random: ranks load an epoch in any order, are preempted after some
// batches, and others, or more or fewer of them, go on.
type relay struct {
	rng   *rand.Rand
	n     int           // samples of the dataset
	draws map[int]int64 // of Sample.Rand in the epoch, by position
}

const largestOfRelay = 9 // samples of a batch

func (r *relay) one(in int) bool { return r.rng.IntN(in) == 0 }

// order is any order of the dataset, or of part of it, shorter or longer.
func (r *relay) order() (s nwt.Sampler, err error) {
	length := func(i int) int { return i * 7 % 9 }
	switch r.rng.IntN(7) {
	case 0:
		return nwt.Sequential(1 + r.rng.IntN(r.n)), nil
	case 1:
		return nwt.Shuffled(r.n, 5), nil
	case 2:
		return sampler.Weighted(slices.Repeat([]float64{1}, r.n), 1+r.rng.IntN(2*r.n), 5)
	case 3:
		return sampler.Bucketed(r.n, length, sampler.Buckets{BatchSize: 1 + r.rng.IntN(8), World: 1 + r.rng.IntN(3), Window: r.rng.IntN(4)}, 5)
	case 4:
		return sampler.LocallyShuffled(slices.Repeat([]int{1}, r.n), 1+r.rng.IntN(5), 5)
	case 5:
		return sampler.TokenBatches(r.n, length, sampler.Tokens{Max: 9 + r.rng.IntN(40), MaxSamples: 1 + r.rng.IntN(largestOfRelay), Window: r.rng.IntN(5)}, 5)
	}
	c := cutSampler{Sampler: nwt.Shuffled(1+r.rng.IntN(r.n), 5)}
	for end := 0; end < c.Len(); {
		end = min(c.Len(), end+1+r.rng.IntN(largestOfRelay))
		c.ends = append(c.ends, end)
	}
	return c, nil
}

// A leg is what ranks do with an epoch from a position on.
type leg struct {
	order              nwt.Sampler
	epoch, base, batch int
	world, most        int // ranks, and batches after which they are preempted
}

// part is the positions in each batch of a rank, and the state after it.
func (r *relay) part(t *testing.T, l leg, rank int) (parts [][]int, states []nwt.State, err error) {
	opts := []nwt.Option{nwt.WithBatchSize(l.batch), nwt.WithRank(rank, l.world), nwt.WithWorkers(r.rng.IntN(5)), nwt.WithSeed(5)}
	later := r.one(2)
	if !later {
		opts = append(opts, nwt.WithSampler(l.order))
	}
	loader, err := nwt.NewLoader(drawn(r.n), opts...)
	if err != nil {
		return nil, nil, err
	}
	defer loader.Close()
	if later {
		for range loader.Epoch(t.Context(), r.rng.IntN(3)) {
			break
		}
		if err := loader.SetSampler(l.order); err != nil {
			return nil, nil, err
		}
	}
	seq := loader.Epoch(t.Context(), l.epoch)
	if l.base > 0 || r.one(2) {
		seq = loader.Resume(t.Context(), nwt.State{Epoch: l.epoch, Samples: l.base})
	}
	for b, err := range seq {
		if err != nil {
			return nil, nil, err
		}
		var positions []int
		for p, index := range b.Indices() {
			v, position := nwt.Values[int64](b, 0)[2*p:][:2], int(nwt.Values[int64](b, 1)[p])
			old, known := r.draws[position]
			if index != l.order.At(l.epoch, position) || int(v[0]) != index || known && old != v[1] {
				return nil, nil, fmt.Errorf("position %d of %v has index %d, and holds sample %d that draws %d, once %d", position, l.order, index, v[0], v[1], old)
			}
			r.draws[position] = v[1]
			positions = append(positions, position)
		}
		parts, states = append(parts, positions), append(states, b.State())
		if len(parts) == l.most {
			return parts, states, nil
		}
		if err := loader.SetWorkers(r.rng.IntN(5)); err != nil {
			return nil, nil, err
		}
	}
	if want := loader.Len(); l.base == 0 && len(parts) != want {
		return nil, nil, fmt.Errorf("%d batches, Len says %d", len(parts), want)
	}
	return parts, states, nil
}

// run runs a leg, and returns the position at which the next one begins.
func (r *relay) run(t *testing.T, l leg) (next int, err error) {
	var all [][][]int
	var states []nwt.State
	for rank := range l.world {
		parts, ends, err := r.part(t, l, rank)
		if err != nil {
			return 0, err
		}
		if rank > 0 && !slices.Equal(ends, states) {
			return 0, fmt.Errorf("rank %d has the states %v, and the ranks before it %v", rank, ends, states)
		}
		all, states = append(all, parts), ends
	}
	_, cut := l.order.(nwt.BatchSampler)
	next = l.base
	for k, state := range states {
		var got []int
		for _, parts := range all {
			got = append(got, parts[k]...)
		}
		slices.Sort(got)
		from, left := next, state.Samples-next
		next = state.Samples
		repeats := left < l.world && (k == 0 || l.batch == 1) // fewer samples than ranks are left in all
		if !repeats && !cut && len(got) != left || len(got) > max(left, l.world*largestOfRelay) {
			return 0, fmt.Errorf("the ranks have %v of positions %d to before %d", got, from, next)
		}
		for p := range left {
			if got = slices.Compact(got); len(got) != left || got[p] != from+p {
				return 0, fmt.Errorf("the ranks have %v of positions %d to before %d", got, from, next)
			}
		}
	}
	if len(states) != l.most && next != l.order.Len() {
		return 0, fmt.Errorf("the epoch ends at position %d of %d", next, l.order.Len())
	}
	return next, nil
}

// Whatever the order, and whether it is the loader's first one or was set later: the ranks
// have equally many batches, and together each position once, however often they are
// preempted and however many go on.
func TestRanksShareEpochsOfAnyOrderHoweverOftenTheyArePreempted(t *testing.T) {
	for seed := range seedsOf(0, 200, 1000) {
		rng := rand.New(rand.NewPCG(seed, 11))
		r := &relay{rng: rng, n: 1 + rng.IntN(60), draws: map[int]int64{}}
		for epoch := range 2 {
			order, err := r.order()
			require.NoError(t, err)
			_, cut := order.(nwt.BatchSampler)
			for base := 0; base < order.Len(); {
				l := leg{order: order, epoch: epoch, base: base, batch: 1 + rng.IntN(largestOfRelay), world: 1 + rng.IntN(4), most: 1 + rng.IntN(6)}
				if cut {
					l.batch = largestOfRelay
				}
				base, err = r.run(t, l)
				require.NoError(t, err, "-seed=%d: %+v, %d samples", seed, l, r.n)
			}
			clear(r.draws)
		}
	}
}

// cutSampler is another sampler's order, cut into batches.
type cutSampler struct {
	nwt.Sampler
	ends []int
}

func (s cutSampler) Batches() int       { return len(s.ends) }
func (s cutSampler) Largest() int       { return 1 } // it doesn't tell
func (s cutSampler) Start(_, b int) int { return s.ends[b-1] }
