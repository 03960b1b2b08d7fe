//go:build unix

package pydata_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func BenchmarkSamples(b *testing.B) {
	for _, size := range []int{3072, 150528} {
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("bytes=%d/workers=%d", size, workers), func(b *testing.B) {
				d := open(b, config(b, fmt.Sprintf(`
base = np.zeros(%d, np.uint8)
class Birds:
    def __len__(self): return 100000
    def __getitem__(self, i): return base + np.uint8(i %% 251)
made = {"dataset": Birds()}
`, size)))
				l, err := nwt.NewLoader(d, nwt.WithBatchSize(64), nwt.WithShuffle(1), nwt.WithWorkers(workers))
				require.NoError(b, err)
				defer l.Close()
				b.ResetTimer()
				n := 0
				for batch, err := range l.Epochs(b.Context(), 0, 1000) {
					require.NoError(b, err)
					if n += batch.Len(); n >= b.N {
						break
					}
				}
				b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "samples/s")
			})
		}
	}
}
