package nwt

import (
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"os"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/guard"
	"github.com/nwt-go/nwt/internal/launch"
)

// An order is which samples make up which batch, as arithmetic: nothing is
// stored for an epoch, and every rank and every resumed run computes the same.
//
// An epoch is the positions 0 … n−1 of its sampler. A step takes the next
// batch × world positions, and rank r takes the r-th part of these. So the number of
// positions taken says exactly what all ranks have had. Nothing here overflows, not
// even with 32 bits, if n is at most maxSamples and world at most launch.MaxWorld.
//
// With a BatchSampler a step is the next world batches instead, and what steps and
// courses count is batches: their base is the number of a batch.
type order struct {
	n           int // positions of an epoch; endless for a stream
	batch       int // samples of a batch, or of the largest allowed
	rank, world int
	dropLast    bool
	sorts       int // how many samples at a time the sampler sorts; 0 if it doesn't tell

	// Of a BatchSampler.
	batches int // of an epoch, over all ranks; 0 if all batches are equally large
	starts  func(epoch, batch int) int
}

// follow sets what depends on the sampler: how many positions and batches an epoch has.
func (o *order) follow(option string, s Sampler) (err error) {
	if o.n, err = epochLen(option, s); err != nil {
		return err
	}
	o.batches, o.starts, o.sorts = 0, nil, 0
	b, ok := s.(BatchSampler)
	if !ok {
		if _, starts := s.(interface{ Start(epoch, batch int) int }); starts {
			return optionError(option, nameOfSampler(s), "has Start, but isn't a BatchSampler: Batches or Largest is missing")
		}
		if sorts, ok := s.(interface{ Step() int }); ok {
			o.sorts, err = ask(option, s, "Step", sorts.Step)
		}
		return err
	}
	if o.batches, err = ask(option, s, "Batches", b.Batches); err != nil {
		return err
	}
	if o.starts = b.Start; o.batches < 1 || o.batches > o.n {
		return optionError(option, o.batches, "an epoch of %d samples must have 1 … %d batches", o.n, o.n)
	}
	n, err := ask(option, s, "Largest", b.Largest)
	if n > o.batch {
		return optionError("WithBatchSize", o.batch, "must be at least %d, the samples of the largest batch of %s", n, nameOfSampler(s))
	}
	return err
}

// start is the position at which a batch of a BatchSampler begins, or an epoch ends.
func (o *order) start(epoch, batch int) (position int, err error) {
	switch batch {
	case 0:
		return 0, nil
	case o.batches:
		return o.n, nil
	}
	finished := false
	defer func() {
		if !finished {
			stack, cause := guard.Recovered(recover())
			err = &LoadError{Index: -1, Position: -1, Epoch: epoch, Err: fmt.Errorf("BatchSampler.Start of batch %d: %w", batch, cause), Stack: stack}
		}
	}()
	position = o.starts(epoch, batch)
	finished = true
	return position, nil
}

// batchAt is the batch of a BatchSampler that begins at a position.
func (o *order) batchAt(epoch, position int) (batch int, err error) {
	if position == 0 {
		return 0, nil // whatever Start says of the others
	}
	below, above := 0, o.batches // what begins at position isn't outside
	for below < above {
		middle := below + (above-below)/2
		at, err := o.start(epoch, middle)
		switch {
		case err != nil:
			return 0, err
		case at < position:
			below = middle + 1
		default:
			above = middle
		}
	}
	at, err := o.start(epoch, below)
	if err == nil && at != position {
		err = optionError("State.Samples", position, "no batch of epoch %d begins there: the next after it, batch %d, begins at %d", epoch, below, at)
	}
	return below, err
}

