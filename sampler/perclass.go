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
}

// PerClass makes batches for metric learning. Each batch has some classes, and some samples of each class.
// The class of index i is labels[i], 0 or more. No class comes twice in a batch. If a class has too few
// samples, some of them come twice in a batch; a log line of [slog.Default] counts such classes. An epoch has
// about as many samples as the dataset. Each time that a class comes, it brings samples that haven't come
// yet. When too few are left, its samples are shuffled again.
//
// WithBatchSize must be at least Classes × Samples. If the last step has fewer batches than there are ranks,
// several ranks share a batch. [nwt.WithDropLast] leaves such a step out.
//
// The order of an epoch is computed as a whole. For ten million samples in classes of 4, this takes about 0.5
// s. The first epoch waits for this. The next order is computed in the background once half of an epoch is
// loaded. The sampler keeps two orders in memory. An order takes 8 bytes for each class in each batch.
func PerClass(labels []int, b ClassBatch, seed uint64) (nwt.BatchSampler, error) {
	s := &perClass{classes: b.Classes, each: b.Samples, seed: seed, last: len(labels) - 1}
	if err := errors.Join(s.group(labels), s.checkSize(len(labels))); err != nil {
		return nil, err
	}
	if err := s.choose(); err != nil {
		return nil, err
	}
	s.batches = max(1, len(labels)/s.Largest())
	s.digest = permute.Digest(len(labels), func(i int) uint64 { return uint64(labels[i]) })
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

	present []int32 // the classes that have samples

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
func (s *perClass) group(labels []int) error {
	for i, class := range labels {
		if class < 0 || class >= maxClasses {
			return optionError(fmt.Sprintf("PerClass: labels[%d]", i), class, "must be a class, 0 … %d", maxClasses-1)
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

// choose finds out which classes come.
func (s *perClass) choose() error {
	few := 0
	for class := range s.ends {
		n := len(s.of(class))
		if n == 0 {
			continue
		}
		if s.present = append(s.present, int32(class)); n < s.each {
			few++
		}
	}
	if len(s.present) < s.classes {
		return optionError("PerClass: ClassBatch.Classes", s.classes, "a batch needs that many, but only %d have samples", len(s.present))
	}
	if few > 0 {
		slog.Default().Info("sampler: PerClass: some classes have too few samples, so a batch has some of them twice", "classes", few, "fewer than", s.each)
	}
	return nil
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
	order, turns := make([]turn, n), make([]int32, len(s.ends))
	for i, c := range batch {
		order[i] = turn{c, turns[c]}
		turns[c]++
	}
	return order
}

// deal returns the classes of each batch, none of them twice: it lays out the turns of one class after the
// other, and deals them to the batches like cards. A class has as many turns as any other, or one more.
func (s *perClass) deal(key uint64) []int32 {
	perm, own := permute.New(len(s.present)), permute.Mix64(key)
	batch, dealt := make([]int32, s.batches*s.classes), 0
	for i := range s.present {
		class, turns := s.present[perm.At(own, i)], len(batch)/len(s.present)
		if i < len(batch)%len(s.present) {
			turns++
		}
		for range turns {
			batch[dealt%s.batches*s.classes+dealt/s.batches] = class
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

func (s *perClass) Fingerprint() string { return fmt.Sprintf("%v, labels %x", s, s.digest) }

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
