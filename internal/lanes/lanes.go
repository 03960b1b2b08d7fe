// Package lanes defines an endless order of records, for shards whose numbers of records are known. It
// says which record is at which position, and which records a rank takes.
//
// The order consists of passes over all records, one after the other. The positions are divided into
// lanes: position p is in lane p mod Lanes, at offset p / Lanes, whatever the number of ranks. In each
// pass, the records, in the order of the pass's shards, are cut into pieces, one for each lane; a piece
// has as many records as its lane has positions in the pass. So a lane reads few shards, one after the
// other. Both the offsets and the records of a lane are numbered through all passes.
package lanes

import (
	"math"
	"math/bits"
	"slices"
	"sort"
	"sync"

	"github.com/nwt-go/nwt/internal/permute"
)

// MaxLen bounds a pass, so that positions don't overflow in a million of them.
const MaxLen = 1 << (30 + 12*(^uint(0)>>63))

// A Plan is the order as one run sees it. Its positions count from the beginning of a pass or, so that
// position 0 is in lane 0, from up to Lanes−1 positions before.
type Plan struct {
	N      int                   // records per pass, 1 … MaxLen
	Counts []int                 // for each shard
	Shard  func(pass, i int) int // shard number i in the order of a pass
	First  int                   // added to the number of a shard in a Pick
	Lanes  int                   // at least 1
	Block  int                   // records of a lane that are mixed with each other, at least 1
	Mixes  bool                  // whether the records of a block are mixed
	Key    uint64                // of the mixing
	Taker                        // set after Begin

	pass   int   // in which the run begins
	begins int64 // position at which that pass begins
	from   int64 // position at which the run begins

	mu     sync.Mutex
	latest [4]pass // guarded by mu
}

// A Taker says which offsets of a lane a rank takes.
type Taker interface {
	Next(lane int, offset int64) int64                       // the first such offset that isn't before offset; −1: none
	Each(lane int, from, end int64, f func(from, end int64)) // calls f for those in from … end−1, range by range
}

// A pass says where its shards begin.
type pass struct {
	number int64
	before []int // records before shard number i of the pass's order
}

// Begin sets the plan to position base of an epoch, if each epoch has n positions and epochs follow each
// other from the first pass on. It returns the plan's position of the epoch's beginning.
func (p *Plan) Begin(epoch, n, base int) (origin int64) {
	hi, lo := bits.Mul64(uint64(epoch), uint64(n))
	number, into := bits.Div64(hi%uint64(p.N), lo, uint64(p.N))
	lanes := uint64(p.Lanes)
	p.pass = int(number & math.MaxInt)
	p.begins = int64((bits.Rem64(hi, lo, lanes) + lanes - into%lanes) % lanes)
	p.from = p.begins + int64(into) + int64(base)
	return p.from - int64(base)
}

// below returns how many of the positions before p are in the lanes before a lane.
func below(p int64, lane, lanes int) int64 {
	return p/int64(lanes)*int64(lane) + min(p%int64(lanes), int64(lane))
}

// offset returns how many of the positions before p are in a lane.
func offset(p int64, lane, lanes int) int64 { return below(p, lane+1, lanes) - below(p, lane, lanes) }

// FirstOffset returns the first offset of a lane that the run may take.
func (p *Plan) FirstOffset(lane int) int64 { return offset(p.from, lane, p.Lanes) }

// PositionOf returns the position at an offset of a lane.
func (p *Plan) PositionOf(lane int, offset int64) int64 { return offset*int64(p.Lanes) + int64(lane) }

// A piece is the records of a lane in a pass.
type piece struct {
	pass      int64
	from, end int64 // its range in the lane
	first     int64 // its first record, as a number among all records in the order of the pass's shards
}

// pieceOf returns the piece that contains a record or offset of a lane.
func (p *Plan) pieceOf(lane int, number int64) piece {
	n := int64(p.N)
	k := (p.PositionOf(lane, number) - p.begins) / n
	from, end := p.begins+k*n, p.begins+(k+1)*n
	return piece{
		pass: k, from: offset(from, lane, p.Lanes), end: offset(end, lane, p.Lanes),
		first: below(end, lane, p.Lanes) - below(from, lane, p.Lanes),
	}
}

