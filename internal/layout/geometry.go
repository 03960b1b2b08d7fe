package layout

import "slices"

// A Geometry is memory for a batch's samples, with the shape of the batch. The goroutine that opens the
// batch arranges it before others see it. Then its shape stays the same until it is used for another
// batch, since abandoned calls may still read it.
type Geometry struct {
	Memory
	Laid   int     // places that are laid out …
	Used   int     // … and their bytes
	Shapes [][]int // for each column of the batch, with the number of samples first
}

// NewGeometry returns the geometry of n samples, each as long as is allowed. offsets and used are the
// results of Place for n. If each batch has a shape of its own, the columns and offsets are the
// geometry's own.
func NewGeometry(l *Layout, n int, offsets []int, used int, own bool) Geometry {
	g := Geometry{Laid: n, Used: used}
	g.Memory = Memory{Layout: l, N: n, Lens: make([]int32, n*l.Ragged), Columns: l.Columns, Offsets: offsets}
	dims := 0
	for _, c := range l.Columns {
		dims += 1 + len(c.Dims)
	}
	memory := make([]int, 0, dims)
	for _, c := range l.Columns {
		from := len(memory)
		memory = append(append(memory, n), c.Dims...)
		g.Shapes = append(g.Shapes, memory[from:len(memory):len(memory)])
	}
	if own {
		g.Columns, g.Offsets, g.Told = slices.Clone(l.Columns), slices.Clone(offsets), make([]int32, n*l.Ragged)
		for i := range g.Columns {
			g.Columns[i].Dims = g.Shapes[i][1:]
		}
	}
	return g
}

// Like gives g, which must have its own columns, the shape of another geometry.
func (g *Geometry) Like(other *Geometry) {
	for i := range g.Columns {
		dims := g.Columns[i].Dims
		g.Columns[i] = other.Columns[i]
		g.Columns[i].Dims = dims
		copy(g.Shapes[i], other.Shapes[i])
	}
	copy(g.Offsets, other.Offsets)
	copy(g.Told, other.Told)
	g.Laid, g.Used = other.Laid, other.Used
}

// Resize sets how many samples the batch has.
func (g *Geometry) Resize(n int) {
	for _, shape := range g.Shapes {
		shape[0] = n
	}
}

// Tell sets the sizes that the dataset gave for a place.
func (g *Geometry) Tell(place int, sizes []int) {
	for dim, n := range sizes {
		g.Told[dim*g.N+place] = int32(n)
	}
}

// Arrange lays out n places, each as long as the longest size set by Tell.
func (g *Geometry) Arrange(n int) {
	for i := range g.Columns {
		c, full := &g.Columns[i], &g.Layout.Columns[i]
		c.Size = full.Size
		for d := range c.Free {
			longest := 1 // some frameworks reject tensors without elements
			for _, told := range g.Told[(c.Ragged+d)*g.N:][:n] {
				longest = max(longest, int(told))
			}
			c.Dims[d] = longest
			c.Size = c.Size / full.Dims[d] * longest
		}
	}
	g.Laid, g.Used = n, Place(g.Columns, n, g.Offsets)
}

// LensOf returns the lengths in a ragged dimension, for all places.
func (g *Geometry) LensOf(ragged int) []int32 {
	from := ragged * g.N
	return g.Lens[from : from+g.N]
}
