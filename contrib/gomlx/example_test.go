package gomlx_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/gomlx/gomlx/ml/train/loss"
	"github.com/gomlx/gomlx/ml/train/optimizer"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/contrib/gomlx"
)

// GoMLX's own loop finds the line that a dataset's points lie on.
func ExampleAdapter_Dataset() {
	var schema nwt.Schema
	x := nwt.AddField[float32](&schema, "x", 1)
	y := nwt.AddField[float32](&schema, "y")
	points := nwt.NewDataset(512, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		at := float32(i)/256 - 1
		x.Of(dst)[0], y.Of(dst)[0] = at, 3*at-1
		return nil
	})
	loader, err := nwt.NewLoader(points, nwt.WithBatchSize(32), nwt.WithShuffle(1))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()

	backend := gobackend.GetBackend()
	adapter, err := gomlx.New(gomlx.Config{Backend: backend, Labels: []string{"y"}})
	if err != nil {
		log.Fatal(err)
	}
	line := func(scope *model.Scope, _ any, inputs []*graph.Node) []*graph.Node {
		return []*graph.Node{layers.DenseWithBias(scope.In("line"), inputs[0], 1)}
	}
	trainer := train.NewTrainer(backend, model.NewStore(), line, loss.MeanSquaredError,
		optimizer.Adam().LearningRate(0.05).Done(), nil, nil)
	metrics, err := train.NewLoop(trainer).RunEpochs(adapter.Dataset(context.Background(), "points", loader), 20)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("loss below 0.001:", tensors.ToScalar[float32](metrics[0]) < 0.001)
	// Output: loss below 0.001: true
}
