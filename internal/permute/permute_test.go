package permute_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/permute"
)

// A resumed run must find the order it left: these may never change.
func TestPermutationsStayWhatTheyWere(t *testing.T) {
	key := permute.EpochKey(permute.SeedKey(42), 0)
	require.Equal(t, uint64(0xb29ed950786f5ae3), key)
	p := permute.New(10)
	require.Equal(t, 10, p.Len())
	var got []int
	for i := range 10 {
		got = append(got, p.At(key, i))
	}
	require.Equal(t, []int{4, 0, 7, 3, 1, 5, 6, 8, 9, 2}, got)
}

func TestEachKeyPermutes(t *testing.T) {
	for n := 1; n <= 300; n++ {
		p, seen := permute.New(n), make([]bool, n)
		for i := range n {
			at := p.At(uint64(n), i)
			require.False(t, seen[at], "n = %d: %d comes twice", n, at)
			seen[at] = true
		}
	}
}

func TestTablesGiveWhatAtDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 10, 17, 1000, 1 << 20, 1 << 28, 1 << 29} {
		p, key := permute.New(n), rng.Uint64()
		require.True(t, p.Tabulates())
		from := rng.IntN(n)
		filled := make([]int, min(n-from, 100))
		p.Fill(p.Tabulate(key), from, filled)
		for i, at := range filled {
			require.Equal(t, p.At(key, from+i), at, "n = %d, position %d", n, from+i)
		}
	}
	large := permute.New(1<<29 + 1)
	require.False(t, large.Tabulates())
}

func TestEpochsOfASeedAreNotThoseOfAnother(t *testing.T) {
	seen := map[uint64]bool{}
	for seed := range uint64(100) {
		for epoch := -10; epoch < 100; epoch++ {
			key := permute.EpochKey(permute.SeedKey(seed), epoch)
			require.False(t, seen[key])
			seen[key] = true
		}
	}
}

func TestAPositionOutsideTheEpochPanicsWithBothNumbers(t *testing.T) {
	permute.CheckPosition(2, 3)
	require.PanicsWithValue(t, "nwt: position 3 is outside an epoch of 3 samples", func() { permute.CheckPosition(3, 3) })
	require.PanicsWithValue(t, "nwt: position -1 is outside an epoch of 3 samples", func() { permute.CheckPosition(-1, 3) })
}

// Whoever asks gets the same order, and it is computed once while it is kept.
func TestAnOrderIsComputedOnceWhileItIsKept(t *testing.T) {
	var calls atomic.Int64
	orders := permute.NewOrders(4, 3, func(epoch, part int) []int { calls.Add(1); return []int{epoch, part} })
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for epoch := -1; epoch < 1; epoch++ {
				for part := range 2 {
					if got := orders.Get(epoch, part); got[0] != epoch || got[1] != part {
						t.Errorf("epoch %d, part %d: %v", epoch, part, got)
					}
				}
			}
		})
	}
	asking.Wait()
	before := calls.Load()
	for part := range 3 {
		orders.Get(7, part)
	}
	orders.Get(8, 0)
	require.Equal(t, before+4, calls.Load())
	for part := range 3 {
		orders.Get(7, part)
	}
	require.Equal(t, before+4, calls.Load(), "four successive orders are kept")
}

func TestAPreparedOrderIsComputedWithoutBeingAskedFor(t *testing.T) {
	computed := make(chan int, 10)
	orders := permute.NewOrders(2, 1, func(epoch, _ int) []int {
		computed <- epoch
		if epoch == 6 {
			panic("no order")
		}
		return []int{epoch}
	})
	orders.Prepare(5, 0)
	orders.Prepare(5, 0)
	require.Equal(t, 5, <-computed)
	require.Equal(t, []int{5}, orders.Get(5, 0))
	orders.Prepare(6, 0)
	require.Equal(t, 6, <-computed)
	require.PanicsWithValue(t, "no order", func() { orders.Get(6, 0) })
	require.Empty(t, computed)
}

func TestAnOrderThatPanicsDoesSoForAllWhoAsk(t *testing.T) {
	orders := permute.NewOrders(2, 1, func(epoch, _ int) []int {
		if epoch == 1 {
			panic("no order")
		}
		return []int{5}
	})
	for range 2 {
		require.PanicsWithValue(t, "no order", func() { orders.Get(1, 0) })
		require.Equal(t, []int{5}, orders.Get(0, 0))
	}
}
