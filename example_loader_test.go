package nwt_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"slices"
	"time"

	"github.com/nwt-go/nwt"
)

// Two epochs, each in an order of its own. The last batch holds what is left.
func ExampleNewLoader() {
	var schema nwt.Schema
	point := nwt.AddField[float32](&schema, "point", 2)
	class := nwt.AddField[int64](&schema, "class")
	parabola := nwt.NewDataset(5, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		point.Of(dst)[0], point.Of(dst)[1] = float32(i), float32(i*i)
		class.Of(dst)[0] = int64(i % 2)
		return nil
	})
	loader, err := nwt.NewLoader(parabola, nwt.WithBatchSize(3), nwt.WithShuffle(42))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for epoch := range 2 {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(point.Of(batch), class.Of(batch)) // train
		}
	}
	// Output:
	// [3 9 4 16 1 1] [1 0 1]
	// [0 0 2 4] [0 0]
	// [3 9 1 1 0 0] [1 1 0]
	// [2 4 4 16] [0 0]
}

// A dataset is a function that writes sample i to its place in a batch.
// LoadSample shows what it writes, before anything is trained on it.
func ExampleNewDataset() {
	pixels := [][]uint8{{0, 255, 255, 0}, {255, 0, 0, 51}} // grey images of 2 × 2
	labels := []int64{3, 7}
	var schema nwt.Schema
	image := nwt.AddField[float32](&schema, "image", 1, 2, 2)
	label := nwt.AddField[int64](&schema, "label")
	ds := nwt.NewDataset(len(pixels), schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		for k, p := range pixels[i] {
			image.Of(dst)[k] = float32(p) / 255
		}
		label.Of(dst)[0] = labels[i]
		return nil
	})
	s, err := nwt.LoadSample(context.Background(), ds, 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(image.Of(s), label.Of(s))
	// Output: [1 0 0 0.2] [7]
}

// Where a crop begins is random, but the same whoever loads it.
func ExampleSample_Rand() {
	signal := []float32{0, 1, 2, 3, 4, 5, 6, 7}
	crops := nwt.NewDataset(3, []nwt.Field{{Name: "crop", Type: nwt.Float32, Shape: []int{4}}},
		func(_ context.Context, i int, dst *nwt.Sample) error {
			crop := nwt.Values[float32](dst, 0)
			copy(crop, signal[dst.Rand().IntN(len(signal)-len(crop)+1):])
			return nil
		})
	for _, workers := range []int{0, 1, 8} {
		loader, err := nwt.NewLoader(crops, nwt.WithWorkers(workers), nwt.WithSeed(42))
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("workers:", workers, nwt.Values[float32](batch, 0))
		}
		if err := loader.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// workers: 0 [0 1 2 3 1 2 3 4 0 1 2 3]
	// workers: 1 [0 1 2 3 1 2 3 4 0 1 2 3]
	// workers: 8 [0 1 2 3 1 2 3 4 0 1 2 3]
}

// Sentences of up to four tokens: what is behind the last one is zero, and the
// batch tells the lengths.
func ExampleSample_SetLen() {
	tokens := [][]int32{{5, 9}, {7}, {3, 1, 8, 2}}
	fields := []nwt.Field{{Name: "tokens", Type: nwt.Int32, Shape: []int{4}, Ragged: true}}
	sentences := nwt.NewDataset(len(tokens), fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, len(tokens[i]))
		copy(nwt.Values[int32](dst, 0), tokens[i])
		return nil
	})
	loader, err := nwt.NewLoader(sentences, nwt.WithBatchSize(3))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		padded := nwt.Values[int32](batch, 0)
		for i, n := range batch.Lens(0) {
			fmt.Println(padded[4*i:4*i+4], n)
		}
	}
	// Output:
	// [5 9 0 0] 2
	// [7 0 0 0] 1
	// [3 1 8 2] 4
}

// rows is a table in memory. Load is enough for the loader; LoadBatch spares it
// a call for each row.
type rows [][2]float32

func (t rows) Len() int { return len(t) }

func (t rows) Fields() []nwt.Field {
	return []nwt.Field{{Name: "row", Type: nwt.Float32, Shape: []int{2}}}
}

