package nwt

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/search"
)

// Beyond these bounds a result is less trustworthy.
const (
	busyOthers = 0.10 // share of the CPUs that others use
	unsure     = 0.90 // confidence
	fewBatches = 10   // measured at the choice
	muchDrift  = 1.25 // times as slow, or as fast, at the end as at the beginning
	muchHigher = 1.25 // times too high that the time per batch may be

	contradicts = 2 // times alpha by which another count in the table may be faster than the choice; alpha is here at least the default's least share
)

// warnings are what the reader of the result should know. others is the share of the
// CPUs that other processes used while tuning.
func (t *tuner) warnings(r *Result, others float64, outOfTime bool) (w []string) {
	add := func(format string, args ...any) { w = append(w, fmt.Sprintf(format, args...)) }
	if others > busyOthers {
		add("other processes kept %s of the CPUs busy meanwhile: on a quiet machine the choice may be another", human.Share(others))
	}
	switch c := t.cpus; {
	case c.Usable() >= c.GOMAXPROCS:
	case c.Affinity < c.GOMAXPROCS:
		add("GOMAXPROCS is %d, but the process may run on %s only", c.GOMAXPROCS, countCPUs(float64(c.Affinity)))
	default:
		add("GOMAXPROCS is %d, but the container may use %s only, and is stopped for a while whenever it uses more", c.GOMAXPROCS, countCPUs(c.Quota))
	}
	if t.cpus.Note != "" {
		add("%s", t.cpus.Note)
	}
	if t.unseen != "" {
		add("%s", t.unseen)
	}
	if t.limit.bytes == math.MaxUint64 {
		add("memory bounds no worker count: %s", t.limit.from)
	}
	if r.Workers == 0 && t.opts.timeout > 0 {
		add("WithTimeout doesn't hold without workers: a call that hangs is waited for")
	}
	if outOfTime {
		add("the time for tuning was over before the search was: what it had not measured by then, or hardly, may be better (WithTuningTime)")
	}
	chosen := r.trial(r.Workers)
	if chosen.Iterations < fewBatches {
		were := "were"
		if chosen.Iterations == 1 {
			were = "was"
		}
		add("only %s %s measured at the choice", countBatches(chosen.Iterations), were)
	}
	if t.n > 0 && chosen.Prefetch >= t.order.steps(0) {
		add("an epoch has %s, but %d were loaded ahead, from the epochs behind it too: in training, Epochs does that; a loop over Epoch takes longer", countBatches(t.order.steps(0)), chosen.Prefetch)
	}
	switch {
	case len(r.Trials) < 2:
	case r.Confidence == 0:
		add("nothing was measured twice, so how sure the choice is can't be told")
	case r.Confidence < unsure:
		add("the choice is not sure: another run would make it in %s of cases", human.Share(r.Confidence))
	}
	quickest := slices.MinFunc(r.Trials, func(a, b Trial) int { return cmp.Compare(a.Total, b.Total) })
	alpha := max(float64(r.Alpha), search.DefaultAlpha.Least*float64(chosen.Total))
	if by := chosen.Total - quickest.Total; float64(by) > contradicts*alpha && !outOfTime {
		// Of fast batches, more than r.Iterations were measured.
		most, remedy := max(chosen.Iterations, quickest.Iterations), ""
		if n := min(max(10*r.Iterations, 2*most), 1_000_000); n > most {
			remedy = fmt.Sprintf("; WithIterations(%d) would measure more of them", n)
		}
		add("the table has %s at %s less than the choice: the choice leaves out drift that all counts share, and takes for chance what few batches met%s", countWorkers(quickest.Workers), human.Share(float64(by)/float64(chosen.Total)), remedy)
	}
	switch d := drift(t.counts.series()); {
	case d > muchDrift:
		add("batches took %s longer at the end than at the beginning: the machine or its storage slowed down", human.Share(d-1))
	case d < 1/muchDrift:
		add("batches took %s less at the end than at the beginning: caches filled, or a neighbour left", human.Share(1-d))
	}
	if c := t.counts.at(r.Workers); c != nil && c.warming {
		add("%s: batches still became faster when measuring ended", countWorkers(r.Workers))
	} else if c != nil && c.tooHigh > muchHigher {
		add("%s: what they had begun when time was over doesn't count, so the time per batch may be up to %.1f times too high", countWorkers(r.Workers), c.tooHigh)
	}
	if t.sampled != "" {
		add("%s; it may have been higher", t.sampled)
	}
	return w
}

