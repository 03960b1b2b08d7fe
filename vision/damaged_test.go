package vision_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image/png"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// corpus is bad pictures by name. Those whose names begin with "bad" can't be
// loaded; of the others something may be left.
func corpus(t testing.TB) map[string][]byte {
	all := map[string][]byte{
		"bad-empty.jpg": {}, "bad-text.jpg": []byte("not a picture"), "bad-html.png": []byte("<html>404 not found</html>"),
		"bad-zip.jpg": []byte("PK\x03\x04\x14\x00\x00\x00"), "bad-pdf.jpg": []byte("%PDF-1.7\n"), "bad-zeros.jpg": make([]byte, 5000),
		"bad-marker.jpg": {0xff, 0xd8, 0xff}, "bad-soi.jpg": {0xff, 0xd8}, "bad-eoi.jpg": {0xff, 0xd8, 0xff, 0xd9},
		"bad-fill.jpg": append([]byte{0xff, 0xd8}, bytes.Repeat([]byte{0xff}, 1000)...),
		"bad-gif.gif":  []byte("GIF89a"), "bad-webp.webp": []byte("RIFF\x00\x00\x00\x00WEBPVP8 "), "bad-bmp.jpg": []byte("BM\x00\x00\x00\x00"),
	}
	sources := map[string][]byte{}
	for _, name := range []string{"420.jpg", "444.jpg", "progressive.jpg", "restart.jpg", "grey.jpg", "cmyk.jpg", "rgb.png", "palette.png", "palette.gif", "lossy.webp", "lossless.webp"} {
		sources[name] = read(t, name)
	}
	img, err := png.Decode(bytes.NewReader(sources["rgb.png"]))
	require.NoError(t, err)
	sources["rgb.bmp"] = encoded(t, func(b *bytes.Buffer) error { return bmp.Encode(b, img) })
	sources["rgb.tif"] = encoded(t, func(b *bytes.Buffer) error { return tiff.Encode(b, img, &tiff.Options{Compression: tiff.Deflate}) })
	random := rand.New(rand.NewPCG(1, 2))
	for name, data := range sources {
		for _, share := range []int{1, 20, 50, 90} {
			all[fmt.Sprintf("bad-cut-%02d-%s", share, name)] = data[:len(data)*share/100]
		}
		for i := range 3 {
			flipped := bytes.Clone(data)
			for range 1 + 20*i {
				flipped[random.IntN(len(data))] ^= 1 << random.IntN(8)
			}
			all[fmt.Sprintf("flipped-%d-%s", i, name)] = flipped
		}
	}
	// Headers that lie.
	frame := func(name string, change func(frame []byte)) []byte {
		data := bytes.Clone(sources[name])
		at := bytes.Index(data, []byte{0xff, 0xc0, 0, 17, 8})
		require.Positive(t, at)
		change(data[at:])
		return data
	}
	size := func(h, w uint16) func([]byte) {
		return func(f []byte) {
			binary.BigEndian.PutUint16(f[5:], h)
			binary.BigEndian.PutUint16(f[7:], w)
		}
	}
	all["bad-bomb.jpg"] = frame("420.jpg", size(65535, 65535))
	all["bad-taller.jpg"] = frame("420.jpg", size(1000, 240))
	all["bad-no-height.jpg"] = frame("420.jpg", size(0, 240))
	all["bad-no-width.jpg"] = frame("420.jpg", size(180, 0))
	all["narrower.jpg"] = frame("420.jpg", size(180, 30))
	all["bad-12-bits.jpg"] = frame("420.jpg", func(f []byte) { f[4] = 12 })
	all["bad-components.jpg"] = frame("420.jpg", func(f []byte) { f[9] = 200 })
	all["bad-sampling.jpg"] = frame("420.jpg", func(f []byte) { f[11] = 0x00 })
	all["sampling-odd.jpg"] = frame("420.jpg", func(f []byte) { f[11] = 0x31 })
	all["bad-table.jpg"] = frame("420.jpg", func(f []byte) { f[12] = 9 })
	bomb := bytes.Clone(sources["rgb.png"])
	binary.BigEndian.PutUint32(bomb[16:], 1<<20)
	binary.BigEndian.PutUint32(bomb[20:], 1<<20)
	binary.BigEndian.PutUint32(bomb[29:], crc32.ChecksumIEEE(bomb[12:29]))
	all["bad-bomb.png"] = bomb
	gif := bytes.Clone(sources["palette.gif"])
	binary.LittleEndian.PutUint16(gif[6:], 65535)
	binary.LittleEndian.PutUint16(gif[8:], 65535)
	all["bad-bomb.gif"] = gif
	require.Greater(t, len(all), 60)
	return all
}

