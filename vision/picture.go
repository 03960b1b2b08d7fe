package vision

// A plane is one component of a picture.
type plane struct {
	pix           []byte
	stride        int
	width, height int
}

// A model tells what the planes of a picture hold.
type model uint8

const (
	grey  model = iota // one plane
	rgb                // three planes
	ycc                // three planes, as in JFIF: all values 0 … 255
	video              // three planes, as in ITU-R BT.601: 16 … 235 and 16 … 240; WebP has this
)

// A picture is decoded pixels.
type picture struct {
	width, height int // of the file's picture
	// How many of the file's pixels, per side, one pixel here stands for: 1, 2, 4 or 8.
	shrunk     int
	model      model
	planes     [3]plane
	subX, subY int  // pixels of the picture, per row and per column, for each pixel of a chroma plane
	smooth     bool // chroma planes are smoothed as they grow, as libjpeg does
}

// count is the number of planes.
func (p *picture) count() int {
	if p.model == grey {
		return 1
	}
	return 3
}

// shape gives the picture planes of width × height pixels in mem, which it grows
// if needed. The planes have whole blocks of chroma pixels, as TurboJPEG has them.
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
	if cap(mem) < total {
		mem = make([]byte, total)
	}
	mem = mem[:total]
	at := 0
	for i := range p.count() {
		p.planes[i].pix = mem[at : at+sizes[i] : at+sizes[i]]
		at += sizes[i]
	}
	return mem
}

// up is n rounded up to a multiple of m.
func up(n, m int) int { return (n + m - 1) / m * m }
