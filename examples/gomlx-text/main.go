// Gomlx-text fine-tunes a small text classifier from JSON lines, on GoMLX's backend in Go: it first
// learns from film reviews, then continues with fewer reviews of food. Sentences are tokenized while they
// load, shuffled, and batched with others of similar length.
//
// You may kill it at any time: the same command continues where it was. The program makes up the reviews,
// so it needs no network.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/model/checkpoint"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/gomlx/gomlx/ml/train/loss"
	"github.com/gomlx/gomlx/ml/train/metric"
	"github.com/gomlx/gomlx/ml/train/optimizer"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/contrib/gomlx"
	"github.com/nwt-go/nwt/sampler"
)

const batchSize, epochs = 32, 3

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gomlx-text:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("gomlx-text", flag.ExitOnError)
	dir := flags.String("dir", filepath.Join(os.TempDir(), "gomlx-text"), "`folder` of the reviews and checkpoints")
	n := flags.Int("reviews", 3000, "`number` of film reviews; a fifth as many are of food")
	every := flags.Int("every", 25, "`steps` between checkpoints")
	_ = flags.Parse(args) // exits if parsing fails
	if *n < 100 || *every < 1 {
		return fmt.Errorf("-reviews %d, -every %d: must be at least 100 and 1", *n, *every)
	}
	pretrained := ""
	for i, topic := range []string{"films", "food"} {
		own := filepath.Join(*dir, topic)
		err := errors.Join(
			writeReviews(filepath.Join(own, "train.jsonl"), topic, *n/(1+4*i), uint64(i)),
			writeReviews(filepath.Join(own, "test.jsonl"), topic, 500, uint64(10+i)))
		if err != nil {
			return err
		}
		if err := fit(ctx, own, pretrained, *every, stdout); err != nil {
			return err
		}
		pretrained = own
	}
	return nil
}

// progress is saved together with the model: GoMLX's checkpoints hold the parameters of a store, and this
// is one of them, as JSON. State is enough to resume; Seen shows that resuming works.
type progress struct {
	State nwt.State `json:"state"`
	Seen  []int     `json:"seen"` // how many times each review was trained on
}

const progressParam = "progress"

