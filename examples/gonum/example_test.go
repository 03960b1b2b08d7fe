// Package gonum shows a batch as a matrix of gonum's.
package gonum

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"

	"github.com/nwt-go/nwt"
)

var truth = mat.NewVecDense(3, []float64{2, -1, 0.5})

// The fields of a sample.
var (
	schema nwt.Schema
	vector = nwt.AddField[float64](&schema, "x", 3)
	scalar = nwt.AddField[float64](&schema, "y")
)

// points is n vectors x, and y = truth·x with a little noise.
func points(n int) nwt.Dataset {
	return nwt.NewDataset(n, schema.Fields(), func(_ context.Context, _ int, dst *nwt.Sample) error {
		x, rng := vector.Of(dst), dst.Rand()
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		scalar.Of(dst)[0] = mat.Dot(mat.NewVecDense(3, x), truth) + 0.01*rng.NormFloat64()
		return nil
	})
}

// The float64s of a batch are a matrix, a row for each sample, without a copy:
// mat.NewDense uses the slice that it is given. Here a line is fitted by least
// squares, of which only sums outlive their batch. To keep the matrix itself past
// the next iteration, Retain the batch, and Release it when that is done with.
func Example() {
	loader, err := nwt.NewLoader(points(1000), nwt.WithBatchSize(128), nwt.WithShuffle(1))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()

	xx, xy := mat.NewDense(3, 3, nil), mat.NewVecDense(3, nil) // Σ xᵀx and Σ xᵀy
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		x := mat.NewDense(batch.Len(), 3, vector.Of(batch))
		y := mat.NewVecDense(batch.Len(), scalar.Of(batch))
		var a mat.Dense
		a.Mul(x.T(), x)
		xx.Add(xx, &a)
		var b mat.VecDense
		b.MulVec(x.T(), y)
		xy.AddVec(xy, &b)
	}
	var fitted mat.VecDense
	if err := fitted.SolveVec(xx, xy); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.2f\n", fitted.RawVector().Data)
	// Output:
	// [2.00 -1.00 0.50]
}

func TestTheMatrixIsTheBatchesMemory(t *testing.T) {
	loader, err := nwt.NewLoader(points(10), nwt.WithBatchSize(4))
	require.NoError(t, err)
	defer loader.Close()
	for batch, err := range loader.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		values := vector.Of(batch)
		x := mat.NewDense(batch.Len(), 3, values)
		last := batch.Len() - 1
		require.Equal(t, values[3*last+1], x.At(last, 1))
		x.Set(last, 1, 42)
		require.Equal(t, 42.0, values[3*last+1])
		require.Zero(t, testing.AllocsPerRun(10, func() { mat.NewDense(batch.Len(), 3, values).Set(0, 0, 1) }))
	}
}
