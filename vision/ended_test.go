package vision_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// A looks is a context that counts how often it is looked at. It ends with errEnded
// when it has been looked at so many times: 0 means never.
type looks struct {
	context.Context
	n, ends int
}

var errEnded = errors.New("the test has ended this")

func (c *looks) Err() error {
	if c.n++; c.ends > 0 && c.n > c.ends {
		return errEnded
	}
	return nil
}

// lookedAt loads one picture with a context that ends after so many looks, and returns
// how many there were.
func lookedAt(ends int, p *vision.Pipeline, data []byte) (n int, err error) {
	ctx := &looks{Context: context.Background(), ends: ends}
	_, err = nwt.LoadSample(ctx, one(p, data), 0)
	return ctx.n, err
}

// noise is n random bytes.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// encoded returns what an encoder of the standard library writes.
func encoded(t testing.TB, encode func(b *bytes.Buffer) error) []byte {
	var b bytes.Buffer
	require.NoError(t, encode(&b))
	return b.Bytes()
}

// The decoders of this package look at the context once for each row of blocks of each
// scan, those that read a file bit by bit once for some kilobytes, and what follows once
// for each row or eight rows of pixels: so looks count the work that was done.
func TestAPictureThatNobodyWaitsForIsNotDecodedToItsEnd(t *testing.T) {
	const side = 240
	colours := make(color.Palette, 256)
	for i := range colours {
		colours[i] = color.Gray{Y: byte(i)}
	}
	wide := &image.RGBA64{Pix: noise(side * side * 8), Stride: 8 * side, Rect: image.Rect(0, 0, side, side)}
	pixels := &image.NRGBA{Pix: noise(side * side * 4), Stride: 4 * side, Rect: image.Rect(0, 0, side, side)}
	indices := &image.Paletted{Pix: noise(side * side), Stride: side, Rect: image.Rect(0, 0, side, side), Palette: colours}
	whole := []vision.Transform{vision.CenterCrop{Size: vision.Size{Height: 120, Width: 120}}}
	for name, test := range map[string]struct {
		data  []byte
		steps []vision.Transform
		opts  []vision.Option
		least int // looks at the context for the whole picture
	}{
		"baseline JPEG": {
			data:  encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, pixels, nil) }),
			steps: []vision.Transform{vision.Resize{Size: vision.Square(64)}}, least: side / 16,
		},
		"baseline JPEG, its upper part": {
			data:  encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, pixels, nil) }),
			steps: whole, least: side / 16 / 2,
		},
		"progressive JPEG": {
			data:  read(t, "progressive.jpg"),
			steps: []vision.Transform{vision.Resize{Size: vision.Square(64)}}, least: 10 * 180 / 16,
		},
		"JPEG of other colours": {data: read(t, "cmyk.jpg"), steps: whole, least: 180 + 180/16},
		"PNG": {
			data:  encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, pixels) }),
			steps: whole, least: 180,
		},
		"PNG of 16 bits": {
			data:  encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, wide) }),
			steps: whole, least: 180,
		},
		"GIF": {
			data:  encoded(t, func(b *bytes.Buffer) error { return gif.Encode(b, indices, nil) }),
			steps: whole, least: side*side/8192 + side,
		},
		"lossless WebP": {data: read(t, "lossless.webp"), steps: whole, least: 60740 / 4096},
		"a picture that is turned": {
			data: read(t, "exif6.jpg"), opts: []vision.Option{vision.WithOrientation()}, least: 100,
			steps: []vision.Transform{vision.Resize{Size: vision.Square(64)}},
		},
		"a picture that becomes 50 times smaller": {
			data: encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, image.NewGray(image.Rect(0, 0, 800, 800))) }), least: 800 + 16,
			steps: []vision.Transform{vision.Resize{Size: vision.Square(16)}},
		},
		"a large result that is padded": {
			data: read(t, "420.jpg"), least: 3 * 1600 / 64,
			steps: []vision.Transform{vision.CenterCrop{Size: vision.Square(1600)}},
		},
		"a large result that is erased": {
			data: read(t, "420.jpg"), least: 1000/8 + 3*300/64,
			steps: []vision.Transform{
				vision.Resize{Size: vision.Square(1000)}, vision.RandomErasing{P: 1, Scale: [2]float64{.5, .6}, Ratio: [2]float64{1, 1}},
			},
		},
		"a large result with other colours": {
			data: read(t, "420.jpg"), least: 1100/8 + 2*2 + 2 + 1100,
			steps: []vision.Transform{
				vision.Resize{Size: vision.Square(1100)}, vision.ColorJitter{Brightness: .4, Contrast: .4},
			},
		},
	} {
		for _, damaged := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, WithDamaged %v", name, damaged), func(t *testing.T) {
				opts := append([]vision.Option{vision.WithRowMemory(0)}, test.opts...) // all codes are read each time
				if damaged {
					opts = append([]vision.Option{vision.WithDamaged()}, opts...)
				}
				p, err := vision.New(test.steps, opts...)
				require.NoError(t, err)
				all, err := lookedAt(0, p, test.data)
				require.NoError(t, err)
				require.GreaterOrEqual(t, all, test.least)
				for _, share := range []int{0, 2, 5, 9} {
					ends := max(1, all*share/10)
					n, err := lookedAt(ends, p, test.data)
					require.ErrorIs(t, err, errEnded)
					require.LessOrEqual(t, n-ends, 24, "looks after the end, where %d of %d came before it; each format looks at the beginning", ends, all)
				}
			})
		}
	}
}

