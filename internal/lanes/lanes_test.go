package lanes

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// A world is ranks that take the positions of epochs of n positions each, in steps.
type world struct {
	ranks, batch, n int
	base            int // in the first epoch
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
	p.Taker = &Steps{
		Lanes: p.Lanes, Origin: origin, Base: w.base, Epoch: int64(w.n), Step: w.step(), Head: head, Whole: whole, Len: math.MaxInt,
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
