package nwt_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// Epochs of a few batches, broken off and resumed, while batches are retained: each epoch
// holds what it holds anyway, and what the user sets stays.
func TestALoaderThatTunesItselfDeliversShortEpochsWholeWhateverItMeasures(t *testing.T) {
	const batch, epochs = 8, 60
	for name, opts := range map[string][]nwt.Option{
		"by default": nil, "of a rank": {nwt.WithRank(1, 3)}, "shuffled": {nwt.WithShuffle(3)},
		"without order": {nwt.WithUnordered()}, "with a fixed prefetch": {nwt.WithPrefetch(12)}, "the rest dropped": {nwt.WithDropLast()},
	} {
		for _, batches := range []int{1, 2, 7, 16, 33, 70} {
			t.Run(fmt.Sprintf("%s, %d batches", name, batches), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := nwt.NewVirtualMachine(8)
					ds := nwt.NewDataset(max(batch, batches*batch-3), scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
						time.Sleep(time.Duration(i%7) * 100 * time.Microsecond)
						m.Compute(300 * time.Microsecond)
						return nil
					})
					with := append(opts, nwt.WithBatchSize(batch), nwt.WithMaxWorkers(24), silent, m.Option())
					fixed := newLoader(t, ds, append(with, nwt.WithWorkers(0))...)
					l := newLoader(t, ds, append(with, nwt.WithAutoWorkers(), nwt.WithWorkers(2))...)
					rng := rand.New(rand.NewPCG(uint64(batches), 1))
					for epoch := range epochs {
						var want, got []int
						for b, err := range fixed.Epoch(t.Context(), epoch) {
							require.NoError(t, err)
							want = append(want, b.Indices()...)
						}
						var kept []*nwt.Batch
						seq, at, left := l.Epoch(t.Context(), epoch), nwt.State{}, -1
						if rng.IntN(3) == 0 && name != "without order" {
							left = rng.IntN(batches + 1)
						}
						for seq != nil {
							next := seq
							seq = nil
							for b, err := range next {
								require.NoError(t, err)
								got = append(got, b.Indices()...)
								if rng.IntN(4) == 0 {
									b.Retain()
									kept = append(kept, b)
								}
								if len(kept) > 3 {
									kept[0].Release()
									kept = kept[1:]
								}
								time.Sleep(200 * time.Microsecond)
								if at = b.State(); left == 0 {
									left, seq = -1, l.Resume(t.Context(), at)
									break
								}
								left--
							}
						}
						for _, b := range kept {
							b.Release()
						}
						if name == "without order" {
							slices.Sort(want)
							slices.Sort(got)
						}
						require.Equal(t, want, got, "epoch %d", epoch)
						if epoch == epochs*2/3 {
							require.NoError(t, l.SetWorkers(5))
						}
						if epoch >= epochs*2/3 {
							require.Equal(t, 5, l.Workers())
						}
					}
				})
			})
		}
	}
}