func TestAMaskThatNobodyWaitsForIsNotDecodedToItsEnd(t *testing.T) {
	p, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Square(1000)}})
	require.NoError(t, err)
	masks, err := p.Masks(nwt.Uint8, 0)
	require.NoError(t, err)
	equal, wide := image.NewNRGBA(image.Rect(0, 0, 200, 200)), image.NewNRGBA64(image.Rect(0, 0, 200, 200))
	for name, img := range map[string]image.Image{"equal colours": equal, "16 bits": wide} {
		file := encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, img) })
		looked := func(ends int) (int, error) {
			ctx := &looks{Context: context.Background(), ends: ends}
			_, err := nwt.LoadSample(ctx, nwt.NewDataset(1, []nwt.Field{p.Field("image"), masks.Field("mask")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
				draw, err := p.ChoosePixels(dst, 0, make([]byte, 200*200), 200, 200, vision.CHW)
				return errors.Join(err, draw.Load(masks, 1, file))
			}), 0)
			return ctx.n, err
		}
		all, err := looked(0)
		require.NoError(t, err)
		require.Greater(t, all, 200+1000/64, name)
		for _, left := range []int{1, 10, 30} {
			n, err := looked(all - left)
			require.ErrorIs(t, err, errEnded, name)
			require.LessOrEqual(t, n-all+left, 20, name)
		}
	}
}

// A file of a gigabyte may be markers, or what looks like some, to its end.
func TestAFileOfMarkersIsNotReadToItsEnd(t *testing.T) {
	const n = 1 << 19
	restarts, progressive := read(t, "restart.jpg"), read(t, "progressive.jpg")
	followed := func(start []byte, by ...byte) []byte { return append(bytes.Clone(start), bytes.Repeat(by, n)...) }
	palette := read(t, "palette.gif")
	standard := append([]byte{0, 0, 1, 5, 1, 1, 1, 1, 1, 1}, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	for name, data := range map[string][]byte{
		"segments before the picture": followed(restarts[:2], 0xff, 0xe0, 0, 2),
		"bytes that are no segments":  followed(restarts[:2], 0xff, 0),
		"Huffman tables":              slices.Concat(restarts[:2], bytes.Repeat(dht(slices.Repeat(standard, 65533/len(standard))...), 1<<8)),
		"scans to be counted":         followed(progressive[:len(progressive)-2], 0xff, 0),
		"what follows the last block": followed(restarts[:len(restarts)-2], 0xff, 0),
		"blocks before a GIF picture": slices.Concat(palette[:13+3<<(palette[10]&7+1)], []byte{0x21, 0xfe}, bytes.Repeat([]byte{1, 1}, n), []byte{0}),
	} {
		p, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Square(8)}}, vision.WithDamaged())
		require.NoError(t, err)
		all, _ := lookedAt(0, p, data)
		require.Greater(t, all, 120, name)
		ends := all - 60
		looks, err := lookedAt(ends, p, data)
		require.ErrorIs(t, err, errEnded)
		require.LessOrEqual(t, looks-ends, 12, "%s: looks after the end", name)
	}
}

