package sampler

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/permute"
)

// Weighted draws n samples per epoch, independently and with replacement. Each draw is index i with
// probability weights[i] / Σ weights. An index of weight 0 is never drawn. Weights must be finite and not
// negative. At least one weight must be above 0. Weighted reads the weights once, before it returns.
//
// For each draw, a hash of the seed, the epoch and the position is looked up in an alias table (Walker,
// 1977). The table takes 16 bytes per weight. It is built in linear time, as in Vose, 1991.
func Weighted(weights []float64, n int, seed uint64) (nwt.Sampler, error) {
	heaviest, err := checkWeights("Weighted", weights, n)
	if err != nil {
		return nil, err
	}
	return &weighted{n: n, seed: seed, key: permute.OrderKey(seed, n, len(weights)), last: lastWeight(weights), table: newAliasTable(weights, heaviest), digest: digestOf(weights)}, nil
}

// checkWeights returns the index of the largest weight.
func checkWeights(sampler string, weights []float64, n int) (heaviest int, err error) {
	var errs []error
	if n < 1 {
		errs = append(errs, optionError(sampler, n, "the draws of an epoch must be at least 1"))
	}
	if len(weights) == 0 || len(weights) > math.MaxInt32 {
		errs = append(errs, optionError(sampler, len(weights), "the number of weights must be 1 … %d", math.MaxInt32))
		return 0, errors.Join(errs...)
	}
	for i, w := range weights {
		if !(w >= 0 && w <= math.MaxFloat64) { // written so that NaN fails too
			errs = append(errs, optionError(fmt.Sprintf("%s: weights[%d]", sampler, i), w, "must be 0 or more, and finite"))
			return 0, errors.Join(errs...)
		}
		if w > weights[heaviest] {
			heaviest = i
		}
	}
	if weights[heaviest] == 0 {
		errs = append(errs, optionError(sampler, weights, "at least one of the %d weights must be above 0", len(weights)))
	}
	return heaviest, errors.Join(errs...)
}

func digestOf(weights []float64) uint64 {
	return permute.Digest(len(weights), func(i int) uint64 { return math.Float64bits(weights[i]) })
}

// lastWeight returns the highest index that can be drawn.
func lastWeight(weights []float64) int {
	last := len(weights) - 1
	for weights[last] == 0 {
		last--
	}
	return last
}

type weighted struct {
	n     int
	seed  uint64
	key   uint64 // derived from the seed
	last  int    // the highest index that can be drawn
	table []aliasColumn

	digest uint64 // hash of the weights
}

func (s *weighted) Len() int       { return s.n }
func (s *weighted) LastIndex() int { return s.last }
func (s *weighted) String() string {
	return fmt.Sprintf("Weighted(%d draws by %d weights, seed %d)", s.n, len(s.table), s.seed)
}

func (s *weighted) Fingerprint() string { return fmt.Sprintf("%v, weights %x", s, s.digest) }

func (s *weighted) At(epoch, i int) int {
	permute.CheckPosition(i, s.n)
	h := permute.Mix64(permute.EpochKey(s.key, epoch) + uint64(i)*permute.Golden)
	// The hash, scaled to [0, columns), gives the column by its integer part; the fraction serves as a
	// second, independent draw.
	column, fraction := bits.Mul64(h, uint64(len(s.table)))
	if c := s.table[column]; fraction >= c.share {
		return int(c.alias)
	}
	return int(column)
}

// aliasColumn stands for two indices: its own, with probability share / 2⁶⁴, and
// otherwise the alias.
type aliasColumn struct {
	share uint64
	alias int32
}

func newAliasTable(weights []float64, heaviest int) []aliasColumn {
	n := len(weights)
	height := make([]float64, n) // relative to the mean, which is 1
	var total float64
	for i, w := range weights {
		height[i] = w / weights[heaviest] // scaled so that their sum can't overflow
		total += height[i]
	}
	table := make([]aliasColumn, n)
	var low, high []int32
	for i := range height {
		height[i] *= float64(n) / total
		// A column that is left over because of rounding stands for its alias alone. So the alias must
		// not be an index of weight 0.
		table[i].alias = int32(i)
		if weights[i] == 0 {
			table[i].alias = int32(heaviest)
		}
		if height[i] < 1 {
			low = append(low, int32(i))
		} else {
			high = append(high, int32(i))
		}
	}
	for len(low) > 0 && len(high) > 0 {
		l, h := low[len(low)-1], high[len(high)-1]
		low = low[:len(low)-1]
		table[l] = aliasColumn{share: uint64(height[l] * (1 << 64)), alias: h}
		if height[h] -= 1 - height[l]; height[h] < 1 {
			low, high = append(low, h), high[:len(high)-1]
		}
	}
	return table
}

