package layout

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// random returns the columns of samples, and for each of n samples the sizes of its ragged dimensions.
func random(rng *rand.Rand, n int) (l *Layout, sizes [][]int) {
	l = &Layout{}
	for i := range 1 + rng.IntN(3) {
		dims, full := make([]int, rng.IntN(4)), 1<<rng.IntN(3)
		for d := range dims {
			dims[d] = 1 + rng.IntN(4)
			full *= dims[d]
		}
		l.Add(string(rune('a'+i)), 1, full, dims, rng.IntN(len(dims)+1))
	}
	for range n {
		longest := make([]int, l.Ragged)
		l.Longest(longest)
		for d := range longest {
			longest[d] = rng.IntN(longest[d] + 1)
		}
		sizes = append(sizes, longest)
	}
	return l, sizes
}

// arranged is memory for samples of these sizes, in the shape of the longest.
func arranged(l *Layout, sizes [][]int) *Geometry {
	offsets := make([]int, len(l.Columns))
	used := Place(l.Columns, len(sizes), offsets)
	g := NewGeometry(l, len(sizes), offsets, used, true)
	g.Bytes = heap(used)
	for place, size := range sizes {
		g.Tell(place, size)
	}
	g.Arrange(len(sizes))
	return &g
}

// element calls f for each element that a sample has of a column, with its index, dimension by
// dimension.
func element(c *Column, size []int, f func(index []int)) {
	index := make([]int, len(c.Dims))
	var walk func(d int)
	walk = func(d int) {
		if d == len(c.Dims) {
			f(index)
			return
		}
		n := c.Dims[d]
		if d < c.Free {
			n = size[c.Ragged+d]
		}
		for index[d] = range n {
			walk(d + 1)
		}
	}
	walk(0)
}

// at returns where an element begins in the sample's place.
func at(c *Column, index []int) (at int) {
	stride := c.Size
	for d, n := range c.Dims {
		stride /= n
		at += index[d] * stride
	}
	return at
}

// value returns what an element of a sample holds, the same in whatever shape it lies.
func value(sample, column int, index []int) byte {
	v := 7*sample + 31*column + 1
	for _, i := range index {
		v = 5*v + i
	}
	return byte(v%251) + 1
}

// fill loads a sample, and leaves what it doesn't fill as it was.
func fill(m *Memory, place, sample int, size []int) {
	for i := range m.Columns {
		c := &m.Columns[i]
		for d := range c.Free {
			*m.Len(c, d, place) = int32(size[c.Ragged+d])
		}
		element(c, size, func(index []int) { m.Places(i, place, 1)[at(c, index)] = value(sample, i, index) })
	}
}

// requireSample checks that a place holds a sample, and 0 behind what the sample fills.
func requireSample(t *testing.T, m *Memory, place, sample int, size []int) {
	t.Helper()
	for i := range m.Columns {
		c := &m.Columns[i]
		want := make([]byte, c.Size)
		element(c, size, func(index []int) { want[at(c, index)] = value(sample, i, index) })
		require.Equal(t, want, m.Places(i, place, 1), "column %d of sample %d: sizes %v in %v", i, sample, size, c.Dims)
		for d := range c.Free {
			require.EqualValues(t, size[c.Ragged+d], *m.Len(c, d, place))
		}
	}
}

func each(t *testing.T, f func(t *testing.T, l *Layout, sizes [][]int, g *Geometry)) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		l, sizes := random(rng, 1+rng.IntN(5))
		f(t, l, sizes, arranged(l, sizes))
	}
}

func TestWhatASampleDoesNotFillIsZero(t *testing.T) {
	each(t, func(t *testing.T, l *Layout, sizes [][]int, g *Geometry) {
		for i := range g.Bytes {
			g.Bytes[i] = 255
		}
		for place, size := range sizes {
			g.UnsetLens(place, place+1)
			unset := g.ClearRest(place)
			require.Equal(t, l.Ragged > 0, unset >= 0, "lengths that nobody set")
			g.Clear(place, 1)
			fill(&g.Memory, place, place, size)
			require.Equal(t, -1, g.ClearRest(place))
		}
		for place, size := range sizes {
			requireSample(t, &g.Memory, place, place, size)
		}
	})
}

func TestASampleStaysWhatItIsInAnyShape(t *testing.T) {
	each(t, func(t *testing.T, l *Layout, sizes [][]int, g *Geometry) {
		wide := New(l, len(sizes))
		for place, size := range sizes {
			fill(&g.Memory, place, place, size)
			require.NoError(t, g.CopySample(place, &wide, place))
			requireSample(t, &wide, place, place, size)
		}
		back := arranged(l, sizes)
		for place, size := range sizes {
			require.NoError(t, wide.CopySample(place, &back.Memory, place))
			requireSample(t, &back.Memory, place, place, size)
		}
		n := len(sizes) - 1
		back.CopyPlaces(0, &g.Memory, n, n+1)
		requireSample(t, &back.Memory, 0, n, sizes[n])
	})
}

func TestPackedSamplesAreReadAsTheyWere(t *testing.T) {
	each(t, func(t *testing.T, l *Layout, sizes [][]int, g *Geometry) {
		read := arranged(l, sizes)
		for place, size := range sizes {
			fill(&g.Memory, place, place, size)
			packed := make([]byte, g.PackedSize(place))
			require.LessOrEqual(t, len(packed), l.Packed())
			g.Pack(place, packed)
			require.Equal(t, crc32.ChecksumIEEE(packed), g.Sum(place, func(sum uint32, b []byte) uint32 { return crc32.Update(sum, crc32.IEEETable, b) }))
			rest, err := read.Unpack(place, append(packed, 9))
			require.NoError(t, err)
			require.Equal(t, []byte{9}, rest)
			requireSample(t, &read.Memory, place, place, size)
			if len(packed) > 0 {
				_, err = read.Unpack(place, packed[:len(packed)-1])
				require.Error(t, err)
			}
		}
	})
}

func TestColumnsOfAPartAreThoseOfTheWhole(t *testing.T) {
	each(t, func(t *testing.T, l *Layout, sizes [][]int, g *Geometry) {
		last := l.Columns[len(l.Columns)-1]
		part := &Layout{}
		part.Add(last.Name, last.Type, last.Full, last.Dims, last.Free)
		for place, size := range sizes {
			fill(&g.Memory, place, place, size)
		}
		view := g.Part(part, len(l.Columns)-1, last.Ragged)
		for place := range sizes {
			require.Equal(t, g.Places(len(l.Columns)-1, place, 1), view.Places(0, place, 1))
			for d := range last.Free {
				require.Equal(t, *g.Len(&g.Columns[len(l.Columns)-1], d, place), *view.Len(&view.Columns[0], d, place))
				require.Equal(t, g.LongestOf(&last, d, place), view.LongestOf(&view.Columns[0], d, place))
			}
		}
	})
}
