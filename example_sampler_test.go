package nwt_test

import (
	"fmt"
	"log"
	"slices"

	"github.com/nwt-go/nwt"
)

func order(s nwt.Sampler, epoch int) []int {
	var indices []int
	for i := range s.Len() {
		indices = append(indices, s.At(epoch, i))
	}
	return indices
}

// The order of any position is there at once, however many samples there are.
func ExampleShuffled() {
	small, large := nwt.Shuffled(8, 42), nwt.Shuffled(1_000_000_000, 42)
	fmt.Println(order(small, 0))
	fmt.Println(order(small, 1))
	fmt.Println(large.At(0, 999_999_999))
	// Output:
	// [6 4 1 5 7 0 2 3]
	// [1 4 7 6 5 0 3 2]
	// 310893541
}

// Class 1 has a ninth of the samples. With the weights turned round, both come
// equally often.
func ExampleWeighted() {
	labels := []int{0, 0, 0, 0, 1, 0, 0, 0, 0}
	share := map[int]float64{0: 8, 1: 1}
	weights := make([]float64, len(labels))
	for i, label := range labels {
		weights[i] = 1 / share[label]
	}
	sampler, err := nwt.Weighted(weights, 12, 42)
	if err != nil {
		log.Fatal(err)
	}
	for _, index := range order(sampler, 0) {
		fmt.Print(labels[index], " ")
	}
	// Output:
	// 1 1 0 0 0 0 0 1 1 0 1 1
}

// Four of eight samples an epoch, and in most of them both heavy ones.
func ExampleWeightedWithoutReplacement() {
	sampler, err := nwt.WeightedWithoutReplacement([]float64{9, 1, 9, 1, 1, 1, 1, 0}, 4, 42)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(order(sampler, 0))
	fmt.Println(order(sampler, 1))
	// Output:
	// [0 6 2 1]
	// [2 0 4 5]
}

// Sentences of similar lengths meet in a batch of four.
func ExampleBucketed() {
	words := []int{3, 41, 7, 12, 38, 5, 4, 44, 9, 2, 40, 11}
	sampler, err := nwt.Bucketed(len(words), func(i int) int { return words[i] }, nwt.Buckets{BatchSize: 4}, 42)
	if err != nil {
		log.Fatal(err)
	}
	for batch := range slices.Chunk(order(sampler, 0), 4) {
		for i, index := range batch {
			batch[i] = words[index]
		}
		fmt.Println(batch)
	}
	// Output:
	// [38 40 41 44]
	// [2 3 4 5]
	// [7 9 11 12]
}

// The samples that a fold trains on, shuffled.
func ExampleSelect() {
	fold := []int{10, 11, 12, 16, 17, 18, 19}
	sampler, err := nwt.Select(nwt.Shuffled(len(fold), 42), fold)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(order(sampler, 0))
	// Output:
	// [19 17 11 18 16 10 12]
}

func ExampleRankFromEnv() {
	torchrun := map[string]string{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
	rank, err := nwt.RankFromEnv(func(key string) (string, bool) { // os.LookupEnv, in a program
		value, ok := torchrun[key]
		return value, ok
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rank)
	// Output:
	// rank 5 of 8, 1 of 4 on this host, launcher: torchrun (WORLD_SIZE=8 RANK=5 LOCAL_WORLD_SIZE=4 LOCAL_RANK=1)
}

// Seven of ten samples come from the first part and three from the second. After 20
// samples, training goes on with the second alone.
func ExampleMixed() {
	sampler, err := nwt.Mixed(10, nwt.Mix{
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
		fmt.Println(order(sampler, epoch))
	}
	// Output:
	// [70 91 103 48 0 68 71 101 27 102]
	// [45 97 98 100 26 23 5 100 102 85]
	// [103 100 102 101 103 103 100 101 101 102]
}

// Four blocks of three samples, two of which are mixed at a time: a dataset that
// keeps two blocks reads each of them once.
func ExampleLocallyShuffled() {
	sampler, err := nwt.LocallyShuffled([]int{3, 3, 3, 3}, 2, 42)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(order(sampler, 0))
	// Output:
	// [7 5 8 6 3 4 1 2 10 11 0 9]
}
