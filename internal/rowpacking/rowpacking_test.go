package rowpacking

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// lengths are like those of documents: log-normal, of 20 … 2000 tokens mostly.
func lengths(n, length int, seed uint64) []Piece {
	r := rand.New(rand.NewPCG(seed, 1))
	pieces := make([]Piece, n)
	for i := range pieces {
		pieces[i] = Piece{Doc: uint32(i), Len: uint32(min(length, max(1, int(math.Exp(5.5+1.2*r.NormFloat64())))))}
	}
	return pieces
}

func TestEveryPieceIsInOneRowAndNoRowOverflows(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		length := 1 + r.IntN(1<<r.IntN(14))
		n := 1 + r.IntN(300)
		if seed == 0 {
			n = 3 * Window
		}
		pieces := lengths(n, length, seed)
		rows := Pack(slices.Clone(pieces), length)
		seen := make([]bool, n)
		for i := range rows.Len() {
			sum := 0
			require.NotEmpty(t, rows.At(i))
			for _, p := range rows.At(i) {
				require.Equal(t, pieces[p.Doc], p)
				require.False(t, seen[p.Doc], "document %d", p.Doc)
				seen[p.Doc] = true
				sum += int(p.Len)
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
		rows := Pack(pieces, 2048)
		half := 0
		for i := range rows.Len() {
			sum := 0
			for _, p := range rows.At(i) {
				sum += int(p.Len)
			}
			if sum <= 1024 {
				half++
			}
		}
		require.LessOrEqual(t, half, 1)
	}
}

func BenchmarkPack(b *testing.B) {
	pieces := lengths(1_000_000, 4096, 1)
	again := make([]Piece, len(pieces))
	var rows *Rows
	for b.Loop() {
		copy(again, pieces)
		rows = Pack(again, 4096)
	}
	total := 0
	for _, p := range pieces {
		total += int(p.Len)
	}
	b.ReportMetric(100*(1-float64(total)/float64(4096*rows.Len())), "%padding")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(pieces)), "ns/document")
}