func (t rows) Load(_ context.Context, i int, dst *nwt.Sample) error {
	copy(nwt.Values[float32](dst, 0), t[i][:])
	return nil
}

func (t rows) LoadBatch(_ context.Context, indices []int, dst []*nwt.Sample) error {
	out := nwt.ValuesOf[float32](dst, 0) // of all the samples, one after the other
	for k, i := range indices {
		copy(out[2*k:], t[i][:])
	}
	return nil
}

// A dataset that loads many samples in one call: from a table, a query, an array
// file.
func ExampleValuesOf() {
	loader, err := nwt.NewLoader(rows{{1, 10}, {2, 20}, {3, 30}, {4, 40}}, nwt.WithBatchSize(4), nwt.WithShuffle(42))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(nwt.Values[float32](batch, 0))
	}
	// Output: [2 20 3 30 1 10 4 40]
}

// The bytes of a dataset's images become numbers around zero.
func ExampleMap() {
	pixels := [][]uint8{{0, 64, 128, 192}, {128, 128, 0, 0}}
	grey := nwt.NewDataset(len(pixels), []nwt.Field{{Name: "image", Type: nwt.Uint8, Shape: []int{2, 2}}},
		func(_ context.Context, i int, dst *nwt.Sample) error {
			copy(nwt.Values[uint8](dst, 0), pixels[i])
			return nil
		})
	normalized := nwt.Map(grey, []nwt.Field{{Name: "image", Type: nwt.Float32, Shape: []int{2, 2}}},
		func(_ context.Context, src, dst *nwt.Sample) error {
			image := nwt.Values[float32](dst, 0)
			for k, p := range nwt.Values[uint8](src, 0) {
				image[k] = (float32(p) - 128) / 128
			}
			return nil
		})
	s, err := nwt.LoadSample(context.Background(), normalized, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(normalized.Len(), nwt.Values[float32](s, 0))
	// Output: 2 [-1 -0.5 0 0.5]
}

// The batch with the largest loss is kept until the epoch is over.
func ExampleBatch_Retain() {
	losses := []float32{1, 2, 9, 4, 3, 1}
	ds := nwt.NewDataset(len(losses), []nwt.Field{{Name: "loss", Type: nwt.Float32}},
		func(_ context.Context, i int, dst *nwt.Sample) error {
			nwt.Values[float32](dst, 0)[0] = losses[i]
			return nil
		})
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()

	var worst *nwt.Batch
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		if worst == nil || slices.Max(nwt.Values[float32](batch, 0)) > slices.Max(nwt.Values[float32](worst, 0)) {
			if worst != nil {
				worst.Release()
			}
			batch.Retain()
			worst = batch
		}
	}
	fmt.Println(worst.Indices(), nwt.Values[float32](worst, 0))
	worst.Release()
	// Output: [2 3] [9 4]
}

// counting is a dataset of the numbers from 0 to n−1.
func counting(n int) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "number", Type: nwt.Int64}},
		func(_ context.Context, i int, dst *nwt.Sample) error {
			nwt.Values[int64](dst, 0)[0] = int64(i)
			return nil
		})
}

// A loop over several epochs that can be interrupted in the middle of one. The zero
// State is the start of training.
func ExampleLoader_ResumeEpochs() {
	loader, err := nwt.NewLoader(counting(10), nwt.WithShuffle(42), nwt.WithBatchSize(4))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	var saved nwt.State // with the model's checkpoint
	train := func(state nwt.State, epochs, steps int) {
		for batch, err := range loader.ResumeEpochs(context.Background(), state, epochs) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(batch.Epoch(), batch.Index(), nwt.Values[int64](batch, 0), batch.Last())
			saved = batch.State()
			if steps--; steps == 0 {
				fmt.Println("interrupted")
				return
			}
		}
	}
	train(nwt.State{}, 2, 3) // to the end of epoch 0, whose state is saved
	train(saved, 2, 1)
	train(saved, 2, -1)
	// Output:
	// 0 0 [2 4 9 6] false
	// 0 1 [5 1 0 7] false
	// 0 2 [3 8] true
	// interrupted
	// 1 0 [6 0 2 7] false
	// interrupted
	// 1 1 [4 1 3 8] false
	// 1 2 [9 5] true
}

