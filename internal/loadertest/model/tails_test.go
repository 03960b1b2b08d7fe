package model_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// Whatever the tails, sizes, bounds, faults and options: the order is that of a plain loop,
// in whole epochs and in those that are resumed.
func TestRandomStreamsWithTailsAreReadInOrder(t *testing.T) {
	trials := 40
	if testing.Short() {
		trials = 10
	}
	for seed := range trials {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		p := &plainStreams{rank: rng.IntN(2), interleave: 1 + rng.IntN(9), window: 1 + rng.IntN(50), shuffle: rng.IntN(2) == 0, seed: 5}
		p.world = p.rank + 1 + rng.IntN(2)
		var streams []nwt.Stream
		id := 0
		for range 1 + rng.IntN(2) {
			times, slow := make([][]time.Duration, p.world+rng.IntN(12)), 0.03*rng.Float64()
			hangs := rng.IntN(20 * len(times))
			var shards [][]int
			for i := range times {
				times[i] = make([]time.Duration, rng.IntN(1500)+1)
				for k := range times[i] {
					if times[i][k] = time.Duration(rng.IntN(1000)) * time.Microsecond; rng.Float64() < slow {
						times[i][k] *= 100
					}
				}
				records := kit.IndicesUpTo(len(times[i]))
				if i == hangs {
					at := rng.IntN(len(records))
					times[i][at] = time.Hour
					records = append(records[:at:at], lost)
				}
				shards = append(shards, records)
				id += len(times[i])
			}
			size := rng.IntN(4000)
			s := &kit.Wide{Stream: kit.Timed(times), Keeps: rng.IntN(2) * (1 + size/2), Size: func(shard, nth int) int { return (size * (shard*31 + nth*17) % 4000) / 2 }}
			p.streams, streams = append(p.streams, shards), append(streams, s)
		}
		// The records of a shelf count through its shards.
		for _, shards := range p.streams {
			next := 0
			for i, records := range shards {
				n := len(records)
				if n > 0 && records[n-1] == lost {
					n--
				}
				for k := range n {
					records[k] += next
				}
				next += lengthsOf(streams[slices.IndexFunc(p.streams, func(s [][]int) bool { return &s[0] == &shards[0] })])[i]
			}
		}
		opts := []nwt.Option{
			nwt.WithBatchSize(1 + rng.IntN(40)), nwt.WithRank(p.rank, p.world), nwt.WithInterleave(p.interleave), nwt.WithShuffleWindow(p.window),
			nwt.WithTimeout(time.Minute), nwt.WithErrorBudget(1 << 20), kit.NewVirtualMachine(64).Option(), kit.Silent,
		}
		if p.shuffle {
			opts = append(opts, nwt.WithShuffle(p.seed))
		}
		if rng.IntN(3) == 0 {
			opts = append(opts, kit.WithReadAhead(int64(50_000+rng.IntN(1_000_000))))
		}
		ds := nwt.Streamed(streams[0])
		if len(streams) > 1 {
			p.mix, p.mixSeed = &nwt.Mix{Block: 40, Phases: []nwt.Phase{{Weights: []float64{1, float64(1 + rng.IntN(3))}}}}, 7
			ds = kit.MixedOf(t, *p.mix, streams...)
		}
		if p.mix != nil || rng.IntN(3) == 0 {
			p.epochSamples = 2 + rng.IntN(8000)
			opts = append(opts, nwt.WithEpochSamples(p.epochSamples))
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				epoch := rng.IntN(3)
				all, _ := p.epoch(epoch)
				var want []int64
				for _, id := range all {
					if id != lost {
						want = append(want, int64(id))
					}
				}
				l := kit.NewLoader(t, ds, append(opts, nwt.WithWorkers(1+rng.IntN(3)))...)
				var got []int64
				var state nwt.State
				from, cut := 0, rng.IntN(100)
				for b, err := range l.Epoch(t.Context(), epoch) {
					require.NoError(t, err)
					got = append(got, nwt.Values[int64](b, 0)...)
					if b.Number() == cut {
						state, from = b.State(), len(got)
					}
				}
				require.Equal(t, want, got)
				if from > 0 {
					got = got[:from]
					for b, err := range l.Resume(t.Context(), state) {
						require.NoError(t, err)
						got = append(got, nwt.Values[int64](b, 0)...)
					}
					require.Equal(t, want, got)
				}
				require.NoError(t, l.Close())
				time.Sleep(2 * time.Hour) // calls that were given up return
			})
		})
	}
}

func lengthsOf(s nwt.Stream) []int { return s.(*kit.Wide).Stream.(*kit.Breaking).Shelves.Lengths }
