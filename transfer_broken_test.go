package nwt_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

// After an illegal address, say, a GPU's context is of no use any more: every call
// reports the error, the frees too.
func TestAContextThatBreaksEndsEveryEpochWithItsErrorAndNothingHangs(t *testing.T) {
	host := newLoader(t, augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(0))
	want := collect(t, host, 0)
	for _, code := range []cuda.Result{700, cudatest.Lost} {
		for _, copies := range []int{0, 1, 2, 7} {
			for _, workers := range []int{0, 2} {
				for _, async := range []bool{false, true} {
					t.Run(fmt.Sprint(code, ", copies before: ", copies, ", workers: ", workers, ", async: ", async), func(t *testing.T) {
						gpu := cudatest.Load(t)
						gpu.GPUs(2)
						other, err := nwt.CUDA(1)
						require.NoError(t, err)
						unharmed := newLoader(t, augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithDevice(other))
						var log journal
						l, err := nwt.NewLoader(augmented(100), append(deviceOptions(t, workers, async), log.option())...)
						require.NoError(t, err)
						gpu.Break(gpu.Primary(0), code, copies)
						promptly(t, func() {
							for epoch := range 3 {
								var got [][]byte
								var errs []error
								for b, err := range l.Epoch(t.Context(), epoch) {
									if err != nil {
										errs = append(errs, err)
									} else {
										got = append(got, samples(b))
									}
								}
								require.Len(t, errs, 1, "epoch %d", epoch)
								require.ErrorIs(t, errs[0], code)
								if epoch > 0 {
									require.Empty(t, got)
								} else if !async { // else they are delivered before their copies end
									// Fewer if the context breaks before the stage has asked how they ended.
									require.LessOrEqual(t, len(got), copies)
									require.Equal(t, want[:len(got)], append([][]byte{}, got...))
								}
							}
							require.NoError(t, l.Close())
						})
						require.Equal(t, want, collect(t, unharmed, 0), "on the other GPU")
						require.NoError(t, unharmed.Close())
					})
				}
			}
		}
	}
}

// A goroutine's thread may have been left in another library's context.
func TestAnotherProgramsContextOnTheThreadIsNeitherUsedNorLost(t *testing.T) {
	host := newLoader(t, augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(0))
	want := collect(t, host, 0)
	for _, workers := range []int{0, 2} {
		gpu := cudatest.Load(t)
		gpu.Outer(gpu.Context(0))
		l := newLoader(t, augmented(100), deviceOptions(t, workers, false)...)
		i := 0
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.Equal(t, want[i], arrived(t, gpu, b))
			i++
			b.ReleaseAfterStream(0)
		}
		require.Equal(t, len(want), i)
		require.NoError(t, l.Close())
		require.Empty(t, gpu.Left())
		require.Zero(t, gpu.Misuses())
	}
}
