//go:build unix

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
	"github.com/nwt-go/nwt/serve"
	"github.com/nwt-go/nwt/serve/internal/pydata"
)

// A program is what makes samples in Python. Its descriptors are inherited; 0: none.
type program struct {
	Command []string `json:"command"` // starts the template
	Setup   uintptr  `json:"setup"`   // what the template reads
	Stderr  uintptr  `json:"stderr"`
	Timeout float64  `json:"timeout"` // seconds per sample; 0: none

	Weights uintptr `json:"weights"` // float64 per sample
	Order   uintptr `json:"order"`   // a written order
	Draws   int     `json:"draws"`   // samples per epoch, with Weights or Order
	Once    bool    `json:"once"`    // whether an epoch has a sample at most once, with Weights
	Lengths uintptr `json:"lengths"` // int64 per sample
	Tokens  int     `json:"tokens"`  // per batch, with Lengths; 0: a batch has a number of samples
}

// inherited returns what is in a file that the program that started this one has written.
func inherited(descriptor uintptr) ([]byte, error) {
	file := os.NewFile(descriptor, "inherited")
	if file == nil {
		return nil, fmt.Errorf("descriptor %d isn't one", descriptor)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(file, 0, info.Size()))
}

// open starts the template, which ends with this process, as its children do. The program has a dataset, or a
// function of the samples of input. setup is what it was told.
func (p *program) open(ctx context.Context, input nwt.Dataset) (ds *pydata.Dataset, setup []byte, err error) {
	if setup, err = inherited(p.Setup); err != nil {
		return nil, nil, err
	}
	ds, err = pydata.Open(ctx, pydata.Config{
		Command: p.Command, Setup: setup, Stdout: os.Stdout, Stderr: os.NewFile(p.Stderr, "stderr"),
		Timeout: time.Duration(p.Timeout * float64(time.Second)), Input: input,
	})
	return ds, setup, err
}

// changed returns what the program's function makes of pictures, and its name.
func (p *program) changed(ctx context.Context, pictures nwt.Dataset) (made nwt.Dataset, name string, err error) {
	ds, _, err := p.open(ctx, pictures)
	if err != nil {
		return nil, "", err
	}
	return ds, "transform " + ds.Fingerprint(), nil
}

// server serves the samples of the program's dataset.
func (p *program) server(ctx context.Context, s *settings, with ...serve.ServerOption) (*serve.Server, *dataset, error) {
	ds, setup, err := p.open(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	opts, with := s.options("python "+hash(setup), with)
	order, err := p.order(ds.Len(), s.batch, s.seed)
	switch {
	case err != nil:
		return nil, nil, err
	case order != nil:
		opts = append(opts, nwt.WithSampler(order))
	case s.shuffle:
		opts = append(opts, nwt.WithShuffle(s.seed))
	}
	none := func() []byte { return nil } // samples aren't files
	with = append(with, serve.WithLoader(opts...), serve.WithAbout(map[string]any{"drop_last": s.dropLast, "tree": ds.Tree()}),
		serve.WithMore("files", none), serve.WithMore("marks", none))
	server, err := serve.New(ctx, ds, with...)
	if w, ok := order.(*written); ok {
		w.served.Store(true)
	}
	return server, &dataset{marks: func() string { return "" }}, err
}

// order returns the order of n samples that the program has asked for, or nil.
func (p *program) order(n, batch int, seed uint64) (nwt.Sampler, error) {
	switch {
	case p.Weights != 0:
		weights, err := numbers(p.Weights, n, "weights", func(bits uint64) float64 { return math.Float64frombits(bits) })
		if err != nil {
			return nil, err
		}
		draws := p.Draws
		if draws == 0 {
			draws = n
		}
		if p.Once {
			return sampler.WeightedWithoutReplacement(weights, draws, seed)
		}
		return sampler.Weighted(weights, draws, seed)
	case p.Order != 0:
		return &written{file: os.NewFile(p.Order, "order"), n: p.Draws, samples: n}, nil
	case p.Lengths != 0:
		lengths, err := numbers(p.Lengths, n, "lengths", func(bits uint64) int { return int(bits) })
		if err != nil {
			return nil, err
		}
		of := func(i int) int { return lengths[i] }
		if p.Tokens > 0 {
			return sampler.TokenBatches(n, of, sampler.Tokens{Max: p.Tokens, MaxSamples: batch}, seed)
		}
		return sampler.Bucketed(n, of, sampler.Buckets{BatchSize: batch}, seed)
	}
	return nil, nil
}

// A written order is one that the program writes into a file, an epoch before it asks for a batch of it: see
// nwt/_orders.py.
type written struct {
	file    *os.File
	n       int         // indices of an epoch
	samples int         // of the dataset
	served  atomic.Bool // before that, while workers are tuned, samples come in their own order
}

func (w *written) Len() int            { return w.n }
func (w *written) Fingerprint() string { return "order" }

func (w *written) At(epoch, i int) int {
	word := make([]byte, 8)
	read := func(at int) (int, error) {
		_, err := w.file.ReadAt(word, int64(8*at))
		return int(binary.NativeEndian.Uint64(word)), err
	}
	if w.served.Load() {
		for _, part := range []int{0, 1 + w.n} {
			if of, err := read(part); err == nil && of == 1+epoch {
				index, err := read(part + 1 + i)
				if err != nil {
					panic(fmt.Errorf("the order of epoch %d: %w", epoch, err))
				}
				return index
			}
		}
		if epoch > 0 { // a rank's share of epoch 0 is described before that is written
			panic(fmt.Sprintf("the program hasn't written the order of epoch %d", epoch))
		}
	}
	return i % w.samples
}

func numbers[T any](descriptor uintptr, n int, name string, of func(bits uint64) T) ([]T, error) {
	data, err := inherited(descriptor)
	if err != nil {
		return nil, err
	}
	if len(data) != 8*n {
		return nil, fmt.Errorf("%s: there are %d, but %d samples", name, len(data)/8, n)
	}
	all := make([]T, n)
	for i := range all {
		all[i] = of(binary.NativeEndian.Uint64(data[8*i:]))
	}
	return all, nil
}
