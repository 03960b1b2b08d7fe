package sampler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/permute"
)

// Tokens says how large the batches of [TokenBatches] are.
type Tokens struct {
	// Max is how many tokens a batch may have, padding included. The tokens of a batch are the number of its
	// samples × the length of the longest sample.
	Max int
	// MaxSamples is how many samples a batch may have; 0 means as many as Max allows. WithBatchSize must be
	// at least the number of samples in the largest batch. If MaxSamples is set, a batch size of MaxSamples
	// is enough.
	MaxSamples int
	// Window is how many batches of similar lengths are mixed with each other. 0 means a 32nd of the
	// epoch's batches, but at least 4 and at most 64.
	Window int
}

// TokenBatches visits each of 0 … n−1 once per epoch. Its batches are limited to a number of tokens, not to a
// number of samples. Tokens may also be audio frames or pixels. Short samples come in large batches and long
// samples in small batches, so each batch costs about the same. The samples of a batch have similar lengths.
// If the dataset is a [nwt.SizedDataset], little of a batch is padding. length(i) returns the length of
// sample i. TokenBatches asks for every length once, before it returns. A length of 0 counts as 1.
//
// The samples are sorted by length, once, and cut into windows of Tokens.Window batches. If the longest
// sample of the next batch is less than three quarters as long as the window's longest sample, the window
// ends sooner. All batches of a window have the same number of samples, as many as the window's longest
// sample allows. Only one batch of an epoch may have fewer samples. In each epoch, the samples of each window
// are shuffled again, and then all batches are shuffled. A wider window means more randomness and more
// padding. In a window of one batch, the same samples always come together.
//
// The order depends on the lengths, Tokens and the seed, not on the number of ranks. TokenBatches takes 8
// bytes of memory per sample. For each of the last two epochs, it also takes 16 bytes per batch.
func TokenBatches(n int, length func(index int) int, t Tokens, seed uint64) (nwt.BatchSampler, error) {
	var errs []error
	bad := func(wrong bool, value any, format string, args ...any) {
		if wrong {
			errs = append(errs, optionError("TokenBatches", value, format, args...))
		}
	}
	bad(n < 1 || n > permute.MaxLen, n, "the number of samples must be 1 … %d", permute.MaxLen)
	bad(length == nil, nil, "the length function is nil")
	bad(t.Max < 1, t.Max, "Tokens.Max must be at least 1")
	bad(t.MaxSamples < 0, t.MaxSamples, "Tokens.MaxSamples must be at least 1, or 0 for as many as Max allows")
	bad(t.Window < 0, t.Window, "Tokens.Window must be at least 1, or 0 for a 32nd of the epoch")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	lengths := make([]int, n)
	for i := range lengths {
		l := length(i)
		if l < 0 || l > t.Max {
			return nil, optionError(fmt.Sprintf("TokenBatches: length(%d)", i), l, "must be 0 … %d (Tokens.Max)", t.Max)
		}
		lengths[i] = max(1, l)
	}
	s := &tokenBatches{tokens: t, seed: seed, key: permute.OrderKey(seed, n), sorted: longestFirst(lengths)}
	s.digest = permute.Digest(n, func(i int) uint64 { return uint64(lengths[i]) })
	lengthAt := func(i int) int { return lengths[s.sorted[i]] }
	window := t.Window
	if window == 0 {
		s.cut(lengthAt, 1)
		window = min(max(s.batches/32, 4), 64)
	}
	s.cut(lengthAt, window)
	s.perm = permute.New(s.batches)
	s.orders = permute.NewOrders(2, 1, s.order)
	return s, nil
}

// longestFirst returns the indices of lengths, the longest first; equal lengths come in ascending order
// of their indices.
func longestFirst(lengths []int) []int {
	type sample struct{ length, index int } // compared side by side in memory
	samples, sorted := make([]sample, len(lengths)), make([]int, len(lengths))
	for i, length := range lengths {
		samples[i] = sample{length, i}
	}
	slices.SortFunc(samples, func(a, b sample) int {
		if a.length != b.length {
			return cmp.Compare(b.length, a.length)
		}
		return a.index - b.index
	})
	for i, s := range samples {
		sorted[i] = s.index
	}
	return sorted
}

