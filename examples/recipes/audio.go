package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/cmplx"
	"os"
	"path/filepath"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// Audio: clips that begin at a random offset of their recording, read from there, as log-mel spectra, in
// batches of clips of similar length. Each worker keeps its file and the tables and buffers of its FFT.

const (
	rate      = 8000 // samples per second
	frame     = 256  // samples per frame; a power of 2
	hop       = 128  // samples from one frame to the next
	bands     = 24
	mostClip  = 4000 // samples of the longest clip
	wavHeader = 44   // bytes of a WAV file before its samples
)

var (
	audioSchema nwt.Schema
	spectrum    = nwt.AddRagged[float32](&audioSchema, "log_mel", 1, framesOf(mostClip), bands)
)

// framesOf returns the frames of a clip.
func framesOf(samples int) int { return 1 + (samples-frame)/hop }

// A recording is a stretch of a file: samples of 16 bits, little endian.
type recording struct{ from, samples int }

// clip returns how long a clip of the recording is.
func (r recording) clip() int { return min(r.samples, mostClip) }

// bandEdges returns the frequencies at which a band of the mel scale begins, is largest, and ends.
func bandEdges(band int) (low, middle, high float64) {
	most := 1127 * math.Log1p(rate/2/700.0)
	at := func(edge int) float64 { return 700 * math.Expm1(float64(edge)*most/(bands+1)/1127) }
	return at(band), at(band + 1), at(band + 2)
}

// A listener is what a worker keeps.
type listener struct {
	file    *os.File
	bytes   [2 * mostClip]byte
	turns   [frame / 2]complex128
	window  [frame]float64
	filters [bands][frame/2 + 1]float64
	buffer  [frame]complex128
	power   [frame/2 + 1]float64
}

func newListener(path string) (*listener, error) {
	file, err := os.Open(path)
	l := &listener{file: file}
	for k := range l.turns {
		l.turns[k] = cmplx.Exp(complex(0, -2*math.Pi*float64(k)/frame))
	}
	for k := range l.window { // Hann's
		l.window[k] = 0.5 - 0.5*math.Cos(2*math.Pi*float64(k)/frame)
	}
	for b := range l.filters {
		low, middle, high := bandEdges(b)
		for k := range l.filters[b] {
			f := float64(k) * rate / frame
			l.filters[b][k] = max(0, min((f-low)/(middle-low), (high-f)/(high-middle)))
		}
	}
	return l, err
}

func (l *listener) Close() error { return l.file.Close() }

// fft transforms the buffer, whose elements are in bit-reversed order.
func (l *listener) fft() {
	for size := 2; size <= frame; size *= 2 {
		for from := 0; from < frame; from += size {
			for k := range size / 2 {
				a, b := l.buffer[from+k], l.buffer[from+k+size/2]*l.turns[k*frame/size]
				l.buffer[from+k], l.buffer[from+k+size/2] = a+b, a-b
			}
		}
	}
}

// logMel writes the log-mel spectrum of a frame.
func (l *listener) logMel(dst []float32, samples []byte) {
	for i := range l.buffer {
		reversed := 0
		for bit := 1; bit < frame; bit <<= 1 {
			reversed <<= 1
			if i&bit != 0 {
				reversed |= 1
			}
		}
		value := float64(int16(binary.LittleEndian.Uint16(samples[2*i:]))) / (1 << 15)
		l.buffer[reversed] = complex(value*l.window[i], 0)
	}
	l.fft()
	for k := range l.power {
		l.power[k] = real(l.buffer[k])*real(l.buffer[k]) + imag(l.buffer[k])*imag(l.buffer[k])
	}
	for b := range dst {
		sum := 0.0
		for k, w := range l.filters[b] {
			sum += w * l.power[k]
		}
		dst[b] = float32(math.Log10(max(sum, 1e-10)))
	}
}

// recordings returns the clips of all recordings.
func recordings(path string, all []recording) (nwt.Dataset, []nwt.Option, error) {
	open := func() (*listener, error) { return newListener(path) }
	ds := nwt.NewDataset(len(all), audioSchema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		l, err := nwt.Scratch(dst, open)
		if err != nil {
			return err
		}
		r := all[i]
		n := r.clip()
		from := r.from + dst.Rand().IntN(r.samples-n+1)
		if _, err := l.file.ReadAt(l.bytes[:2*n], int64(wavHeader+2*from)); err != nil {
			return err
		}
		spectrum.SetLen(dst, framesOf(n))
		to := spectrum.Of(dst)
		for f := range framesOf(n) {
			l.logMel(to[f*bands:(f+1)*bands], l.bytes[2*f*hop:])
		}
		return nil
	})
	length := func(i int) int { return framesOf(all[i].clip()) } // known without opening the file
	order, err := sampler.Bucketed(len(all), length, sampler.Buckets{BatchSize: 8}, 42)
	sized := nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = length(i) })
	return sized, []nwt.Option{nwt.WithSampler(order), nwt.WithSeed(42), nwt.WithBatchSize(8)}, err
}

// lengthOfRecording and toneOf say what writeRecordings writes.
func lengthOfRecording(i int) int { return frame + i*211%(2*mostClip) }
func toneOf(i int) float64        { return 200 + 100*float64(i%30) }

// writeRecordings writes a WAV file of n recordings, one after the other.
func writeRecordings(path string, n int) (all []recording, err error) {
	data := make([]byte, wavHeader)
	copy(data, "RIFF\xff\xff\xff\xffWAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data\xff\xff\xff\xff") // mono, of unknown length
	for i := range n {
		r := recording{from: (len(data) - wavHeader) / 2, samples: lengthOfRecording(i)}
		all = append(all, r)
		for k := range r.samples {
			data = binary.LittleEndian.AppendUint16(data, uint16(int16(20_000*math.Sin(2*math.Pi*toneOf(i)*float64(k)/rate))))
		}
	}
	return all, os.WriteFile(path, data, 0o644)
}

func audio(ctx context.Context, dir string, out io.Writer) error {
	file := filepath.Join(dir, "recordings.wav")
	all, err := writeRecordings(file, 200)
	if err != nil {
		return err
	}
	ds, opts, err := recordings(file, all)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(ds, opts...)
	if err != nil {
		return err
	}
	defer loader.Close()
	frames, places := 0, 0
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		for _, n := range spectrum.Lens(batch, 0) {
			frames += int(n)
		}
		places += batch.Len() * spectrum.Shape(batch)[1]
	}
	fmt.Fprintf(out, "  %d frames in %d places: each batch is as long as its longest clip\n", frames, places)
	return nil
}
