package nwt_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

func TestBatchesArriveOnTheDeviceAsTheyWereLoaded(t *testing.T) {
	gpu := cudatest.Load(t)
	dev, err := nwt.CUDA(0)
	require.NoError(t, err)
	for _, workers := range []int{0, 1, 3} {
		for _, async := range []bool{false} {
			t.Run(fmt.Sprint(workers, async), func(t *testing.T) {
				l := newLoader(t, augmented(100), nwt.WithBatchSize(8), nwt.WithShuffle(1), nwt.WithWorkers(workers), nwt.WithDevice(dev))
				for epoch := range 5 {
					n := 0
					for b, err := range l.Epoch(t.Context(), epoch) {
						require.NoError(t, err)
						for f := range 2 {
							require.Equal(t, b.Bytes(f), gpu.Read(t, b.DevicePtr(f), len(b.Bytes(f))))
						}
						if n++; epoch == 3 && n == 7 {
							break
						}
					}
				}
			})
		}
	}
}
