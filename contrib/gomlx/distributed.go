package gomlx

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"
	"github.com/gomlx/gomlx/ml/train"

	"github.com/nwt-go/nwt"
)

// A Sharding says how batches are divided among the devices of a backend.
type Sharding struct {
	// Spec divides the samples, which are the first axis of every input and label, over one or more axes
	// of a mesh: distributed.BuildSpec(mesh).S("data").Done(). Along the mesh's other axes, the devices
	// get copies.
	Spec *distributed.ShardingSpec
	// Strategy is distributed.AutoSharding by default.
	Strategy distributed.Strategy
	// Devices are the backend's devices, one for each place of the mesh; by default
	// 0, 1, 2, ….
	Devices []compute.DeviceNum
}

// DistributedDataset makes the dataset on which GoMLX trains with several devices, in
// train.Loop.RunSteps and train.Trainer.Eval. It is like [Adapter.Dataset], but divides each batch of
// the loader into n equal parts; n is the number of shards that Spec makes of the samples. Part k has
// the samples that rank k of n ranks would get with 1/n of the batch size. Each part is copied straight
// to its device. A batch that can't be divided equally is an error, for example a short last batch (see
// [nwt.WithDropLast]) or a batch that lacks its bad samples (see [nwt.WithErrorBudget]).
//
// If the sharding can't be used, the error joins an *[nwt.ArgumentError] for each reason.
func (a *Adapter) DistributedDataset(ctx context.Context, name string, l *nwt.Loader, s Sharding) (*DistributedDataset, error) {
	if s.Spec == nil || s.Spec.Mesh == nil {
		return nil, &nwt.ArgumentError{Name: "gomlx.Sharding.Spec", Reason: "is nil or has no mesh: distributed.BuildSpec makes one"}
	}
	var errs []error
	bad := func(what string, value any, reason string, args ...any) {
		errs = append(errs, &nwt.ArgumentError{Name: "gomlx.Sharding." + what, Value: value, Reason: fmt.Sprintf(reason, args...)})
	}
	if err := s.Spec.Validate(); err != nil {
		bad("Spec", s.Spec, "%v", err)
	} else if s.Spec.Rank() != 1 || s.Spec.IsReplicated() {
		bad("Spec", s.Spec, "must shard the first axis, the samples, and no other")
	}
	if s.Strategy == distributed.None {
		s.Strategy = distributed.AutoSharding
	}
	places := s.Spec.Mesh.NumDevices()
	if s.Devices == nil {
		for i := range places {
			s.Devices = append(s.Devices, compute.DeviceNum(i))
		}
	}
	if len(s.Devices) != places {
		bad("Devices", s.Devices, "must be %d, as many as the mesh has places", places)
	}
	have := a.config.Backend.NumDevices()
	if slices.ContainsFunc(s.Devices, func(d compute.DeviceNum) bool { return d < 0 || int(d) >= have }) {
		bad("Devices", s.Devices, "must be 0 … %d, the devices of this backend", have-1)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &DistributedDataset{data: a.Dataset(ctx, name, l), sharding: s, parts: s.Spec.NumDevicesShardingAxis(0)}, nil
}

// A DistributedDataset is GoMLX's [train.DistributedDataset] over a loader.
type DistributedDataset struct {
	data     *Dataset
	sharding Sharding
	parts    int // number of parts of each batch
}

var (
	_ train.DistributedDataset = (*DistributedDataset)(nil)
	_ train.HasShortName       = (*DistributedDataset)(nil)
)

// Infinite does what [Dataset.Infinite] does. It returns d.
func (d *DistributedDataset) Infinite() *DistributedDataset {
	d.data.Infinite()
	return d
}

// Name returns the name given to [Adapter.DistributedDataset].
func (d *DistributedDataset) Name() string { return d.data.Name() }

// ShortName returns the first three letters of the name.
func (d *DistributedDataset) ShortName() string { return d.data.ShortName() }

// State returns what [Dataset.State] does. A [Dataset], or a DistributedDataset with any number of devices,
// can resume from it.
func (d *DistributedDataset) State() nwt.State { return d.data.State() }

// Resume makes the next iteration yield the rest of the epoch that s is in.
func (d *DistributedDataset) Resume(s nwt.State) { d.data.Resume(s) }

// Strategy returns the strategy of the sharding.
func (d *DistributedDataset) Strategy() distributed.Strategy { return d.sharding.Strategy }

// DeviceAssignment returns the devices of the sharding.
func (d *DistributedDataset) DeviceAssignment() []compute.DeviceNum { return d.sharding.Devices }

// Iter yields only an error, because a caller of Iter, such as train.Loop.RunEpochs, trains on one
// device.
func (d *DistributedDataset) Iter() iter.Seq2[train.Batch, error] {
	return func(yield func(train.Batch, error) bool) {
		yield(train.Batch{}, errors.New("gomlx: a DistributedDataset is for train.Loop.RunSteps and train.Trainer.Eval; RunEpochs trains on one device: give it an Adapter.Dataset"))
	}
}

// DistributedIter yields the batches of the next epoch, as [Dataset.Iter] does.
func (d *DistributedDataset) DistributedIter() iter.Seq2[train.DistributedBatch, error] {
	return iterate(d.data, d.batch)
}

// batch copies the parts of a batch to their devices.
func (d *DistributedDataset) batch(b *nwt.Batch) (batch train.DistributedBatch, err error) {
	if b.Len()%d.parts != 0 {
		return batch, fmt.Errorf("gomlx: epoch %d, batch %d: %d samples must be a multiple of %d, the parts of a batch; WithDropLast leaves out a shorter last batch",
			b.Epoch(), b.Number(), b.Len(), d.parts)
	}
	places := make([]train.Batch, len(d.sharding.Devices))
	errs := make([]error, len(places))
	var copies sync.WaitGroup
	for i, device := range d.sharding.Devices {
		copies.Go(func() { places[i], errs[i] = d.data.adapter.part(b, d.part(i), d.parts, device) })
	}
	copies.Wait()
	defer func() {
		if err != nil {
			for _, p := range places {
				err = errors.Join(err, p.Finalize())
			}
			batch = train.DistributedBatch{}
		}
	}()
	if err := errors.Join(errs...); err != nil {
		return batch, err
	}
	for i := range places[0].Inputs {
		if err := d.join(&batch.Inputs, places, func(b train.Batch) *tensors.Tensor { return b.Inputs[i] }); err != nil {
			return batch, err
		}
	}
	for i := range places[0].Labels {
		if err := d.join(&batch.Labels, places, func(b train.Batch) *tensors.Tensor { return b.Labels[i] }); err != nil {
			return batch, err
		}
	}
	return batch, nil
}

// join makes one tensor of the tensors of all places.
func (d *DistributedDataset) join(to *[]*dtensor.Tensor, places []train.Batch, of func(train.Batch) *tensors.Tensor) error {
	shards := make([]*tensors.Tensor, len(places))
	for i, p := range places {
		shards[i] = of(p)
	}
	t, err := dtensor.NewTensor(d.sharding.Spec, shards)
	if *to = append(*to, t); err != nil {
		err = fmt.Errorf("gomlx: %w", err)
	}
	return err
}

// part returns which part of a batch a place of the mesh gets. Places are numbered with the mesh's last
// axis varying fastest.
func (d *DistributedDataset) part(place int) (part int) {
	mesh := d.sharding.Spec.Mesh
	at := map[string]int{}
	for i, name := range slices.Backward(mesh.AxesNames()) {
		size := mesh.AxesSizes()[i]
		at[name] = place % size
		place /= size
	}
	for _, name := range d.sharding.Spec.Axes[0] {
		size, _ := mesh.AxisSize(name)
		part = part*size + at[name]
	}
	return part
}
