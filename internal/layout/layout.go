// Package layout describes the memory of a batch: which columns a sample has, where the place of each
// sample is, and how much of this place the sample fills. It knows neither loaders nor types.
//
// Memory holds the samples column by column, and in each column place by place. All places of a column
// have the same length. The first Free dimensions of a column may differ from sample to sample: they are
// ragged. A smaller sample begins at index 0 of each dimension, so a sample with several ragged
// dimensions fills several separate runs of its place.
package layout

import (
	"fmt"
	"unsafe"
)

// A Column is the memory of one tensor of a sample: of the longest sample allowed or, in a batch that has
// its own shape, of the batch's longest.
type Column struct {
	Name   string
	Type   uint8 // of the elements, as the owner numbers them
	Full   int   // size of the longest sample allowed, in bytes
	Size   int   // size of a sample's place, in bytes
	Dims   []int // shape of a sample's place
	Free   int   // how many of the first dimensions are ragged
	Ragged int   // number of its first ragged dimension among the ragged dimensions of all columns
	Rest   bool  // what a sample doesn't fill of its place needn't be zero
	Step   int   // bytes of one step in its last ragged dimension; of a whole sample if it has none
}

// A Layout holds the columns of a sample, each as long as is allowed.
type Layout struct {
	Columns []Column
	Size    int // size of a sample, in bytes
	Ragged  int // number of ragged dimensions in all columns together
}

// Add adds a column of full bytes whose first free dimensions are ragged.
func (l *Layout) Add(name string, dtype uint8, full int, dims []int, free int) {
	c := Column{Name: name, Type: dtype, Full: full, Size: full, Dims: dims, Free: free, Ragged: l.Ragged, Step: full}
	for _, n := range dims[:free] {
		c.Step /= n
	}
	l.Columns = append(l.Columns, c)
	l.Size, l.Ragged = l.Size+full, l.Ragged+free
}

// Longest sets sizes to the sizes of the longest sample allowed: one number per ragged dimension.
func (l *Layout) Longest(sizes []int) {
	for i := range l.Columns {
		c := &l.Columns[i]
		copy(sizes[c.Ragged:], c.Dims[:c.Free])
	}
}

// Check returns what is wrong with the sizes that a dataset gave for a sample.
func (l *Layout) Check(sizes []int) error {
	for i := range l.Columns {
		c := &l.Columns[i]
		for d, longest := range c.Dims[:c.Free] {
			if n := sizes[c.Ragged+d]; n < 0 || n > longest {
				return fmt.Errorf("%d for dimension %d of field %d (%q): must be 0 … %d", n, d, i, c.Name, longest)
			}
		}
	}
	return nil
}

// align is the alignment of columns: a cache line, which is enough for every vector instruction and copy
// engine.
const align = 64

// Place sets where each column of n samples begins, and returns the total size in bytes.
func Place(columns []Column, n int, offsets []int) (size int) {
	for i := range columns {
		offsets[i] = size
		size += (columns[i].Size*n + align - 1) / align * align
	}
	return size
}

// heap returns n bytes of the heap, aligned for every element type.
func heap(n int) []byte {
	if n == 0 {
		return nil
	}
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}
