package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// The table of testdata was written by pyarrow: see make.py there.
func TestATableIsWhatPyarrowWrote(t *testing.T) {
	tab, err := openTable("testdata/table.parquet")
	require.NoError(t, err)
	defer tab.Close()
	for name, ds := range map[string]nwt.Dataset{"by index": tab, "as a stream": nwt.Streamed(tab.stream())} {
		t.Run(name, func(t *testing.T) {
			seen, state := map[int64]bool{}, nwt.State{}
			for _, world := range []int{3, 2, 1} { // ranks are lost
				reached := state
				for rank := range world {
					l, err := nwt.NewLoader(ds, nwt.WithBatchSize(4), nwt.WithShuffle(1), nwt.WithRank(rank, world))
					require.NoError(t, err)
					for b, err := range l.Resume(t.Context(), state) {
						require.NoError(t, err)
						reached = b.State()
						xs, texts := b.Shape(1)[1], b.Shape(2)[1]
						for k, label := range nwt.Values[int64](b, 0) {
							i := int(-label)
							require.False(t, seen[label])
							seen[label] = true
							require.Equal(t, i%5, int(b.Lens(1, 0)[k]))
							for c, x := range nwt.Values[float32](b, 1)[k*xs : k*xs+i%5] {
								require.Equal(t, float32(i)+0.25*float32(c), x)
							}
							require.Equal(t, fmt.Sprintf("row %d größer", i), string(b.Bytes(2)[k*texts:k*texts+int(b.Lens(2, 0)[k])]))
						}
						if world > 1 {
							break
						}
					}
					require.NoError(t, l.Close())
				}
				state = reached
			}
			require.Len(t, seen, 60)
		})
	}
}