// partOf is part and bounds for a BatchSampler: the positions of this rank in step k
// from batch base, and the position after those of all ranks. If fewer batches than
// ranks are left for the last step, ranks share a batch, so that each has some of its
// samples; if it has fewer samples than ranks, they repeat them.
func (o *order) partOf(epoch, base, k int) (from, to, after int, err error) {
	first := base + k*o.world
	n := min(o.world, o.batches-first)
	number := portion(n, o.rank, o.world) // of the step's batches
	batch := first + number
	if from, err = o.start(epoch, batch); err != nil {
		return 0, 0, 0, err
	}
	if to, err = o.start(epoch, batch+1); err != nil {
		return 0, 0, 0, err
	}
	if after, err = o.start(epoch, first+n); err != nil {
		return 0, 0, 0, err
	}
	size := to - from
	switch {
	case from < 0 || to > after || after > o.n || size < 1:
		return 0, 0, 0, optionError("BatchSampler.Start", from, "batch %d of epoch %d is positions %d to before %d of %d: must have at least one, after those of the batch before", batch, epoch, from, to, o.n)
	case size > o.batch:
		return 0, 0, 0, optionError("BatchSampler.Start", from, "batch %d of epoch %d has %d samples, positions %d to before %d: WithBatchSize allows %d", batch, epoch, size, from, to, o.batch)
	}
	if n < o.world {
		begin, end := sharers(n, number, o.world), sharers(n, number+1, o.world)
		if share, all := o.rank-begin, end-begin; size < all {
			from += share % size
			to = from + 1
		} else {
			from, to = from+portion(size, share, all), from+portion(size, share+1, all)
		}
	}
	return from, to, after, nil
}

// sharers is the first rank that has part number of n: the lowest for which
// portion(n, rank, world) is number.
func sharers(n, number, world int) int {
	return int((uint64(number)*uint64(world) + uint64(n) - 1) / uint64(n))
}

// step is how many positions all ranks take together, or how many batches of a
// BatchSampler. With 32 bits, batch × world may be more than an int holds: an epoch is
// then one step, or none.
func (o *order) step() int {
	if o.batches > 0 {
		return o.world
	}
	if hi, lo := bits.Mul(uint(o.batch), uint(o.world)); hi == 0 && lo <= math.MaxInt {
		return int(lo)
	}
	return math.MaxInt
}

// steps is this rank's batches from base to the end of the epoch: the same number on
// every rank.
func (o *order) steps(base int) int {
	left, step := o.n-base, o.step()
	if o.batches > 0 {
		left = o.batches - base
	}
	if o.dropLast {
		return left / step
	}
	return left/step + min(left%step, 1)
}

// perBatch is how many samples a batch of an epoch has on average, rounded up.
func (o *order) perBatch() int {
	switch {
	case o.n == endless:
		return o.batch
	case o.batches > 0:
		return (o.n-1)/o.batches + 1
	}
	return min(o.batch, (o.n-1)/o.world+1)
}

// bounds is the positions of all ranks in step k from base.
func (o *order) bounds(base, k int) (from, to int) {
	step := o.step()
	from, to = base+k*step, o.n
	if step < o.n-from {
		to = from + step
	}
	if to <= o.n-o.world {
		return from, to
	}
	// If fewer positions than ranks are left for the last step, the step before it
	// gives some of its positions, so that each rank gets one.
	if short := o.world - (o.n-base)%step; short > 0 && short < o.world && o.batch > 1 && !o.dropLast {
		if last := o.steps(base) - 1; last > 0 && k == last-1 {
			to -= short
		} else if last > 0 && k == last {
			from -= short
		}
	}
	return from, to
}

// part is the positions of this rank in step k from base, and the position after those
// of all ranks. If fewer positions than ranks are left in all, and no earlier step can
// give some, the ranks that would have none repeat positions of other ranks: a rank
// without a batch would make a collective operation hang.
func (o *order) part(base, k int) (from, to, after int) {
	from, after = o.bounds(base, k)
	if o.world == 1 {
		return from, after, after
	}
	n := after - from
	if n < o.world {
		from += o.rank % n
		return from, from + 1, after
	}
	return from + portion(n, o.rank, o.world), from + portion(n, o.rank+1, o.world), after
}

// portion is n·rank/world, rounded down, although n·rank may be more than an int
// holds.
func portion(n, rank, world int) int {
	return n/world*rank + int(uint64(n%world)*uint64(rank)/uint64(world))
}

// endless stands for the length of a stream, which isn't known before its end.
const endless = math.MaxInt

