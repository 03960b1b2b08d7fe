package nwt

import (
	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/usercall"
)

// layOut finds out which samples a batch of a SizedDataset has and how large they are, and makes the
// batch as long as the longest of them. sizes is a buffer for the sizes of one sample.
func (b *Batch) layOut(o *ordering, sizes []int) {
	if b.known = o.indicesOf(b); b.known {
		for place := 0; place < b.size; {
			place = b.askSizes(o.n, sizes, place)
		}
	} else {
		b.l.layout.Longest(sizes)
		for place := range b.size {
			b.places.Tell(place, sizes)
		}
	}
	b.places.Arrange(b.size)
}

// indicesOf sets which samples a batch has. It returns false if the sampler panics: then the worker that
// comes to the sample asks the sampler again, and reports the panic.
func (o *ordering) indicesOf(b *Batch) (known bool) {
	defer func() {
		if !known {
			_ = recover()
		}
	}()
	indices := b.indices[:b.size]
	if s, ok := o.sampler.(SamplerFiller); ok {
		s.Fill(b.epoch, b.from, indices)
		return true
	}
	for place := range indices {
		indices[place] = o.sampler.At(b.epoch, b.from+place)
	}
	return true
}

// askSizes asks a dataset of n samples for the sizes of the batch's samples, beginning at a place. It
// ends after a sample for which Sizes panics, and returns the place after the last one asked for. A
// sample with invalid sizes is bad.
func (b *Batch) askSizes(n int, sizes []int, from int) (next int) {
	next = from
	finished := false
	defer func() {
		if !finished {
			stack, err := usercall.Recovered(recover())
			b.badSizes(next, err, stack)
			next++
		}
	}()
	for ; next < b.size; next++ {
		clear(sizes)
		b.places.Tell(next, sizes)
		index := b.indices[next]
		if uint(index) >= uint(n) {
			continue // it is a bad sample in any case
		}
		if err := b.l.askSize(index, sizes); err != nil {
			b.badSizes(next, err, nil)
			continue
		}
		b.places.Tell(next, sizes)
	}
	finished = true
	return next
}

// askSize asks the dataset for the sizes of a sample.
func (l *engine) askSize(index int, sizes []int) error {
	for dim := range sizes {
		sizes[dim] = layout.Untold
	}
	l.sizes(index, sizes)
	return l.layout.checkSizes(index, sizes)
}

// badSizes records that a sample is bad because its sizes are invalid.
func (b *Batch) badSizes(place int, err error, stack []byte) {
	b.places.Told[place] = layout.Untold
	b.bad.add(place, &LoadError{Index: b.indices[place], Position: b.position(place), Epoch: b.epoch, Err: err, Stack: stack})
}