// load makes a handler of the checkpoints in dir, and loads the latest into store. GoMLX writes a
// checkpoint's JSON last: if the program was killed before, that file isn't whole, and the checkpoint before
// is the latest.
func load(store *model.Store, dir string) (*checkpoint.Handler, error) {
	names, err := fs.Glob(os.DirFS(dir), "checkpoint-*"+checkpoint.JsonNameSuffix)
	for _, name := range names {
		text, failed := os.ReadFile(filepath.Join(dir, name))
		if failed == nil && !json.Valid(text) {
			failed = os.Remove(filepath.Join(dir, name))
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, err
	}
	return checkpoint.Build(store).Dir(dir).Keep(2).Immediate().Done()
}

// fit trains on dir/train.jsonl. It continues from the checkpoint in dir; if there is none, it begins
// with the model of the checkpoint in pretrained.
func fit(ctx context.Context, dir, pretrained string, every int, stdout io.Writer) error {
	reviews, length, err := openReviews(filepath.Join(dir, "train.jsonl"))
	if err != nil {
		return err
	}
	order, err := sampler.Bucketed(reviews.Len(), length, sampler.Buckets{BatchSize: batchSize}, 42)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(reviews, nwt.WithBatchSize(batchSize), nwt.WithSampler(order), nwt.WithAutoWorkers())
	if err != nil {
		return err
	}
	defer loader.Close()

	backend := gobackend.GetBackend()
	adapter, err := gomlx.New(gomlx.Config{Backend: backend, Labels: []string{"label"}})
	if err != nil {
		return err
	}
	store := model.NewStore()
	store.SetParam(model.ParamInitialSeed, int64(1))
	at := progress{Seen: make([]int, reviews.Len())}
	checkpoints, err := load(store, dir)
	if err != nil {
		return err
	}
	saved, found := store.GetParam(progressParam)
	if found {
		err = json.Unmarshal([]byte(saved.(string)), &at)
	} else if pretrained != "" {
		_, err = checkpoint.Load(store).Dir(pretrained).ExcludeParams(progressParam).Immediate().Done()
	}
	if err != nil {
		return err
	}
	if len(at.Seen) != reviews.Len() {
		return fmt.Errorf("%s has a checkpoint of %d reviews, not of %d: use another -dir", dir, len(at.Seen), reviews.Len())
	}
	trainer := train.NewTrainer(backend, store, classifier, loss.SparseCategoricalCrossEntropyLogits,
		optimizer.Adam().LearningRate(0.02).Done(), nil,
		[]metric.Interface{metric.NewSparseCategoricalAccuracy("accuracy", "acc")})
	if found {
		fmt.Fprintf(stdout, "%s: goes on after %d reviews of epoch %d\n", filepath.Base(dir), at.State.Samples, at.State.Epoch)
	} else if err := evaluate(ctx, trainer, adapter, dir, "before", stdout); err != nil {
		return err
	}

	steps := 0
	for batch, err := range loader.ResumeEpochs(ctx, at.State, epochs) {
		if err != nil {
			return err
		}
		onBackend, err := adapter.Batch(batch)
		if err != nil {
			return err
		}
		metrics, err := trainer.TrainStep(onBackend)
		if err != nil {
			return err
		}
		at.State = batch.State()
		for _, i := range batch.Indices() {
			at.Seen[i]++
		}
		if steps++; steps%every == 0 || batch.Last() {
			fmt.Fprintf(stdout, "%s: epoch %d, %d reviews, loss %.3f\n",
				filepath.Base(dir), at.State.Epoch, at.State.Samples, tensors.ToScalar[float32](metrics[0]))
			text, err := json.Marshal(at)
			if err != nil {
				return err
			}
			store.SetParam(progressParam, string(text))
			if err := checkpoints.Save(); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(stdout, "%s: each review was trained on at least %d times and at most %d times\n",
		filepath.Base(dir), slices.Min(at.Seen), slices.Max(at.Seen))
	return evaluate(ctx, trainer, adapter, dir, "after", stdout)
}

// evaluate returns how many of the held-back reviews the model judges correctly.
func evaluate(ctx context.Context, trainer *train.Trainer, adapter *gomlx.Adapter, dir, when string, stdout io.Writer) error {
	reviews, _, err := openReviews(filepath.Join(dir, "test.jsonl"))
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(reviews, nwt.WithBatchSize(100))
	if err != nil {
		return err
	}
	defer loader.Close()
	metrics, err := trainer.Eval(adapter.Dataset(ctx, "test", loader))
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: accuracy %s training: %.1f %%\n", filepath.Base(dir), when, 100*tensors.ToScalar[float32](metrics[1]))
	return nil
}

// classifier computes the mean of a review's token vectors, which are learned, and applies a dense layer.
// It gets the fields that aren't labels: the padded tokens, and how many of them are real.
func classifier(scope *model.Scope, tokens, lengths *graph.Node) *graph.Node {
	vectors := layers.Embedding(scope.In("tokens"), tokens, dtypes.Float32, vocabulary, 16)
	places := graph.Iota(tokens.Graph(), shapes.Make(dtypes.Int32, tokens.Shape().Dimensions...), 1)
	isToken := graph.LessThan(places, graph.BroadcastToDims(graph.ExpandAxes(lengths, -1), tokens.Shape().Dimensions...))
	isToken = graph.BroadcastToDims(graph.ExpandAxes(isToken, -1), vectors.Shape().Dimensions...)
	return layers.DenseWithBias(scope.In("verdict"), graph.MaskedReduceMean(vectors, isToken, 1), 2)
}
