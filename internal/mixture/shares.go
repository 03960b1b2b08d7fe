package mixture

import (
	"math/big"
	"slices"
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

// apportion divides n in proportion to weights, by largest remainders.
func apportion(weights []*big.Int, n int) []int {
	sum := total(weights)
	share, rest := make([]int, len(weights)), make([]*big.Int, len(weights))
	byRest, left := make([]int, len(weights)), n
	for k, w := range weights {
		quota := new(big.Int).Mul(w, big.NewInt(int64(n)))
		quota, rest[k] = quota.QuoRem(quota, sum, new(big.Int))
		share[k], byRest[k] = int(quota.Int64()), k
		left -= share[k]
	}
	slices.SortStableFunc(byRest, func(a, b int) int { return rest[b].Cmp(rest[a]) })
	for _, k := range byRest[:left] { // there are fewer of them than parts
		share[k]++
	}
	return share
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
