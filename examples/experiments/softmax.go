package main

import (
	"math"

	"gonum.org/v1/gonum/blas/blas32"
)

// softmax is a softmax regression, trained by gradient descent.
type softmax struct {
	weights, gradient []blas32.Vector // for each class
	odds              []float32       // for each class, for one sample
}

func newSoftmax(classes, inputs int) *softmax {
	s := &softmax{odds: make([]float32, classes)}
	for range classes {
		s.weights = append(s.weights, vector(make([]float32, inputs)))
		s.gradient = append(s.gradient, vector(make([]float32, inputs)))
	}
	return s
}

func vector(data []float32) blas32.Vector {
	return blas32.Vector{N: len(data), Inc: 1, Data: data}
}

// step trains on a batch and returns the mean loss before the step.
func (s *softmax) step(images []float32, labels []int64) float32 {
	for _, g := range s.gradient {
		clear(g.Data)
	}
	var loss float64
	n := s.weights[0].N
	for i, label := range labels {
		x := vector(images[i*n : (i+1)*n])
		var sum float32
		for c, w := range s.weights {
			s.odds[c] = float32(math.Exp(float64(blas32.Dot(x, w))))
			sum += s.odds[c]
		}
		loss -= math.Log(float64(s.odds[label] / sum))
		for c, g := range s.gradient {
			share := s.odds[c] / sum
			if int64(c) == label {
				share--
			}
			blas32.Axpy(share, x, g)
		}
	}
	const rate = 0.001
	for c, g := range s.gradient {
		blas32.Axpy(-rate/float32(len(labels)), g, s.weights[c])
	}
	return float32(loss / float64(len(labels)))
}