// What is looked for in chunks is looked for until the context ends.
func TestEachWayThroughTheChunksOfAFileLooksAtTheContext(t *testing.T) {
	const n = 1 << 19
	looksAt := func(start string, item []byte, opts ...vision.Option) int {
		data := append([]byte(start), bytes.Repeat(item, n)...)
		if start[:4] == "RIFF" {
			binary.LittleEndian.PutUint32(data[4:], uint32(len(data)-8))
		}
		looks, err := lookedAt(0, small(t, opts...), data)
		require.Error(t, err)
		return looks
	}
	webp := func(flags string, opts ...vision.Option) int {
		return looksAt("RIFF    WEBPVP8X\x0a\x00\x00\x00"+flags+"\x00\x00\x00\xef\x00\x00\xb3\x00\x00", []byte("abcd\x00\x00\x00\x00"), opts...)
	}
	const least = n / 8192
	plain := webp("\x00")
	require.Greater(t, plain, 8*n/4096+least, "the pixels, before image.Decode")
	require.Greater(t, webp("\x08", vision.WithOrientation()), plain+least, "the orientation")

	comment, blocks := string(read(t, "palette.gif")[:13+3*256])+"\x21\xfe", []byte{1, 1}
	require.Greater(t, looksAt(comment, blocks), least, "a comment of a GIF file")

	chunks := looksAt(string(read(t, "rgb.png")[:33]), chunkOfPNG("abcd", nil))
	require.Greater(t, chunks, least, "the pixels of a PNG file")
	empty := append([]byte("\x78\x01"), bytes.Repeat([]byte("\x00\x00\x00\xff\xff"), 4<<20)...)
	require.Greater(t, looksAt(string(read(t, "rgb.png")[:33])+string(chunkOfPNG("IDAT", empty)), chunkOfPNG("IEND", nil)), len(empty)/(1<<16), "blocks without pixels")
}

func TestReadingALargeFileEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "class"), 0o755))
	f, err := os.Create(filepath.Join(dir, "class", "a.png"))
	require.NoError(t, err)
	require.NoError(t, f.Truncate(100<<20))
	require.NoError(t, f.Close())
	folder, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.NoError(t, err)
	ctx := &looks{Context: context.Background(), ends: 2}
	_, err = nwt.LoadSample(ctx, folder, 0)
	require.ErrorIs(t, err, errEnded)
	require.ErrorContains(t, err, "read "+folder.Path(0))
	require.LessOrEqual(t, ctx.n, 4, "looks: one for each 16 MB, and one for the cause")
}

// ending returns a dataset of two samples that ends the context of the call, in a way of its
// own, before it loads a picture.
func ending(p *vision.Pipeline, end func(ctx context.Context), data []byte, ended chan<- error) nwt.Dataset {
	return nwt.NewDataset(2, []nwt.Field{p.Field("image")}, func(ctx context.Context, _ int, dst *nwt.Sample) error {
		end(ctx)
		err := errors.New("a panic")
		defer func() { ended <- err }()
		err = p.Load(dst, 0, data)
		return err
	})
}

// together is a dataset that loads samples together.
type together struct{ nwt.Dataset }

func (d together) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for i, index := range indices {
		if err := d.Load(ctx, index, dst[i]); err != nil {
			return err
		}
	}
	return nil
}