// A course is the batches of one run through a loader: those of epoch first
// from position base on, then the whole epochs up to last.
type course struct {
	*order
	first, last int // epochs, last included
	base        int

	head, whole int // batches of the first epoch, and of every later one
	skipped     int // number of the first batch in its epoch
}

func newCourse(o *order, first, last, base int) course {
	step := o.step()
	c := course{order: o, first: first, last: last, base: base, head: endless, skipped: base/step + min(base%step, 1)}
	if o.n != endless {
		c.head, c.whole = o.steps(base), o.steps(0)
		c.skipped = c.whole - c.head // so that the last is always whole−1
	}
	return c
}

// len is the batches of the course.
func (c *course) len() int {
	if c.head == endless {
		return endless
	}
	if hi, lo := bits.Mul64(uint64(c.last-c.first), uint64(c.whole)); hi == 0 && lo < endless-uint64(c.head) {
		return c.head + int(lo)
	}
	return endless
}

// at is the epoch of batch i of the course, the position its epoch starts
// from, the batch's number from there, and its number in the epoch.
func (c *course) at(i int) (epoch, base, k, index int) {
	if i < c.head {
		return c.first, c.base, i, c.skipped + i
	}
	i -= c.head
	return c.first + 1 + i/c.whole, 0, i % c.whole, i % c.whole
}

// left is how many places follow in the epoch after step k from base, where the position
// after that is given; 0 only after the last step.
func (c *course) left(epoch, base, k, after int) int {
	all := c.whole
	if epoch == c.first {
		all = c.head
	}
	left := c.n - after
	if c.dropLast && c.batches == 0 {
		left -= left % c.step()
	}
	if k == all-1 {
		return 0
	}
	return max(1, left)
}

// hasBatch is an error if WithDropLast would leave nothing of an epoch.
func (o *order) hasBatch() error {
	if o.steps(0) > 0 {
		return nil
	}
	if o.batches > 0 {
		return optionError("WithDropLast", o.batches, "leaves no batch for each of %d ranks: an epoch has %d batches", o.world, o.batches)
	}
	return optionError("WithDropLast", o.batch, "leaves no batch of %d samples for each of %d ranks: an epoch has %d", o.batch, o.world, o.n)
}

// Rank is the place of this process among those that train together.
type Rank struct {
	Rank, World           int    // number of this process, 0-based, and how many there are
	LocalRank, LocalWorld int    // the same among the ranks of this host; 0 of 1 if the launcher doesn't tell
	Source                string // the launcher: "torchrun", "Open MPI", "MPICH", "Slurm", "Kubernetes" or "none"
	Vars                  string // what it was read from, of each value up to 200 characters: "WORLD_SIZE=8 RANK=3 …"
}

// String says what was found, and where.
func (r Rank) String() string {
	found := fmt.Sprintf("rank %d of %d, %d of %d on this host, launcher: %s", r.Rank, r.World, r.LocalRank, r.LocalWorld, r.Source)
	if r.Vars != "" {
		found += " (" + r.Vars + ")"
	}
	return found
}

// loggedRank is the rank that this process logged last.
var loggedRank atomic.Pointer[Rank]

// logOnce logs the rank unless it was the last one logged: Tune, NewLoader and each
// trial read the environment anew.
func (r Rank) logOnce(log *slog.Logger) {
	if last := loggedRank.Swap(&r); last == nil || *last != r {
		log.Info("nwt: " + r.String())
	}
}

// RankFromEnv reads rank and world from the environment variables of the first launcher that set
// any: torchrun, Open MPI, MPICH, Intel MPI, Slurm's srun, a Kubernetes indexed Job with
// WORLD_SIZE. Without one it is rank 0 of 1. Variables that are malformed, out of range, missing
// or in contradiction are an error. An empty one counts as missing. A nil lookup is
// [os.LookupEnv].
func RankFromEnv(lookup func(key string) (string, bool)) (Rank, error) {
	if lookup == nil {
		lookup = os.LookupEnv
	}
	r, err := launch.Find(lookup, os.Getpid())
	if err != nil {
		return Rank{}, fmt.Errorf("nwt: %w", err)
	}
	return Rank(r), nil
}
