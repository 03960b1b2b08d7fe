package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/memlimit"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/stat"
)

// Figures from which on they are mentioned.
const (
	LittleWait  = 0.05 // share of an iteration that training waits; a smaller share is not noticed
	cpuFull     = 0.90 // share of the CPUs
	cpuIdle     = 0.50
	farSlower   = 0.50 // share by which a count takes longer than another, so that their CPU time can be compared
	readingSets = 0.80 // share of the time in which a stream is read
	muchCopy    = 0.20 // share of an iteration spent copying to the device
	nearLimit   = 0.80 // share of the memory limit
	mostAdvice  = 3    // lines
	muchDrift   = 1.25 // ratio of the times early and late, or its inverse
)

// Circumstances are what a tuning's sentences depend on beside its figures.
type Circumstances struct {
	CPUs   host.CPUFacts
	Mine   float64 // CPUs of this rank; shares of the CPUs are shares of these
	Limit  memlimit.Limit
	Most   int // of WithMaxWorkers; −1: it isn't given
	Shards int // of a stream on this rank, …
	AtOnce int // … and how many of them are read at once

	Others  float64 // share of the CPUs that other processes used meanwhile
	Queued  float64 // share of the CPUs that the process's threads waited for at the choice; 0 if not known
	Unseen  string  // why Others isn't known
	Timeout bool    // WithTimeout is given
	Late    bool    // the time for tuning was over before the search was
	First   float64 // how many times as long batches took while the dataset was loaded for the first time, at the same counts; 0: not known
	Drift   float64 // see [Drift]
}

// Warn sets Warnings: reasons to trust the result less.
func (r *Result) Warn(c Circumstances) {
	add := func(format string, args ...any) { r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...)) }
	switch {
	case c.CPUs.Usable() >= c.CPUs.GOMAXPROCS:
	case c.CPUs.Affinity < c.CPUs.GOMAXPROCS:
		add("GOMAXPROCS is %d, but the process may run on %s only", c.CPUs.GOMAXPROCS, human.CPUs(float64(c.CPUs.Affinity)))
	default:
		add("GOMAXPROCS is %d, but the container may use %s only, and is stopped for a while whenever it uses more", c.CPUs.GOMAXPROCS, human.CPUs(c.CPUs.Quota))
	}
	for _, unknown := range []string{c.CPUs.Note, c.Unseen} {
		if unknown != "" {
			add("%s", unknown)
		}
	}
	if c.Others > BusyOthers {
		add("other processes kept %s of the CPUs busy meanwhile: on a quiet machine the choice may be another", human.Share(c.Others))
	}
	if c.Limit.Bytes == math.MaxUint64 {
		add("memory bounds no worker count: %s", c.Limit.From)
	}
	if r.Workers == 0 && c.Timeout {
		add("WithTimeout doesn't hold without workers: a call that hangs is waited for")
	}
	chosen := r.trial(r.Workers)
	if c.Late && float64(chosen.Wait+chosen.Transfer) > hardly*float64(chosen.Mean) {
		add("the time for tuning was over before the search was: counts that it measured once, or not at all, may be better (WithTuningTime)")
	}
	if c.First > muchDrift {
		add("tuning went through the dataset more than once, and batches took %s longer the first time: the table shows the later times", human.Share(c.First-1))
	}
	switch why := r.unsure(); {
	case len(r.Trials) < 2:
	case why != "":
		add("no repeatability is told: %s", why)
	case r.Repeatability < Unsure:
		add("other tunings may choose another count: %s of them would choose this one", human.Share(r.Repeatability))
	}
	switch d := c.Drift; {
	case d > muchDrift:
		add("batches took %s longer at the end than at the beginning: the machine or its storage slowed down", human.Share(d-1))
	case d > 0 && d < 1/muchDrift:
		add("batches took %s less at the end than at the beginning: caches filled, or a neighbour left", human.Share(1-d))
	}
}

// Drift returns the ratio of the times that iterations took late and early: the median over all worker
// counts that have enough windows.
func Drift(seen []search.Series) float64 {
	return cmp.Or(ratio(seen, func(s search.Series) (late, early []search.Block) {
		half := len(s.Blocks) / 2
		if half < 2 {
			return nil, nil
		}
		return s.Blocks[len(s.Blocks)-half:], s.Blocks[:half]
	}), 1)
}

// FirstPass returns the ratio of the times while the dataset was loaded for the first time, and later.
func FirstPass(seen []search.Series) float64 {
	return ratio(seen, func(s search.Series) (first, later []search.Block) { return s.Blocks[:s.First], s.Blocks[s.First:] })
}

// ratio returns the median over all counts of the ratio of the median times of two parts of its windows, or 0.
func ratio(seen []search.Series, parts func(search.Series) (a, b []search.Block)) float64 {
	var ratios []float64
	for _, s := range seen {
		a, b := parts(s)
		var times [2][]float64
		for i, blocks := range [][]search.Block{a, b} {
			for _, one := range blocks {
				times[i] = append(times[i], float64(max(one.Mean, 1)))
			}
		}
		if len(a) > 0 && len(b) > 0 {
			ratios = append(ratios, stat.Median(times[0])/stat.Median(times[1]))
		}
	}
	if len(ratios) == 0 {
		return 0
	}
	return stat.Median(ratios)
}