// WeightedWithoutReplacement draws n samples per epoch, none of them twice. The first sample is index i with
// probability weights[i] / Σ weights. The next sample is drawn in the same way from the remaining indices,
// and so on. So indices with large weights are likely to come, and to come early. An index of weight 0 is
// never drawn, so at least n weights must be above 0. The other rules for weights are those of [Weighted].
//
// Each index gets the key −ln(u) / weight, where u is a hash of the seed, the epoch and the index. The epoch
// consists of the n indices with the smallest keys, in ascending order (Efraimidis and Spirakis, "Weighted
// random sampling with a reservoir", 2006).
//
// An epoch is therefore computed as a whole. For a million weights, this takes about 0.2 s, and 16 MB during
// that time. The first epoch waits for this. The next epoch is computed in the background once half of an
// epoch is loaded. Two successive epochs are kept. Each takes 4 bytes per draw, in addition to 16 bytes per
// weight.
func WeightedWithoutReplacement(weights []float64, n int, seed uint64) (nwt.Sampler, error) {
	if _, err := checkWeights("WeightedWithoutReplacement", weights, n); err != nil {
		return nil, err
	}
	var candidates []candidate
	for i, w := range weights {
		if w > 0 {
			candidates = append(candidates, candidate{key: -math.Log2(w), index: int32(i)})
		}
	}
	if n > len(candidates) {
		return nil, optionError("WeightedWithoutReplacement", n, "the draws of an epoch must be at most %d, the number of weights above 0", len(candidates))
	}
	key := permute.OrderKey(seed, n, len(weights))
	return &weightedOnce{n: n, weights: len(weights), last: lastWeight(weights), digest: digestOf(weights), seed: seed, orders: permute.NewOrders(2, 1, func(epoch, _ int) []int32 {
		return drawOnce(candidates, n, permute.EpochKey(key, epoch))
	})}, nil
}

type weightedOnce struct {
	n       int
	weights int
	last    int // the highest index that can be drawn
	digest  uint64
	seed    uint64
	orders  *permute.Orders[int32]
}

func (s *weightedOnce) Len() int       { return s.n }
func (s *weightedOnce) LastIndex() int { return s.last }
func (s *weightedOnce) String() string {
	return fmt.Sprintf("WeightedWithoutReplacement(%d draws by %d weights, seed %d)", s.n, s.weights, s.seed)
}

func (s *weightedOnce) Fingerprint() string { return fmt.Sprintf("%v, weights %x", s, s.digest) }

func (s *weightedOnce) At(epoch, i int) int {
	var index [1]int
	s.Fill(epoch, i, index[:])
	return index[0]
}

func (s *weightedOnce) Fill(epoch, from int, indices []int) {
	permute.CheckPosition(from, s.n)
	order := s.orders.Get(epoch, 0)
	if from >= s.n/2 {
		s.orders.Prepare(epoch+1, 0)
	}
	for i, index := range order[from : from+len(indices)] {
		indices[i] = int(index)
	}
}

// candidate is an index and the logarithm of its key; the logarithm doesn't overflow, whatever the
// weights. The base is 2 because math.Log is wrong for subnormal numbers on amd64.
type candidate struct {
	key   float64
	index int32
}

func drawOnce(candidates []candidate, n int, key uint64) []int32 {
	draws := slices.Clone(candidates)
	for i := range draws {
		h := permute.Mix64(key + uint64(draws[i].index)*permute.Golden)
		u := (float64(h>>12) + 0.5) / (1 << 52) // neither 0 nor 1
		draws[i].key += math.Log2(-math.Log(u))
	}
	slices.SortFunc(draws, func(a, b candidate) int {
		switch {
		case a.key < b.key:
			return -1
		case a.key > b.key:
			return 1
		}
		return int(a.index) - int(b.index)
	})
	order := make([]int32, n)
	for i := range order {
		order[i] = draws[i].index
	}
	return order
}
