package main

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/nwt-go/nwt"
)

// A network is a perceptron with one hidden layer, for batches of a fixed size.
type network struct {
	x, y    *gorgonia.Node
	loss    gorgonia.Value
	machine gorgonia.VM
	solver  gorgonia.Solver
	weights []gorgonia.ValueGrad
}

func newNetwork(batch, inputs, hidden, classes int) (*network, error) {
	g := gorgonia.NewGraph()
	n := &network{
		x:      gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(batch, inputs), gorgonia.WithName("x")),
		y:      gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(batch, classes), gorgonia.WithName("y")),
		solver: gorgonia.NewAdamSolver(gorgonia.WithLearnRate(0.01)),
	}
	weights := func(name string, rows, columns int) *gorgonia.Node {
		return gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(rows, columns), gorgonia.WithName(name), gorgonia.WithInit(gorgonia.GlorotN(1)))
	}
	w1, b1 := weights("w1", inputs, hidden), weights("b1", 1, hidden)
	w2, b2 := weights("w2", hidden, classes), weights("b2", 1, classes)

	// Must panics if shapes don't match, which no argument can cause.
	layer := func(x, w, b *gorgonia.Node) *gorgonia.Node {
		return gorgonia.Must(gorgonia.BroadcastAdd(gorgonia.Must(gorgonia.Mul(x, w)), b, nil, []byte{0}))
	}
	h := gorgonia.Must(gorgonia.Rectify(layer(n.x, w1, b1)))
	odds := gorgonia.Must(gorgonia.SoftMax(layer(h, w2, b2)))
	right := gorgonia.Must(gorgonia.HadamardProd(gorgonia.Must(gorgonia.Log(odds)), n.y))
	loss := gorgonia.Must(gorgonia.Neg(gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Sum(right, 1))))))
	gorgonia.Read(loss, &n.loss)

	learn := gorgonia.Nodes{w1, b1, w2, b2}
	if _, err := gorgonia.Grad(loss, learn...); err != nil {
		return nil, err
	}
	n.machine = gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(learn...))
	n.weights = gorgonia.NodesToValueGrads(learn)
	return n, nil
}

// step trains on a batch and returns the loss before the step.
func (n *network) step(b *nwt.Batch) (loss float32, err error) {
	if err := errors.Join(gorgonia.Let(n.x, over(b, point)), gorgonia.Let(n.y, over(b, oneHot))); err != nil {
		return 0, err
	}
	defer n.machine.Reset()
	if err := n.machine.RunAll(); err != nil {
		return 0, err
	}
	loss, ok := n.loss.Data().(float32)
	if !ok {
		return 0, fmt.Errorf("the loss is a %T", n.loss.Data())
	}
	return loss, n.solver.Step(n.weights)
}

// over returns a tensor that uses the memory of a batch's field, with a row for each sample, without a
// copy. It is valid as long as the batch is: until the next iteration or, if the batch is retained, until
// Release.
func over(b *nwt.Batch, field nwt.Column[float32]) *tensor.Dense {
	values := field.Of(b)
	return tensor.New(tensor.WithShape(b.Len(), len(values)/b.Len()), tensor.WithBacking(values))
}
