package nwt_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt"
)

// A training program in full: a dataset, the worker count that suits this machine, and the
// loop. The batches are the same at every worker count.
func ExampleNewTunedLoader() {
	ctx := context.Background()
	var schema nwt.Schema
	image := nwt.AddField[float32](&schema, "image", 3, 8, 8)
	label := nwt.AddField[int64](&schema, "label")
	ds := nwt.NewDataset(10_000, schema.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		label.Of(dst)[0] = int64(i % 10)
		return draw(i, image.Of(dst)) // or decode file number i
	})
	loader, err := nwt.NewTunedLoader(ctx, ds, nwt.WithBatchSize(64), nwt.WithShuffle(42), nwt.WithMaxWorkers(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	log.Println(loader.Result()) // the table of what was measured
	train, samples := func(images []float32, labels []int64) {}, 0
	for epoch := range 3 {
		for batch, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				log.Fatal(err)
			}
			train(image.Of(batch), label.Of(batch))
			samples += batch.Len()
		}
	}
	fmt.Println(samples, "samples")
	// Output: 30000 samples
}

// draw stands for a decoder.
func draw(i int, pixels []float32) error {
	for k := range pixels {
		pixels[k] = float32(i+k) / 10_000
	}
	return nil
}

// How many workers does training need so that it doesn't wait? WithStep runs the training
// step on each batch, and Result has every figure behind the answer.
func ExampleTune() {
	ctx := context.Background()
	var schema nwt.Schema
	image := nwt.AddField[float32](&schema, "image", 3, 8, 8)
	ds := nwt.NewDataset(10_000, schema.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		return draw(i, image.Of(dst))
	})
	opts := []nwt.Option{nwt.WithBatchSize(64), nwt.WithShuffle(42)} // for tuning and training
	res, err := nwt.Tune(ctx, ds, append(opts,
		nwt.WithMaxWorkers(2),
		nwt.WithIterations(20),
		nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
			time.Sleep(2 * time.Millisecond) // forward, backward, update
			return nil
		}))...)
	if err != nil {
		log.Fatal(err)
	}
	for _, trial := range res.Trials {
		log.Printf("%d workers: %v per batch, %v of it waiting", trial.Workers, trial.Mean, trial.Wait)
	}
	fmt.Println("perfect loading leaves the step:", res.Floor >= 2*time.Millisecond)

	loader, err := nwt.NewLoader(ds, append(opts, nwt.WithWorkers(res.Workers))...)
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	fmt.Println(loader.Len(), "batches per epoch")
	// Output:
	// perfect loading leaves the step: true
	// 157 batches per epoch
}

// Training augments what validation takes as it is; both are decoded by the same code.
// LoadSample shows a sample before anything is trained on it.
func ExampleNewDataset() {
	ctx := context.Background()
	var schema nwt.Schema
	image := nwt.AddField[uint8](&schema, "image", 3)
	label := nwt.AddField[int64](&schema, "label")
	files := nwt.NewDataset(10, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		image.Set(dst, uint8(i), uint8(10*i), uint8(20*i)) // decoded from file i
		label.Set(dst, int64(i%2))
		return nil
	})
	parts, err := nwt.Split(files, 42, 0.8, 0.2)
	if err != nil {
		log.Fatal(err)
	}
	validation := parts[1]
	training := nwt.Map(parts[0], schema.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		image.Set(dst, image.Of(src)...)
		label.Set(dst, label.Of(src)...)
		if pixels := image.Of(dst); dst.Rand().IntN(2) == 1 { // another draw in each epoch, the same at every worker count
			pixels[0], pixels[2] = pixels[2], pixels[0]
		}
		return nil
	})
	for i, ds := range []nwt.Dataset{training, validation} {
		sample, err := nwt.LoadSample(ctx, ds, 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println([]string{"training", "validation"}[i], ds.Len(), image.Of(sample), label.Of(sample))
	}
	// Output:
	// training 8 [80 40 4] [0]
	// validation 2 [5 50 100] [1]
}

