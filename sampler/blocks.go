package sampler

import (
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/permute"
)

// LocallyShuffled visits each sample once per epoch. Its order suits files whose blocks are read or decoded
// whole, such as row groups of Parquet or chunks of HDF5. The blocks come in random order. The
// argument window says how many successive blocks form a window; the samples of each window are mixed. A wider
// window mixes better, and costs more memory.
//
// The argument sizes has the number of samples of each block, in the order of the dataset: the first block is
// samples 0 … sizes[0]−1, and so on.
//
// A dataset reads each block once per epoch if its workers share a cache of the last 2 × window blocks. The
// cache needs two windows because some workers still load the end of one window while others load the start
// of the next. If a window has fewer samples than are loaded ahead on all ranks, the cache must keep more.
// Blocks that are kept with [nwt.Scratch] belong to one worker, so other workers would read them again.
//
// The order of an epoch's blocks is computed when a position of the epoch is first asked for. The orders of
// two epochs are kept. Each takes 16 bytes per block.
func LocallyShuffled(sizes []int, window int, seed uint64) (nwt.Sampler, error) {
	var errs []error
	if len(sizes) == 0 || len(sizes) > math.MaxInt32 {
		errs = append(errs, optionError("LocallyShuffled", len(sizes), "the number of blocks must be 1 … %d", math.MaxInt32))
	}
	if window < 1 {
		errs = append(errs, optionError("LocallyShuffled", window, "the window must be at least 1 block"))
	}
	s := &locallyShuffled{window: window, seed: seed, starts: make([]int, 0, len(sizes)+1)}
	n := 0
	for i, size := range sizes {
		if size < 1 || size > permute.MaxLen-n {
			errs = append(errs, optionError(fmt.Sprintf("LocallyShuffled: sizes[%d]", i), size, "must be at least 1 sample, and all blocks at most %d", permute.MaxLen))
			break
		}
		s.starts = append(s.starts, n)
		n += size
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s.starts, s.perm, s.key = append(s.starts, n), permute.New(len(sizes)), permute.OrderKey(seed, n)
	s.orders = permute.NewOrders(2, 1, s.visits)
	return s, nil
}

type locallyShuffled struct {
	window int // in blocks
	seed   uint64
	key    uint64
	starts []int // where each block begins, and where the last one ends
	perm   permute.Permutation
	orders *permute.Orders[visit]
}

// A visit is a block in an epoch's order, and the position after its last sample.
type visit struct{ block, end int }

func (s *locallyShuffled) visits(epoch, _ int) []visit {
	visits := make([]visit, len(s.starts)-1)
	key, end := permute.EpochKey(s.key, epoch), 0
	for i := range visits {
		block := s.perm.At(key, i)
		end += s.starts[block+1] - s.starts[block]
		visits[i] = visit{block, end}
	}
	return visits
}

func (s *locallyShuffled) Len() int       { return s.starts[len(s.starts)-1] }
func (s *locallyShuffled) LastIndex() int { return s.Len() - 1 }
func (s *locallyShuffled) String() string {
	return fmt.Sprintf("LocallyShuffled(%d in %d blocks, windows of %d, seed %d)", s.Len(), len(s.starts)-1, s.window, s.seed)
}

func (s *locallyShuffled) Fingerprint() string {
	return fmt.Sprintf("%v, blocks %x", s, permute.Digest(len(s.starts), func(i int) uint64 { return uint64(s.starts[i]) }))
}

func (s *locallyShuffled) At(epoch, i int) int {
	var index [1]int
	s.Fill(epoch, i, index[:])
	return index[0]
}

func (s *locallyShuffled) Fill(epoch, from int, indices []int) {
	permute.CheckPosition(from, s.Len())
	visits := s.orders.Get(epoch, 0)
	for len(indices) > 0 {
		number := visitOf(visits, from) / s.window
		w := s.windowOf(visits, epoch, number)
		n := min(w.end-from, len(indices))
		for i := range n {
			indices[i] = s.index(w.visits, w.from+w.perm.At(w.key, from-w.from+i))
		}
		indices, from = indices[n:], from+n
	}
}

// A blockWindow holds the visits that are mixed with each other, from position from to end−1 of the
// epoch.
type blockWindow struct {
	visits    []visit
	from, end int
	perm      permute.Permutation
	key       uint64
}

func (s *locallyShuffled) windowOf(visits []visit, epoch, number int) blockWindow {
	first := number * s.window
	w := blockWindow{visits: visits[first:min(first+s.window, len(visits))]}
	if first > 0 {
		w.from = visits[first-1].end
	}
	w.end = w.visits[len(w.visits)-1].end
	w.perm, w.key = permute.New(w.end-w.from), permute.Mix64(permute.EpochKey(s.key, epoch)+uint64(first+1)*permute.Golden)
	return w
}

// visitOf returns the visit that contains a position, before mixing.
func visitOf(visits []visit, position int) int {
	return sort.Search(len(visits), func(v int) bool { return visits[v].end > position })
}

// index returns the sample at a position, before mixing.
func (s *locallyShuffled) index(visits []visit, position int) int {
	v := visits[visitOf(visits, position)]
	return s.starts[v.block+1] - (v.end - position)
}