// A program that was stopped in the middle of an epoch goes on with the rest of
// it, here with fewer workers and smaller batches.
func ExampleLoader_Resume() {
	ctx := context.Background()
	before, err := nwt.NewLoader(counting(10), nwt.WithShuffle(42), nwt.WithBatchSize(3), nwt.WithWorkers(4))
	if err != nil {
		log.Fatal(err)
	}
	defer before.Close()
	var saved []byte
	for batch, err := range before.Epoch(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(nwt.Values[int64](batch, 0))
		if batch.Index() == 1 {
			if saved, err = json.Marshal(batch.State()); err != nil {
				log.Fatal(err)
			}
			break
		}
	}
	fmt.Println(string(saved))

	after, err := nwt.NewLoader(counting(10), nwt.WithShuffle(42), nwt.WithBatchSize(2), nwt.WithWorkers(1))
	if err != nil {
		log.Fatal(err)
	}
	defer after.Close()
	var state nwt.State
	if err := json.Unmarshal(saved, &state); err != nil {
		log.Fatal(err)
	}
	for batch, err := range after.Resume(ctx, state) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(nwt.Values[int64](batch, 0))
	}
	// Output:
	// [2 4 9]
	// [6 5 1]
	// {"epoch":0,"samples":6}
	// [0 7]
	// [3 8]
}

// More workers, or fewer, while an epoch is running.
func ExampleLoader_SetWorkers() {
	loader, err := nwt.NewLoader(counting(8), nwt.WithBatchSize(2), nwt.WithWorkers(1))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("workers:", loader.Workers(), nwt.Values[int64](batch, 0))
		if batch.Index() == 1 {
			if err := loader.SetWorkers(4); err != nil {
				log.Fatal(err)
			}
		}
	}
	// Output:
	// workers: 1 [0 1]
	// workers: 1 [2 3]
	// workers: 4 [4 5]
	// workers: 4 [6 7]
}

// The error comes after every batch before it, and says which sample it was.
func ExampleLoadError() {
	ds := nwt.NewDataset(8, []nwt.Field{{Name: "x", Type: nwt.Float32}},
		func(_ context.Context, i int, dst *nwt.Sample) error {
			if i == 5 {
				return errors.New("the file ends too early")
			}
			nwt.Values[float32](dst, 0)[0] = float32(i)
			return nil
		})
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 3) {
		if err != nil {
			var bad *nwt.LoadError
			if !errors.As(err, &bad) {
				log.Fatal(err)
			}
			fmt.Printf("sample %d of epoch %d: %v\n", bad.Index, bad.Epoch, bad.Err)
			break
		}
		fmt.Println(nwt.Values[float32](batch, 0))
	}
	// Output:
	// [0 1]
	// [2 3]
	// sample 5 of epoch 3: the file ends too early
}

// Training goes on without two of eight samples, and can tell which.
func ExampleWithErrorBudget() {
	ds := nwt.NewDataset(8, []nwt.Field{{Name: "x", Type: nwt.Float32}},
		func(_ context.Context, i int, dst *nwt.Sample) error {
			if i%4 == 1 {
				return errors.New("the file ends too early")
			}
			nwt.Values[float32](dst, 0)[0] = float32(i)
			return nil
		})
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(3), nwt.WithErrorBudget(2),
		nwt.WithLogger(slog.New(slog.DiscardHandler))) // by default each is a warning in the log
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(nwt.Values[float32](batch, 0))
	}
	for _, bad := range loader.BadSamples() {
		fmt.Printf("left out: sample %d: %v\n", bad.Index, bad.Err)
	}
	// Output:
	// [0 2]
	// [3 4]
	// [6 7]
	// left out: sample 1: the file ends too early
	// left out: sample 5: the file ends too early
}

// A curriculum is a sampler: from easy to hard in the first epoch, as the one
// that it embeds in those after it.
type curriculum struct {
	easyFirst []int
	nwt.Sampler
}

