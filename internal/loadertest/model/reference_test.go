package model_test

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
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

const well = -1

const refused = -2 // with an epoch that has no batch or too few samples, which the other ranks would wait for

// batches returns what a run from position base of epoch first delivers, and how it ends.
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

// order returns what lies at each place of an epoch, and the rank's batches from position base on.
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

// noiseOf returns the first number that a sample's Rand gives.
func noiseOf(seed uint64, epoch, position int) int64 {
	const pi = 0x243f6a8885a308d3 // its fraction
	key := mixed64(mixed64(seed+ratio)+uint64(epoch)*ratio) ^ pi + uint64(position)*ratio
	return rand.New(rand.NewPCG(mixed64(key), mixed64(key^ratio))).Int64()
}

// unlimited is a budget that is never used up: without order more may come before a run ends.
const unlimited = math.MaxInt

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

// part returns the positions in each batch of a rank, and the state after it.
func (r *relay) part(t *testing.T, l leg, rank int) (parts [][]int, states []nwt.State, err error) {
	opts := []nwt.Option{nwt.WithBatchSize(l.batch), nwt.WithRank(rank, l.world), nwt.WithWorkers(r.rng.IntN(5)), nwt.WithSeed(5)}
	later := r.one(2)
	if !later {
		opts = append(opts, nwt.WithSampler(l.order))
	}
	loader, err := nwt.NewLoader(kit.Drawn(r.n), opts...)
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

// lost stands for a record that can't be read, nor what comes after it in its shard.
const lost = -1

// plainStreams is what Streamed and MixedStreams promise, written down once more as
// plain loops: nothing is skipped, read ahead or resumed, and all positions are counted
// from the start of training.
type plainStreams struct {
	streams            [][][]int // of each stream, the records of each shard
	mix                *nwt.Mix  // nil: a stream alone
	mixSeed            uint64
	rank, world        int
	interleave, window int
	epochSamples       int // 0: all
	shuffle            bool
	seed               uint64 // of shuffle
}

// epoch returns the records of the rank in an epoch. It reports false if they end early,
// since the stream that the next one should be of has none.
func (p *plainStreams) epoch(epoch int) (records []int, whole bool) {
	if p.epochSamples == 0 {
		records = p.stream(0, epoch, 0)
		return records, len(records) > 0
	}
	quota := max(1, p.epochSamples/p.world)
	of := make([]int, quota) // which stream each is of
	if p.mix != nil {
		of = p.pattern((epoch + 1) * quota)[epoch*quota:]
	}
	left := make([][]int, len(p.streams))
	for k := range left {
		left[k] = p.stream(k, epoch, quota)
	}
	for _, k := range of {
		if len(left[k]) == 0 {
			return records, false
		}
		records, left[k] = append(records, left[k][0]), left[k][1:]
	}
	return records, true
}

// stream returns the first n records of an epoch of a stream, pass after pass; or one pass.
func (p *plainStreams) stream(k, epoch, n int) (records []int) {
	size := 1
	if p.shuffle {
		size = p.window
	}
	for {
		unread, window := p.pass(k, epoch), []int{}
		if len(unread) == 0 {
			return records
		}
		for len(unread)+len(window) > 0 {
			read := min(size-len(window), len(unread))
			window, unread = append(window, unread[:read]...), unread[read:]
			pick, last := 0, len(window)-1
			if p.shuffle {
				key := mixed64(mixed64(p.seedOf(k)+ratio)+uint64(epoch)*ratio) + uint64(len(records)*p.world+p.rank)*ratio
				pick = int(mixed64(key) % uint64(len(window)))
			}
			records = append(records, window[pick])
			if window[pick], window = window[last], window[:last]; len(records) == n {
				return records
			}
		}
		if n == 0 {
			return records
		}
	}
}

// pass returns what the rank reads of a stream in an epoch: a record of each of so many
// shards as are interleaved in turn.
func (p *plainStreams) pass(k, epoch int) (records []int) {
	shards := p.streams[k]
	order := nwt.Sequential(len(shards))
	if p.shuffle {
		order = nwt.Shuffled(len(shards), p.seedOf(k))
	}
	chains := make([][]int, p.interleave)
	for i := 0; i*p.world+p.rank < len(shards); i++ {
		c := &chains[i%p.interleave]
		*c = append(*c, shards[order.At(epoch, i*p.world+p.rank)]...)
	}
	for left := true; left; {
		left = false
		for c := range chains {
			if len(chains[c]) > 0 {
				records, chains[c], left = append(records, chains[c][0]), chains[c][1:], true
			}
		}
	}
	return records
}

// pattern returns which stream each of the rank's first n records of training is of.
func (p *plainStreams) pattern(n int) (of []int) {
	block, number, end := cmp.Or(p.mix.Block, 1000), 0, 0
	for i, phase := range p.mix.Phases {
		end += phase.Samples
		length := 0
		for i < len(p.mix.Phases)-1 && (len(of)+length)*p.world+p.rank < end {
			length++
		}
		if i == len(p.mix.Phases)-1 { // it never ends
			length = (max(0, n-len(of))/block + 1) * block
		}
		for from := 0; from <= length; from += block {
			of = append(of, p.block(phase.Weights, from, min(from+block, length), number)...)
			number++
		}
	}
	return of[:n]
}

// block returns the streams of the records from … to−1 of a phase, shuffled: so many of each as its share
// grows by.
func (p *plainStreams) block(weights []float64, from, to, number int) []int {
	if from == to {
		return nil
	}
	var parts []int
	before := sharesOf(weights, from)
	for k, share := range sharesOf(weights, to) {
		parts = append(parts, slices.Repeat([]int{k}, share-before[k])...)
	}
	seed := p.mixSeed
	if p.rank > 0 {
		seed = mixed64(seed+ratio) + uint64(p.rank-1)*ratio
	}
	order, of := nwt.Shuffled(to-from, seed), make([]int, to-from)
	for place := range of {
		of[place] = parts[order.At(number, place)]
	}
	return of
}

// sharesOf divides n by weights that are multiples of a quarter: among the halves of the weights, and
// each half's share likewise.
func sharesOf(weights []float64, n int) []int {
	if len(weights) == 1 {
		return []int{n}
	}
	mid, below, all := len(weights)/2, uint64(0), uint64(0)
	for k, w := range weights {
		if all += uint64(4 * w); k < mid {
			below = all
		}
	}
	half := n
	if below < all {
		fraction, rest := bits.Div64(below, 0, all) // in units of 2⁻⁶⁴
		if 2*rest >= all {
			fraction++
		}
		whole, rest := bits.Mul64(uint64(n), fraction)
		half = int(whole + rest>>63)
	}
	return append(sharesOf(weights[:mid], half), sharesOf(weights[mid:], n-half)...)
}

// seedOf returns the seed of a stream's shards and window.
func (p *plainStreams) seedOf(k int) uint64 { return p.seed + uint64(k)*ratio }

// ratio is 2⁶⁴ divided by the golden ratio.
const ratio = 0x9e3779b97f4a7c15

// mixed64 returns the finalizer of SplitMix64.
func mixed64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
