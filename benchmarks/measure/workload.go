package main

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"math/rand/v2"
	"syscall"
	"time"
)

const (
	side   = 32 // of an image, in pixels
	plane  = side * side
	pixels = 3 * plane
	pad    = 4 // black pixels around an image before it is cropped
)

// A workload is what every loader loads, the same as in peers/workloads.py. The
// samples of a batch lie one after the other.
type workload[T float32 | uint8] struct {
	name    string
	samples int
	batch   int
	size    int // values of a sample
	load    func(dst []T, index int, r random)

	pauses int // batches from one pause of the training step to the next; 0: none
	pause  time.Duration
}

// random is where a loader's augmentation gets its randomness from.
type random interface{ Rand() *rand.Rand }

func (w *workload[T]) epochBatches() int { return (w.samples + w.batch - 1) / w.batch }

// orders returns the indices of one batch after the other, shuffled anew for each
// epoch, whose last batch is short. What it yields stays as it is.
func (w *workload[T]) orders() iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		for {
			order := rand.Perm(w.samples)
			for len(order) > 0 {
				n := min(w.batch, len(order))
				if !yield(order[:n]) {
					return
				}
				order = order[n:]
			}
		}
	}
}

// fill loads the samples at indices into dst.
func (w *workload[T]) fill(dst []T, indices []int, r random) {
	for k, i := range indices {
		w.load(dst[k*w.size:(k+1)*w.size], i, r)
	}
}

func augmented(images [][pixels]byte) *workload[float32] {
	return &workload[float32]{name: "augment", samples: len(images), batch: 128, size: pixels, load: func(dst []float32, i int, r random) {
		rng := r.Rand()
		augment((*[pixels]float32)(dst), &images[i], rng.IntN(2*pad+1), rng.IntN(2*pad+1), rng.IntN(2) == 1)
	}}
}

func raw(images [][pixels]byte) *workload[uint8] {
	return &workload[uint8]{name: "raw", samples: len(images), batch: 128, size: pixels,
		load: func(dst []uint8, i int, _ random) { copy(dst, images[i][:]) }}
}

func waiting() *workload[float32] {
	return sleeping("wait", 1000, time.Sleep, func(int) time.Duration { return time.Millisecond })
}

// sleeping returns a workload whose samples wait, in batches of 64.
func sleeping(name string, samples int, sleep func(time.Duration), took func(i int) time.Duration) *workload[float32] {
	return &workload[float32]{name: name, samples: samples, batch: 64, size: 1, load: func(dst []float32, i int, _ random) {
		sleep(took(i))
		dst[0] = float32(i)
	}}
}

// block waits in the kernel, as a read from a disk does, and as Python's sleep.
// time.Sleep is up to a millisecond late.
func block(d time.Duration) {
	left := syscall.NsecToTimespec(int64(d))
	for syscall.Nanosleep(&left, &left) == syscall.EINTR { // Go's scheduler interrupts threads
	}
}

// tailed returns a workload one of whose samples in a hundred takes a hundred times as
// long. An epoch is longer than a measurement.
func tailed(samples int) *workload[float32] {
	return sleeping("tail", samples, block, func(i int) time.Duration {
		if i%100 == 0 {
			return 100 * time.Millisecond
		}
		return time.Millisecond
	})
}

// pausing returns a workload whose training step pauses now and then for about as long as
// 16 workers take to load what it uses between two pauses.
func pausing(samples int) *workload[float32] {
	w := sleeping("pauses", samples, block, func(int) time.Duration { return 2 * time.Millisecond })
	w.pauses, w.pause = 32, 270*time.Millisecond
	return w
}

func empty() *workload[float32] {
	return &workload[float32]{name: "empty", samples: 50_000, batch: 128, size: 1, load: func(dst []float32, i int, _ random) { dst[0] = float32(i) }}
}

// makeImages is noise around a middle that spells the image's index, a byte a
// channel, and is wide enough to cover pixel (16, 16) after any crop.
func makeImages(n int) [][pixels]byte {
	images := make([][pixels]byte, n)
	noise := rand.NewChaCha8([32]byte{})
	for i := range images {
		noise.Read(images[i][:])
		for c := range 3 {
			for y := 16 - pad - 1; y < 16+pad+1; y++ {
				for x := 16 - pad - 1; x < 16+pad+1; x++ {
					images[i][c*plane+y*side+x] = byte(i >> (8 * c))
				}
			}
		}
	}
	return images
}

var (
	mean      = [3]float64{0.4914, 0.4822, 0.4465}
	deviation = [3]float64{0.2470, 0.2435, 0.2616}
)

// normalized tells, by channel, what each byte becomes.
var normalized = func() (table [3][256]float32) {
	for c := range table {
		for v := range table[c] {
			table[c][v] = float32((float64(v)/255 - mean[c]) / deviation[c])
		}
	}
	return table
}()

// augment writes an image, mirrored if flip, padded, cropped at column dx and
// row dy, and normalized. It is the one of examples/cifar10.
func augment(dst *[pixels]float32, image *[pixels]byte, dx, dy int, flip bool) {
	var padded [side + 2*pad]byte // a row; its ends stay black
	for c := range 3 {
		table := &normalized[c]
		for y := range side {
			out := (*[side]float32)(dst[c*plane+y*side:])
			from := y + dy - pad
			if from < 0 || from >= side {
				for x := range out {
					out[x] = table[0]
				}
				continue
			}
			row, middle := (*[side]byte)(image[c*plane+from*side:]), (*[side]byte)(padded[pad:])
			if flip {
				mirror(middle, row)
			} else {
				copy(middle[:], row[:])
			}
			in := (*[side]byte)(padded[dx:])
			for x := 0; x < side; x += 8 {
				out, in := (*[8]float32)(out[x:]), (*[8]byte)(in[x:])
				out[0], out[1] = table[in[0]], table[in[1]]
				out[2], out[3] = table[in[2]], table[in[3]]
				out[4], out[5] = table[in[4]], table[in[5]]
				out[6], out[7] = table[in[6]], table[in[7]]
			}
		}
	}
}

// mirror writes a row from right to left, eight pixels at a time.
func mirror(dst, row *[side]byte) {
	for i := 0; i < side; i += 8 {
		v := binary.LittleEndian.Uint64(row[i : i+8])
		binary.LittleEndian.PutUint64(dst[side-8-i:side-i], bits.ReverseBytes64(v))
	}
}
