package nwt_test

import (
	"cmp"
	"slices"

	"github.com/nwt-go/nwt"
)

// lost stands for a record that can't be read, nor what comes after it in its shard.
const lost = -1

// plainStreams is what Streamed and MixedStreams promise, written down once more as
// plain loops: nothing is skipped, read ahead or resumed, and all positions are counted
// from the start of training.
type plainStreams struct {
	streams            [][][]int // of each stream, the records of each shard
	mix                *nwt.Mix  // nil: a stream alone
	mixSeed            uint64
	rank, world        int
	interleave, window int
	epochSamples       int // 0: all
	shuffle            bool
	seed               uint64 // of shuffle
}

// epoch is the records of the rank in an epoch. It reports false if they end early,
// since the stream that the next one should be of has none.
func (p *plainStreams) epoch(epoch int) (records []int, whole bool) {
	if p.epochSamples == 0 {
		records = p.stream(0, epoch, 0)
		return records, len(records) > 0
	}
	quota := max(1, p.epochSamples/p.world)
	of := make([]int, quota) // which stream each is of
	if p.mix != nil {
		of = p.pattern((epoch + 1) * quota)[epoch*quota:]
	}
	left := make([][]int, len(p.streams))
	for k := range left {
		left[k] = p.stream(k, epoch, quota)
	}
	for _, k := range of {
		if len(left[k]) == 0 {
			return records, false
		}
		records, left[k] = append(records, left[k][0]), left[k][1:]
	}
	return records, true
}

// stream is the first n records of an epoch of a stream, pass after pass; or one pass.
func (p *plainStreams) stream(k, epoch, n int) (records []int) {
	size := 1
	if p.shuffle {
		size = p.window
	}
	for {
		unread, window := p.pass(k, epoch), []int{}
		if len(unread) == 0 {
			return records
		}
		for len(unread)+len(window) > 0 {
			read := min(size-len(window), len(unread))
			window, unread = append(window, unread[:read]...), unread[read:]
			pick, last := 0, len(window)-1
			if p.shuffle {
				key := mixed64(mixed64(p.seedOf(k)+ratio)+uint64(epoch)*ratio) + uint64(len(records)*p.world+p.rank)*ratio
				pick = int(mixed64(key) % uint64(len(window)))
			}
			records = append(records, window[pick])
			if window[pick], window = window[last], window[:last]; len(records) == n {
				return records
			}
		}
		if n == 0 {
			return records
		}
	}
}

// pass is what the rank reads of a stream in an epoch: a record of each of so many
// shards as are interleaved in turn.
func (p *plainStreams) pass(k, epoch int) (records []int) {
	shards := p.streams[k]
	order := nwt.Sequential(len(shards))
	if p.shuffle {
		order = nwt.Shuffled(len(shards), p.seedOf(k))
	}
	chains := make([][]int, p.interleave)
	for i := 0; i*p.world+p.rank < len(shards); i++ {
		c := &chains[i%p.interleave]
		*c = append(*c, shards[order.At(epoch, i*p.world+p.rank)]...)
	}
	for left := true; left; {
		left = false
		for c := range chains {
			if len(chains[c]) > 0 {
				records, chains[c], left = append(records, chains[c][0]), chains[c][1:], true
			}
		}
	}
	return records
}

// pattern is which stream each of the rank's first n records of training is of.
func (p *plainStreams) pattern(n int) (of []int) {
	block, number, end := cmp.Or(p.mix.Block, 1000), 0, 0
	for i, phase := range p.mix.Phases {
		end += phase.Samples
		length := 0
		for i < len(p.mix.Phases)-1 && (len(of)+length)*p.world+p.rank < end {
			length++
		}
		if i == len(p.mix.Phases)-1 { // it never ends
			length = (max(0, n-len(of))/block + 1) * block
		}
		for ; length >= block; length -= block {
			of = append(of, p.block(phase.Weights, block, number)...)
			number++
		}
		of = append(of, p.block(phase.Weights, length, number)...)
		number++
	}
	return of[:n]
}

// block is the streams of a block's records: so many of each as is its share, shuffled.
func (p *plainStreams) block(weights []float64, n, number int) []int {
	if n == 0 {
		return nil
	}
	var parts []int
	for k, share := range sharesOf(weights, n) {
		parts = append(parts, slices.Repeat([]int{k}, share)...)
	}
	seed := p.mixSeed
	if p.rank > 0 {
		seed = mixed64(seed+ratio) + uint64(p.rank-1)*ratio
	}
	order, of := nwt.Shuffled(n, seed), make([]int, n)
	for place := range of {
		of[place] = parts[order.At(number, place)]
	}
	return of
}

// sharesOf divides n by weights that are multiples of a quarter, by largest remainders.
func sharesOf(weights []float64, n int) []int {
	quarters := 0
	for _, w := range weights {
		quarters += int(4 * w)
	}
	shares, byRest, left := make([]int, len(weights)), make([]int, len(weights)), n
	for k, w := range weights {
		shares[k], byRest[k] = int(4*w)*n/quarters, k
		left -= shares[k]
	}
	rest := func(k int) int { return int(4*weights[k]) * n % quarters }
	slices.SortStableFunc(byRest, func(a, b int) int { return rest(b) - rest(a) })
	for _, k := range byRest[:left] {
		shares[k]++
	}
	return shares
}

// seedOf is the seed of a stream's shards and window.
func (p *plainStreams) seedOf(k int) uint64 { return p.seed + uint64(k)*ratio }

// ratio is 2⁶⁴ divided by the golden ratio.
const ratio = 0x9e3779b97f4a7c15

// mixed64 is the finalizer of SplitMix64.
func mixed64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
