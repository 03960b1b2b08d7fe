package nwt

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/stat"
)

const (
	othersBusy = "other processes kept %s of the CPUs busy meanwhile: on a quiet machine the choice may be another"
	seldomSame = "other runs may choose another count: %s of them would choose this one"
)

// explain adds to a result the reasons to trust it less, and what to change. others is what other
// processes used meanwhile; unseen says why that isn't known.
func (t *tuning) explain(r *Result, others host.Use, unseen string) {
	o := t.l.opts
	cpus := o.machine.CPUs()
	add := func(format string, args ...any) { r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...)) }
	busy := cpus.OthersShare(others.Others, o.ranks(), o.cpus())
	switch c := cpus; {
	case c.Usable() >= c.GOMAXPROCS:
	case c.Affinity < c.GOMAXPROCS:
		add("GOMAXPROCS is %d, but the process may run on %s only", c.GOMAXPROCS, countCPUs(float64(c.Affinity)))
	default:
		add("GOMAXPROCS is %d, but the container may use %s only, and is stopped for a while whenever it uses more", c.GOMAXPROCS, countCPUs(c.Quota))
	}
	if cpus.Note != "" {
		add("%s", cpus.Note)
	}
	switch {
	case !others.OthersKnown && unseen != "":
		add("%s", unseen)
	case busy > busyOthers:
		add(othersBusy, human.Share(busy))
	}
	if t.limit.bytes == math.MaxUint64 {
		add("memory bounds no worker count: %s", t.limit.from)
	}
	if r.Workers == 0 && o.timeout > 0 {
		add("WithTimeout doesn't hold without workers: a call that hangs is waited for")
	}
	chosen := r.trial(r.Workers)
	late := t.sp.Time > 0 && t.Left(time.Now()) == 0 && float64(chosen.Wait+chosen.Transfer) > hardly*float64(chosen.Mean)
	if late {
		add("the time for tuning was over before the search was: what it had not measured by then, or hardly, may be better (WithTuningTime)")
	}
	if t.again {
		add("the dataset is so small that its samples were loaded more than once: where the first reading of a sample takes longer than later ones, this result is about later ones")
	}
	switch {
	case len(r.Trials) < 2:
	case r.Repeatability == 0:
		add("nothing was measured twice, so how sure the choice is can't be told")
	case r.Repeatability < unsure && chosen.OtherCPU <= mostOthers:
		add(seldomSame, human.Share(r.Repeatability))
	}
	switch d := drift(t.Seen()); {
	case d > muchDrift:
		add("batches took %s longer at the end than at the beginning: the machine or its storage slowed down", human.Share(d-1))
	case d < 1/muchDrift:
		add("batches took %s less at the end than at the beginning: caches filled, or a neighbour left", human.Share(1-d))
	}
	if t.noted != "" {
		add("%s; it may have been higher", t.noted)
	}
	r.Advice = t.l.advice(r, t.limit, busy, late)
}

// drift returns the ratio of the times that iterations took late and early: the median over all worker
// counts that have enough windows.
func drift(seen []search.Series) float64 {
	var times []float64
	for _, s := range seen {
		if half := len(s.Blocks) / 2; half >= 2 {
			var early, late []float64
			for i := range half {
				early = append(early, float64(max(s.Blocks[i].Mean, 1)))
				late = append(late, float64(max(s.Blocks[len(s.Blocks)-1-i].Mean, 1)))
			}
			times = append(times, stat.Median(late)/stat.Median(early))
		}
	}
	if len(times) == 0 {
		return 1
	}
	return stat.Median(times)
}

