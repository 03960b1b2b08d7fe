package sampler

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/permute"
)

// Buckets says how many samples of similar lengths [Bucketed] brings together. These samples make up a step:
// one batch on each rank. The order depends on Buckets and on the seed. So to resume an epoch, use the
// Buckets with which it began, even with another batch size or number of ranks. If a step of Buckets isn't a
// whole number of the loader's steps, batches mix lengths, and a log line says so.
type Buckets struct {
	BatchSize int // samples per batch
	World     int // number of ranks; 0 means 1
	Window    int // how many steps are sorted together; 0 means 64
}

// Bucketed visits each of 0 … n−1 once per epoch. The order is random, but the samples of a batch have similar
// lengths. So batches need little padding. length(i) returns the length of sample i, in any unit, and must
// always return the same length. Many goroutines call it, at least once per sample and epoch. The function
// length must be quick: a look-up, not a load.
//
// The epoch is shuffled as [nwt.Shuffled] does, and cut into windows of Buckets.Window steps. In each window,
// each rank sorts its samples by length and cuts them into batches. Then the steps of the window are
// shuffled, in the same way on all ranks. So the batches of a step have similar lengths on all ranks. A wider
// window means less padding and less randomness: if one window holds the whole epoch, a sample shares its
// batches only with samples of about its length. Samples that are left over, too few for a step, come last
// and aren't sorted. So a loader that drops them doesn't always drop the longest.
//
// When a rank first asks for a sample of a window, it sorts all its samples of the window. This takes about
// 0.2 µs per sample. The sampler keeps four sorted windows in memory. They take 8 bytes for each of the
// rank's samples, and about 0.2 kB for each rank.
func Bucketed(n int, length func(index int) int, b Buckets, seed uint64) (nwt.Sampler, error) {
	b.World = cmp.Or(b.World, 1)
	b.Window = cmp.Or(b.Window, 64)
	var errs []error
	bad := func(wrong bool, value any, format string, args ...any) {
		if wrong {
			errs = append(errs, optionError("Bucketed", value, format, args...))
		}
	}
	bad(n < 1, n, "the number of samples must be at least 1")
	bad(length == nil, nil, "the length function is nil")
	bad(b.BatchSize < 1, b.BatchSize, "Buckets.BatchSize must be at least 1")
	bad(b.World < 1, b.World, "Buckets.World must be at least 1, or 0 for 1")
	bad(b.Window < 1, b.Window, "Buckets.Window must be at least 1, or 0 for 64")
	bad(b.World > 0 && b.BatchSize > math.MaxInt/b.World, b.BatchSize, "Buckets.BatchSize × World must be at most %d", math.MaxInt)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s := &bucketed{
		n:      n,
		seed:   seed,
		length: length,
		key:    permute.SeedKey(seed),
		perm:   permute.New(n),
		batch:  b.BatchSize,
		step:   b.BatchSize * b.World,
		window: b.Window,
	}
	s.steps = n / s.step
	s.windows = s.steps / s.window
	if over := s.steps % s.window; over >= s.window-over || s.windows == 0 {
		s.windows++ // a remainder of less than half a window joins the window before
	}
	s.orders = permute.NewOrders(4, s.windows, s.sorted)
	return s, nil
}

type bucketed struct {
	n       int
	seed    uint64
	length  func(index int) int
	key     uint64 // derived from the seed
	perm    permute.Permutation
	batch   int // samples in a batch
	step    int // samples in a step
	steps   int // full steps per epoch
	window  int // steps in each window except the last
	windows int // per epoch
	orders  *permute.Orders[func() []int]
}

func (s *bucketed) Len() int        { return s.n }
func (s *bucketed) LastIndex() int  { return s.n - 1 }
func (s *bucketed) BucketStep() int { return s.step } // a loader looks whether its steps divide it
func (s *bucketed) String() string {
	return fmt.Sprintf("Bucketed(%d, steps of %d, windows of %d, seed %d)", s.n, s.step, s.window, s.seed)
}

// Fingerprint leaves out the lengths, because it would take long to ask for all of them.
func (s *bucketed) Fingerprint() string { return s.String() }

func (s *bucketed) At(epoch, i int) int {
	permute.CheckPosition(i, s.n)
	step := i / s.step
	if step == s.steps {
		return s.perm.At(permute.EpochKey(s.key, epoch), i)
	}
	w := min(step/s.window, s.windows-1)
	rank, place := i%s.step/s.batch, i%s.batch
	return s.orders.Get(epoch, w)[rank]()[(step-w*s.window)*s.batch+place]
}

// sorted returns, for each rank, its samples of a window; they are sorted when they are first asked for.
func (s *bucketed) sorted(epoch, w int) []func() []int {
	ranks := make([]func() []int, s.step/s.batch)
	for rank := range ranks {
		ranks[rank] = sync.OnceValue(func() []int { return s.sortedOf(rank, epoch, w) })
	}
	return ranks
}

func (s *bucketed) sortedOf(rank, epoch, w int) []int {
	key := permute.EpochKey(s.key, epoch)
	first, steps := w*s.window, s.window
	if w == s.windows-1 {
		steps = s.steps - first
	}
	type sample struct{ length, position, index int }
	samples := make([]sample, steps*s.batch)
	for k := range samples {
		index := s.perm.At(key, (first+k/s.batch)*s.step+rank*s.batch+k%s.batch)
		samples[k] = sample{length: s.length(index), position: k, index: index}
	}
	slices.SortFunc(samples, func(a, b sample) int {
		if a.length != b.length {
			return cmp.Compare(a.length, b.length)
		}
		return a.position - b.position // samples of one length stay shuffled
	})
	indices := make([]int, len(samples))
	perm, windowKey := permute.New(steps), permute.Mix64(key+uint64(w)*permute.Golden) // the same on each rank
	for from := range steps {
		to := perm.At(windowKey, from)
		for k, sample := range samples[from*s.batch : (from+1)*s.batch] {
			indices[to*s.batch+k] = sample.index
		}
	}
	return indices
}
