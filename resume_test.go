package nwt_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A job is preempted time and again and comes back on other machines: all of
// them together deliver every sample of the epoch once.
func TestAnEpochResumedOnOtherMachinesIsDeliveredOnce(t *testing.T) {
	jobs := 60
	if testing.Short() {
		jobs = 15
	}
	for seed := range uint64(jobs) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			n := 30 + rng.IntN(300)
			ds := augmented(n)
			state := nwt.State{Epoch: 2}
			seen := make([]int, n)
			for state.Samples < n {
				world := 1 + rng.IntN(min(4, n-state.Samples))
				batch, workers, cut := 2+rng.IntN(9), rng.IntN(4), 1+rng.IntN(5)
				var states []nwt.State
				var index []int
				for rank := range world {
					l := newLoader(t, ds, nwt.WithShuffle(9), nwt.WithBatchSize(batch), nwt.WithWorkers(workers), nwt.WithRank(rank, world))
					batches := 0
					for b, err := range l.Resume(t.Context(), state) {
						require.NoError(t, err)
						require.Equal(t, 2, b.Epoch())
						for _, i := range b.Indices() {
							seen[i]++
						}
						if rank == 0 {
							states, index = append(states, b.State()), append(index, b.Index())
						}
						require.Equal(t, states[batches], b.State(), "the same on every rank")
						require.Equal(t, index[batches], b.Index())
						if batches++; batches == cut {
							break
						}
					}
					require.Len(t, states, batches, "as many batches on every rank")
					require.NoError(t, l.Close())
				}
				state = states[len(states)-1]
			}
			for i, times := range seen {
				require.Equal(t, 1, times, "sample %d", i)
			}
		})
	}
}
