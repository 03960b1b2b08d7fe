package order

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/permute"
)

// ranks returns the orders of all ranks.
func ranks(n, batch, world int, dropLast bool) (all []Order) {
	for rank := range world {
		all = append(all, Order{N: n, Batch: batch, Rank: rank, World: world, DropLast: dropLast})
	}
	return all
}

// deliver counts in seen how often ranks deliver each position in steps from
// base on, at most so many, and is the position after them.
func deliver(t *testing.T, ranks []Order, base, steps int, seen []int) (delivered int) {
	t.Helper()
	delivered = base
	for k := range steps {
		from, to := ranks[0].Bounds(base, k)
		require.Equal(t, delivered, from, "step %d goes on where the one before ended", k)
		require.Greater(t, to, from)
		for r := range ranks {
			o := &ranks[r]
			at, end, _ := o.Part(base, k)
			require.True(t, from <= at && at < end && end <= to, "rank %d has some of step %d", r, k)
			require.LessOrEqual(t, end-at, o.Batch)
			for ; at < end; at++ {
				seen[at]++
			}
		}
		delivered = to
	}
	return delivered
}

// Whatever n, batch size and world size are, all ranks together deliver each
// position once, in equally many batches, and resumed from any step with
// another batch size and world size, exactly the rest.
func TestRanksShareAnEpochFairlyAndResumeIt(t *testing.T) {
	for n := 1; n <= 40; n++ {
		for batch := 1; batch <= 6; batch++ {
			for world := 1; world <= 6; world++ {
				all := ranks(n, batch, world, false)
				steps := all[0].Steps(0)
				require.Equal(t, (n+batch*world-1)/(batch*world), steps)
				for cut := 0; cut <= steps; cut++ {
					again := ranks(n, 1+(n+cut)%5, 1+(batch+cut)%5, false)
					seen := make([]int, n)
					at := deliver(t, all, 0, cut, seen)
					require.Equal(t, n, deliver(t, again, at, again[0].Steps(at), seen))
					for p, times := range seen {
						if times < 1 || times > 1 && !repeats(all, 0, cut, p) && !repeats(again, at, again[0].Steps(at), p) {
							require.Failf(t, "wrong count", "position %d of %d: %d times (batch %d, world %d, cut %d)", p, n, times, batch, world, cut)
						}
					}
				}
			}
		}
	}
}

// repeats reports whether p may be repeated: it is of a last step with fewer
// positions than ranks, and no step before could give some of its own.
func repeats(ranks []Order, base, steps, p int) bool {
	o := ranks[0]
	last := o.Steps(base) - 1
	if steps <= last || last > 0 && o.Batch > 1 {
		return false
	}
	from, to := o.Bounds(base, last)
	return to-from < o.World && from <= p && p < to
}

func TestDroppingTheLastBatchLeavesWholeOnes(t *testing.T) {
	for n := 1; n <= 50; n++ {
		for batch := 1; batch <= 5; batch++ {
			for world := 1; world <= 5; world++ {
				all := ranks(n, batch, world, true)
				require.Equal(t, n/(batch*world), all[0].Steps(0))
				seen := make([]int, n)
				at := deliver(t, all, 0, all[0].Steps(0), seen)
				require.Equal(t, n/(batch*world)*batch*world, at)
				for p, times := range seen {
					require.Equal(t, p < at, times == 1)
				}
				for r := range all {
					for k := range all[r].Steps(0) {
						from, to, _ := all[r].Part(0, k)
						require.Equal(t, batch, to-from)
					}
				}
				require.Zero(t, all[0].Steps(at))
			}
		}
	}
}

func TestNothingOverflowsAtTheLargestSizes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		o := Order{N: permute.MaxLen - rng.IntN(3), Batch: 1 + rng.IntN(1<<20), World: 1 + rng.IntN(1000)}
		o.Rank = rng.IntN(o.World)
		steps := o.Steps(0)
		require.Positive(t, steps)
		require.Equal(t, (o.N-1)/(o.Batch*o.World)+1, steps)
		for _, k := range []int{0, 1, steps / 2, steps - 2} {
			from, to, _ := o.Part(0, k)
			require.True(t, 0 <= from && from < to && to <= o.N)
		}
	}
}

// Ranks share the largest steps that the options allow without an overflow, on
// 32 bits too: one begins where the one before it ends.
func TestRanksShareTheLargestStepsWithoutAGap(t *testing.T) {
	for _, o := range []Order{
		{N: permute.MaxLen, Batch: 1<<24 - 1, World: 1 << 20},
		{N: permute.MaxLen >> 17, Batch: 1<<24 - 1, World: 1 << 20},
		{N: 100_000_000, Batch: 2048, World: 1024},
		{N: 1<<30 - 1, Batch: 1 << 20, World: 1 << 12},
		{N: 7, Batch: 1 << 24, World: 1 << 20},
		{N: 1<<20 + 1, Batch: 1, World: 1 << 20},
	} {
		for _, k := range []int{0, o.Steps(0) / 2, o.Steps(0) - 1} {
			from, end := o.Bounds(0, k)
			require.Less(t, from, end, o)
			if end-from < o.World {
				continue // ranks repeat positions
			}
			at := from
			for o.Rank = range o.World {
				begin, to, _ := o.Part(0, k)
				if begin != at || begin >= to || to-begin > o.Batch { // a million ranks: require is slow
					t.Fatalf("rank %d of %+v has %d to before %d; the ranks before it, those to before %d", o.Rank, o, begin, to, at)
				}
				at = to
			}
			require.Equal(t, end, at, o)
		}
	}
}

