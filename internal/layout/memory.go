package layout

import "fmt"

// A Memory holds places for samples. Goroutines that load samples into it share it by value: while they
// do, only the bytes and the lengths of their places change.
type Memory struct {
	*Layout
	N       int // number of places
	Bytes   []byte
	Lens    []int32  // lengths in ragged dimensions: N for each dimension
	Told    []int32  // the same for the sizes that the dataset gave before loading; nil if it gave none
	First   int      // number of the first ragged dimension in Lens and Told
	Columns []Column // the layout's columns, as they are in Bytes
	Offsets []int    // where each column begins in Bytes
}

// Untold in Told means that a sample's sizes can't be used. Unset in Lens means that Load hasn't set the
// length.
const Untold, Unset = -1, -1

// New allocates memory for n samples on the heap.
func New(l *Layout, n int) Memory {
	m := Memory{Layout: l, N: n, Lens: make([]int32, l.Ragged*n), Columns: l.Columns, Offsets: make([]int, len(l.Columns))}
	m.Bytes = heap(Place(l.Columns, n, m.Offsets))
	return m
}

// Places returns the memory of a column for n samples that begin at a place.
func (m *Memory) Places(column, place, n int) []byte {
	size := m.Columns[column].Size
	from := m.Offsets[column] + place*size
	return m.Bytes[from : from+n*size : from+n*size]
}

// Part returns the memory of some columns, whose ragged dimensions begin with number first.
func (m *Memory) Part(l *Layout, column, first int) Memory {
	p := Memory{Layout: l, N: m.N, Bytes: m.Bytes, First: m.First + first}
	p.Columns, p.Offsets = m.Columns[column:column+len(l.Columns)], m.Offsets[column:column+len(l.Columns)]
	from, end := first*m.N, (first+l.Ragged)*m.N
	if p.Lens = m.Lens[from:end]; m.Told != nil {
		p.Told = m.Told[from:end]
	}
	return p
}

// Len returns where the length of a ragged dimension of a sample is kept.
func (m *Memory) Len(c *Column, dim, place int) *int32 { return &m.Lens[m.at(c, dim, place)] }

func (m *Memory) at(c *Column, dim, place int) int {
	return (c.Ragged-m.First+dim)*m.N + place
}

// LongestOf returns how long a sample may be.
func (m *Memory) LongestOf(c *Column, dim, place int) int {
	if m.Told != nil {
		return int(m.Told[m.at(c, dim, place)])
	}
	return c.Dims[dim]
}

// UnsetLens makes the lengths of the places from … to−1 unknown.
func (m *Memory) UnsetLens(from, to int) {
	for lens := m.Lens; len(lens) > 0; lens = lens[m.N:] {
		for i := from; i < to; i++ {
			lens[i] = Unset
		}
	}
}

// Clear sets n samples, beginning at a place, to zero in all columns.
func (m *Memory) Clear(place, n int) {
	for i := range m.Columns {
		clear(m.Places(i, place, n))
	}
}

// ClearRest sets to zero the part of its place that a sample doesn't fill, except in a column whose rest
// nobody reads. It returns the first ragged column whose lengths aren't set, or −1 if all are.
func (m *Memory) ClearRest(place int) (unset int) {
	for i := range m.Columns {
		c := &m.Columns[i]
		if c.Free == 0 {
			continue
		}
		if *m.Len(c, c.Free-1, place) < 0 {
			return i
		}
		if c.Rest {
			continue
		}
		mem, end := m.Places(i, place, 1), 0
		n, length := m.runs(c, place)
		for k := range n {
			at := m.runAt(c, k, place)
			clear(mem[end:at])
			end = at + length
		}
		clear(mem[end:])
	}
	return -1
}

// ClearRests does what ClearRest does, for the first n places, whose lengths the program may have
// changed. It returns an error that names the first length that is out of range.
func (m *Memory) ClearRests(n int) error {
	for place := range n {
		for i := range m.Columns {
			c := &m.Columns[i]
			for d, longest := range c.Dims[:c.Free] {
				if length := *m.Len(c, d, place); length < 0 || int(length) > longest {
					return fmt.Errorf("sample %d: length %d of field %q must be 0 … %d", place, length, c.Name, longest)
				}
			}
		}
		m.ClearRest(place)
	}
	return nil
}

// runs returns how many contiguous pieces of its place a sample fills; all have the same length.
func (m *Memory) runs(c *Column, place int) (n, length int) {
	n, length = 1, c.Step
	for d := range c.Free {
		if d < c.Free-1 {
			n *= int(*m.Len(c, d, place))
		} else {
			length *= int(*m.Len(c, d, place))
		}
	}
	return n, length
}

// runAt returns where run k begins in the sample's place.
func (m *Memory) runAt(c *Column, k, place int) (at int) {
	if c.Free < 2 {
		return 0
	}
	stride := c.Step * c.Dims[c.Free-1]
	for d := c.Free - 2; d >= 0; d-- {
		n := int(*m.Len(c, d, place))
		at += k % n * stride
		k /= n
		stride *= c.Dims[d]
	}
	return at
}

// CopySample copies a sample to a place of memory that has the same fields, but may have other shapes. It
// returns an error if the sample is longer than the sizes that were given there.
func (m *Memory) CopySample(place int, dst *Memory, to int) error {
	for i := range m.Columns {
		c, there := &m.Columns[i], &dst.Columns[i]
		for d := range c.Free {
			n := *m.Len(c, d, place)
			if longest := dst.LongestOf(there, d, to); int(n) > longest {
				return TooLongError{c.Name, int(n), longest}
			}
			*dst.Len(there, d, to) = n
		}
		n, length := m.runs(c, place)
		src, mem := m.Places(i, place, 1), dst.Places(i, to, 1)
		for k := range n {
			copy(mem[dst.runAt(there, k, to):], src[m.runAt(c, k, place):][:length])
		}
	}
	return nil
}

// CopyPlaces copies the places from … end−1 of src, memory with the same shapes that may be m itself, to
// the places of m that begin at to.
func (m *Memory) CopyPlaces(to int, src *Memory, from, end int) {
	for i := range m.Columns {
		size, off := m.Columns[i].Size, m.Offsets[i]
		copy(m.Bytes[off+to*size:], src.Bytes[off+from*size:off+end*size])
	}
	for d := range m.Ragged {
		at := d * m.N
		copy(m.Lens[at+to:], src.Lens[at+from:at+end])
	}
}

// A TooLongError says that a sample is larger than the size that the dataset gave.
type TooLongError struct {
	Field        string
	Len, Longest int
}

func (e TooLongError) Error() string {
	return fmt.Sprintf("length %d of field %q is more than the %d that Sizes gave", e.Len, e.Field, e.Longest)
}
