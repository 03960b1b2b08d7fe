package permute_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/permute"
)

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
