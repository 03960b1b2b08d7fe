package packing

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// lengths are like those of documents: log-normal, of 20 … 2000 tokens mostly.
func lengths(n, length int, seed uint64) []piece {
	r := rand.New(rand.NewPCG(seed, 1))
	pieces := make([]piece, n)
	for i := range pieces {
		pieces[i] = piece{doc: uint32(i), len: uint32(min(length, max(1, int(math.Exp(5.5+1.2*r.NormFloat64())))))}
	}
	return pieces
}

func TestEveryPieceIsInOneRowAndNoRowOverflows(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		length := 1 + r.IntN(1<<r.IntN(14))
		n := 1 + r.IntN(300)
		if seed == 0 {
			n = 3 * windowLen
		}
		pieces := lengths(n, length, seed)
		rows := pack(slices.Clone(pieces), length)
		seen := make([]bool, n)
		for i := range rows.rows() {
			sum := 0
			require.NotEmpty(t, rows.at(i))
			for _, p := range rows.at(i) {
				require.Equal(t, pieces[p.doc], p)
				require.False(t, seen[p.doc], "document %d", p.doc)
				seen[p.doc] = true
				sum += int(p.len)
			}
			require.LessOrEqual(t, sum, length)
		}
		require.NotContains(t, seen, false)
	}
}

// Two rows that are at most half full could be one.
func TestAtMostOneRowIsHalfEmpty(t *testing.T) {
	for seed := range uint64(50) {
		pieces := lengths(500, 2048, seed)
		rows := pack(pieces, 2048)
		half := 0
		for i := range rows.rows() {
			sum := 0
			for _, p := range rows.at(i) {
				sum += int(p.len)
			}
			if sum <= 1024 {
				half++
			}
		}
		require.LessOrEqual(t, half, 1)
	}
}
