package serve_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve"
)

// Sizes that can't be are bad samples, as they are where the dataset is.
func TestSizesThatCannotBeAreBadSamplesOfAServerToo(t *testing.T) {
	plain := drawing{n: 40, longest: 6, bad: -1}
	for name, wrong := range map[string]func(sizes []int){
		"panic":          func([]int) { panic("no such length") },
		"negative":       func(sizes []int) { sizes[0] = -2 },
		"too long":       func(sizes []int) { sizes[1] = 100 },
		"beyond 32 bits": func(sizes []int) { copy(sizes, []int{1 << 32, 1, 1}) },
		"not told":       func([]int) {},
		"2^31":           func(sizes []int) { sizes[0] = 1 << 31 },
	} {
		t.Run(name, func(t *testing.T) {
			ds := nwt.Sized(nwt.NewDataset(plain.n, plain.Fields(), plain.Load), func(index int, sizes []int) {
				if index == 13 {
					wrong(sizes)
					return
				}
				sizedDrawing{plain}.Sizes(index, sizes)
			})
			remote := open(t, start(t, ds, 1, serve.WithLoader(nwt.WithBatchSize(20))))
			opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithErrorBudget(1), nwt.WithLogger(slog.New(slog.DiscardHandler))}
			here, there := loader(t, ds, opts...), loader(t, remote, opts...)
			require.Equal(t, held(t, here.Epoch(t.Context(), 0)), held(t, there.Epoch(t.Context(), 0)))
			require.Len(t, there.BadSamples(), 1)
			require.ErrorContains(t, there.BadSamples()[0], "sample 13")
		})
	}
}

func TestAFieldOfMoreElementsThanArrowKnowsIsRefused(t *testing.T) {
	ds := nwt.Sized(nwt.NewDataset(4, []nwt.Field{{Name: "even", Type: nwt.Bool}, {Name: "clip", Type: nwt.Uint8, Shape: []int{20_000, 224, 224, 3}, RaggedDims: 1}}, nothing), func(_ int, sizes []int) { sizes[0] = 2 })
	_, err := serve.New(t.Context(), ds)
	require.ErrorContains(t, err, `field "clip"`)
	require.ErrorContains(t, err, "3010560000")
	require.ErrorContains(t, err, "2147483647")
}
