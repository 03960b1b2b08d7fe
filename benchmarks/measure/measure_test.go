package main

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// eachLoader runs a test for every loader of a workload at some worker counts.
func eachLoader[T float32 | uint8](t *testing.T, w *workload[T], test func(t *testing.T, batches iter.Seq[[]T])) {
	for _, c := range combinations() {
		if c.Workload != w.name || c.Peer == "bound" || c.Workers > 16 || slices.Contains([]string{"wait", "tail", "pauses"}, c.Workload) && c.Workers < 16 {
			continue
		}
		if c.Variant == "unordered" {
			continue // whose epochs follow one another without a border
		}
		t.Run(fmt.Sprintf("%s/%s/%d", c.Peer, c.Variant, c.Workers), func(t *testing.T) { test(t, loader(w, c)) })
	}
}

// epochs are the samples of the first two epochs, whose batches must be full but
// for the last of each.
func epochs[T float32 | uint8](t *testing.T, w *workload[T], batches iter.Seq[[]T]) (both [2][][]T) {
	n := 0
	for batch := range batches {
		epoch, want := n/w.epochBatches(), w.batch
		if n%w.epochBatches() == w.epochBatches()-1 {
			want = w.samples - w.batch*(w.epochBatches()-1)
		}
		require.Len(t, batch, want*w.size, "batch %d", n)
		both[epoch] = slices.AppendSeq(both[epoch], slices.Chunk(slices.Clone(batch), w.size))
		if n++; n == 2*w.epochBatches() {
			break
		}
	}
	return both
}

// requireShuffled fails unless each epoch has every index once, in another order
// than the other has and than the dataset's.
func requireShuffled(t *testing.T, samples int, first, second []int) {
	for _, order := range [][]int{first, second} {
		sorted := slices.Sorted(slices.Values(order))
		require.Len(t, sorted, samples)
		for i, index := range sorted {
			require.Equal(t, i, index)
		}
		jumps := 0
		for i := range samples - 1 {
			jumps += max(order[i]-order[i+1], order[i+1]-order[i])
		}
		require.Greater(t, jumps/samples, samples/4, "neighbours should lie a third of the dataset apart")
	}
	require.NotEqual(t, first, second)
}

func TestScalarsComeOnceAnEpochInAShuffledOrder(t *testing.T) {
	for _, w := range []*workload[float32]{waiting(), tailed(1000), pausing(1000), empty()} {
		t.Run(w.name, func(t *testing.T) {
			eachLoader(t, w, func(t *testing.T, batches iter.Seq[[]float32]) {
				var orders [2][]int
				for e, samples := range epochs(t, w, batches) {
					for _, sample := range samples {
						orders[e] = append(orders[e], int(sample[0]))
					}
				}
				requireShuffled(t, w.samples, orders[0], orders[1])
			})
		})
	}
}

func TestRawImagesAreCopiesOfTheirSource(t *testing.T) {
	images := makeImages(1000)
	w := raw(images)
	eachLoader(t, w, func(t *testing.T, batches iter.Seq[[]uint8]) {
		var orders [2][]int
		for e, samples := range epochs(t, w, batches) {
			for _, sample := range samples {
				index := int(sample[16*side+16]) | int(sample[plane+16*side+16])<<8
				require.Equal(t, images[index][:], sample)
				orders[e] = append(orders[e], index)
			}
		}
		requireShuffled(t, w.samples, orders[0], orders[1])
	})
}

func TestAugmentedImagesAreCropsOfTheirSource(t *testing.T) {
	images := makeImages(1000)
	w := augmented(images)
	eachLoader(t, w, func(t *testing.T, batches iter.Seq[[]float32]) {
		var orders [2][]int
		placements := map[placement]bool{}
		for e, samples := range epochs(t, w, batches) {
			for i, sample := range samples {
				index := pixel(sample, 0) | pixel(sample, 1)<<8
				orders[e] = append(orders[e], index)
				if i < 200 {
					p, ok := place(sample, &images[index])
					require.True(t, ok, "sample %d is no crop of image %d", i, index)
					placements[p] = true
				}
			}
		}
		requireShuffled(t, w.samples, orders[0], orders[1])
		require.Greater(t, len(placements), 100, "of the 162 crops and flips 400 samples should show most")
	})
}

// pixel returns the byte that an augmented image's middle was.
func pixel(image []float32, c int) int {
	return int(math.Round((float64(image[c*plane+16*side+16])*deviation[c] + mean[c]) * 255))
}

type placement struct {
	dx, dy int
	flip   bool
}

// place returns the crop and flip that makes sample of image, computed plainly.
func place(sample []float32, image *[pixels]byte) (placement, bool) {
	for dy := range 2*pad + 1 {
		for dx := range 2*pad + 1 {
			for _, flip := range []bool{false, true} {
				if isCrop(sample, image, dx, dy, flip) {
					return placement{dx, dy, flip}, true
				}
			}
		}
	}
	return placement{}, false
}

func isCrop(sample []float32, image *[pixels]byte, dx, dy int, flip bool) bool {
	for i, got := range sample {
		c, y, x := i/plane, i%plane/side+dy-pad, i%side+dx-pad
		if flip {
			x = side - 1 - x
		}
		value := 0.0
		if x >= 0 && x < side && y >= 0 && y < side {
			value = float64(image[c*plane+y*side+x])
		}
		if math.Abs((value/255-mean[c])/deviation[c]-float64(got)) > 1e-5 {
			return false
		}
	}
	return true
}
