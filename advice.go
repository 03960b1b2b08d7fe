package nwt

import (
	"fmt"
	"math"
	"time"

	"github.com/nwt-go/nwt/internal/human"
)

// figures are what was measured at the chosen count, as far as advice needs it.
type figures struct {
	workers, prefetch    int
	cpus                 float64       // of which cpu and the like are shares
	fixed                bool          // prefetch was set, so the depth doesn't follow need
	highest              bool          // no more workers were tried
	bounded              bool          // no more were tried because they would need too much memory
	most                 int           // workers that could be tried if there were time
	outOfTime            bool          // the time for tuning was over before the search was
	live                 bool          // it was tuned while training, which tries no count for a gain that alpha ignores
	inits                bool          // WithWorkerInit was given
	wait, transfer, step time.Duration // means per iteration; step 0: none was given
	floor                time.Duration // per iteration, with batches already loaded; 0: not known
	first, median, p99   time.Duration // the first batch; iterations after warm-up
	cpu, gc, others      float64       // shares of the CPUs: in use, of that by the collector, and by other processes
	batchBytes           uint64
	memory, limit        uint64 // that it needs and may use; limit 0: unknown

	// Of a stream.
	reading    float64 // share of the time in which records were read
	interleave int     // shards that are read at once
	shards     int     // of this rank
}

// From these values on, a figure is worth a sentence.
const (
	littleWait  = 0.05 // share of an iteration lost to loading; below it nobody notices
	cpuFull     = 0.90
	cpuLittle   = 0.10 // who uses less may be short of CPUs that others have, or of something else
	cpuIdle     = 0.50
	muchCopy    = 0.20 // share of an iteration spent copying to the device
	slowTail    = 4    // times the median that one iteration in a hundred takes
	slowFirst   = 20   // times the median that the first batch takes …
	firstNotice = time.Second
	nearLimit   = 0.80
	muchGC      = 0.05 // share of the CPUs that collecting garbage may take
	mostSlots   = 64   // the deepest prefetch that is advised
)

