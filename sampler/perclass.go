package sampler

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"slices"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/permute"
)

// maxClasses bounds the numbers of classes.
const maxClasses = 1 << 24

// A ClassBatch says what a batch of [PerClass] is made of.
type ClassBatch struct {
	Classes int // how many classes a batch has
	Samples int // how many samples of each class

	// Weights of the classes, from class 0. How often a class comes is proportional to its weight, but a
	// class comes at most once per batch. If the model confuses a class, give this class a larger weight, so
	// that it comes more often. Weight 0 leaves a class out. If Weights is nil, all classes weigh the same.
	Weights []float64
}

// PerClass makes batches for metric learning. Each batch has some classes, and some samples of each class.
// The class of index i is labels[i], 0 or more. No class comes twice in a batch. If a class has too few
// samples, some of them come twice in a batch; a log line of [slog.Default] counts such classes. An epoch has
// about as many samples as the dataset. Each time that a class comes, it brings samples that haven't come
// yet. When too few are left, its samples are shuffled again.
//
// WithBatchSize must be at least Classes × Samples. If the last step has fewer batches than there are ranks,
// several ranks share a batch. [nwt.WithDropLast] leaves such a step out. To change a class's weight, pass a
// new PerClass to SetSampler between epochs, and save the new weights with the model.
//
// The order of an epoch is computed as a whole. For ten million samples in classes of 4, this takes about 0.5
// s. The first epoch waits for this. The next order is computed in the background once half of an epoch is
// loaded. The orders of two successive epochs are kept. Each takes 8 bytes for each class in each batch.
func PerClass(labels []int, b ClassBatch, seed uint64) (nwt.BatchSampler, error) {
	s := &perClass{classes: b.Classes, each: b.Samples, seed: seed, last: len(labels) - 1}
	if err := errors.Join(s.group(labels, b.Weights), s.checkSize(len(labels))); err != nil {
		return nil, err
	}
	s.batches = max(1, len(labels)/s.Largest())
	if err := s.divide(b.Weights); err != nil {
		return nil, err
	}
	s.digest = permute.Digest(len(labels), func(i int) uint64 { return uint64(labels[i]) }) ^ permute.Mix64(digestOf(b.Weights))
	s.key = permute.OrderKey(seed, len(labels))
	s.orders = permute.NewOrders(2, 1, func(epoch, _ int) []turn { return s.order(permute.EpochKey(s.key, epoch)) })
	return s, nil
}

type perClass struct {
	classes, each int
	batches       int // in an epoch
	last          int
	seed, digest  uint64
	key           uint64 // derived from the seed

	members []int32 // all indices, class by class
	ends    []int   // the end of each class in members

	turns  []int     // how often each class comes in an epoch, at least
	shares []float64 // of each class in the turns that are left, below 1
	left   int       // turns that are left

	orders *permute.Orders[turn]
}

func (s *perClass) checkSize(n int) error {
	var errs []error
	if s.classes < 1 || s.classes > maxClasses {
		errs = append(errs, optionError("PerClass: ClassBatch.Classes", s.classes, "must be 1 … %d", maxClasses))
	}
	if s.each < 1 || s.each > math.MaxInt32/max(1, min(s.classes, maxClasses)) {
		errs = append(errs, optionError("PerClass: ClassBatch.Samples", s.each, "must be at least 1, and a batch at most %d samples", math.MaxInt32))
	}
	if n < 1 || n > math.MaxInt32 {
		errs = append(errs, optionError("PerClass: labels", n, "the number of labels must be 1 … %d", math.MaxInt32))
	}
	return errors.Join(errs...)
}

// group sorts the indices by class.
func (s *perClass) group(labels []int, weights []float64) error {
	most := maxClasses
	if weights != nil {
		most = min(most, len(weights))
	}
	for i, class := range labels {
		if class < 0 || class >= most {
			return optionError(fmt.Sprintf("PerClass: labels[%d]", i), class, "must be a class, 0 … %d", most-1)
		}
		for class >= len(s.ends) {
			s.ends = append(s.ends, 0)
		}
		s.ends[class]++
	}
	at := 0
	for class, n := range s.ends {
		s.ends[class], at = at, at+n
	}
	s.members = make([]int32, len(labels))
	for i, class := range labels {
		s.members[s.ends[class]] = int32(i)
		s.ends[class]++
	}
	return nil
}

// of returns the indices of a class.
func (s *perClass) of(class int) []int32 {
	from := 0
	if class > 0 {
		from = s.ends[class-1]
	}
	return s.members[from:s.ends[class]]
}

