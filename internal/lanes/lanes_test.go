package lanes

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A world is ranks that take the positions of epochs of n positions each, in steps.
type world struct {
	ranks, batch, n int
	base            int // in the first epoch
	epochs          int // 0: no end
	asked           int // for the span of a step
}

func (w *world) steps(base int) int { return (w.n - base + w.step() - 1) / w.step() }
func (w *world) step() int          { return w.ranks * w.batch }

// at returns the epoch of a step, and where in that it begins.
func (w *world) at(k int) (epoch, position int) {
	head := w.steps(w.base)
	if k < head {
		return 0, w.base + k*w.step()
	}
	return 1 + (k-head)/w.steps(0), (k - head) % w.steps(0) * w.step()
}

// dealt makes the plan that one of the ranks has of a run from an epoch on.
func (w *world) dealt(rank, epoch int, p *Plan) *Plan {
	origin := p.Begin(epoch, w.n, w.base)
	head, whole := w.steps(w.base), w.steps(0)
	end := math.MaxInt
	if w.epochs > 0 {
		end = head + (w.epochs-1)*whole
	}
	p.Taker = &Steps{
		Lanes: p.Lanes, Origin: origin, Base: w.base, Epoch: int64(w.n), Step: w.step(), Head: head, Whole: whole, Len: end,
		Span: func(k int) (first, after int64, low, high int) {
			w.asked++
			e, position := w.at(k)
			size := min(w.step(), w.n-position)
			first = origin + int64(e*w.n+position)
			return first, first + int64(size), size * rank / w.ranks, size * (rank + 1) / w.ranks
		},
	}
	return p
}

func shuffled(n, lanes, block int, counts []int) *Plan {
	return &Plan{
		N: n, Counts: counts, Lanes: lanes, Block: block, Mixes: true, Key: 7,
		Shard: func(pass, i int) int { return (i + pass) % len(counts) },
	}
}

// In each pass over the shards every record comes once, whatever the epochs are, how many ranks
// take them, and wherever they begin.
func TestRanksTakeEachRecordOnceInEachPass(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var counts []int
		n := 0
		for range 1 + r.IntN(6) {
			counts = append(counts, r.IntN(1+r.IntN(60)))
			n += counts[len(counts)-1]
		}
		if n == 0 {
			continue
		}
		lanes, block, epoch := 1+r.IntN(12), 1+r.IntN(20), r.IntN(4)
		length := 1 + r.IntN(3*n)
		order := map[int64][2]int{} // shard and record at each position of the endless order
		for _, alone := range []bool{true, false} {
			w := &world{ranks: 1 + r.IntN(7), batch: 1 + r.IntN(9), n: length, epochs: 1 + r.IntN(4)}
			if alone {
				w.ranks, w.epochs = 1, epoch+8
			} else {
				w.base = r.IntN(length)
			}
			first := epoch
			if alone {
				first = 0
			}
			taken := map[int64]bool{}
			for rank := range w.ranks {
				p := w.dealt(rank, first, shuffled(n, lanes, block, counts))
				start := int64(first)*int64(length) - (p.from - int64(w.base)) // of position 0 of the plan
				for lane := range lanes {
					var picks []Pick
					next := p.Picks(lane)
					for at, ok := next(0); ok; at, ok = next(at.Number + 1) {
						picks = append(picks, at)
					}
					for o := p.Next(lane, 0); o >= 0; {
						from, end, before := p.Order(lane, o, nil)
						count := 0
						p.Each(lane, from, end, func(low, high int64) {
							for o := low; o < high; o++ {
								at, position := picks[before[o-from]], start+p.PositionOf(lane, o)
								require.False(t, taken[position], "seed %d: position %d is taken twice", seed, position)
								taken[position] = true
								require.Equal(t, p.PositionOf(lane, from), at.Position)
								require.Equal(t, counts[at.Shard], at.Of)
								if record := [2]int{at.Shard, at.Record}; alone {
									order[position] = record
								} else {
									require.Equal(t, order[position], record, "seed %d: position %d", seed, position)
								}
								count++
							}
						})
						picks, o = picks[count:], p.Next(lane, end)
					}
					require.Empty(t, picks, "seed %d", seed)
				}
			}
			from := int64(first)*int64(length) + int64(w.base)
			require.Len(t, taken, length*w.epochs-w.base)
			for position := range taken {
				require.GreaterOrEqual(t, position, from)
			}
		}
		for begin := 0; begin+n <= len(order); begin += n {
			seen := map[[2]int]bool{}
			for p := begin; p < begin+n; p++ {
				require.False(t, seen[order[int64(p)]], "seed %d: %v comes twice in a pass", seed, order[int64(p)])
				seen[order[int64(p)]] = true
			}
		}
	}
}

// However long an epoch is, what a rank takes next of a lane is found by looking at few steps:
// also that it takes nothing.
func TestWhatIsTakenNextIsFoundByArithmetic(t *testing.T) {
	for _, test := range []struct{ ranks, batch, lanes, n int }{
		{2, 2, 32, MaxLen}, {2, 2, 32, MaxLen - 1}, {8, 32, 32, MaxLen - 7}, {4, 4, 48, MaxLen - 16}, {1, 1, 5, MaxLen}, {2, 16, 1024, 2000},
	} {
		for rank := range test.ranks {
			w := &world{ranks: test.ranks, batch: test.batch, n: test.n}
			p := w.dealt(rank, 0, shuffled(test.n, test.lanes, 64, []int{test.n}))
			taken := 0
			for lane := range test.lanes {
				if p.Next(lane, 0) >= 0 {
					taken++
				}
			}
			require.Positive(t, taken)
			require.Less(t, w.asked, 4*test.lanes*test.lanes)
		}
	}
}