func TestBadPicturesAreNamedAndTakeNoMemory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "class"), 0o755))
	for name, data := range corpus(t) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "class", name), data, 0o644))
	}
	folder, err := vision.OpenFolder(t.Context(), dir, small(t, vision.WithMaxPixels(1<<20)))
	require.NoError(t, err)
	l, err := nwt.NewLoader(folder, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithErrorBudget(folder.Len()),
		nwt.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer l.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	good := map[int]bool{}
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		for _, i := range b.Indices() {
			good[i] = true
		}
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(folder.Len())<<20, "bytes, over all files")
	named := map[int]string{}
	for _, bad := range l.BadSamples() {
		require.Nil(t, bad.Stack, "%v", bad)
		named[bad.Index] = bad.Error()
	}
	for i := range folder.Len() {
		path := folder.Path(i)
		require.NotEqual(t, good[i], named[i] != "", path)
		if filepath.Base(path)[:3] == "bad" {
			require.Contains(t, named[i], path)
		}
	}
}

func TestWhatIsLeftOfADamagedPictureIsLoadedIfAsked(t *testing.T) {
	steps := []vision.Transform{vision.Resize{Size: vision.Square(16)}}
	overwritten := func(by ...byte) func(data []byte) []byte {
		return func(data []byte) []byte {
			data = slices.Clone(data)
			copy(data[len(data)/2:], by)
			return data
		}
	}
	for _, name := range []string{"420.jpg", "444.jpg", "restart.jpg", "grey.jpg"} {
		data := read(t, name)
		for how, damage := range map[string]struct {
			to   func(data []byte) []byte
			grey bool // else the decoder may find something to decode
		}{
			"cut":             {func(data []byte) []byte { return data[:len(data)/2] }, true},
			"the marker SOI":  {overwritten(0xFF, 0xD8), true},
			"tables in a row": {overwritten(slices.Repeat([]byte{0xFF, 0xC4}, 8)...), true},
			"zeros":           {overwritten(make([]byte, 64)...), false},
			"ones and zeros":  {overwritten(0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0), false},
		} {
			what := fmt.Sprintf("%s, %s", name, how)
			p, err := vision.New(steps)
			require.NoError(t, err)
			damaged := damage.to(data)
			if damage.grey {
				_, err = nwt.LoadSample(t.Context(), one(p, damaged), 0)
				require.Error(t, err, what)
			}
			whole := nwt.Values[float32](load(t, p, data), 0)
			p, err = vision.New(steps, vision.WithDamaged())
			require.NoError(t, err)
			left := nwt.Values[float32](load(t, p, damaged), 0)
			require.Equal(t, whole[:16*4], left[:16*4], "the upper rows: %s", what)
			require.NotEqual(t, whole, left, what)
			if damage.grey {
				for _, v := range left[16*15 : 16*16] {
					require.Equal(t, float32(128)/255, v, "the last row: %s", what)
				}
			}
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, data := range corpus(f) {
		f.Add(data)
	}
	for _, name := range []string{"exif6.jpg", "422.jpg", "odd.jpg", "alpha.webp", "restarts-progressive.jpg", "partial.webp", "partial-lossless.webp", "partial-alpha.webp", "separate.jpg", "alpha.png", "mask.png"} {
		f.Add(read(f, name))
	}
	for i, bits := range []int{1, 2, 4, 8, 16} {
		f.Add(randomPNG(f, rand.New(rand.NewPCG(5, 6)), 19, 13, bits, 0, i%2 == 0, nil))
	}
	steps := []vision.Transform{
		vision.RandomResizedCrop{Size: vision.Size{Height: 9, Width: 17}}, vision.RandomHorizontalFlip{P: 0.5}, vision.ColorJitter{Hue: .1},
	}
	var both [2]*vision.Pipeline
	for i, opts := range [][]vision.Option{{vision.WithDamaged()}, nil} {
		var err error
		both[i], err = vision.New(steps, append(opts, vision.WithOrientation(), vision.WithMaxPixels(1<<18))...)
		require.NoError(f, err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range both {
			var bad *nwt.LoadError
			masks, err := p.Masks(nwt.Int32, -1)
			require.NoError(t, err)
			ds := nwt.NewDataset(1, []nwt.Field{p.Field("image"), masks.Field("mask")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
				draw, err := p.Choose(dst, 0, data)
				if err != nil {
					return err
				}
				return draw.Load(masks, 1, data)
			})
			if _, err := nwt.LoadSample(t.Context(), ds, 0); errors.As(err, &bad) {
				require.Nil(t, bad.Stack, "%v\n%s", err, bad.Stack)
			}
		}
	})
}