// drift is how many times as long iterations took late as early: the median of all worker
// counts that have enough visits to tell.
func drift(seen []search.Series) float64 {
	var logs []float64
	for _, s := range seen {
		if half := len(s.Blocks) / 2; half >= 2 {
			early, late := slices.Clone(s.Blocks[:half]), slices.Clone(s.Blocks[len(s.Blocks)-half:])
			logs = append(logs, math.Log(medianOf(late)/medianOf(early)))
		}
	}
	if len(logs) == 0 {
		return 1
	}
	slices.Sort(logs)
	return math.Exp((logs[(len(logs)-1)/2] + logs[len(logs)/2]) / 2)
}

// medianOf sorts blocks by their mean.
func medianOf(blocks []search.Block) float64 {
	slices.SortFunc(blocks, func(a, b search.Block) int { return cmp.Compare(a.Mean, b.Mean) })
	return float64(max(blocks[(len(blocks)-1)/2].Mean, 1)+max(blocks[len(blocks)/2].Mean, 1)) / 2
}

// advice says what to work on and what to change. others is the share of the CPUs that other
// processes used during all of tuning; it is used if their share at the choice isn't known.
// outOfTime tells whether the time for tuning was over before the search was.
func (s *source) advice(r *Result, limit memoryLimit, others float64, outOfTime bool) []string {
	t := r.trial(r.Workers)
	if t.OtherCPU >= 0 {
		others = t.OtherCPU
	}
	cpus := float64(s.opts.cpus()) // of which Trial.CPU is a share
	if r.Hardware.Affinity > 0 {
		cpus = min(cpus, float64(r.Hardware.Affinity))
	}
	if r.Hardware.Quota > 0 {
		cpus = min(cpus, r.Hardware.Quota/float64(s.opts.ranks()))
	}
	f := figures{
		workers: r.Workers, cpus: cpus, prefetch: max(s.depthOf(r.Workers)-1, t.Prefetch), fixed: s.opts.prefetch > 0,
		highest: r.Workers == r.Trials[len(r.Trials)-1].Workers,
		bounded: slices.ContainsFunc(r.RuledOut, func(out RuledOut) bool { return out.Workers > r.Workers }),
		most:    maxWorkers, outOfTime: outOfTime, live: r.Strategy == live, inits: s.opts.init != nil,
		wait: t.Wait, transfer: t.Transfer, step: t.Step, floor: r.Floor,
		first: t.FirstBatch, median: t.Median, p99: t.P99, cpu: t.CPU, gc: t.CollectorCPU, others: min(others, 1-t.CPU), // figures of other visits
		batchBytes: uint64(r.BatchBytes), memory: t.needs(),
	}
	if s.opts.most >= 0 {
		f.most = s.opts.most
	}
	if s.n == endless {
		f.reading, f.interleave, f.shards = t.Reading, s.opts.interleave, s.shardsOfRank()
	}
	if wave(r.Workers, s.order.perBatch()) > 1 { // batches come in bursts, so the time of a single batch says nothing
		f.median, f.p99 = t.Mean, t.Mean
	}
	if limit.bytes != math.MaxUint64 {
		f.limit = limit.bytes
	}
	advice := advise(f)
	switch {
	case r.Step: // advise has said whether to work on loading or on the model
		return advice
	case r.Workers == 0:
		return append([]string{fmt.Sprintf("Without workers, loading adds %s to every training step; WithStep measures whether a worker would hide it.", human.Duration(t.Mean))}, advice...)
	default:
		return append([]string{fmt.Sprintf("A training step that takes longer than %s hides loading: then work on the model, else on loading. WithStep measures which.", human.Duration(t.Mean))}, advice...)
	}
}

func countCPUs(n float64) string {
	if n == 1 {
		return "1 CPU"
	}
	return numberOfCPUs(n) + " CPUs"
}

// numberOfCPUs writes a whole number, or a quota's number in three digits.
func numberOfCPUs(n float64) string {
	if n >= 100 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.3g", n)
}