// Records that can only be read in sequence: each shard is a log of temperatures. An
// epoch has each record once, one of each shard in turn.
func ExampleStreamed() {
	var schema nwt.Schema
	celsius := nwt.AddField[float64](&schema, "celsius")
	stream := logs{schema.Fields(), celsius, [][]string{{"11.5", "12", "12.5"}, {"-3", "-2"}}}
	loader, err := nwt.NewLoader(nwt.Streamed(stream), nwt.WithBatchSize(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(celsius.Of(batch))
	}
	// Output:
	// [11.5 -3]
	// [12 -2]
	// [12.5]
}

type logs struct {
	fields  []nwt.Field
	celsius nwt.Column[float64]
	files   [][]string
}

func (s logs) Fields() []nwt.Field { return s.fields }
func (s logs) Shards() int         { return len(s.files) }

func (s logs) Open(_ context.Context, shard int) (nwt.ShardReader, error) {
	return &logReader{s.files[shard]}, nil // or a file, an object, a query
}

// Load is for the work: it runs in as many workers as there are.
func (s logs) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) (err error) {
	s.celsius.Of(dst)[0], err = strconv.ParseFloat(string(r.Data), 64)
	return err
}

type logReader struct{ lines []string }

// Next only reads: a shard is read by one goroutine at a time.
func (l *logReader) Next(_ context.Context, r *nwt.Record) error {
	if len(l.lines) == 0 {
		return io.EOF
	}
	r.Data = append(r.Data[:0], l.lines[0]...)
	l.lines = l.lines[1:]
	return nil
}

func (l *logReader) Close() error { return nil }

// A program that is stopped in the middle of an epoch goes on where it was, here with
// fewer workers and smaller batches. The zero State is the start of training.
func ExampleLoader_ResumeEpochs() {
	numbers := make([]int64, 10)
	for i := range numbers {
		numbers[i] = int64(i)
	}
	ds, err := nwt.FromSlices(nwt.SliceOf("number", numbers))
	if err != nil {
		log.Fatal(err)
	}
	number, err := nwt.ColumnOf[int64](ds, "number")
	if err != nil {
		log.Fatal(err)
	}
	saved := []byte("{}") // with the model's checkpoint
	run := func(steps int, opts ...nwt.Option) {
		loader, err := nwt.NewLoader(ds, append(opts, nwt.WithShuffle(42))...)
		if err != nil {
			log.Fatal(err)
		}
		defer loader.Close()
		var state nwt.State
		if err := json.Unmarshal(saved, &state); err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.ResumeEpochs(context.Background(), state, 2) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("epoch", batch.Epoch(), number.Of(batch))
			if saved, err = json.Marshal(batch.State()); err != nil {
				log.Fatal(err)
			}
			if steps--; steps == 0 {
				fmt.Printf("stopped at %s\n", saved)
				return
			}
		}
	}
	run(2, nwt.WithBatchSize(3), nwt.WithWorkers(4))
	run(-1, nwt.WithBatchSize(5), nwt.WithWorkers(1))
	// Output:
	// epoch 0 [4 0 7]
	// epoch 0 [3 1 5]
	// stopped at {"epoch":0,"samples":6,"order":"215001221121122"}
	// epoch 0 [6 8 9 2]
	// epoch 1 [8 7 3 2 9]
	// epoch 1 [6 4 1 0 5]
}

// Two ranks, in training a process each, share the samples of an epoch: none comes twice,
// none is left out. Each loads to its GPU, if it has one.
func ExampleWithRank() {
	numbers := []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	ds, err := nwt.FromSlices(nwt.SliceOf("number", numbers))
	if err != nil {
		log.Fatal(err)
	}
	number, err := nwt.ColumnOf[int64](ds, "number")
	if err != nil {
		log.Fatal(err)
	}
	device, err := nwt.CUDA(0) // the number of the rank on its host
	if errors.Is(err, nwt.ErrNoDevice) {
		device = nwt.Host()
	} else if err != nil {
		log.Fatal(err)
	}
	for rank := range 2 {
		loader, err := nwt.NewLoader(ds, nwt.WithRank(rank, 2), // or WithRankFromEnv
			nwt.WithDevice(device), nwt.WithShuffle(42), nwt.WithBatchSize(3))
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			// number.DevicePtr(batch) is where the batch is on the GPU.
			fmt.Println("rank", rank, number.Of(batch))
		}
		if err := loader.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// rank 0 [4 0 7]
	// rank 0 [6 8]
	// rank 1 [3 1 5]
	// rank 1 [9 2]
}

