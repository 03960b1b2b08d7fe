package nwt

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/ring"
)

// pace decides how a batch is divided among workers: finely enough that they share it
// evenly, and coarsely enough that claiming costs little compared with loading.
type pace struct {
	first     atomic.Int32 // places per claim while perSample is unknown
	batch     int32        // places of a batch
	perSample atomic.Int64 // nanoseconds, a running mean; 0 while unknown
}

const (
	claimTime  = 20 * time.Microsecond // a claim costs about 0.1 µs
	timingCost = 2 * time.Microsecond  // below that, only some claims are timed
	timeOneIn  = 32
	switching  = 10 * time.Microsecond // many times what it costs to switch goroutines
	laneTime   = 5 * time.Microsecond  // the least work in a lane
	// Samples that take longer come from a file rather than from memory, or take so long
	// to compute that it hardly matters where their bytes go.
	fromMemory = 50 * time.Microsecond
)

// claimSize is how many places a worker claims at once.
func (l *Loader) claimSize() int {
	if l.loadBatch != nil {
		// As many as possible while every worker gets something of what may be ahead.
		depth := l.depth()
		if l.opts.prefetch == 0 && l.pace.perBatch() >= wholeBatches {
			depth = l.leastDepth() + l.deep.bound()
		}
		return max(1, min(l.opts.batchSize, (depth-1)*l.opts.batchSize/max(1, l.Workers())))
	}
	return l.pace.claim()
}

// lanes is how many parts a batch is divided into. While workers keep pace, each
// loads the same part in batch after batch. A batch whose samples come from a file
// has one lane: they are begun in order, which is how files are read ahead.
func (l *Loader) lanes() int {
	if !l.pace.inMemory() || l.loadBatch != nil {
		return 1
	}
	n := min(l.Workers(), int(l.pace.perBatch()/laneTime), ring.MaxLanes)
	if n <= 1 {
		return 1
	}
	return min(n, runtime.GOMAXPROCS(0))
}

func (p *pace) inMemory() bool { return time.Duration(p.perSample.Load()) <= fromMemory }

// makesWay tells whether a worker should yield to the consumer that it has woken. If
// busy workers held every CPU, the consumer would starve until one of them ran out
// of places. Workers that wait leave their CPU anyway.
func (l *Loader) makesWay() bool {
	return l.pace.inMemory() && l.pace.perBatch() > switching && l.Workers() >= runtime.GOMAXPROCS(0)
}

// perBatch is the work in a batch; 0 while unknown.
func (p *pace) perBatch() time.Duration {
	return time.Duration(p.perSample.Load()) * time.Duration(p.batch)
}

func (p *pace) claim() int {
	per := p.perSample.Load()
	if per == 0 {
		return int(p.first.Load())
	}
	return int(max(1, min(int64(claimTime)/per, int64(p.batch))))
}

// timed tells whether to time a claim of n places.
func (p *pace) timed(untimed *int, n int) bool {
	if *untimed++; *untimed < timeOneIn && p.perSample.Load() != 0 && p.perSample.Load()*int64(n) < int64(timingCost) {
		return false
	}
	*untimed = 0
	return true
}

// took notes how long n places took. Lost updates of the mean do no harm.
func (p *pace) took(d time.Duration, n int) {
	per := max(1, int64(d)/int64(n))
	if old := p.perSample.Load(); old != 0 {
		per = old + (per-old)/8
	}
	p.perSample.Store(max(1, per))
}

// notes tells whether to note a claim of n places and which of them is under way, for tellOfCall:
// not if many samples take less than a microsecond, where it would be felt.
func (p *pace) notes(n int) bool {
	per := p.perSample.Load()
	return n <= 16 || per == 0 || per >= int64(time.Microsecond)
}
