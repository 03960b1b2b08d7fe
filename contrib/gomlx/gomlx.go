// Package gomlx feeds the batches of an [nwt.Loader] to training in GoMLX (github.com/gomlx/gomlx).
//
//	adapter, err := gomlx.New(gomlx.Config{Backend: backend, Labels: []string{"label"}})
//	…
//	loader, err := nwt.NewTunedLoader(ctx, images, nwt.WithBatchSize(128), nwt.WithShuffle(42),
//		nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
//			batch, err := adapter.Batch(b)
//			if err != nil {
//				return err
//			}
//			_, err = trial.TrainStep(batch) // trial is a trainer for tuning only
//			return err
//		}))
//	…
//	metrics, err := train.NewLoop(trainer).RunEpochs(adapter.Dataset(ctx, "cifar10", loader), 10)
//
// # Ownership
//
// The tensors of a batch belong to the code that gets the batch. GoMLX's trainer frees them after the step
// that uses them. GoMLX can't make a tensor from memory that it doesn't own, so each batch is copied from the
// loader's memory to the backend's memory. So you needn't retain or release batches.
package gomlx

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/train"

	"github.com/nwt-go/nwt"
)

// A Config says how batches become tensors.
type Config struct {
	// Backend is the GoMLX backend that gets the batches.
	Backend compute.Backend
	// Device is the backend's device to which batches are copied, 0 by default. The loader's own device
	// should be the host. For XLA on a GPU see [nwt.WithPinned].
	Device compute.DeviceNum
	// Labels names the fields of the loader that are labels. All other fields are inputs. There must be at
	// least one input.
	Labels []string
}

// An Adapter makes batches of GoMLX from batches of nwt. Its methods may be called from any goroutine.
//
// A field becomes a tensor. The tensor's first dimension is the number of samples, followed by the field's
// shape. Inputs and labels are both in the order of the fields. A scalar input gets the shape [n]. A scalar
// label gets the shape [n, 1], because GoMLX's losses and metrics expect it. A ragged field becomes two or
// more tensors. The first has the values, padded with zeros to [nwt.Batch.Shape]. For each ragged dimension, a
// further tensor, Int32 [n], has the lengths.
//
// GoMLX compiles the model again for each new shape. With [nwt.WithDropLast] all batches have the same
// number of samples. A ragged field always has the longest shape allowed, unless the dataset is an
// [nwt.SizedDataset]. Then let its Sizes round up, for example to multiples of 64, so that there are few
// shapes.
type Adapter struct {
	config Config

	mu      sync.Mutex
	of      []nwt.Field // guarded by mu; the fields that tensors was made for
	tensors []tensor    // guarded by mu; replaced as a whole
}

// A tensor says how a field becomes a tensor.
type tensor struct {
	name   string
	dtype  dtypes.DType
	column bool // a scalar label, which gets the shape [n, 1]
	label  bool
	ragged int // how many of the field's first dimensions are ragged
}

var types = map[nwt.DType]dtypes.DType{
	nwt.Bool:     dtypes.Bool,
	nwt.Uint8:    dtypes.Uint8,
	nwt.Int8:     dtypes.Int8,
	nwt.Uint16:   dtypes.Uint16,
	nwt.Int16:    dtypes.Int16,
	nwt.Uint32:   dtypes.Uint32,
	nwt.Int32:    dtypes.Int32,
	nwt.Int64:    dtypes.Int64,
	nwt.Float16:  dtypes.Float16,
	nwt.BFloat16: dtypes.BFloat16,
	nwt.Float32:  dtypes.Float32,
	nwt.Float64:  dtypes.Float64,
}

// New makes an adapter. If the backend is nil, the error is an *[nwt.ArgumentError]. If a loader lacks a
// field that Labels names, its batches fail with an error.
func New(c Config) (*Adapter, error) {
	if c.Backend == nil {
		return nil, &nwt.ArgumentError{Name: "gomlx.Config.Backend", Reason: "is nil: batches need a backend to be copied to"}
	}
	return &Adapter{config: c}, nil
}

