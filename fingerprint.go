package nwt

import (
	"crypto/sha256"
	"fmt"
	"strings"

	identity "github.com/nwt-go/nwt/internal/order"
)

// A Fingerprinter is a [Dataset], [Stream] or [Sampler] that tells what its samples or its order
// depend on, such as the names, sizes and times of its files; "" tells nothing. Equal
// fingerprints mean the same samples, in this run and in later ones. It must be quick, or be
// remembered.
//
// If a dataset's fingerprint has changed, [Precompute] makes its file anew, and [Loader.Resume]
// logs a warning; it refuses another sampler. [Subset], [Split], [Concat], [Zip], [Map], [Sized],
// [Overwrites], [Packed], [Cached] and [Precompute] pass on what their datasets tell. Subset,
// Split, Concat and Packed tell their own arguments too, even if their datasets tell nothing.
// Nothing tells what the function of a Map does.
type Fingerprinter interface{ Fingerprint() string }

// fingerprint returns what a dataset, stream or sampler tells; "" if it tells nothing.
func fingerprint(of any) string {
	if f, ok := of.(Fingerprinter); ok {
		return f.Fingerprint()
	}
	return ""
}

// fingerprintOf returns the fingerprint of what is made of others: own says what it depends on
// besides. It is "" if own is, and none of them tells anything.
func fingerprintOf(own string, parts ...Dataset) string {
	told := own != ""
	for _, ds := range parts {
		part := fingerprint(ds)
		told = told || part != ""
		own += fmt.Sprintf(" %q", part)
	}
	if !told {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(own)))
}

// identity tells the order that a sampler gives to an epoch of n samples, or that of a stream,
// from others. It isn't about ranks, batches and workers.
func (s *source) identity(sampler Sampler, n int) identity.Identity {
	o := s.opts
	if !s.streams() {
		kind, seed := fingerprint(sampler), ""
		if own, ok := sampler.(*shuffled); ok {
			kind, seed = "Shuffled", fmt.Sprint(own.seed)
		} else if kind == "" {
			kind = "the program's"
		}
		return identity.Identify(fmt.Sprint(n), seed, kind, fingerprint(s.ds))
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
		seed, kind = fmt.Sprint(seed, " ", d.seed), fmt.Sprint(kind, " mixed ", d.mix.Phases, d.mix.Block, o.epochSamples)
	}
	return identity.Identify(shards, seed, kind, fingerprint(d))
}

// checkOrder returns an error if the state's positions stand for other samples than they would now.
// over reports that nothing was left of the state's epoch, whatever has changed since.
func (l *engine) checkOrder(s State) (over bool, err error) {
	if s.Order == 0 || s.Samples < 1 {
		return false, nil
	}
	known := l.ordering.Load()
	sampler, n := known.sampler, known.order.N
	if known.own {
		if now, err := lengthNow(l.ds); err == nil { // else the run will tell
			n = now
		}
	}
	then, now := identity.Identity(s.Order), l.identity(sampler, n)
	names := []string{identity.Length: "another length", identity.Seed: "another seed", identity.Sampler: "another sampler, or other arguments of it"}
	is := "the sampler is " + nameOfSampler(sampler)
	if l.streams() {
		names = []string{identity.Length: "other shards", identity.Seed: "another seed", identity.Sampler: "another WithInterleave, WithShuffle, WithShuffleWindow, WithEpochSamples or mixture"}
		is = "the stream has " + strings.ReplaceAll(strings.Trim(fmt.Sprint(l.shards), "[]"), " ", " + ") + " shards"
	}
	var differ []string
	for kind, name := range names {
		if now.Differs(then, kind) {
			differ = append(differ, name)
		}
	}
	switch {
	case len(differ) == 0 && now.Differs(then, identity.Data):
		l.opts.log.Warn("nwt: the dataset's fingerprint isn't the one of the state: if an index stands for another sample now, samples come twice or never", "epoch", s.Epoch)
	case len(differ) > 0 && !identity.Identify(fmt.Sprint(s.Samples), "", "", "").Differs(then, identity.Length):
		return true, nil
	case len(differ) > 0:
		return false, optionError("State.Order", s.Order, "the state was taken with %s; now %s, so the rest of the epoch would be other samples. "+
			"Resume as the state was taken, or begin the next epoch, State{Epoch: %d}. Order 0 isn't checked", strings.Join(differ, " and "), is, s.Epoch+1)
	}
	return false, nil
}