// cuts is batches of the given sizes, the same in every epoch.
type cuts []int

func (c cuts) Len() int {
	n := 0
	for _, size := range c {
		n += size
	}
	return n
}

func (c cuts) Start(_, b int) int { return c[:b].Len() }

// deliverBatches is deliver for a BatchSampler: from a position on.
func deliverBatches(t *testing.T, c cuts, world int, dropLast bool, from, steps int, seen []int) (delivered, taken int) {
	t.Helper()
	o := Order{
		N: c.Len(), Batch: 1 << 20, World: world, DropLast: dropLast, Batches: len(c),
		Starts: func(epoch, b int) (int, error) { return c.Start(epoch, b), nil },
	}
	base, err := o.BatchAt(3, from)
	require.NoError(t, err)
	for k := range min(steps, o.Steps(base)) {
		after := from
		for o.Rank = range world {
			begin, end, next, err := o.partOf(3, base, k)
			require.NoError(t, err)
			require.True(t, from <= begin && begin < end && end <= next, "rank %d has some of step %d", o.Rank, k)
			b := 0
			for c.Start(3, b+1) <= begin {
				b++
			}
			require.LessOrEqual(t, end, c.Start(3, b+1), "what a rank has is of one batch")
			if next < c.Len() || (len(c)-base)%world == 0 {
				require.Equal(t, [2]int{c.Start(3, b), c.Start(3, b+1)}, [2]int{begin, end}, "a batch is whole")
			}
			for ; begin < end; begin++ {
				seen[begin]++
			}
			after = next
		}
		from = after
	}
	return from, min(steps, o.Steps(base))
}

// Whatever the batches and the world are, all ranks together deliver each position once,
// in equally many steps, and resumed with another world exactly the rest. A position
// comes twice only if ranks share a batch of fewer samples.
func FuzzRanksShareTheBatchesOfABatchSampler(f *testing.F) {
	f.Add([]byte{3, 1, 4, 1, 5, 9, 2}, uint8(3), uint8(2), uint8(1))
	f.Add([]byte{1}, uint8(5), uint8(1), uint8(0))
	f.Add([]byte{2, 2, 2, 2}, uint8(4), uint8(3), uint8(1))
	f.Add([]byte{7, 1, 1, 200, 1}, uint8(4), uint8(7), uint8(0))
	f.Add([]byte{1}, uint8(5), uint8(1), uint8(1)) // ranks repeat samples
	f.Add([]byte{6, 0, 2}, uint8(2), uint8(8), uint8(1))
	f.Add([]byte{3}, uint8(1), uint8(1), uint8(0)) // WithDropLast leaves the only batch
	f.Add([]byte{2, 1, 0}, uint8(7), uint8(2), uint8(1))
	f.Fuzz(func(t *testing.T, sizes []byte, world, other, cut uint8) {
		if len(sizes) == 0 || len(sizes) > 100 || world == 0 || other == 0 {
			t.Skip()
		}
		var c cuts
		for _, size := range sizes {
			c = append(c, 1+int(size))
		}
		seen := make([]int, c.Len())
		at, steps := deliverBatches(t, c, int(world), false, 0, int(cut), seen)
		require.Equal(t, min(int(cut), (len(c)+int(world)-1)/int(world)), steps)
		end, _ := deliverBatches(t, c, int(other), false, at, math.MaxInt, seen)
		require.Equal(t, c.Len(), end)
		smallest := c[0]
		for _, size := range c {
			smallest = min(smallest, size)
		}
		for p, times := range seen {
			if times != 1 && (times < 1 || smallest >= max(int(world), int(other))) {
				t.Fatalf("position %d of %d comes %d times", p, c.Len(), times)
			}
		}
		clear(seen)
		at, steps = deliverBatches(t, c, int(world), true, 0, math.MaxInt, seen)
		require.Equal(t, len(c)/int(world), steps)
		for p, times := range seen {
			require.Equal(t, p < at, times == 1)
		}
	})
}

func TestACourseIsItsEpochsOneAfterTheOther(t *testing.T) {
	for _, base := range []int{0, 1, 20, 30} {
		o := Order{N: 30, Batch: 4, World: 2, Rank: 1}
		c := NewSchedule(&o, 5, 7, base)
		i := 0
		for epoch := 5; epoch <= 7; epoch++ {
			b := 0
			if epoch == 5 {
				b = base
			}
			for k := range o.Steps(b) {
				gotEpoch, gotBase, gotK, _ := c.At(i)
				require.Equal(t, []int{epoch, b, k}, []int{gotEpoch, gotBase, gotK}, fmt.Sprint("batch ", i))
				i++
			}
		}
		require.Equal(t, i, c.Len())
	}
	for _, c := range []struct{ n, last int }{{8, (math.MaxInt - 1) / 2}, {permute.MaxLen, permute.MaxLen}} {
		c := NewSchedule(&Order{N: c.n, Batch: 4, World: 1}, 0, c.last, 0)
		require.Equal(t, Endless, c.Len(), "more batches than an int counts")
	}
	o := Order{N: 30, Batch: 4, World: 1}
	c := NewSchedule(&o, 0, math.MaxInt-1, 3)
	require.Positive(t, c.Len())
	_, _, _, index := c.At(0)
	require.Equal(t, 1, index, "of the first batch after 3 samples: batches of 4 would have had them in one")
	epoch, _, _, _ := c.At(1 << 30)
	require.Equal(t, 1+(1<<30-7)/8, epoch)
}