// tensorsOf returns the tensors for a loader's fields. The error joins an *[nwt.ArgumentError] for each
// field or label that can't be used.
func (a *Adapter) tensorsOf(fields []nwt.Field) ([]tensor, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tensors != nil && slices.EqualFunc(a.of, fields, same) {
		return a.tensors, nil
	}
	var made []tensor
	var errs []error
	bad := func(what string, value any, reason string, args ...any) {
		errs = append(errs, &nwt.ArgumentError{Name: "gomlx." + what, Value: value, Reason: fmt.Sprintf(reason, args...)})
	}
	var names []string
	inputs := 0
	for i, f := range fields {
		t := tensor{
			name:   f.Name,
			dtype:  types[f.Type],
			label:  slices.Contains(a.config.Labels, f.Name),
			ragged: f.RaggedDims,
		}
		if t.dtype == dtypes.InvalidDType {
			bad("Fields", f.Type, "field %d (%q) must have a type that GoMLX has too", i, f.Name)
		}
		switch {
		case !t.label:
			inputs++
		case len(f.Shape) == 0:
			t.column = true
		}
		made = append(made, t)
		names = append(names, fmt.Sprintf("%q", f.Name))
	}
	for _, label := range a.config.Labels {
		if !slices.ContainsFunc(fields, func(f nwt.Field) bool { return f.Name == label }) {
			bad("Config.Labels", label, "must be one of the fields: %s", strings.Join(names, ", "))
		}
	}
	if inputs == 0 {
		bad("Config.Labels", a.config.Labels, "must leave at least one field as an input: %s", strings.Join(names, ", "))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	a.of, a.tensors = fields, made
	return made, nil
}

func same(a, b nwt.Field) bool {
	return a.Name == b.Name && a.Type == b.Type && a.RaggedDims == b.RaggedDims && slices.Equal(a.Shape, b.Shape)
}

// Batch copies a batch to tensors on the backend. The tensors belong to the caller, who no longer needs b.
// Use Batch in a training loop of your own, and in the step of nwt.WithStep. For GoMLX's loop, use
// [Adapter.Dataset].
func (a *Adapter) Batch(b *nwt.Batch) (batch train.Batch, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, batch.Finalize())
			batch = train.Batch{}
		}
	}()
	fields, err := a.tensorsOf(b.Fields())
	if err != nil {
		return batch, err
	}
	for i, f := range fields {
		to := &batch.Inputs
		if f.label {
			to = &batch.Labels
		}
		add := func(dtype dtypes.DType, dimensions []int, values []byte) error {
			t, err := tensors.FromRaw(a.config.Backend, a.config.Device, shapes.Make(dtype, dimensions...), values)
			if err != nil {
				return fmt.Errorf("gomlx: field %d (%q): %w", i, f.name, err)
			}
			*to = append(*to, t)
			return nil
		}
		dimensions := slices.Clone(b.Shape(i))
		if f.column {
			dimensions = append(dimensions, 1)
		}
		if err := add(f.dtype, dimensions, b.Bytes(i)); err != nil {
			return batch, err
		}
		for d := range f.ragged {
			if err := add(dtypes.Int32, []int{b.Len()}, dtypes.UnsafeByteSliceFromAny(b.Lens(i, d))); err != nil {
				return batch, err
			}
		}
	}
	return batch, nil
}

// Dataset makes the dataset on which GoMLX trains and evaluates. Each iteration yields the next epoch,
// beginning with epoch 0. When ctx ends, iterations end. The errors are those of [nwt.Loader.Epoch]. If an
// iteration begins while another runs, it ends with [nwt.ErrBusy].
//
// The loader still belongs to the caller, who closes it after training.
func (a *Adapter) Dataset(ctx context.Context, name string, l *nwt.Loader) *Dataset {
	return &Dataset{ctx: ctx, name: name, adapter: a, loader: l}
}

// A Dataset is GoMLX's [train.Dataset] over a loader.
type Dataset struct {
	ctx      context.Context // for every iteration, because Iter has no context
	name     string
	adapter  *Adapter
	loader   *nwt.Loader
	infinite bool

	mu    sync.Mutex
	state nwt.State // of the last batch that was delivered; guarded by mu
	next  nwt.State // at which the next iteration begins; guarded by mu
}

var (
	_ train.Dataset      = (*Dataset)(nil)
	_ train.HasShortName = (*Dataset)(nil)
)

// Infinite makes an iteration continue with the next epoch when an epoch ends, for train.Loop.RunSteps.
// While the model trains on the last batches of an epoch, the first batches of the next epoch are loaded.
// Infinite returns d.
func (d *Dataset) Infinite() *Dataset {
	d.infinite = true
	return d
}

// Name returns the name given to [Adapter.Dataset].
func (d *Dataset) Name() string { return d.name }

// ShortName returns the first three letters of the name.
func (d *Dataset) ShortName() string {
	r := []rune(d.name)
	return string(r[:min(3, len(r))])
}

// State returns the state after the last batch that was delivered; Resume continues from it. Save the state
// with the model's checkpoint, in a train.Loop.OnStep. Don't wrap d in a GoMLX dataset that reads ahead,
// because the state would then belong to a later batch than the model. nwt reads ahead by itself.
func (d *Dataset) State() nwt.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Resume makes the next iteration yield the rest of the epoch of s.
func (d *Dataset) Resume(s nwt.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state, d.next = s, s
}

// Iter yields the batches of the next epoch. If you leave an iteration early, the next iteration still
// begins the next epoch.
func (d *Dataset) Iter() iter.Seq2[train.Batch, error] {
	return func(yield func(train.Batch, error) bool) {
		d.mu.Lock()
		at := d.next
		d.mu.Unlock()
		if at.Samples != 0 {
			given, ended := d.give(d.loader.Resume(d.ctx, at), yield)
			if !ended || given > 0 && !d.infinite {
				return
			}
			at.Epoch++
		}
		end := at.Epoch + 1
		if d.infinite {
			end = math.MaxInt32
		}
		d.give(d.loader.Epochs(d.ctx, at.Epoch, end), yield)
	}
}

// give yields batches as GoMLX's. It returns how many there were, and whether it reached their end.
func (d *Dataset) give(batches iter.Seq2[*nwt.Batch, error], yield func(train.Batch, error) bool) (given int, ended bool) {
	for b, err := range batches {
		var made train.Batch
		if err == nil {
			made, err = d.adapter.Batch(b)
		}
		if err != nil {
			yield(made, err)
			return given, false
		}
		given++
		d.mu.Lock()
		d.state, d.next = b.State(), nwt.State{Epoch: b.Epoch() + 1}
		d.mu.Unlock()
		if !yield(made, nil) {
			return given, false
		}
	}
	return given, true
}