func (c curriculum) At(epoch, i int) int {
	if epoch == 0 {
		return c.easyFirst[i]
	}
	return c.Sampler.At(epoch, i)
}

// An order of one's own needs Len, here that of Shuffled, and At.
func ExampleWithSampler() {
	difficulty := []float32{0.9, 0.1, 0.5, 0.3, 0.8, 0.2}
	ds := nwt.NewDataset(len(difficulty), []nwt.Field{{Name: "difficulty", Type: nwt.Float32}},
		func(_ context.Context, i int, dst *nwt.Sample) error {
			nwt.Values[float32](dst, 0)[0] = difficulty[i]
			return nil
		})
	easyFirst := []int{0, 1, 2, 3, 4, 5}
	slices.SortFunc(easyFirst, func(a, b int) int { return cmp.Compare(difficulty[a], difficulty[b]) })
	order := curriculum{easyFirst, nwt.Shuffled(len(difficulty), 1)}

	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(6), nwt.WithSampler(order))
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
	// [0.1 0.2 0.3 0.5 0.8 0.9]
	// [0.8 0.2 0.3 0.9 0.1 0.5]
}

// Two ranks, in training a process each, share the samples of an epoch: none
// comes twice, none is left out.
func ExampleWithRank() {
	for rank := range 2 {
		loader, err := nwt.NewLoader(counting(10), nwt.WithRank(rank, 2), nwt.WithShuffle(42), nwt.WithBatchSize(3))
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("rank %d: %v\n", rank, nwt.Values[int64](batch, 0))
		}
		if err := loader.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// rank 0: [2 4 9]
	// rank 0: [0 7]
	// rank 1: [6 5 1]
	// rank 1: [3 8]
}

// A sample that never comes becomes an error that names it.
func ExampleWithTimeout() {
	ds := nwt.NewDataset(4, []nwt.Field{{Name: "x", Type: nwt.Float32}},
		func(ctx context.Context, i int, dst *nwt.Sample) error {
			if i == 2 { // a server that doesn't answer
				<-ctx.Done()
				return ctx.Err()
			}
			nwt.Values[float32](dst, 0)[0] = float32(i)
			return nil
		})
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(2), nwt.WithWorkers(2), nwt.WithTimeout(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			var bad *nwt.LoadError
			if !errors.As(err, &bad) {
				log.Fatal(err)
			}
			fmt.Printf("sample %d: %v\n", bad.Index, bad.Err)
			break
		}
		fmt.Println(nwt.Values[float32](batch, 0))
	}
	// Output:
	// [0 1]
	// sample 2: no answer within WithTimeout(1s): context deadline exceeded
}

// Several epochs as one sequence: while the last batches of an epoch are in use, the
// first of the next one are loaded.
func ExampleLoader_Epochs() {
	loader, err := nwt.NewLoader(counting(4), nwt.WithShuffle(42), nwt.WithBatchSize(3))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epochs(context.Background(), 0, 2) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("epoch", batch.Epoch(), "batch", batch.Index(), nwt.Values[int64](batch, 0))
	}
	// Output:
	// epoch 0 batch 0 [1 2 0]
	// epoch 0 batch 1 [3]
	// epoch 1 batch 0 [0 1 2]
	// epoch 1 batch 1 [3]
}

// busy is the error of a store that can't answer now, but may soon.
type busy struct{}

func (busy) Error() string   { return "the store is busy" }
func (busy) Temporary() bool { return true }

// A sample whose error calls itself temporary is loaded again.
func ExampleWithRetry() {
	asked := 0
	store := nwt.NewDataset(3, []nwt.Field{{Name: "number", Type: nwt.Int64}},
		func(_ context.Context, i int, dst *nwt.Sample) error {
			if asked++; i == 1 && asked < 4 {
				return fmt.Errorf("sample %d: %w", i, busy{})
			}
			nwt.Values[int64](dst, 0)[0] = int64(i)
			return nil
		})
	loader, err := nwt.NewLoader(store, nwt.WithWorkers(0), nwt.WithRetry(5, time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(nwt.Values[int64](batch, 0), "asked", asked, "times")
	}
	// Output: [0 1 2] asked 5 times
}
