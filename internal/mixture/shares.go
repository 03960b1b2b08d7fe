package mixture

import (
	"math"
	"math/big"
	"math/bits"
	"strconv"
)

// Divide divides n into parts that have these shares, in any unit, and returns the end of each part: the
// nearest whole number, a half rounded up.
func Divide(n int, shares []float64) []int {
	weights := exactly(shares)
	sum := total(weights)
	ends, upTo, all := make([]int, len(weights)), new(big.Int), big.NewInt(int64(n))
	for i, w := range weights {
		upTo.Add(upTo, w)
		end := new(big.Int).Mul(upTo, all)
		end.Add(end.Lsh(end, 1), sum)
		end.Quo(end, sum)
		ends[i] = int(end.Rsh(end, 1).Int64())
	}
	return ends
}

// shares divide a growing number of draws among parts, by weights. What is rounded off at one number of
// draws is made up for at the next ones: a part's draws never become fewer as the number grows, and they
// stay within a few of its exact share.
//
// The parts are halved, and the halves are halved again, down to single parts. At each mid, the draws of
// the parts lo … hi−1 are divided into those below mid and the rest: n × splits[mid] / 2⁶⁴ go below mid,
// rounded to the nearest number.
type shares struct{ splits []uint64 }

func newShares(weights []float64) shares {
	exact := exactly(weights)
	s := shares{make([]uint64, len(exact))}
	s.split(exact, 0, len(exact))
	return s
}

// split computes the splits of the parts lo … hi−1, and returns the sum of their weights.
func (s *shares) split(exact []*big.Int, lo, hi int) *big.Int {
	if hi-lo == 1 {
		return exact[lo]
	}
	mid := (lo + hi) / 2
	below := s.split(exact, lo, mid)
	sum := new(big.Int).Add(below, s.split(exact, mid, hi))
	if sum.Sign() > 0 {
		fraction := new(big.Int).Lsh(below, 65)
		fraction.Quo(fraction.Add(fraction, sum), new(big.Int).Lsh(sum, 1)) // rounded
		s.splits[mid] = math.MaxUint64                                      // of n < 2⁶³, this is n
		if fraction.IsUint64() {
			s.splits[mid] = fraction.Uint64()
		}
	}
	return sum
}

// below returns how many of n draws at mid go to the parts below mid.
func (s *shares) below(mid int, n uint64) uint64 {
	whole, rest := bits.Mul64(n, s.splits[mid])
	return whole + rest>>63
}

// of returns how many of the first n draws a part gets.
func (s *shares) of(part int, n uint64) uint64 {
	for lo, hi := 0, len(s.splits); hi-lo > 1; {
		mid := (lo + hi) / 2
		if below := s.below(mid, n); part < mid {
			hi, n = mid, below
		} else {
			lo, n = mid, n-below
		}
	}
	return n
}

// at returns the part that gets a place, if the draws from … to−1 are laid out part after part, and the
// number of this draw among all draws of that part.
func (s *shares) at(from, to, place uint64) (part int, draw uint64) {
	lo, hi := 0, len(s.splits)
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		below, end := s.below(mid, from), s.below(mid, to)
		if place < end-below {
			hi, from, to = mid, below, end
		} else {
			lo, from, to, place = mid, from-below, to-end, place-(end-below)
		}
	}
	return lo, from + place
}

// exactly returns numbers as a person would write them, as multiples of a common unit: 0.1 is a tenth,
// although no float64 is.
func exactly(numbers []float64) []*big.Int {
	fractions, unit := make([]*big.Rat, len(numbers)), big.NewInt(1)
	for i, x := range numbers {
		fractions[i], _ = new(big.Rat).SetString(strconv.FormatFloat(x, 'g', -1, 64))
		of := fractions[i].Denom()
		common := new(big.Int).GCD(nil, nil, unit, of)
		unit.Mul(unit, common.Quo(of, common))
	}
	multiples := make([]*big.Int, len(numbers))
	for i, f := range fractions {
		multiples[i] = new(big.Int).Quo(unit, f.Denom())
		multiples[i].Mul(multiples[i], f.Num())
	}
	return multiples
}

func total(numbers []*big.Int) *big.Int {
	sum := new(big.Int)
	for _, x := range numbers {
		sum.Add(sum, x)
	}
	return sum
}