// divide finds out how often each class comes.
func (s *perClass) divide(weights []float64) error {
	quota := make([]float64, len(s.ends))
	come, few := 0, 0
	for class := range quota {
		n, w := len(s.of(class)), 1.0
		if weights != nil {
			if w = weights[class]; !(w >= 0 && w <= math.MaxFloat64) { // written so that NaN fails too
				return optionError(fmt.Sprintf("PerClass: ClassBatch.Weights[%d]", class), w, "must be 0 or more, and finite")
			}
		}
		if n == 0 || w == 0 {
			continue
		}
		quota[class] = w
		come++
		if n < s.each {
			few++
		}
	}
	if come < s.classes {
		return optionError("PerClass: ClassBatch.Classes", s.classes, "a batch needs that many, but only %d have samples and a weight above 0", come)
	}
	if few > 0 {
		slog.Default().Info("sampler: PerClass: some classes have too few samples, so a batch has some of them twice", "classes", few, "fewer than", s.each)
	}
	heaviest := slices.Max(quota)
	for class := range quota {
		if quota[class] > 0 {
			quota[class] = max(quota[class]/heaviest, 1e-12) // so that sums don't overflow, and each class comes
		}
	}
	share(quota, s.batches, s.batches*s.classes)
	s.turns, s.shares, s.left = make([]int, len(quota)), make([]float64, len(quota)), s.batches*s.classes
	for class, q := range quota {
		whole, rest := math.Modf(q)
		s.turns[class], s.shares[class] = int(whole), rest
		s.left -= int(whole)
	}
	return nil
}

// share turns weights into parts of a total, each at most the given one.
func share(weights []float64, most, total int) {
	full := make([]bool, len(weights)) // has the most that it may have
	for again := true; again; {
		again = false
		sum, rest := 0.0, float64(total)
		for i, w := range weights {
			if full[i] {
				rest -= float64(most)
			} else {
				sum += w
			}
		}
		for i, w := range weights {
			if !full[i] && w > 0 && w/sum*rest >= float64(most) {
				full[i], again = true, true
			}
		}
		if again {
			continue
		}
		for i, w := range weights {
			if full[i] {
				weights[i] = float64(most)
			} else if w > 0 {
				weights[i] = w / sum * rest
			}
		}
	}
}

// A turn is a class in a batch, and how often the class has come before in the epoch.
type turn struct{ class, number int32 }

// order computes the turns of an epoch, batch by batch.
func (s *perClass) order(key uint64) []turn {
	draw := func(i, n int) int {
		at, _ := bits.Mul64(permute.Mix64(key+uint64(i)*permute.Golden), uint64(n))
		return int(at)
	}
	batch := s.deal(key)
	n := len(batch)
	has := func(b, class int) bool { return slices.Contains(batch[b*s.classes:(b+1)*s.classes], int32(class)) }
	for i := range 2 * n { // until classes meet at random
		a, b := i%n, draw(i, n)
		x, y := int(batch[a]), int(batch[b])
		if !has(b/s.classes, x) && !has(a/s.classes, y) {
			batch[a], batch[b] = batch[b], batch[a]
		}
	}
	order, turns := make([]turn, n), make([]int32, len(s.turns))
	for i, c := range batch {
		order[i] = turn{c, turns[c]}
		turns[c]++
	}
	return order
}

// deal returns the classes of each batch, none of them twice: it lays out the turns of one class after the
// other, and deals them to the batches like cards.
func (s *perClass) deal(key uint64) []int32 {
	perm, own := permute.New(len(s.turns)), permute.Mix64(key)
	turns, left, sum := slices.Clone(s.turns), s.left, float64(own>>11)/(1<<53)
	for i := range turns {
		class := perm.At(own, i)
		before := math.Floor(sum)
		if sum += s.shares[class]; math.Floor(sum) > before && left > 0 {
			turns[class]++
			left--
		}
	}
	for class := 0; left > 0; class++ { // what rounding has left over
		if s.shares[class] > 0 && turns[class] == s.turns[class] {
			turns[class]++
			left--
		}
	}
	batch, dealt := make([]int32, s.batches*s.classes), 0
	for i := range turns {
		class := perm.At(own, i)
		for range turns[class] {
			batch[dealt%s.batches*s.classes+dealt/s.batches] = int32(class)
			dealt++
		}
	}
	return batch
}

func (s *perClass) Len() int               { return s.batches * s.Largest() }
func (s *perClass) Batches() int           { return s.batches }
func (s *perClass) Largest() int           { return s.classes * s.each }
func (s *perClass) LastIndex() int         { return s.last }
func (s *perClass) Start(_, batch int) int { return batch * s.Largest() }

func (s *perClass) String() string {
	return fmt.Sprintf("PerClass(%d classes × %d of %d labels, seed %d)", s.classes, s.each, s.last+1, s.seed)
}

func (s *perClass) Fingerprint() string { return fmt.Sprintf("%v, labels and weights %x", s, s.digest) }

func (s *perClass) At(epoch, i int) int {
	var index [1]int
	s.Fill(epoch, i, index[:])
	return index[0]
}

func (s *perClass) Fill(epoch, from int, indices []int) {
	permute.CheckPosition(from, s.Len())
	order, key := s.orders.Get(epoch, 0), permute.EpochKey(s.key, epoch)
	if from >= s.Len()/2 {
		s.orders.Prepare(epoch+1, 0)
	}
	for len(indices) > 0 {
		t, first := order[from/s.each], from%s.each
		members := s.of(int(t.class))
		perRound := max(1, len(members)/s.each) // turns until too few samples are left
		round, begin := int(t.number)/perRound, int(t.number)%perRound*s.each
		perm, own := permute.New(len(members)), permute.Mix64(permute.Mix64(key^uint64(t.class))+uint64(round)*permute.Golden)
		n := min(s.each-first, len(indices))
		for k := range n {
			indices[k] = int(members[perm.At(own, (begin+first+k)%len(members))])
		}
		indices, from = indices[n:], from+n
	}
}
