package nwt

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Buckets says which samples [Bucketed] brings together.
type Buckets struct {
	BatchSize int // samples a batch, as the loader is told
	World     int // ranks that share a step, as the loader is told; 0 = 1
	Window    int // steps that are sorted together; 0 = 64
}

// Bucketed visits each of 0 … n−1 once an epoch, shuffled, but so that samples
// of one batch have similar lengths and little of it is padding. Length tells
// the length of a sample in any unit; it is called from many goroutines, once a
// sample and epoch at least, must be quick (a look-up, not a load), and must
// always answer the same.
//
// The epoch is shuffled as by [Shuffled] and cut into windows of Buckets.Window
// steps, a step being one batch on each rank. A window is sorted by length, cut
// into steps again, and these are shuffled. A wider window means less padding
// and less chance: with one that holds the epoch, the same samples meet in
// every epoch. The samples left over, too few for a step, come last and are not
// sorted, so that it isn't always the longest that a loader drops.
//
// A window is sorted when a position of it is first asked for, about 0.2 µs a
// sample, and on each rank, so a rank pays for all ranks' samples. Four windows
// are kept, 8 bytes a sample.
func Bucketed(n int, length func(index int) int, b Buckets, seed uint64) (Sampler, error) {
	b.World = cmp.Or(b.World, 1)
	b.Window = cmp.Or(b.Window, 64)
	switch {
	case n < 1:
		return nil, fmt.Errorf("nwt: %d samples to bucket; want 1 or more", n)
	case length == nil:
		return nil, errors.New("nwt: the length function of Bucketed is nil")
	case b.BatchSize < 1:
		return nil, fmt.Errorf("nwt: Buckets.BatchSize is %d; want 1 or more", b.BatchSize)
	case b.World < 1:
		return nil, fmt.Errorf("nwt: Buckets.World is %d; want 1 or more, or 0 for 1", b.World)
	case b.Window < 1:
		return nil, fmt.Errorf("nwt: Buckets.Window is %d; want 1 or more, or 0 for 64", b.Window)
	case b.World > math.MaxInt/b.BatchSize:
		return nil, fmt.Errorf("nwt: Buckets.BatchSize %d × World %d is more than %d", b.BatchSize, b.World, math.MaxInt)
	}
	s := &bucketed{
		n:      n,
		length: length,
		key:    seedKey(seed),
		perm:   newPermutation(n),
		step:   b.BatchSize * b.World,
		window: b.Window,
	}
	s.steps = n / s.step
	s.windows = s.steps / s.window
	if over := s.steps % s.window; over >= s.window-over || s.windows == 0 {
		s.windows++ // less than half a window joins the one before
	}
	s.orders = newOrders(4, s.windows, s.sorted)
	return s, nil
}

type bucketed struct {
	n       int
	length  func(index int) int
	key     uint64 // of the seed
	perm    permutation
	step    int // samples in a step
	steps   int // full ones in an epoch
	window  int // steps in a window, but the last
	windows int // in an epoch
	orders  *orders[int]
}

func (s *bucketed) Len() int { return s.n }

func (s *bucketed) At(epoch, i int) int {
	checkPosition(i, s.n)
	step := i / s.step
	if step == s.steps {
		return s.perm.at(epochKey(s.key, epoch), i)
	}
	w := min(step/s.window, s.windows-1)
	return s.orders.get(epoch, w)[i-w*s.window*s.step]
}

func (s *bucketed) sorted(epoch, w int) []int {
	key := epochKey(s.key, epoch)
	first, steps := w*s.window, s.window
	if w == s.windows-1 {
		steps = s.steps - first
	}
	type sample struct{ length, position, index int }
	samples := make([]sample, steps*s.step)
	for k := range samples {
		index := s.perm.at(key, first*s.step+k)
		samples[k] = sample{length: s.length(index), position: k, index: index}
	}
	slices.SortFunc(samples, func(a, b sample) int {
		if a.length != b.length {
			return cmp.Compare(a.length, b.length)
		}
		return a.position - b.position // samples of one length stay shuffled
	})
	indices := make([]int, len(samples))
	perm, windowKey := newPermutation(steps), mix64(key+uint64(w)*golden)
	for from := range steps {
		to := perm.at(windowKey, from)
		for k, sample := range samples[from*s.step : (from+1)*s.step] {
			indices[to*s.step+k] = sample.index
		}
	}
	return indices
}