// advise says what to do next, in whole sentences, the most important first. It uses
// only what was measured; if that tells nothing, it says nothing.
func advise(f figures) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }

	iteration := f.wait + f.transfer + f.step
	if iteration <= 0 {
		return nil
	}
	lost := float64(f.wait+f.transfer) / float64(iteration)
	if f.floor > 0 {
		lost = max(0, 1-float64(f.floor)/float64(iteration))
	}
	starved := f.step == 0 || lost > littleWait
	switch {
	case f.step > 0 && f.floor == 0 && starved:
		say("Training waits for data: an iteration takes %s, %s of it waiting.", human.Duration(iteration), human.Share(lost))
	case !starved && f.floor == 0:
		say("Training is bound by its step: an iteration takes %s, the step %s of it. Work on the model; faster loading gains at most %s.",
			human.Duration(iteration), human.Duration(f.step), human.Share(lost))
	case !starved:
		say("Training is bound by its step: an iteration takes %s, and %s with batches already loaded. Work on the model; faster loading gains at most %s.",
			human.Duration(iteration), human.Duration(f.floor), human.Share(lost))
	case f.step > 0:
		say("Training waits for data: an iteration takes %s, and would take %s with batches already loaded (%s lost).",
			human.Duration(iteration), human.Duration(f.floor), human.Share(lost))
	}
	if starved {
		busy := f.cpu + f.others
		switch {
		case f.cpu >= cpuFull:
			say("The CPUs are saturated (%s in use): decode less or decode once, by Cached or by storing what is decoded.", human.Share(f.cpu))
		case busy >= cpuFull && f.cpu >= cpuLittle:
			say("The CPUs are saturated, %s by other processes and %s by this one: without those, loading may be faster.", human.Share(f.others), human.Share(f.cpu))
		case busy >= cpuFull:
			say("Other processes use %s of the CPUs and this one %s: whether loading waits for a CPU or for something else can't be told.", human.Share(f.others), human.Share(f.cpu))
		case f.reading >= readingSets:
			out = append(out, f.aboutReading())
		case f.workers == 0:
			// One goroutine can't use more than a CPU.
		case f.cpu < cpuIdle && float64(f.workers) > f.cpus:
			say("Loading waits more than it computes (it uses %s of %s), so %d workers, more than CPUs, pay off. Data on a faster disk, or Cached, would need fewer.",
				human.Share(f.cpu), countCPUs(f.cpus), f.workers)
		case f.highest && f.bounded:
			say("%s is the highest count that memory allows, and this process used %s of %s: with smaller batches, more workers may be faster.",
				capital(countWorkers(f.workers)), human.Share(f.cpu), countCPUs(f.cpus))
		case f.highest && f.workers < f.most && f.live:
			// WithMaxWorkers isn't what holds it back.
		case f.highest && f.workers < f.most && f.outOfTime:
			say("%s is the highest count that there was time for, and this process used %s of %s: more workers may be faster (WithTuningTime).",
				capital(countWorkers(f.workers)), human.Share(f.cpu), countCPUs(f.cpus))
		case f.highest && f.workers < maxWorkers:
			say("%s is the highest count that was tried, and this process used %s of %s: more workers may be faster (WithMaxWorkers).",
				capital(countWorkers(f.workers)), human.Share(f.cpu), countCPUs(f.cpus))
		case f.highest:
			// No more workers can be tried.
		case busy < cpuIdle && f.outOfTime:
			say("CPUs idle (%s of %s in use), and time was over before it was clear whether more workers help (WithTuningTime).", human.Share(busy), numberOfCPUs(f.cpus))
		case busy < cpuIdle:
			say("CPUs idle (%s of %s in use) and more workers don't help: storage, the network or a lock inside Load sets the pace.", human.Share(busy), numberOfCPUs(f.cpus))
		}
		if deeper := f.deeperPrefetch(); f.fixed && f.workers > 0 && deeper > f.prefetch {
			say("One batch in a hundred takes %s or more, the median %s: WithPrefetch(%d), now %d, would ride that out for %s more memory; without WithPrefetch the depth follows need.",
				human.Duration(f.p99), human.Duration(f.median), deeper, f.prefetch, human.Bytes(uint64(deeper-f.prefetch)*f.batchBytes))
		}
		if f.gc > muchGC && f.cpu > 0 {
			say("The garbage collector takes %s of the CPUs: a buffer per worker instead of one per sample saves it, and a higher GOGC with a GOMEMLIMIT most of it.", human.Share(f.gc))
		}
	}
	if copying := float64(f.transfer) / float64(iteration); copying > muchCopy {
		say("The copy to the device takes %s of an iteration: a smaller element type (Uint8, converted on the device) or a longer step hides it.", human.Share(copying))
	}
	switch late := f.first >= firstNotice && f.first > slowFirst*f.median; {
	case late && f.inits:
		say("The first batch took %s, the median one %s: expect that pause for WithWorkerInit and the first samples at the start of training.",
			human.Duration(f.first), human.Duration(f.median))
	case late:
		say("The first batch took %s, the median one %s: open files and connections once, in WithWorkerInit, or expect that pause at the start of training.",
			human.Duration(f.first), human.Duration(f.median))
	}
	if f.limit > 0 && float64(f.memory) >= nearLimit*float64(f.limit) {
		batches := uint64(f.prefetch) * f.batchBytes
		if 2*batches > f.memory {
			say("Memory is nearly used up (%s of %s), %s of it by batches: a smaller batch or less prefetch (now %d) frees most.",
				human.Bytes(f.memory), human.Bytes(f.limit), human.Bytes(batches), f.prefetch)
		} else {
			say("Memory is nearly used up (%s of %s), only %s of it by batches: what the dataset itself keeps is the place to save.",
				human.Bytes(f.memory), human.Bytes(f.limit), human.Bytes(batches))
		}
	}
	return out
}

// readingSets is the share of the time for which records are read, from which on reading sets
// the pace.
const readingSets = 0.80

// aboutReading says what to do if reading a stream sets the pace.
func (f figures) aboutReading() string {
	sets := fmt.Sprintf("Reading sets the pace: it goes on for %s of the time, %s at once", human.Share(f.reading), countShards(min(f.interleave, f.shards)))
	switch {
	case f.interleave >= f.shards:
		return fmt.Sprintf("%s, which are all: with more, smaller shards, more could be read at once.", sets)
	case f.interleave >= maxInterleave:
		return fmt.Sprintf("%s, and no more can be.", sets)
	default:
		return fmt.Sprintf("%s. If WithInterleave(%d) isn't faster, storage, the network or the reader itself is the limit.", sets, min(2*f.interleave, f.shards, maxInterleave))
	}
}

func countShards(n int) string {
	if n == 1 {
		return "1 shard"
	}
	return fmt.Sprintf("%d shards", n)
}

// deeperPrefetch is how many batches must be ahead so that training doesn't wait for one slow
// batch, as far as memory allows. If batches come evenly, it is the present depth.
func (f figures) deeperPrefetch() int {
	if f.median <= 0 || f.p99 < slowTail*f.median {
		return f.prefetch
	}
	depth := int(min(math.Ceil(float64(f.p99)/float64(f.median)), mostSlots))
	if f.limit > 0 && f.batchBytes > 0 {
		free := max(0, nearLimit*float64(f.limit)-float64(f.memory))
		depth = min(depth, f.prefetch+int(min(free/float64(f.batchBytes), mostSlots)))
	}
	return depth
}
