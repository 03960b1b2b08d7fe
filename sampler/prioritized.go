package sampler

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/permute"
)

// A Prioritized draws samples with replacement, by weights that change while training. Use it for prioritized
// experience replay, or to see hard examples more often. Set changes a weight. Draw draws the samples of the
// next batches by the weights of that moment:
//
//	for range steps / ahead {
//		epoch, err := priorities.Draw()
//		…
//		for batch, err := range loader.Epoch(ctx, epoch) {
//			for k, index := range batch.Indices() {
//				priorities.Set(index, …)
//			}
//		}
//	}
//
// So an epoch is what one Draw draws: a few batches. If epochs are longer, training waits less often for a
// first batch, but samples are drawn by older weights. Only the latest epoch can be loaded, so use Epoch and
// Resume, not Epochs. Tune loads epoch after epoch, so tune with [Weighted] instead. What Draw draws depends
// only on the seed, the epoch's number and the weights.
//
// MarshalBinary returns the weights and the latest draws, for a checkpoint. After UnmarshalBinary, Resume
// continues within the epoch, and later calls of Draw draw the same as without the interruption.
//
// All ranks must set the same weights. Any goroutine may call the methods.
type Prioritized struct {
	draws, capacity int
	seed, key       uint64
	leaves          int // a power of two ≥ capacity

	mu sync.Mutex
	// The tree holds in [leaves+i] the weight of index i, and in [k] the sum of [2k] and [2k+1]; [1] is the
	// sum of all. The sums depend on the weights alone, not on the order in which they were set. Guarded by
	// mu.
	tree   []float64
	latest atomic.Pointer[drawn] // nil before the first Draw; changed under mu
}

// drawn is an epoch's draws, and how probable each index of them was.
type drawn struct {
	epoch       int
	indices     []int32
	probability map[int32]float64
}