// advice returns what to work on and what to change, the most important first. others is the share of the
// CPUs that other processes used; late reports whether the time limit ended the search.
func (s *source) advice(r *Result, limit memoryLimit, others float64, late bool) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	t := r.trial(r.Workers)
	if t.Mean <= 0 {
		return nil
	}
	if t.OtherCPU >= 0 {
		others = t.OtherCPU
	}
	lost := float64(t.Wait+t.Transfer) / float64(t.Mean)
	switch {
	case !r.Step && r.Workers == 0:
		say("Without workers, loading adds %s to every training step; WithStep measures whether a worker would hide it.", human.Duration(t.Mean))
	case !r.Step:
		say("Loading takes %s per batch. A step that waits for a GPU longer than that hides it; a step that computes on the CPUs competes with it: measure with WithStep.", human.Duration(t.Mean))
	case lost <= littleWait:
		say("The step sets the pace: training waits for data %s of the time. Work on the model.", human.Share(lost))
	default:
		say("Training waits for data %s of the time: %s of %s per batch.", human.Share(lost), human.Duration(t.Wait+t.Transfer), human.Duration(t.Mean))
	}
	if !r.Step || lost > littleWait {
		out = append(out, s.aboutLoading(r, t, others, late)...)
	}
	if r.Workers > manyWorkers {
		say("A store sees up to %d connections at a time: ask whether it minds.", r.Workers)
	}
	if t.CollectorCPU > muchGC {
		say("The garbage collector takes %s of the CPUs: a buffer per worker instead of one per sample saves it, and a higher GOGC with a GOMEMLIMIT most of it.", human.Share(t.CollectorCPU))
	}
	if copying := float64(t.Transfer) / float64(t.Mean); copying > muchCopy {
		say("The copy to the device takes %s of an iteration: a smaller element type (Uint8, converted on the device) or a longer step hides it.", human.Share(copying))
	}
	first := slices.MaxFunc(r.Trials, func(a, b Trial) int { return cmp.Compare(a.FirstBatch, b.FirstBatch) }).FirstBatch
	if first >= firstNotice && first > slowFirst*t.Median {
		say("The first batch took %s, the median one %s: expect that pause at the start of training.", human.Duration(first), human.Duration(t.Median))
	}
	if needs := t.needs(); limit.bytes != math.MaxUint64 && float64(needs) >= nearLimit*float64(limit.bytes) {
		one, most := human.Apart(needs, limit.bytes)
		say("Memory is nearly used up: %s of %s, %s of it by batches.", one, most, human.Bytes(uint64(t.Prefetch)*uint64(r.BatchBytes)))
	}
	return out
}

// aboutLoading says what loading waits for, as far as the figures show it.
func (s *source) aboutLoading(r *Result, t Trial, others float64, late bool) []string {
	o := s.opts
	cpus := o.machine.CPUs().Mine(o.ranks(), o.cpus()) // Trial.CPU is a share of these
	used := fmt.Sprintf("%s of %s in use", human.Share(t.CPU), countCPUs(cpus))
	highest := r.Workers == r.Trials[len(r.Trials)-1].Workers
	most := maxWorkers
	if o.most >= 0 {
		most = o.most
	}
	switch {
	case t.CPU >= cpuFull && r.loadingCPU(t) < t.CPU/2:
		return []string{fmt.Sprintf("The CPUs are full (%s), most of them with what the program does beside loading: without that, loading may be faster.", used)}
	case t.CPU >= cpuFull:
		return []string{fmt.Sprintf("The CPUs are full (%s): decode less, or decode once: Cached in memory, Precompute in a file.", used)}
	case t.CPU+min(others, 1-t.CPU) >= cpuFull && t.wants(cpus):
		return []string{fmt.Sprintf("The CPUs are full, %s of them used by other programs: without those, loading may be faster.", human.Share(min(others, 1-t.CPU)))}
	case t.Reading >= readingSets:
		return []string{fmt.Sprintf("Reading the stream sets the pace: it goes on for %s of the time, %s of %d shards at once (WithInterleave).", human.Share(t.Reading), strconv.Itoa(min(o.shardsAtOnce(), s.shardsOfRank())), s.shardsOfRank())}
	case r.Workers == 0:
		return nil // one goroutine can't use more than a CPU
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if t.CPU < cpuIdle && float64(r.Workers) > cpus {
		say("Loading waits more than it computes (%s), so more workers than CPUs pay off. Data on a faster disk, or Cached, would need fewer.", used)
	}
	switch {
	case highest && slices.ContainsFunc(r.RuledOut, func(out RuledOut) bool { return out.Workers > r.Workers && out.forMemory() }):
		say("%s is the highest count that memory allows (%s): with smaller batches, more workers may be faster.", capital(countWorkers(r.Workers)), used)
	case highest && r.Workers < most && late:
		say("%s is the highest count that there was time for (%s): more workers may be faster (WithTuningTime).", capital(countWorkers(r.Workers)), used)
	case highest && r.Workers == most && most < maxWorkers:
		say("%s is the highest count that was tried (%s): more workers may be faster (WithMaxWorkers).", capital(countWorkers(r.Workers)), used)
	case len(out) == 0 && !highest && t.CPU+others < cpuIdle && slower(t, r.trial(r.Fastest)) <= littleWait:
		say("CPUs idle (%s) and more workers don't help: storage, the network or a lock inside Load sets the pace.", used)
	}
	return out
}

// loadingCPU returns the share of the CPUs that loading used at a count. A count that loads far slower and
// uses as much shows that something else does.
func (r *Result) loadingCPU(t Trial) float64 {
	least := t.CPU
	for _, one := range r.Trials {
		if more := slower(one, t); more > farSlower {
			least = min(least, (t.CPU-one.CPU)*(1+1/more))
		}
	}
	return least
}

// wants reports whether the workers use, or wait for, as many of the CPUs as they can; workers that wait
// for storage don't.
func (t *Trial) wants(cpus float64) bool {
	most := min(1, float64(max(1, t.Workers))/cpus) // of the CPUs
	return t.queued == 0 || t.CPU+t.queued >= cpuFull*most
}
