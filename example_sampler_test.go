package nwt_test

import (
	"fmt"
	"log"

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
