package vision

import "context"

// A plane is one component of a picture.
type plane struct {
	pix           []byte
	stride        int
	width, height int
}

// A model says what the planes of a picture hold.
type model uint8

const (
	grey     model = iota // one plane
	rgb                   // three planes
	ycc                   // three planes, as in JFIF: all values 0 … 255
	video                 // three planes, as in ITU-R BT.601: 16 … 235 and 16 … 240; used by WebP
	wideGrey              // two planes: the lower and the upper byte of a grey or of a mask's value
)

// A picture is decoded pixels.
type picture struct {
	width, height int // of the file's picture
	model         model
	planes        [3]plane
	subX, subY    int  // pixels of the picture, per row and per column, for each pixel of a chroma plane
	smooth        bool // chroma planes are smoothed as they grow, as libjpeg does
}

// count returns the number of planes.
func (p *picture) count() int {
	switch p.model {
	case grey:
		return 1
	case wideGrey:
		return 2
	}
	return 3
}

// shape gives the picture planes of width × height pixels in mem, which it grows if needed. The planes
// have whole blocks of chroma pixels.
func (p *picture) shape(mem []byte, width, height int) []byte {
	sizes, total := [3]int{}, 0
	for i := range p.count() {
		pl := &p.planes[i]
		pl.width, pl.height = width, height
		columns, rows := up(width, p.subX), up(height, p.subY)
		if i > 0 && p.model != rgb {
			columns, rows = columns/p.subX, rows/p.subY
			pl.width, pl.height = columns, rows
		}
		pl.stride = up(columns, 8)
		sizes[i] = pl.stride * rows
		total += sizes[i]
	}
	mem = sized(mem, total)
	at := 0
	for i := range p.count() {
		p.planes[i].pix = mem[at : at+sizes[i] : at+sizes[i]]
		at += sizes[i]
	}
	return mem
}

// reduce replaces each byX × byY pixels of a plane by one pixel, their mean. It uses mem and sums, which
// it grows if needed. It stops if ctx ends.
func (p *picture) reduce(ctx context.Context, mem []byte, sums []uint64, byX, byY int) ([]byte, []uint64) {
	smaller := func(n, by int) int { return (n + by - 1) / by }
	p.width, p.height = smaller(p.width, byX), smaller(p.height, byY)
	total := 0
	for _, pl := range p.planes[:p.count()] {
		total += up(smaller(pl.width, byX), 8) * smaller(pl.height, byY)
	}
	mem = sized(mem, total)
	rest := mem
	for i := range p.count() {
		from := p.planes[i]
		to := plane{width: smaller(from.width, byX), height: smaller(from.height, byY)}
		to.stride = up(to.width, 8)
		n := to.stride * to.height
		to.pix, rest = rest[:n:n], rest[n:]
		if cap(sums) < to.width {
			sums = make([]uint64, to.width)
		}
		sums = sums[:to.width]
		for y := range to.height {
			if ctx.Err() != nil {
				break
			}
			clear(sums)
			rows := min(byY, from.height-y*byY)
			for k := range rows {
				row := from.pix[(y*byY+k)*from.stride:][:from.width]
				for x := range sums {
					sum := uint64(0)
					for _, v := range row[x*byX : min((x+1)*byX, len(row))] {
						sum += uint64(v)
					}
					sums[x] += sum
				}
			}
			for x, sum := range sums {
				pixels := uint64(rows * min(byX, from.width-x*byX))
				to.pix[y*to.stride+x] = byte((sum + pixels/2) / pixels)
			}
		}
		p.planes[i] = to
	}
	return mem, sums
}

// sized returns mem with a length of n bytes, or new memory if mem is too small.
func sized(mem []byte, n int) []byte {
	if cap(mem) < n {
		return make([]byte, n)
	}
	return mem[:n]
}

// up returns n rounded up to a multiple of m.
func up(n, m int) int { return (n + m - 1) / m * m }
