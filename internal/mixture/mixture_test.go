package mixture_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/mixture"
)

type phase struct {
	samples int
	weights []float64
}

// checked returns a Mix of phases that Check has nothing against.
func checked(t *testing.T, block int, phases ...phase) *mixture.Mix {
	t.Helper()
	m := mixture.New(block)
	for _, p := range phases {
		m.Add(p.samples, p.weights)
	}
	m.Check(len(m.Weights[0]), func(value any, format string, args ...any) {
		require.Failf(t, "bad", "%v: %s", value, fmt.Sprintf(format, args...))
	})
	return m
}

// What a plan tells of a position, of a span and of all before it agrees, on every rank.
func TestAPlanCountsWhatItDraws(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m := checked(t, 20, phase{55, []float64{1, 0, 1}}, phase{203, []float64{5, 4, 1}}, phase{20, []float64{0, 0, 7}}, phase{0, []float64{1, 1, 2}})
	for world := 1; world <= 3; world++ {
		for rank := range world {
			plan := m.Plan(rng.Uint64(), rank, world)
			var drawn [3]uint64
			for position := range uint64(400) {
				require.Equal(t, drawn[:], plan.Before(t.Context(), position))
				part, _ := plan.At(position)
				drawn[part]++
			}
			for part := range drawn {
				draws := uint64(plan.Draws(part, 0, 400))
				require.GreaterOrEqual(t, draws, drawn[part])
				require.Less(t, draws, drawn[part]+20, "the rest of the block at most")
			}
		}
	}
}

// The draws of a part are numbered without a gap, within a block in any order.
func TestTheDrawsOfAPartAreNumbered(t *testing.T) {
	m := checked(t, 8, phase{30, []float64{1, 3}}, phase{0, []float64{1, 1}})
	plan := m.Plan(1, 0, 1)
	seen := map[[2]uint64]bool{}
	for position := range uint64(30 + 8*10) {
		part, draw := plan.At(position)
		require.False(t, seen[[2]uint64{uint64(part), draw}])
		seen[[2]uint64{uint64(part), draw}] = true
	}
	for part, all := range plan.Before(t.Context(), 30+8*10) {
		for draw := range all {
			require.True(t, seen[[2]uint64{uint64(part), draw}])
		}
	}
}

func TestAMixIsACopy(t *testing.T) {
	weights := []float64{1, 1}
	m := checked(t, 0, phase{0, weights})
	weights[0] = math.NaN()
	require.Equal(t, [][]float64{{1, 1}}, m.Weights)
	require.Equal(t, 1000, m.Block)
}

func TestCountingEndsWithItsContext(t *testing.T) {
	m := checked(t, 1<<30, phase{0, []float64{1}})
	plan := m.Plan(1, 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, []uint64{0}, plan.Before(ctx, 1<<30-1))
}

func TestSharesAreAsAPersonWroteThem(t *testing.T) {
	require.Equal(t, []int{1, 3, 6, 10}, mixture.Divide(10, []float64{0.1, 0.2, 0.3, 0.4}))
	require.Equal(t, []int{1, 1}, mixture.Divide(1, []float64{0.5, 0.5}), "a half is rounded up")
	require.Equal(t, []int{math.MaxInt/2 + 1, math.MaxInt}, mixture.Divide(math.MaxInt, []float64{0.3, 0.3}))
}
