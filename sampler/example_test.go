package sampler_test

import (
	"fmt"
	"log"
	"slices"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// Class 1 has a ninth of the samples. With the weights turned round, both come
// equally often.
func ExampleWeighted() {
	labels := []int{0, 0, 0, 0, 1, 0, 0, 0, 0}
	share := map[int]float64{0: 8, 1: 1}
	weights := make([]float64, len(labels))
	for i, label := range labels {
		weights[i] = 1 / share[label]
	}
	order, err := sampler.Weighted(weights, 12, 42)
	if err != nil {
		log.Fatal(err)
	}
	for _, index := range orderOf(order, 0) {
		fmt.Print(labels[index], " ")
	}
	// Output:
	// 1 1 1 0 1 0 1 0 1 0 1 1
}

// Four of eight samples an epoch, and in most of them both heavy ones.
func ExampleWeightedWithoutReplacement() {
	order, err := sampler.WeightedWithoutReplacement([]float64{9, 1, 9, 1, 1, 1, 1, 0}, 4, 42)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(orderOf(order, 0))
	fmt.Println(orderOf(order, 1))
	// Output:
	// [0 3 5 2]
	// [2 0 3 5]
}

// Sentences of similar lengths meet in a batch of four.
func ExampleBucketed() {
	words := []int{3, 41, 7, 12, 38, 5, 4, 44, 9, 2, 40, 11}
	order, err := sampler.Bucketed(len(words), func(i int) int { return words[i] }, sampler.Buckets{BatchSize: 4}, 42)
	if err != nil {
		log.Fatal(err)
	}
	for batch := range slices.Chunk(orderOf(order, 0), 4) {
		for i, index := range batch {
			batch[i] = words[index]
		}
		fmt.Println(batch)
	}
	// Output:
	// [2 3 4 5]
	// [38 40 41 44]
	// [7 9 11 12]
}

// The samples that a fold trains on, shuffled.
func ExampleSelect() {
	fold := []int{10, 11, 12, 16, 17, 18, 19}
	order, err := sampler.Select(nwt.Shuffled(len(fold), 42), fold)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(orderOf(order, 0))
	// Output:
	// [18 11 16 17 12 19 10]
}

// Seven of ten samples come from the first part and three from the second. After 20
// samples, training goes on with the second alone.
func ExampleMixed() {
	order, err := sampler.Mixed(10, nwt.Mix{
		Parts: []int{100, 4}, // as in Concat
		Block: 10,
		Phases: []nwt.Phase{
			{Samples: 20, Weights: []float64{0.7, 0.3}},
			{Weights: []float64{0, 1}},
		},
	}, 42)
	if err != nil {
		log.Fatal(err)
	}
	for epoch := range 3 {
		fmt.Println(orderOf(order, epoch))
	}
	// Output:
	// [57 4 101 18 49 15 62 100 103 73]
	// [100 102 86 84 103 96 50 77 51 1]
	// [100 102 100 102 103 101 101 103 102 101]
}

// Four blocks of three samples, two of which are mixed at a time: a dataset that
// keeps two blocks reads each of them once.
func ExampleLocallyShuffled() {
	order, err := sampler.LocallyShuffled([]int{3, 3, 3, 3}, 2, 42)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(orderOf(order, 0))
	// Output:
	// [2 11 9 0 1 10 5 8 3 4 6 7]
}

// Two augmentations of each sample in an epoch, side by side in a batch: PyTorch's
// RASampler. They differ, because randomness follows the position.
func ExampleComputed() {
	const n = 4
	shuffled := nwt.Shuffled(n, 42)
	repeated, err := sampler.Computed(2*n, func(epoch int) (order []int) {
		for i := range n {
			order = append(order, shuffled.At(epoch, i), shuffled.At(epoch, i))
		}
		return order
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(orderOf(repeated, 0))
	fmt.Println(orderOf(repeated, 1))
	// Output:
	// [0 0 3 3 1 1 2 2]
	// [0 0 1 1 2 2 3 3]
}
