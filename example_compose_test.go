package nwt_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/nwt-go/nwt"
)

// slowly is a dataset of n numbers that take long to get.
func slowly(n int) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "x", Type: nwt.Float32}},
		func(_ context.Context, i int, dst *nwt.Sample) error {
			nwt.Values[float32](dst, 0)[0] = float32(i)
			return nil
		})
}

func ExampleSubset() {
	odd, err := nwt.Subset(slowly(10), []int{1, 3, 5, 7, 9})
	if err != nil {
		log.Fatal(err)
	}
	s, err := nwt.LoadSample(context.Background(), odd, 2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(odd.Len(), nwt.Values[float32](s, 0))
	// Output: 5 [5]
}

func ExampleConcat() {
	both, err := nwt.Concat(slowly(3), slowly(100))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(both.Len())

	wider := nwt.Map(slowly(3), []nwt.Field{{Name: "x", Type: nwt.Float64}},
		func(_ context.Context, src, dst *nwt.Sample) error { return nil })
	_, err = nwt.Concat(slowly(3), wider)
	fmt.Println(err)
	// Output:
	// 103
	// nwt: Concat: 1: dataset 1 differs from dataset 0: field 0 ("x") has the type Float64, want Float32
}

// What is slow to load is kept, and augmented anew in every epoch.
func ExampleCached() {
	kept := nwt.Cached(slowly(4), 1<<30)
	defer kept.(io.Closer).Close()

	fields := []nwt.Field{{Name: "x", Type: nwt.Float32}, {Name: "flipped", Type: nwt.Bool}}
	ds := nwt.Map(kept, fields, func(_ context.Context, src, dst *nwt.Sample) error {
		x, flip := nwt.Values[float32](src, 0)[0], dst.Rand().IntN(2) == 1
		if flip {
			x = -x
		}
		nwt.Values[float32](dst, 0)[0], nwt.Values[bool](dst, 1)[0] = x, flip
		return nil
	})
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(4), nwt.WithShuffle(1))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for epoch := range 2 {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(nwt.Values[float32](batch, 0))
		}
	}
	// Output:
	// [-1 2 -3 0]
	// [1 0 3 -2]
}

// The first run of a program loads and writes every sample; later runs map the
// file.
func ExamplePrecompute() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for run := range 2 {
		loads := 0
		counting := nwt.Map(slowly(4), slowly(4).Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
			loads++
			copy(dst.Bytes(0), src.Bytes(0))
			return nil
		})
		ds, err := nwt.Precompute(context.Background(), counting, filepath.Join(dir, "samples"), "2024-06", nwt.WithWorkers(0))
		if err != nil {
			log.Fatal(err)
		}
		s, err := nwt.LoadSample(context.Background(), ds, 3)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("run %d: %v after %d loads\n", run, nwt.Values[float32](s, 0), loads)
		if err := ds.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// run 0: [3] after 4 loads
	// run 1: [3] after 0 loads
}
