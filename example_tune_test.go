package nwt_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/nwt-go/nwt"
)

// photographs stands for a dataset that decodes.
func photographs() nwt.Dataset {
	fields := []nwt.Field{{Name: "image", Type: nwt.Float32, Shape: []int{3, 8, 8}}, {Name: "label", Type: nwt.Int64}}
	return nwt.NewDataset(10_000, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[float32](dst, 0)[0] = dst.Rand().Float32()
		nwt.Values[int64](dst, 1)[0] = int64(i % 10)
		return nil
	})
}

// Tuning, and then training at the count that it found, in one call.
func ExampleNewTunedLoader() {
	loader, err := nwt.NewTunedLoader(context.Background(), photographs(),
		nwt.WithBatchSize(64),
		nwt.WithShuffle(42),
		nwt.WithMaxWorkers(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	batches := 0
	for _, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		batches++
	}
	fmt.Println(batches, "batches at the count found:", loader.Workers() == loader.Result().Workers)
	// Output: 157 batches at the count found: true
}

// A program keeps one slice of options for tuning and for training.
func ExampleTune() {
	opts := []nwt.Option{nwt.WithBatchSize(64), nwt.WithShuffle(42)}
	res, err := nwt.Tune(context.Background(), photographs(), opts...)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := nwt.NewLoader(photographs(), append(opts, nwt.WithWorkers(res.Workers))...)
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	batches := 0
	for _, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		batches++
	}
	fmt.Println(batches, "batches")
	// Output: 157 batches
}

// With the training step, the answer is the fewest workers at which training
// doesn't wait.
func ExampleTune_step() {
	res, err := nwt.Tune(context.Background(), photographs(),
		nwt.WithIterations(20),
		nwt.WithMaxWorkers(2),
		nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
			time.Sleep(2 * time.Millisecond) // forward, backward, update
			return nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Step, res.Floor >= 2*time.Millisecond) // perfect loading leaves the step
	// Output: true true
}

// Tuning costs a moment at each start, unless the answer is kept.
func ExampleWithResultCache() {
	dir, err := os.MkdirTemp("", "nwt")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for range 2 {
		res, err := nwt.Tune(context.Background(), photographs(), nwt.WithMaxWorkers(2), nwt.WithResultCache(dir+"/tuning.json", "photographs"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(res.Cached)
	}
	// Output:
	// false
	// true
}

// A loader that tunes itself needs no Tune before: it measures while training
// goes on.
func ExampleWithAutoWorkers() {
	loader, err := nwt.NewLoader(photographs(), nwt.WithAutoWorkers(), nwt.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for epoch := 0; loader.Result() == nil; epoch++ {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			if err != nil {
				log.Fatal(err)
			}
			_ = batch // train
		}
	}
	fmt.Println(loader.Workers() == loader.Result().Workers)
	// Output: true
}

// The figures behind an answer, for other programs.
func ExampleResult() {
	res, err := nwt.Tune(context.Background(), photographs(), nwt.WithMaxWorkers(2), nwt.WithIterations(20))
	if err != nil {
		log.Fatal(err)
	}
	data, err := json.Marshal(res) // durations are nanoseconds
	if err != nil {
		log.Fatal(err)
	}
	var table strings.Builder
	if err := res.WriteCSV(&table); err != nil { // and seconds here
		log.Fatal(err)
	}
	fmt.Println(json.Valid(data), strings.HasPrefix(table.String(), "workers,iterations,"))
	// Output: true true
}

// A table of one's own calls the counts what the report calls them.
func ExampleResult_Mark() {
	res := nwt.Result{
		Workers: 2, Fastest: 4,
		Trials: []nwt.Trial{{Workers: 1, Mean: 8 * time.Millisecond}, {Workers: 2, Mean: 4200 * time.Microsecond}, {Workers: 4, Mean: 4 * time.Millisecond}},
	}
	for _, trial := range res.Trials {
		fmt.Printf("%d workers, %v: %q\n", trial.Workers, trial.Mean, res.Mark(trial.Workers))
	}
	// Output:
	// 1 workers, 8ms: ""
	// 2 workers, 4.2ms: "chosen"
	// 4 workers, 4ms: "fastest"
}

// The paper's sweep: every count up to the highest.
func ExampleExhaustive() {
	res, err := nwt.Tune(context.Background(), photographs(), nwt.WithStrategy(nwt.Exhaustive()), nwt.WithMaxWorkers(3), nwt.WithIterations(20))
	if err != nil {
		log.Fatal(err)
	}
	for _, trial := range res.Trials {
		fmt.Println(trial.Workers, "workers")
	}
	// Output:
	// 0 workers
	// 1 workers
	// 2 workers
	// 3 workers
}

// What a progress bar needs, as often as it changes.
func ExampleWithProgress() {
	var last nwt.Progress
	_, err := nwt.Tune(context.Background(), photographs(), nwt.WithMaxWorkers(1), nwt.WithIterations(20),
		nwt.WithProgress(func(p nwt.Progress) { last = p })) // draw p.Done, p.Left and p.Workers
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(last.Phase, last.Done)
	// Output: done 1
}
