package deal

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// dealTo is a deal for one of some ranks, each of which takes the same part of each step.
func dealTo(rank, world, batch, n, lanes, block int) *Deal {
	step := batch * world
	return &Deal{
		N: n, Counts: []int{n}, Shard: func(int, int) int { return 0 }, Lanes: lanes, Block: block, Mixes: true, Key: 7, Step: step,
		Steps: func(base int) int { return (n - base + step - 1) / step },
		Span: func(base, k int) (first, after, low, high int) {
			first = base + k*step
			after = min(first+step, n)
			size := after - first
			return first, after, size * rank / world, size * (rank + 1) / world
		},
	}
}

func TestRanksTakeEachRecordOnceWhateverTheirNumberAndWhereverTheyBegin(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 1 + r.IntN(300)
		lanes, block := 1+r.IntN(min(n, 9)), 1+r.IntN(20)
		base := r.IntN(n)
		var order []int // record at each position, by one rank from the beginning
		for _, begin := range []int{0, base} {
			world, batch := 1+r.IntN(7), 1+r.IntN(9)
			if begin == 0 {
				world = 1
			}
			at := make([]int, n) // record + 1 at each position
			for rank := range world {
				d := dealTo(rank, world, batch, n, lanes, block)
				d.Begin(3, begin)
				for lane := range lanes {
					for b := range (d.offset(n, lane)-1)/block + 1 {
						for _, p := range d.picks(lane, b) {
							position := p.offset*lanes + lane
							require.Zero(t, at[position], "seed %d: position %d is taken twice", seed, position)
							at[position] = d.start(lane) + p.record + 1
						}
					}
				}
			}
			for position := range begin {
				require.Zero(t, at[position], "seed %d: position %d was delivered", seed, position)
			}
			if begin == 0 {
				order = at
				require.NotContains(t, order, 0, "seed %d", seed)
				seen := make([]bool, n+1)
				for _, record := range order {
					require.False(t, seen[record], "seed %d: record %d comes twice", seed, record-1)
					seen[record] = true
				}
			}
			require.Equal(t, order[begin:], at[begin:], "seed %d", seed)
		}
	}
}