// NewPrioritized makes a Prioritized that draws the given number of samples at a time from 0 … capacity−1. All
// weights are 0 at first, and an index isn't drawn before its weight is set. So a replay buffer may grow up to
// the capacity. The dataset must have at least as many samples as the capacity. A Prioritized takes 16 to 32
// bytes per index.
func NewPrioritized(capacity, draws int, seed uint64) (*Prioritized, error) {
	var errs []error
	if capacity < 1 || capacity > math.MaxInt32 {
		errs = append(errs, optionError("NewPrioritized: capacity", capacity, "must be 1 … %d", math.MaxInt32))
	}
	if draws < 1 || draws > math.MaxInt32 {
		errs = append(errs, optionError("NewPrioritized: draws", draws, "must be 1 … %d", math.MaxInt32))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s := &Prioritized{draws: draws, capacity: capacity, seed: seed, key: permute.OrderKey(seed, draws, capacity), leaves: 1}
	for s.leaves < capacity {
		s.leaves *= 2
	}
	s.tree = make([]float64, 2*s.leaves)
	return s, nil
}

// maxWeight is so far below the largest float64 that no sum of weights overflows.
const maxWeight = math.MaxFloat64 / math.MaxInt32

// Set sets the weight of an index, in O(log capacity). The new weight counts from the next Draw. A weight
// must be 0 or more, and at most 1e298. For any other weight, such as NaN, Set returns an error and the old
// weight stays. An index with weight 0 isn't drawn.
func (s *Prioritized) Set(index int, weight float64) error {
	if index < 0 || index >= s.capacity {
		return optionError("Prioritized.Set: index", index, "must be 0 … %d", s.capacity-1)
	}
	if !(weight >= 0 && weight <= maxWeight) { // written so that NaN fails too
		return optionError(fmt.Sprintf("Prioritized.Set: the weight of index %d", index), weight, "must be 0 or more, and at most %g", maxWeight)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.leaves + index
	s.tree[k] = weight
	for k > 1 {
		k /= 2
		s.tree[k] = s.tree[2*k] + s.tree[2*k+1]
	}
	return nil
}

// Weight returns the weight of an index.
func (s *Prioritized) Weight(index int) float64 {
	permute.CheckPosition(index, s.capacity)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tree[s.leaves+index]
}

// Draw draws the next epoch by the weights that are set, and returns the epoch's number: 0, 1 and so on. If
// all weights are 0, Draw returns an error.
func (s *Prioritized) Draw() (epoch int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.tree[1]
	if all == 0 {
		return 0, optionError("Prioritized.Draw", nil, "all weights are 0: set one first")
	}
	if latest := s.latest.Load(); latest != nil {
		epoch = latest.epoch + 1
	}
	d := &drawn{epoch, make([]int32, s.draws), make(map[int32]float64, s.draws)}
	key := permute.EpochKey(s.key, epoch)
	for i := range d.indices {
		leaf := s.find(float64(permute.Mix64(key+uint64(i)*permute.Golden)>>11) / (1 << 53) * all)
		d.indices[i] = int32(leaf - s.leaves)
		d.probability[d.indices[i]] = s.tree[leaf] / all
	}
	s.latest.Store(d)
	return epoch, nil
}

// find returns the leaf at which the sum of the weights before it and its own passes at. Rounding never
// leads to a weight of 0: of two sums, one that is 0 isn't entered.
func (s *Prioritized) find(at float64) (leaf int) {
	for leaf = 1; leaf < s.leaves; {
		leaf *= 2
		if left := s.tree[leaf]; left == 0 || at >= left && s.tree[leaf+1] > 0 {
			at -= left
			leaf++
		}
	}
	return leaf
}

// Probability returns the probability of an index in each draw of the latest Draw: its weight at that time,
// as a share of all weights. For an index that wasn't drawn, Probability returns 0. The usual correction of a
// sample's loss is (n × probability)^−β, where n is the number of indices with a weight above 0.
func (s *Prioritized) Probability(index int) float64 {
	d := s.latest.Load()
	if d == nil || index < 0 || index >= s.capacity {
		return 0
	}
	return d.probability[int32(index)]
}

func (s *Prioritized) Len() int       { return s.draws }
func (s *Prioritized) LastIndex() int { return s.capacity - 1 }
func (s *Prioritized) String() string {
	return fmt.Sprintf("Prioritized(%d draws of %d, seed %d)", s.draws, s.capacity, s.seed)
}

// Fingerprint leaves out the weights, because they change.
func (s *Prioritized) Fingerprint() string { return s.String() }

func (s *Prioritized) At(epoch, i int) int {
	permute.CheckPosition(i, s.draws)
	d := s.latest.Load()
	if d == nil || d.epoch != epoch {
		latest := "nothing is drawn yet"
		if d != nil {
			latest = fmt.Sprintf("the latest is epoch %d", d.epoch)
		}
		panic(fmt.Sprintf("sampler: Prioritized: epoch %d isn't drawn: %s. Call Draw, and load the epoch that it returns, by Epoch or Resume (tune with Weighted)", epoch, latest))
	}
	return int(d.indices[i])
}

// MarshalBinary returns the weights and the latest draws.
func (s *Prioritized) MarshalBinary() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := prioritizedHeader{Magic: prioritizedMagic, Capacity: int64(s.capacity), Draws: int64(s.draws), Seed: s.seed, Epoch: -1}
	parts := []any{&h, s.tree[s.leaves : s.leaves+s.capacity]}
	if d := s.latest.Load(); d != nil {
		h.Epoch = int64(d.epoch)
		probability := make([]float64, s.draws)
		for i, index := range d.indices {
			probability[i] = d.probability[index]
		}
		parts = append(parts, d.indices, probability)
	}
	var b bytes.Buffer
	for _, part := range parts {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

type prioritizedHeader struct {
	Magic           [8]byte
	Capacity, Draws int64
	Seed            uint64
	Epoch           int64 // −1: nothing is drawn yet
}

var prioritizedMagic = [8]byte([]byte("nwtprio1"))

// UnmarshalBinary sets the weights and the latest draws to those that MarshalBinary has returned. Capacity,
// draws and seed must be the same as in the Prioritized that was saved. If UnmarshalBinary returns an error,
// it has changed nothing.
func (s *Prioritized) UnmarshalBinary(data []byte) error {
	r := bytes.NewReader(data)
	read := func(to any) error {
		err := binary.Read(r, binary.LittleEndian, to)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	var h prioritizedHeader
	if err := read(&h); err != nil || h.Magic != prioritizedMagic {
		return optionError("Prioritized.UnmarshalBinary", len(data), "these bytes weren't made by MarshalBinary")
	}
	if int(h.Capacity) != s.capacity || int(h.Draws) != s.draws || h.Seed != s.seed {
		return optionError("Prioritized.UnmarshalBinary", fmt.Sprintf("capacity %d, draws %d, seed %d", h.Capacity, h.Draws, h.Seed), "must be those of %v", s)
	}
	weights, indices, probability := make([]float64, s.capacity), make([]int32, s.draws), make([]float64, s.draws)
	err := read(weights)
	if h.Epoch >= 0 {
		err = errors.Join(err, read(indices), read(probability))
	}
	damaged := func(x float64) bool { return !(x >= 0 && x <= maxWeight) }
	outside := func(index int32) bool { return index < 0 || int(index) >= s.capacity }
	if err != nil || r.Len() > 0 || slices.ContainsFunc(weights, damaged) || slices.ContainsFunc(probability, damaged) || slices.ContainsFunc(indices, outside) {
		return optionError("Prioritized.UnmarshalBinary", len(data), "these bytes are cut or damaged")
	}
	var d *drawn
	if h.Epoch >= 0 {
		d = &drawn{int(h.Epoch), indices, make(map[int32]float64, s.draws)}
		for i, index := range indices {
			d.probability[index] = probability[i]
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	copy(s.tree[s.leaves:], weights)
	for k := s.leaves - 1; k > 0; k-- {
		s.tree[k] = s.tree[2*k] + s.tree[2*k+1]
	}
	s.latest.Store(d)
	return nil
}