// Each batch of texts is as long as its longest text, here of at most 512 tokens. The rest
// is padded with 0. Lens returns how long each text is.
func ExampleSized() {
	texts := [][]int32{{5, 2, 9}, {7}, {1, 1, 2, 3, 5}, {8, 6}}
	var schema nwt.Schema
	tokens := nwt.AddRagged[int32](&schema, "tokens", 1, 512)
	ds := nwt.NewDataset(len(texts), schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		tokens.Set(dst, texts[i]...)
		return nil
	})
	ds = nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = len(texts[i]) }) // or from an index of the files
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(tokens.Shape(batch), tokens.Of(batch), tokens.Lens(batch, 0))
	}
	// Output:
	// [2 3] [5 2 9 7 0 0] [3 1]
	// [2 5] [1 1 2 3 5 8 6 0 0 0] [5 2]
}

// Each image is decoded once and kept in memory. The Map over the cache brightens pixels
// at random, differently in each epoch. The kept image stays as it is.
func ExampleCached() {
	var decoded atomic.Int64
	var schema nwt.Schema
	image := nwt.AddField[uint8](&schema, "image", 3)
	files := nwt.NewDataset(2, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		decoded.Add(1)
		image.Set(dst, uint8(100*i), uint8(100*i+10), uint8(100*i+20)) // decoded from file i
		return nil
	})
	cache := nwt.Cached(files, 1<<30)
	defer cache.Close()
	augmented := nwt.Map(cache, schema.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		for k, pixel := range image.Of(src) {
			image.Of(dst)[k] = pixel + uint8(dst.Rand().IntN(5))
		}
		return nil
	})
	loader, err := nwt.NewLoader(augmented, nwt.WithSeed(42))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epochs(context.Background(), 0, 2) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(image.Of(batch))
	}
	fmt.Println(decoded.Load(), "images decoded")
	// Output:
	// [0 10 23 101 110 123]
	// [2 12 21 102 111 122]
	// 2 images decoded
}

// The loader finds its worker count while training goes on, without measuring beforehand.
func ExampleWithAutoWorkers() {
	var schema nwt.Schema
	image := nwt.AddField[float32](&schema, "image", 3, 8, 8)
	ds := nwt.NewDataset(10_000, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		return draw(i, image.Of(dst))
	})
	loader, err := nwt.NewLoader(ds, nwt.WithAutoWorkers(), nwt.WithBatchSize(64), nwt.WithShuffle(42))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	train, samples := func(images []float32) {}, 0
	for batch, err := range loader.Epochs(context.Background(), 0, 3) {
		if err != nil {
			log.Fatal(err)
		}
		train(image.Of(batch))
		samples += batch.Len()
	}
	log.Println(loader.Workers(), "workers")
	if found := loader.Result(); found != nil { // nil until tuning has ended
		log.Println(found) // the table of what was measured
	}
	fmt.Println(samples, "samples")
	// Output: 30000 samples
}

// Other goroutines use the batches while the loop goes on. The loop retains a batch before
// it hands it over, and the goroutine releases it. Keep no more than 64 at a time.
func ExampleBatch_Retain() {
	var schema nwt.Schema
	number := nwt.AddField[int64](&schema, "number")
	ds := nwt.NewDataset(10, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		number.Set(dst, int64(i))
		return nil
	})
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(4))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	var sum atomic.Int64
	var using sync.WaitGroup
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		batch.Retain()
		using.Go(func() {
			defer batch.Release() // then the loader reuses its memory
			for _, n := range number.Of(batch) {
				sum.Add(n)
			}
		})
	}
	using.Wait()
	fmt.Println("sum", sum.Load())
	// Output: sum 45
}

// The state of a batch is saved with the model's checkpoint. Resume then yields the batches
// after it.
func ExampleBatch_State() {
	ds, err := nwt.FromSlices(nwt.SliceOf("number", []int64{0, 1, 2, 3, 4, 5, 6, 7}))
	if err != nil {
		log.Fatal(err)
	}
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(2), nwt.WithShuffle(42))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	var saved nwt.State // plain numbers, to save as JSON
	for batch, err := range loader.Epoch(context.Background(), 5) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("trained on", batch.Indices())
		if saved = batch.State(); batch.Number() == 1 {
			break // the program is stopped
		}
	}
	for batch, err := range loader.Resume(context.Background(), saved) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("resumed with", batch.Indices())
	}
	// Output:
	// trained on [0 5]
	// trained on [7 4]
	// resumed with [2 1]
	// resumed with [3 6]
}