// A block holds records of a piece that are mixed with each other, and the offsets that they fill.
type block struct {
	piece
	from, end int64
}

// blockOf returns the block that contains a record or offset of a lane.
func (p *Plan) blockOf(lane int, number int64) block {
	b := block{piece: p.pieceOf(lane, number)}
	size := int64(p.Block)
	b.from = b.piece.from + (number-b.piece.from)/size*size
	b.end = min(b.from+size, b.piece.end)
	return b
}

// A pick is a record of a lane that the rank takes, and its offset.
type pick struct{ record, offset int64 }

// picks returns the records that the rank takes from a block, in their order.
func (p *Plan) picks(lane int, b block) (all []pick) {
	mixed := permute.New(int(b.end - b.from))
	key := permute.Mix64(permute.EpochKey(p.Key, p.passNumber(b.pass)) + uint64(b.first+b.from-b.piece.from)*permute.Golden)
	p.Each(lane, b.from, b.end, func(from, end int64) {
		for o := from; o < end; o++ {
			record := o
			if p.Mixes {
				record = b.from + int64(mixed.At(key, int(o-b.from)))
			}
			all = append(all, pick{record, o})
		}
	})
	slices.SortFunc(all, func(a, b pick) int { return int(a.record - b.record) })
	return all
}

// passNumber returns the number, among all passes, of pass k of the run.
func (p *Plan) passNumber(k int64) int { return int((uint64(p.pass) + uint64(k)) & math.MaxInt) }

// before returns where the shards of pass k of the run begin.
func (p *Plan) before(k int64) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := &p.latest[k%int64(len(p.latest))]
	if kept.before == nil || kept.number != k {
		*kept = pass{k, make([]int, 1, len(p.Counts)+1)}
		for i := range p.Counts {
			kept.before = append(kept.before, kept.before[i]+p.Counts[p.Shard(p.passNumber(k), i)])
		}
	}
	return kept.before
}

// A Pick is a record that the rank takes.
type Pick struct {
	Number int64 // its number in its lane
	Visit  int64 // of its shard: different in each pass
	Shard  int
	Record int // in the shard
	Of     int // number of records in the shard
}

// Picks returns a function that finds the first record, at or after a given one, that the rank takes from
// a lane. The function returns false if there is none. Each goroutine needs its own.
func (p *Plan) Picks(lane int) func(from int64) (Pick, bool) {
	var b block
	var picks []pick
	var last Pick // valid for the records begin … end−1 of the lane, whose shard begins at shard
	var shard, begin, end int64
	return func(from int64) (Pick, bool) {
		if start := p.FirstOffset(lane); from < start {
			from = max(from, p.blockOf(lane, start).from)
		}
		for {
			if from < b.from || from >= b.end {
				b = p.blockOf(lane, from)
				picks = p.picks(lane, b)
			}
			if i := sort.Search(len(picks), func(i int) bool { return picks[i].record >= from }); i < len(picks) {
				from = picks[i].record
				break
			}
			next := p.Next(lane, b.end)
			if next < 0 {
				return Pick{}, false
			}
			from = p.blockOf(lane, next).from
		}
		if from < begin || from >= end {
			before, start := p.before(b.pass), b.piece.from-b.first // where the pass would begin in the lane
			i := sort.SearchInts(before, int(from-start)+1) - 1
			shard = start + int64(before[i])
			begin, end = max(shard, b.piece.from), min(start+int64(before[i+1]), b.piece.end)
			last = Pick{Visit: b.pass*int64(len(p.Counts)) + int64(i), Shard: p.First + p.Shard(p.passNumber(b.pass), i), Of: before[i+1] - before[i]}
		}
		last.Number, last.Record = from, int(from-shard)
		return last, true
	}
}

// Order returns the block that contains an offset of a lane: the offsets that the block fills and, for
// each one that the rank takes, how many records of the block are read before it.
func (p *Plan) Order(lane int, offset int64, order []int) (from, end int64, _ []int) {
	b := p.blockOf(lane, offset)
	order = append(order[:0], make([]int, b.end-b.from)...)
	for i, one := range p.picks(lane, b) {
		order[one.offset-b.from] = i
	}
	return b.from, b.end, order
}

