package nwt

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/nwt-go/nwt/internal/mixture"
	"github.com/nwt-go/nwt/internal/search"
)

// A source is a dataset and options that fit together.
type source struct {
	ds      Dataset
	shards  []int           // of each stream
	plan    *mixture.Plan   // of MixedStreams; nil for other datasets
	counts  []*recordCounts // of each stream; nil if its records aren't counted
	counted bool            // the dataset is one CountedStream
	layout  *fieldSet
	opts    *options
	first   *ordering // of a new loader
	slotMem slotMemory
	once    *onceLog
}

func newSource(ds Dataset, opts []Option) (*source, error) {
	o, err := newOptions(opts)
	n, layout, dsErr := checkDataset(ds)
	var shards []int
	stream, ok := ds.(*streamDataset)
	if ok && dsErr == nil {
		shards, dsErr = stream.shards()
	}
	if err := errors.Join(err, dsErr); err != nil {
		if o.sampler != nil { // what else can be said of it depends on the rest
			_, samplerErr := epochLen("WithSampler", o.sampler)
			err = errors.Join(err, samplerErr)
		}
		return nil, err
	}
	var errs []error
	if layout.Size > maxBatchBytes/o.batchSize {
		errs = append(errs, optionError("WithBatchSize", o.batchSize, "a batch would be %d samples of %d bytes: must be at most %d bytes in all",
			o.batchSize, layout.Size, maxBatchBytes))
	}
	s := &source{ds: ds, shards: shards, layout: layout, opts: o, slotMem: newSlotMemory(o), once: &onceLog{during: whileLoading}}
	if n == endless {
		s.first = &ordering{order: o.newOrder(), n: endless}
		for k, n := range shards {
			counts, err := newCounts(stream.streams[k], n, o)
			s.counts, errs = append(s.counts, counts), append(errs, err)
		}
		errs = append(errs, stream.fits(shards, s.counts, o)...)
		if stream.mix != nil {
			s.plan = stream.mix.Plan(stream.seed, o.rank, o.world)
		} else if s.counted = s.counts[0] != nil; s.counted {
			s.first.order.N = cmp.Or(o.epochSamples, s.counts[0].n)
			errs = append(errs, orderError(s.first.order.HasBatch()))
		}
		s.first.perBatch = s.first.order.PerBatch()
	} else {
		s.first, err = s.orderingOf("WithSampler", o.sampler, n)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s.warnOfMixedLengths(s.first)
	return s, nil
}

// logIgnored logs, in one line, which options have no effect in what was called.
func (s *source) logIgnored(called string) {
	o, names := s.opts, []string(nil)
	note := func(ignored bool, name string) {
		if ignored {
			names = append(names, name)
		}
	}
	if called == "NewLoader" {
		note(o.step != nil, "WithStep")
		note(o.progress != nil, "WithProgress")
		note(o.results != "", "WithResultCache")
		note(o.tuningTime != 0, "WithTuningTime")
		note(o.strategy != Greedy(), "WithStrategy")
		if !o.auto {
			note(o.alpha != search.DefaultAlpha && o.alpha.Total < math.MaxInt64, "WithAlpha")
			note(o.alpha.Total == math.MaxInt64, "WithRelativeAlpha")
			note(o.iterations != 0, "WithIterations")
			note(o.most >= 0, "WithMaxWorkers")
			note(o.maxMemory != 0, "WithMemoryLimit")
		}
	} else {
		note(o.fixed, "WithWorkers")
	}
	if !s.streams() {
		note(o.interleave != 0, "WithInterleave")
		note(o.window != defaultWindow, "WithShuffleWindow")
		note(o.epochSamples != 0, "WithEpochSamples")
	}
	if len(names) > 0 {
		o.log.Info("nwt: options without effect", "in", called, "options", strings.Join(names, ", "))
	}
}

// streams reports whether the dataset is a stream.
func (s *source) streams() bool { return len(s.shards) > 0 }

// fits tells what is wrong with the options for these streams and their shards.
func (d *streamDataset) fits(shards []int, counts []*recordCounts, o *options) (errs []error) {
	if o.sampler != nil {
		errs = append(errs, optionError("WithSampler", nameOfSampler(o.sampler), "can't be combined with a stream, whose order is that of reading"))
	}
	if d.mix != nil && o.epochSamples == 0 {
		errs = append(errs, optionError("WithEpochSamples", o.epochSamples, "must be set with MixedStreams, whose epochs have no other end"))
	}
	for k, n := range shards {
		if n < o.world && counts[k] == nil {
			which := ""
			if d.mix != nil {
				which = fmt.Sprintf(" (stream %d of MixedStreams)", k)
			}
			errs = append(errs, optionError("WithRank (world)", o.world, "a stream of %d shards leaves ranks without one: needs at least as many shards as ranks%s, or a CountedStream", n, which))
		}
	}
	return errs
}