// Advise sets Advice: what to work on and what to change, the most useful first.
func (r *Result) Advise(c Circumstances) {
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	t := r.trial(r.Workers)
	if t.Mean <= 0 {
		return
	}
	if t.OtherCPU >= 0 {
		c.Others = t.OtherCPU
	}
	lost := float64(t.Wait+t.Transfer) / float64(t.Mean)
	switch {
	case !r.Step && r.Workers == 0:
		say("Without workers, loading adds %s to every training step; WithStep measures whether a worker would hide it.", human.Duration(t.Mean))
	case !r.Step:
		say("A batch is loaded every %s. A step on a GPU that takes longer hides the loading, as WithStep measures; a step on the CPUs competes with it.", human.Duration(t.Mean))
	case lost < hardly:
		say("The step sets the pace: training hardly waits for data. Work on the model.")
	case lost <= LittleWait:
		say("The step sets the pace: training waits for data %s of the time. Work on the model.", human.Share(lost))
	default:
		say("Training waits for data %s of the time: %s of %s per batch.", human.Share(lost), human.Duration(t.Wait+t.Transfer), human.Duration(t.Mean))
	}
	if needs := t.Needs(); c.Limit.Bytes != math.MaxUint64 && needs <= c.Limit.Bytes && float64(needs) >= nearLimit*float64(c.Limit.Bytes) {
		one, most := human.Apart(needs, c.Limit.Bytes)
		say("Memory is nearly used up: %s of %s, %s of it by batches.", one, most, human.Bytes(t.batches(r)))
	}
	waits := false
	if !r.Step || lost > LittleWait {
		waits = r.aboutLoading(t, c, say)
	}
	if most := r.Trials[len(r.Trials)-1]; !r.Step && c.Most < 0 && most.Workers >= search.Sparing && most.Mean < search.ShortBatch && t.CPU < cpuIdle {
		say("More than %d workers weren't tried, since a batch takes less than %s: WithStep tells how many are needed, and WithMaxWorkers allows more.", most.Workers, human.Duration(search.ShortBatch))
	}
	if t.CollectorCPU > muchGC {
		say("The garbage collector takes %s of the CPUs: a buffer per worker instead of one per sample saves it, and a higher GOGC with a GOMEMLIMIT most of it.", human.Share(t.CollectorCPU))
	}
	if copying := float64(t.Transfer) / float64(t.Mean); copying > muchCopy {
		say("The copy to the device takes %s of an iteration: a smaller element type (Uint8, converted on the device) or a longer step hides it.", human.Share(copying))
	}
	if waits {
		say("Loading waits more than it computes, so more workers than CPUs pay off. Data on a faster disk, or Cached, would need fewer.")
	}
	r.Advice = said[:min(len(said), mostAdvice)]
}

// aboutLoading says what loading waits for, as far as the figures show it. It reports whether loading waits
// so much that more workers than CPUs pay off.
func (r *Result) aboutLoading(t Trial, c Circumstances, say func(format string, args ...any)) (waits bool) {
	used := fmt.Sprintf("%s of %s in use", human.Share(t.CPU), human.CPUs(c.Mine))
	highest := r.Workers == r.Trials[len(r.Trials)-1].Workers
	switch {
	case t.CPU >= cpuFull && r.loadingCPU(t) < t.CPU/2:
		say("The CPUs are full (%s), most of them with what the program does beside loading: without that, loading may be faster.", used)
	case t.CPU >= cpuFull:
		say("The CPUs are full (%s): decode less, or decode once: Cached in memory, Precompute in a file.", used)
	case t.CPU+min(c.Others, 1-t.CPU) >= cpuFull && t.wants(c):
		say("The CPUs are full, %s of them used by other programs: without those, loading may be faster.", human.Share(min(c.Others, 1-t.CPU)))
	case t.Reading >= readingSets:
		say("Reading the stream sets the pace: it goes on for %s of the time, %d of %d shards at once (WithInterleave).", human.Share(t.Reading), min(c.AtOnce, c.Shards), c.Shards)
	case r.Workers == 0: // one goroutine can't use more than a CPU
	default:
		waits = t.CPU < cpuIdle && float64(r.Workers) > c.Mine
		switch {
		case highest && slices.ContainsFunc(r.RuledOut, func(out RuledOut) bool { return out.Workers > r.Workers && out.Code == ForMemory }):
			makes := "workers that keep less (Scratch), or a higher limit, make room"
			if t.batches(r) > t.Needs()/2 {
				makes = "smaller batches make room"
			}
			say("Memory bounds the workers, and more of them may be faster: %s.", makes)
		case highest && r.Workers != c.Most && c.Late:
			say("%s is the highest count that there was time for (%s): more workers may be faster (WithTuningTime).", capital(human.Workers(r.Workers)), used)
		case highest && r.Workers == c.Most:
			say("%s is the highest count that was tried (%s): more workers may be faster (WithMaxWorkers).", capital(human.Workers(r.Workers)), used)
		case !highest && (t.CPU+c.Others < cpuIdle || t.CPU+c.Others < cpuFull && !t.wants(c)) && slower(t, r.trial(r.Fastest)) <= LittleWait:
			say("More than %s don't help, and they leave CPUs idle (%s): storage, the network or a lock inside Load sets the pace.", human.Workers(r.Workers), used)
		}
	}
	return waits
}

// batches returns the memory of the batches that are open.
func (t *Trial) batches(r *Result) uint64 { return uint64(t.Prefetch) * uint64(r.BatchBytes) }

// loadingCPU returns the share of the CPUs that loading used at a count. A count that loads far slower and
// uses as much shows that something else does.
func (r *Result) loadingCPU(t Trial) float64 {
	loading := t.CPU
	for _, one := range r.Trials {
		if more := slower(one, t); more > farSlower {
			loading = min(loading, (t.CPU-one.CPU)*(1+1/more))
		}
	}
	return loading
}

// wants reports whether the workers use, or wait for, as many of the CPUs as they can; workers that wait
// for storage don't.
func (t *Trial) wants(c Circumstances) bool {
	most := min(1, float64(max(1, t.Workers))/c.Mine) // of the CPUs
	return c.Queued == 0 || t.CPU+c.Queued >= cpuFull*most
}