func TestThePipelineKnowsTheContextOfEachLoader(t *testing.T) {
	p, data := small(t), read(t, "420.jpg")
	for name, compose := range map[string]func(t *testing.T, ds nwt.Dataset) nwt.Dataset{
		"alone": func(_ *testing.T, ds nwt.Dataset) nwt.Dataset { return ds },
		"Map": func(_ *testing.T, ds nwt.Dataset) nwt.Dataset {
			return nwt.Map(ds, ds.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
				copy(dst.Bytes(0), src.Bytes(0))
				return nil
			})
		},
		"Concat": func(t *testing.T, ds nwt.Dataset) nwt.Dataset {
			both, err := nwt.Concat(ds, ds)
			require.NoError(t, err)
			return both
		},
		"Subset": func(t *testing.T, ds nwt.Dataset) nwt.Dataset {
			part, err := nwt.Subset(ds, []int{1, 0})
			require.NoError(t, err)
			return part
		},
		"Zip": func(t *testing.T, ds nwt.Dataset) nwt.Dataset {
			labels, err := nwt.FromSlices(nwt.SliceOf("label", []int64{1, 2}))
			require.NoError(t, err)
			both, err := nwt.Zip(labels, ds)
			require.NoError(t, err)
			return both
		},
		"Cached":   func(_ *testing.T, ds nwt.Dataset) nwt.Dataset { return nwt.Cached(ds, 1<<20) },
		"LoadMany": func(_ *testing.T, ds nwt.Dataset) nwt.Dataset { return together{ds} },
	} {
		for _, workers := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s, %d workers", name, workers), func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				ended := make(chan error, 10)
				ds := compose(t, ending(p, func(ctx context.Context) {
					cancel(errEnded)
					<-ctx.Done() // if another worker is cancelling, that may take a moment
				}, data, ended))
				l, err := nwt.NewLoader(ds, nwt.WithBatchSize(1), nwt.WithWorkers(workers))
				require.NoError(t, err)
				for _, err := range l.Epoch(ctx, 0) {
					require.ErrorIs(t, err, errEnded)
				}
				require.NoError(t, l.Close())
				require.ErrorIs(t, <-ended, errEnded)
			})
		}
	}
}

func TestAnotherEpochsEndDoesNotEndAPicture(t *testing.T) {
	p, data := small(t), read(t, "420.jpg")
	for _, workers := range []int{0, 1} {
		l, err := nwt.NewLoader(repeated(p, 3, data), nwt.WithBatchSize(1), nwt.WithWorkers(workers))
		require.NoError(t, err)
		defer l.Close()
		for epoch := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			for _, err := range l.Epoch(ctx, epoch) {
				require.NoError(t, err)
			}
			cancel()
		}
		for _, err := range l.Epoch(t.Context(), 3) {
			require.NoError(t, err)
		}
	}
}

func TestACallThatWasGivenUpDecodesNoFurther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, data := small(t), read(t, "420.jpg")
		ended := make(chan error, 2)
		late := func(ctx context.Context) { <-ctx.Done() }
		l, err := nwt.NewLoader(ending(p, late, data, ended), nwt.WithBatchSize(2), nwt.WithWorkers(1), nwt.WithTimeout(time.Second))
		require.NoError(t, err)
		defer l.Close()
		for _, err := range l.Epoch(t.Context(), 0) {
			require.ErrorContains(t, err, "WithTimeout(1s)")
		}
		err = <-ended
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "vision: given up: no answer within WithTimeout(1s)")
		synctest.Wait()
	})
}

func TestAFolderHeedsTheContextThatItIsGiven(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "class"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "class", "a.jpg"), read(t, "420.jpg"), 0o644))
	folder, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.NoError(t, err)
	_, err = loadWith(t, folder, &looks{Context: context.Background(), ends: 4})
	require.ErrorIs(t, err, errEnded)
	require.ErrorContains(t, err, folder.Path(0))
}

// loadWith loads a folder's first picture with a context that isn't the loader's.
func loadWith(t testing.TB, folder *vision.Folder, ctx context.Context) (*nwt.Sample, error) {
	ds := nwt.NewDataset(1, folder.Fields(), func(_ context.Context, _ int, dst *nwt.Sample) error {
		return folder.Load(ctx, 0, dst)
	})
	return nwt.LoadSample(t.Context(), ds, 0)
}

func TestAContextThatHasEndedDecodesNothing(t *testing.T) {
	for _, name := range []string{"420.jpg", "progressive.jpg", "cmyk.jpg", "rgb.png", "palette.gif", "lossy.webp"} {
		p := small(t, vision.WithDamaged())
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errEnded)
		_, err := nwt.LoadSample(ctx, one(p, read(t, name)), 0)
		require.ErrorIs(t, err, errEnded, "%s", name)
	}
}