type tokenBatches struct {
	tokens  Tokens
	seed    uint64
	key     uint64 // derived from the seed
	digest  uint64 // hash of the lengths
	sorted  []int  // dataset indices, the longest samples first
	windows []tokenWindow
	batches int
	perm    permute.Permutation // permutes the batches
	orders  *permute.Orders[tokenBatch]
}

// A tokenWindow holds samples of similar length, and the batches into which they are mixed.
type tokenWindow struct {
	from, samples int // range in sorted
	first         int // number of its first batch, before the batches are shuffled
	size          int // samples per batch; the last batch may have fewer
	perm          permute.Permutation
}

// A tokenBatch is a batch of an epoch.
type tokenBatch struct {
	start int // its first position
	batch int // its number, before the batches are shuffled
}

// cut makes the windows.
func (s *tokenBatches) cut(lengthAt func(i int) int, window int) {
	s.windows, s.batches = nil, 0
	for from := 0; from < len(s.sorted); {
		longest := lengthAt(from)
		w := tokenWindow{from: from, first: s.batches, size: s.tokens.Max / longest}
		if s.tokens.MaxSamples > 0 {
			w.size = min(w.size, s.tokens.MaxSamples)
		}
		for batches := 0; from < len(s.sorted) && batches < window && (batches == 0 || lengthAt(from) >= longest-longest/4); batches++ {
			from += min(w.size, len(s.sorted)-from)
			s.batches++
		}
		w.samples = from - w.from
		w.perm = permute.New(w.samples)
		s.windows = append(s.windows, w)
	}
}

// order returns the batches of an epoch.
func (s *tokenBatches) order(epoch, _ int) []tokenBatch {
	key := permute.EpochKey(s.key, epoch)
	all := make([]tokenBatch, s.batches)
	start := 0
	for k := range all {
		batch := s.perm.At(key, k)
		all[k] = tokenBatch{start, batch}
		_, _, size := s.find(batch)
		start += size
	}
	return all
}

// find returns the number of the window that contains a batch, and which of the window's samples the
// batch has: size samples, beginning at first.
func (s *tokenBatches) find(batch int) (number, first, size int) {
	number, exact := slices.BinarySearchFunc(s.windows, batch, func(w tokenWindow, batch int) int { return cmp.Compare(w.first, batch) })
	if !exact {
		number--
	}
	w := &s.windows[number]
	first = (batch - w.first) * w.size
	return number, first, min(w.size, w.samples-first)
}

func (s *tokenBatches) Len() int       { return len(s.sorted) }
func (s *tokenBatches) Batches() int   { return s.batches }
func (s *tokenBatches) LastIndex() int { return len(s.sorted) - 1 }
func (s *tokenBatches) String() string {
	return fmt.Sprintf("TokenBatches(%d, %d batches of at most %d tokens, seed %d)", len(s.sorted), s.batches, s.tokens.Max, s.seed)
}

func (s *tokenBatches) Fingerprint() string {
	return fmt.Sprintf("%v, %+v, lengths %x", s, s.tokens, s.digest)
}

func (s *tokenBatches) Start(epoch, batch int) int { return s.orders.Get(epoch, 0)[batch].start }

// Largest returns how many samples the largest batch has.
func (s *tokenBatches) Largest() (n int) {
	for i := range s.windows {
		n = max(n, min(s.windows[i].size, s.windows[i].samples))
	}
	return n
}

func (s *tokenBatches) At(epoch, i int) int {
	var index [1]int
	s.Fill(epoch, i, index[:])
	return index[0]
}

func (s *tokenBatches) Fill(epoch, from int, indices []int) {
	permute.CheckPosition(from, len(s.sorted))
	all, key := s.orders.Get(epoch, 0), permute.EpochKey(s.key, epoch)
	k, exact := slices.BinarySearchFunc(all, from, func(b tokenBatch, position int) int { return cmp.Compare(b.start, position) })
	if !exact {
		k--
	}
	for len(indices) > 0 {
		number, first, size := s.find(all[k].batch)
		w := &s.windows[number]
		windowKey := permute.Mix64(key + uint64(number+1)*permute.Golden)
		skip := from - all[k].start
		n := min(size-skip, len(indices))
		for i := range n {
			indices[i] = s.sorted[w.from+w.perm.At(windowKey, first+skip+i)]
		}
		indices, from, k = indices[n:], from+n, k+1
	}
}
