package layout

import "fmt"

// A Memory is places for samples. Whoever loads samples into it shares it by value: nothing of it
// changes meanwhile but the bytes and the lengths of the places that are loaded.
type Memory struct {
	*Layout
	N       int // places
	Bytes   []byte
	Lens    []int32  // of ragged dimensions: N of each
	Told    []int32  // the same, of the sizes that were told before loading; nil if none were
	First   int      // number of the ragged dimension that Lens and Told begin with
	Columns []Column // the layout's, as they are in Bytes
	Offsets []int    // of the columns in Bytes
}

// Untold stands in Told for a sample whose sizes can't be used, and Unset in Lens for a length
// that Load hasn't set.
const Untold, Unset = -1, -1

// New makes memory of the heap for n samples.
func New(l *Layout, n int) Memory {
	m := Memory{Layout: l, N: n, Lens: make([]int32, l.Ragged*n), Columns: l.Columns, Offsets: make([]int, len(l.Columns))}
	m.Bytes = Heap(Place(l.Columns, n, m.Offsets))
	return m
}

// Places returns the memory of a column of n samples, from a place on.
func (m *Memory) Places(column, place, n int) []byte {
	size := m.Columns[column].Size
	from := m.Offsets[column] + place*size
	return m.Bytes[from : from+n*size : from+n*size]
}

// Part returns the memory of some columns, whose ragged dimensions begin with first.
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

// Clear makes all columns zero of n samples from a place on.
func (m *Memory) Clear(place, n int) {
	for i := range m.Columns {
		clear(m.Places(i, place, n))
	}
}

// ClearRest makes zero what a sample doesn't fill of its place. It returns the first ragged column
// whose lengths aren't set, −1 if all are.
func (m *Memory) ClearRest(place int) (unset int) {
	for i := range m.Columns {
		c := &m.Columns[i]
		if c.Free == 0 {
			continue
		}
		if *m.Len(c, c.Free-1, place) < 0 {
			return i
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

// ClearRests is ClearRest for the first n places, whose lengths the program may have changed. It
// returns an error that names the first length that doesn't fit.
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

// runs returns how many contiguous pieces a sample fills of its place, all of one length.
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

// CopySample copies a sample to a place of memory of the same fields, whose shapes may be others.
// It returns an error if the sample is longer than was told there.
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

// CopyPlaces copies the places from … end−1 of memory of the same shapes, which may be m itself,
// to the places of m from to on.
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

// A TooLongError says that a sample has more than was told of its size.
type TooLongError struct {
	Field        string
	Len, Longest int
}

func (e TooLongError) Error() string {
	return fmt.Sprintf("length %d of field %q is more than the %d that Sizes told", e.Len, e.Field, e.Longest)
}