// Steps says what one of several ranks takes: the positions of each step are ordered by lane and then
// shared among the ranks. So a rank reads its part of the lanes, and neighbours may share a lane.
//
// All steps of an epoch have the same length, except the last two. All epochs have the same length,
// except the first, which begins at Base.
type Steps struct {
	Lanes       int
	Origin      int64 // position at which the first epoch begins
	Base        int
	Epoch       int64 // positions per epoch
	Step        int   // positions per step
	Head, Whole int   // number of steps in the first epoch, math.MaxInt if it has no end, and in every later one
	Len         int   // number of steps in the run; math.MaxInt if it has no end
	// Span returns the positions of step k, first … after−1. Ordered by lane, those numbered low … high−1
	// are the rank's.
	Span func(k int) (first, after int64, low, high int)
}

// Share returns the offsets of a lane that the rank takes in step k.
func (s *Steps) Share(lane, k int) (from, end int64) {
	first, after, low, high := s.Span(k)
	in := below(after, lane, s.Lanes) - below(first, lane, s.Lanes) // how many of the step's positions are in the lanes before
	from = offset(first, lane, s.Lanes)
	n := offset(after, lane, s.Lanes) - from
	return from + min(max(0, int64(low)-in), n), from + min(max(0, int64(high)-in), n)
}

// at returns the step that contains the position at an offset of a lane, or the step before.
func (s *Steps) at(lane int, offset int64) int {
	p := offset*int64(s.Lanes) + int64(lane) - s.Origin
	if p < s.Epoch {
		return int(max(0, min((p-int64(s.Base))/int64(s.Step), int64(s.Head-1))))
	}
	epoch, in := int(p/s.Epoch), int(p%s.Epoch)
	return s.Head + (epoch-1)*s.Whole + min(in/s.Step, s.Whole-1)
}

// Each implements Taker.
func (s *Steps) Each(lane int, from, end int64, f func(from, end int64)) {
	last := s.at(lane, end-1)
	for k := s.at(lane, from); k < s.Len && k-1 <= last; k++ {
		if low, high := s.Share(lane, k); max(low, from) < min(high, end) {
			f(max(low, from), min(high, end))
		}
	}
}

// Next implements Taker. Which part of a lane the rank takes in a step depends on the lane in which the
// step begins. So Next need only look at as many steps, and at as many epochs, as can begin in different
// lanes.
func (s *Steps) Next(lane int, from int64) int64 {
	k := s.at(lane, from)
	for epochs := s.Lanes/gcd(int(s.Epoch%int64(s.Lanes)), s.Lanes) + 1; epochs >= 0 && k < s.Len; epochs-- {
		end := s.Len
		if k < s.Head {
			end = s.Head
		} else if rest := (k - s.Head) % s.Whole; s.Whole-rest < s.Len-k {
			end = k + s.Whole - rest
		}
		for regular := min(k+s.Lanes/gcd(s.Step, s.Lanes)+1, end); k < end; k++ {
			if k == regular {
				if end == math.MaxInt {
					return -1
				}
				k = max(k, end-2)
			}
			if low, high := s.Share(lane, k); max(low, from) < high {
				return max(low, from)
			}
		}
	}
	return -1
}

// PerStep returns how many positions each of some ranks takes from a step, if steps are as short as possible
// and contain each lane equally often.
func PerStep(lanes, ranks int) int { return lanes / gcd(lanes, ranks) }

// Sharing returns how many ranks share a lane at worst, and a number of lanes, at most that of the shards, at
// which fewer do: each rank then takes from the same lanes in every step. If there is none, it returns lanes.
func Sharing(lanes, ranks, batch, shards int) (sharing, better int) {
	better = max(lanes, min(ranks, shards))
	for better%ranks > 0 && ranks%better > 0 || batch*ranks%better > 0 {
		better--
	}
	if gcd(better, ranks) <= gcd(lanes, ranks) {
		better = lanes
	}
	return ranks / gcd(lanes, ranks), better
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}
