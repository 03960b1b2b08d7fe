package nwt

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nwt-go/nwt/internal/host"
	geometry "github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/mixture"
	"github.com/nwt-go/nwt/internal/oncelog"
	"github.com/nwt-go/nwt/internal/order"
)

// A setup is a dataset and options that fit together.
type setup struct {
	ds      Dataset
	shards  []int           // number of shards of each stream
	mixture *mixture.Plan   // the plan of MixedStreams; nil for other datasets
	counts  []*recordCounts // one for each stream; nil if its records aren't counted
	counted bool            // the dataset is one CountedStream
	layout  *fieldSet
	opts    *options
	first   *epochOrder // the order of a new loader
	tunes   bool        // its loaders are Tune's: a run that has only bad samples ends, and some warnings are left out
	once    *oncelog.Log
	helpers *host.Processes // that load for the dataset

	slotMem   slotMemory
	slotBytes int   // size of a slot, for the longest batch allowed
	offsets   []int // where each field begins in a slot
}

// newSetup checks a dataset and options, alone and together.
func newSetup(ds Dataset, opts []Option) (*setup, error) {
	o, err := newOptions(opts)
	n, layout, dsErr := checkDataset(ds, 1)
	var shards []int
	stream, ok := ds.(*streamDataset)
	if ok && dsErr == nil {
		shards, dsErr = stream.shards()
	}
	if err := errors.Join(err, dsErr); err != nil {
		if o.sampler != nil { // its other checks need everything else to be valid
			_, samplerErr := epochLen("WithSampler", o.sampler)
			err = errors.Join(err, samplerErr)
		}
		return nil, err
	}
	var errs []error
	s := &setup{ds: ds, shards: shards, layout: layout, opts: o, slotMem: newSlotMemory(o), once: &oncelog.Log{}, helpers: &host.Processes{IDs: func() []int { return processesOf(ds) }}}
	if n == endless {
		s.first = &epochOrder{order: o.newOrder(), n: endless}
		for k, n := range shards {
			counts, err := newCounts(stream.streams[k], n, o)
			s.counts, errs = append(s.counts, counts), append(errs, err)
		}
		errs = append(errs, stream.fits(shards, s.counts, o)...)
		if stream.mix != nil {
			s.mixture = stream.mix.Plan(stream.seed, o.rank, o.world)
		} else if s.counted = s.counts[0] != nil; s.counted {
			s.first.order.N = cmp.Or(o.epochSamples, s.counts[0].n)
			errs = append(errs, orderError(s.first.order.HasBatch()))
		}
		s.first.perBatch = s.first.order.PerBatch()
	} else {
		s.first, err = s.epochOrderOf("WithSampler", o.sampler, n)
		errs = append(errs, err)
	}
	if layout.Size > maxBatchBytes/o.batchSize {
		errs = append(errs, optionError("WithBatchSize", o.batchSize, "a batch of samples of %d bytes would be more than %d bytes", layout.Size, maxBatchBytes))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s.offsets = make([]int, len(layout.Columns))
	s.slotBytes = geometry.Place(layout.Columns, o.batchSize, s.offsets)
	return s, nil
}

// epochOrderOf makes the order for a dataset of n samples: that of sampler or, if sampler is nil, the
// loader's own. It calls the sampler.
func (s *setup) epochOrderOf(option string, sampler Sampler, n int) (*epochOrder, error) {
	o := &epochOrder{sampler: sampler, own: sampler == nil, order: s.opts.newOrder(), n: n}
	if o.own {
		o.sampler = s.opts.ownOrder(n)
	}
	err := o.follow(option, o.sampler)
	if err == nil {
		err = orderError(o.order.HasBatch())
	}
	if err = errors.Join(err, checkIndices(option, o.sampler, n)); err != nil {
		return nil, err
	}
	o.perBatch = o.order.PerBatch()
	return o, nil
}

// identity returns a fingerprint of the order: the order that a sampler gives to an epoch of n samples,
// or the order of a stream. It doesn't depend on ranks, batches and workers.
func (s *setup) identity(sampler Sampler, n int) order.Identity {
	o := s.opts
	if !s.streams() {
		kind, seed := fingerprint(sampler), ""
		if own, ok := sampler.(*shuffled); ok {
			kind, seed = "Shuffled", fmt.Sprint(own.seed)
		} else if kind == "" {
			kind = "the program's"
		}
		return order.Identify(fmt.Sprint(n), seed, kind, fingerprint(s.ds))
	}
	d := s.ds.(*streamDataset)
	shards, seed, kind := fmt.Sprint(s.shards), "", fmt.Sprint(o.shardsAtOnce())
	for _, c := range s.counts {
		if c != nil {
			shards, kind = fmt.Sprint(shards, c.all), fmt.Sprint(kind, " counted ", c.lanes, " ", o.epochSamples)
		}
	}
	if o.shuffle {
		seed, kind = fmt.Sprint(o.shuffled), fmt.Sprint(kind, " shuffled ", o.window)
	}
	if d.mix != nil {
		seed, kind = fmt.Sprint(seed, " ", d.seed), fmt.Sprint(kind, " mixed ", d.mix.Samples, d.mix.Weights, d.mix.Block, o.epochSamples)
	}
	return order.Identify(shards, seed, kind, fingerprint(d))
}

// logIgnored logs, in one line, which options have no effect in the function that was called.
func (s *setup) logIgnored(called string, in effect) {
	if in == inLoader && s.opts.auto {
		in |= inAuto
	}
	var names []string
	for _, of := range s.opts.given {
		unbounded := of.name == "WithTimeout" && in == inLoader && s.opts.workers == 0
		if of.in&in == 0 || of.in&ofStreams != 0 && !s.streams() || unbounded {
			names = append(names, of.name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		names = slices.Compact(names)
		s.opts.log.Info("nwt: options without effect", "in", called, "options", strings.Join(names, ", "))
	}
}

// streams reports whether the dataset is a stream.
func (s *setup) streams() bool { return len(s.shards) > 0 }

// samplesOfEpoch returns how many samples an epoch of an order has over all ranks, or endless for a
// stream without WithEpochSamples.
func (s *setup) samplesOfEpoch(o *epochOrder) int {
	if o.order.N == endless && s.opts.epochSamples > 0 {
		return s.opts.quota(s.opts.world) * s.opts.world
	}
	return o.order.N
}

// shardsOfRank returns how many shards this rank reads of the stream that has the most.
func (s *setup) shardsOfRank() int {
	return (slices.Max(s.shards) - s.opts.rank + s.opts.world - 1) / s.opts.world
}

// during returns the activity of the setup's loaders, as a warning names it.
func (s *setup) during() string {
	switch {
	case s.tunes:
		return "tuning"
	case s.opts.drawn != nil:
		return "precomputing"
	}
	return "loading"
}
