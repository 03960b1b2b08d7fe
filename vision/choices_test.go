package vision_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// withMasks makes a pipeline of bytes, and one of their masks.
func withMasks(t testing.TB, of nwt.DType, outside int, transforms ...vision.Transform) (pictures, masks *vision.Pipeline) {
	t.Helper()
	pictures, err := vision.New(transforms, vision.WithType(nwt.Uint8), vision.WithLayout(vision.HWC), vision.WithOrientation())
	require.NoError(t, err)
	masks, err = pictures.Masks(of, outside)
	require.NoError(t, err)
	return pictures, masks
}

// loadAll loads samples 0 … n−1 of the fields, and calls look for each.
func loadAll(t testing.TB, n int, fields []nwt.Field, load func(dst *nwt.Sample) error) *nwt.Batch {
	t.Helper()
	ds := nwt.NewDataset(n, fields, func(_ context.Context, _ int, dst *nwt.Sample) error { return load(dst) })
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(n), nwt.WithSeed(3), nwt.WithWorkers(2))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		b.Retain()
		t.Cleanup(b.Release)
		return b
	}
	return nil
}

func pngOf(t testing.TB, img image.Image) []byte {
	return encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, img) })
}

func TestAPictureItsMaskAndItsBoxesAreAsTorchvisionMakesThemTogether(t *testing.T) {
	var e struct {
		Boxes []vision.Box
		Cases []struct {
			Steps []struct {
				Name string
				Args []int
			}
			Boxes []vision.Box
		}
	}
	require.NoError(t, json.Unmarshal(read(t, "together.json"), &e))
	require.Len(t, e.Cases, 6)
	for n, c := range e.Cases {
		var steps []vision.Transform
		for _, s := range c.Steps {
			switch s.Name {
			case "crop":
				steps = append(steps, vision.FixedCrop{Left: s.Args[0], Top: s.Args[1], Size: vision.Size{Width: s.Args[2], Height: s.Args[3]}})
			case "resize":
				steps = append(steps, vision.Resize{Size: vision.Size{Width: s.Args[0], Height: s.Args[1]}})
			case "flip":
				steps = append(steps, vision.RandomHorizontalFlip{P: 1})
			case "turn":
				steps = append(steps, vision.RandomVerticalFlip{P: 1})
			}
		}
		pictures, err := vision.New(steps, vision.WithType(nwt.Uint8))
		require.NoError(t, err)
		masks, err := pictures.Masks(nwt.Uint8, 0)
		require.NoError(t, err)
		b := loadAll(t, 1, []nwt.Field{pictures.Field("image"), masks.Field("mask")}, func(dst *nwt.Sample) error {
			draw, err := pictures.Choose(dst, 0, read(t, "photo.jpg"))
			if err != nil {
				return err
			}
			for i, want := range c.Boxes {
				got, share := draw.Box(e.Boxes[i])
				if empty := want[0] >= want[2] || want[1] >= want[3]; empty {
					require.Zero(t, share)
					continue
				}
				require.Positive(t, share)
				require.InDeltaSlice(t, want[:], got[:], 1e-3, "case %d, box %d", n, i)
			}
			return draw.Load(masks, 1, read(t, "mask.png"))
		})
		want := planes(t, fmt.Sprintf("together-%d.png", n))
		sum := 0.0
		for i, v := range slices.Concat(want[0], want[1], want[2]) {
			sum += math.Abs(float64(v) - float64(nwt.Values[uint8](b, 0)[i]))
		}
		t.Logf("case %d: mean absolute difference %.3f/255", n, sum/float64(3*len(want[0])))
		require.LessOrEqual(t, sum/float64(3*len(want[0])), 0.6, "case %d", n)
		require.True(t, slices.Equal(planes(t, fmt.Sprintf("together-%d-mask.png", n))[0], nwt.Values[uint8](b, 1)), "the mask of case %d", n)
	}
}

func within(a, b, by float32) bool { return a-b <= by && b-a <= by }

// The picture's colours and the mask's values tell at each pixel of the result where it was in the
// picture.
func TestHoweverAPictureIsCroppedItsMaskBoxesAndPointsAreCroppedAlike(t *testing.T) {
	const width, height, n = 120, 90, 20
	picture, mask := image.NewNRGBA(image.Rect(0, 0, width, height)), image.NewGray16(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			picture.SetNRGBA(x, y, color.NRGBA{byte(2 * x), byte(2 * y), 255, 255})
			mask.SetGray16(x, y, color.Gray16{Y: uint16(y*width + x)})
		}
	}
	side := vision.Square(40)
	for name, steps := range map[string][]vision.Transform{
		"RandomResizedCrop":   {vision.RandomResizedCrop{Size: vision.Size{Height: 40, Width: 50}}},
		"padded crop":         {vision.RandomCrop{Size: vision.Size{Height: 100, Width: 70}, Padding: 20}},
		"resize and crop":     {vision.Resize{Shorter: 50}, vision.RandomCrop{Size: side}},
		"two crops, enlarged": {vision.CenterCrop{Size: vision.Square(60)}, vision.RandomResizedCrop{Size: vision.Square(100)}},
		"two crops, padded":   {vision.CenterCrop{Size: side}, vision.RandomCrop{Size: side, Padding: 7}},
	} {
		for orientation := byte(1); orientation <= 8; orientation++ {
			turn := func(img image.Image) []byte {
				chunk, file := append([]byte("eXIf"), exif(orientation, false)...), pngOf(t, img)
				return slices.Concat(file[:33], []byte{0, 0, 0, 26}, binary.BigEndian.AppendUint32(chunk, crc32.ChecksumIEEE(chunk)), file[33:])
			}
			pictureFile, maskFile := turn(picture), turn(mask)
			pictures, masks := withMasks(t, nwt.Int32, -1, append(steps, vision.RandomHorizontalFlip{P: 0.5}, vision.RandomVerticalFlip{P: 0.5}, vision.ColorJitter{})...)
			shown := vision.Size{Height: height, Width: width} // turned
			if orientation >= 5 {
				shown = vision.Size{Height: width, Width: height}
			}
			stored, _ := withMasks(t, nwt.Int32, 0, vision.CenterCrop{Size: shown})
			turned := nwt.Values[uint8](load(t, stored, pictureFile), 0)
			places := map[int][2]int{} // of each value of the mask, in the turned picture
			for i := range shown.Height * shown.Width {
				places[int(turned[3*i+1])/2*width+int(turned[3*i])/2] = [2]int{i % shown.Width, i / shown.Width}
			}
			require.Len(t, places, width*height)
			shape := pictures.Field("").Shape
			seen := 0
			load := func(dst *nwt.Sample) error {
				draw, err := pictures.Choose(dst, 0, pictureFile)
				if err != nil {
					return err
				}
				if err := draw.Load(masks, 1, maskFile); err != nil {
					return err
				}
				pixels, values := nwt.Values[uint8](dst, 0), nwt.Values[int32](dst, 1)
				scale := draw.Scale()
				apart := 2*max(scale[0], scale[1]) + 3   // of levels, two for each pixel of the file
				near := .5/min(scale[0], scale[1]) + .01 // half of what one pixel of the file becomes
				for i, v := range values {
					x, y := float32(i%shape[1])+.5, float32(i/shape[1])+.5
					r, g, b := float32(pixels[3*i]), float32(pixels[3*i+1]), pixels[3*i+2]
					if v < 0 {
						if r+g+float32(b) != 0 {
							return fmt.Errorf("%v, %v: padding of the mask, but not of the picture", x, y)
						}
						continue
					}
					left, top := float32(places[int(v)][0]), float32(places[int(v)][1])
					inX, inY, visible := draw.Point(left+.5, top+.5)
					box, share := draw.Box(vision.Box{left, top, left + 1, top + 1})
					whole := visible && share > .99
					switch {
					case b != 255, !within(r, float32(int(v)%width*2), apart), !within(g, float32(int(v)/width*2), apart):
						return fmt.Errorf("%v, %v: the picture has %v, %v, %v, and the mask %d", x, y, r, g, b, v)
					case !within(x, inX, near), !within(y, inY, near):
						return fmt.Errorf("%v, %v: the mask's pixel is from where the Draw puts at %v, %v", x, y, inX, inY)
					case whole && (!within(inX, (box[0]+box[2])/2, .01) || !within(inY, (box[1]+box[3])/2, .01)):
						return fmt.Errorf("%v, %v: a box around %v, %v is %v", x, y, inX, inY, box)
					}
					seen++
				}
				return nil
			}
			ds := nwt.NewDataset(n, []nwt.Field{pictures.Field("image"), masks.Field("mask")}, func(_ context.Context, _ int, dst *nwt.Sample) error { return load(dst) })
			l, err := nwt.NewLoader(ds, nwt.WithWorkers(0))
			require.NoError(t, err)
			for _, err := range l.Epoch(t.Context(), int(orientation)) {
				require.NoError(t, err, "%s, orientation %d", name, orientation)
			}
			require.NoError(t, l.Close())
			require.Greater(t, seen, n*500)
		}
	}
}

// What is a class's number differs from file to file: the palette's place, the level, or 16 bits.
func TestAMaskKeepsItsValuesWhateverFileItIsIn(t *testing.T) {
	const width, height = 24, 16
	at := func(x, y int) byte { return byte(x/8 + 3*(y/8)) } // 0 … 5, in blocks of JPEG's size
	colours := make(color.Palette, 6)
	for i := range colours {
		colours[i] = color.RGBA{byte(40 * i), byte(255 - 9*i), 7, 255}
	}
	area := image.Rect(0, 0, width, height)
	paletted, grey, wide, rgb := image.NewPaletted(area, colours), image.NewGray(area), image.NewGray16(area), image.NewNRGBA(area)
	blend, wideBlend, coloured := image.NewNRGBA(area), image.NewNRGBA64(area), image.NewNRGBA(area)
	var values, times300 []int32
	for y := range height {
		for x := range width {
			v := at(x, y)
			values, times300 = append(values, int32(v)), append(times300, int32(v)*300)
			paletted.SetColorIndex(x, y, v)
			grey.SetGray(x, y, color.Gray{Y: v})
			wide.SetGray16(x, y, color.Gray16{Y: uint16(v) * 300})
			rgb.SetNRGBA(x, y, color.NRGBA{v, v, v, 255})
			blend.SetNRGBA(x, y, color.NRGBA{v, v, v, 9})
			wideBlend.SetNRGBA64(x, y, color.NRGBA64{uint16(v) * 300, uint16(v) * 300, uint16(v) * 300, 5})
			coloured.SetNRGBA(x, y, color.NRGBA{v, v, v + v/5, 255})
		}
	}
	jpegOf := func(img image.Image) []byte {
		return encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, img, &jpeg.Options{Quality: 100}) })
	}
	pictures, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Size{Height: height, Width: width}}, vision.ImageNetNormalize})
	require.NoError(t, err)
	for name, file := range map[string][]byte{
		"palette PNG": pngOf(t, paletted), "grey PNG": pngOf(t, grey), "16-bit PNG": pngOf(t, wide), "PNG of equal colours": pngOf(t, rgb),
		"PNG with alpha": pngOf(t, blend), "16-bit PNG with alpha": pngOf(t, wideBlend),
		"grey JPEG": jpegOf(grey), "JPEG of equal colours": jpegOf(rgb),
		"GIF":              encoded(t, func(b *bytes.Buffer) error { return gif.Encode(b, paletted, nil) }),
		"PNG of one bit":   randomPNG(t, rand.New(rand.NewPCG(1, 2)), width, height, 1, 0, false, nil),
		"TIFF of one bit":  bilevelTIFF(width, height, 1, true),
		"TIFF, white is 0": bilevelTIFF(width, height, 0, true),
		"TIFF of Pillow's": bilevelTIFF(width, height, 1, false),
	} {
		want := values
		if strings.Contains(name, "TIFF") {
			want = nil
			for i := range width * height {
				want = append(want, int32(i%width%3&1))
			}
		} else if strings.Contains(name, "one bit") {
			img, err := png.Decode(bytes.NewReader(file))
			require.NoError(t, err)
			want = maskValues(img, 1)
		}
		if bytes.HasPrefix([]byte(name), []byte("16")) {
			want = times300
		}
		for _, of := range []nwt.DType{nwt.Uint8, nwt.Uint16, nwt.Int32, nwt.Int64, nwt.Float32} {
			masks, err := pictures.Masks(of, 0)
			require.NoError(t, err)
			require.Equal(t, nwt.Field{Name: "mask", Type: of, Shape: []int{height, width}}, masks.Field("mask"))
			var got []int32
			ds := nwt.NewDataset(1, []nwt.Field{pictures.Field("image"), masks.Field("mask")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
				draw, err := pictures.ChoosePixels(dst, 0, make([]byte, width*height), height, width, vision.CHW)
				require.NoError(t, err)
				return draw.Load(masks, 1, file)
			})
			s, err := nwt.LoadSample(t.Context(), ds, 0)
			if of == nwt.Uint8 && want[1000%len(want)] >= 0 && slices.Max(want) > 255 {
				require.ErrorContains(t, err, "has the value 1500: must be at most 255", name)
				continue
			}
			require.NoError(t, err, name)
			for i := range want {
				switch of {
				case nwt.Uint8:
					got = append(got, int32(nwt.Values[uint8](s, 1)[i]))
				case nwt.Uint16:
					got = append(got, int32(nwt.Values[uint16](s, 1)[i]))
				case nwt.Int32:
					got = append(got, nwt.Values[int32](s, 1)[i])
				case nwt.Int64:
					got = append(got, int32(nwt.Values[int64](s, 1)[i]))
				default:
					got = append(got, int32(nwt.Values[float32](s, 1)[i]))
				}
			}
			require.Equal(t, want, got, "%s, %v", name, of)
		}
	}
	masks, err := pictures.Masks(nwt.Uint8, 0)
	require.NoError(t, err)
	for name, file := range map[string][]byte{"PNG": pngOf(t, coloured), "JPEG": read(t, "420.jpg"), "WebP": read(t, "lossless.webp")} {
		_, err := nwt.LoadSample(t.Context(), nwt.NewDataset(1, []nwt.Field{masks.Field("mask"), pictures.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
			draw, err := pictures.Choose(dst, 1, file)
			require.NoError(t, err)
			return draw.Load(masks, 0, file)
		}), 0)
		require.ErrorContains(t, err, "a mask must be grey or have a palette: in this one the pixel at column", name)
	}
}

// bilevelTIFF is a file of one bit per pixel: every third pixel, from the second on, is white. The level of
// white is 1 or 0. told is whether the file says that it has one bit, the default: Pillow doesn't.
func bilevelTIFF(width, height int, white byte, told bool) []byte {
	bytesPerRow := (width + 7) / 8
	tags := [][2]int{{0x100, width}, {0x101, height}, {0x102, 1}, {0x106, int(white)}, {0x111, 8 + 2 + 7*12 + 4}, {0x116, height}, {0x117, bytesPerRow * height}}
	if !told {
		tags[2] = [2]int{0x103, 1} // no compression, in its place
	}
	file := []byte("II*\x00\x08\x00\x00\x00\x07\x00")
	for _, tag := range tags {
		file = binary.LittleEndian.AppendUint16(file, uint16(tag[0]))
		file = append(file, 4, 0, 1, 0, 0, 0)
		file = binary.LittleEndian.AppendUint32(file, uint32(tag[1]))
	}
	file = append(file, 0, 0, 0, 0)
	for range height {
		row := make([]byte, bytesPerRow)
		for x := range width {
			if x%3&1 == int(white) {
				row[x/8] |= 0x80 >> (x % 8)
			}
		}
		file = append(file, row...)
	}
	return file
}

// As Pillow saves and loads it: luma is 16 … 235 there.
func TestAMaskInALossyWebPFileHasTheLevelsOfThePicture(t *testing.T) {
	file, err := hex.DecodeString("52494646240000005745425056503820180000003001009d012a1000100000c01225a400037000fefc868000")
	require.NoError(t, err)
	pictures := of(t, 16, 16)
	masks, err := pictures.Masks(nwt.Uint8, 0)
	require.NoError(t, err)
	s, err := nwt.LoadSample(t.Context(), nwt.NewDataset(1, []nwt.Field{pictures.Field("image"), masks.Field("mask")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		draw, err := pictures.Choose(dst, 0, file)
		require.NoError(t, err)
		return draw.Load(masks, 1, file)
	}), 0)
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte{200}, 16*16), nwt.Values[uint8](s, 1))
	require.Equal(t, bytes.Repeat([]byte{200}, 3*16*16), nwt.Values[uint8](s, 0))
}

func TestAllPicturesOfADrawLookAlike(t *testing.T) {
	p, err := vision.New([]vision.Transform{
		vision.RandomResizedCrop{Size: vision.Square(32)}, vision.RandomHorizontalFlip{P: 0.5},
		vision.ColorJitter{Brightness: .4, Contrast: .4, Hue: .1}, vision.RandomGrayscale{P: 0.1}, vision.ImageNetNormalize, vision.RandomErasing{P: 0.5},
	})
	require.NoError(t, err)
	plain, err := p.Companion(nil, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	other, err := p.Companion([]vision.Transform{vision.ColorJitter{Brightness: .4}, vision.Normalize{Std: [3]float64{1, 1, 1}}})
	require.NoError(t, err)
	const n, frames = 20, 16
	photo := read(t, "photo.jpg")
	clip := slices.Repeat([][]byte{photo}, frames)
	decode, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Size{Height: 375, Width: 500}}}, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	decoded := nwt.Values[uint8](load(t, decode, photo), 0)
	fields := []nwt.Field{p.Field("left"), p.Field("right"), p.Frames("clip", frames), plain.Field("plain"), other.Frames("others", 2), plain.Frames("pixels", 2)}
	require.Equal(t, []int{16, 3, 32, 32}, fields[2].Shape)
	b := loadAll(t, n, fields, func(dst *nwt.Sample) error {
		draw, err := p.Choose(dst, 0, photo)
		return errors.Join(err, draw.Load(p, 1, photo), draw.Load(p, 2, clip...), draw.Load(plain, 3, photo), draw.Load(other, 4, photo, photo),
			draw.LoadPixels(plain, 5, slices.Concat(decoded, decoded), 375, 500, vision.CHW))
	})
	size := 3 * 32 * 32
	left, right, all := nwt.Values[float32](b, 0), nwt.Values[float32](b, 1), nwt.Values[float32](b, 2)
	require.True(t, slices.Equal(left, right))
	differ := false
	for i := range n {
		for k := range frames {
			require.True(t, slices.Equal(left[i*size:][:size], all[(i*frames+k)*size:][:size]), "sample %d, picture %d", i, k)
		}
		differ = differ || i > 0 && !slices.Equal(left[:size], left[i*size:][:size])
		// The same crop, without its colours, and in bytes; and with colours of its own.
		bytes, others := nwt.Values[uint8](b, 3)[i*size:][:size], nwt.Values[float32](b, 4)[2*i*size:][:2*size]
		require.True(t, slices.Equal(others[:size], others[size:]))
		decoded := nwt.Values[uint8](b, 5)[2*i*size:][:2*size]
		require.True(t, slices.Equal(decoded[:size], decoded[size:]))
		bright, dark, apart := 0.0, 0.0, 0.0
		for k, v := range bytes {
			bright, dark = bright+float64(others[k]), dark+float64(v)/255
			apart += math.Abs(float64(v) - float64(decoded[k]))
		}
		require.InDelta(t, 1, bright/dark, .42)
		require.Less(t, apart/float64(size), 2.0, "chroma that is resampled before or after its colours are converted")
	}
	require.True(t, differ)
}

func TestADrawOfOnePictureIsThatOfLoad(t *testing.T) {
	p, err := vision.New(append(slices.Clip(recipe), vision.RandomErasing{P: 0.5}))
	require.NoError(t, err)
	masks, err := p.Masks(nwt.Uint8, 255)
	require.NoError(t, err)
	photo, mask := read(t, "photo.jpg"), read(t, "mask.png")
	alone := loadAll(t, 10, []nwt.Field{p.Field("image")}, func(dst *nwt.Sample) error { return p.Load(dst, 0, photo) })
	both := loadAll(t, 10, []nwt.Field{masks.Field("mask"), p.Field("image")}, func(dst *nwt.Sample) error {
		draw, err := p.Choose(dst, 1, photo)
		return errors.Join(err, draw.Load(masks, 0, mask))
	})
	require.True(t, slices.Equal(nwt.Values[float32](alone, 0), nwt.Values[float32](both, 1)), "a mask changes nothing of its picture")
}

func TestBoxesThatAreCutOffOrHaveNoAreaHaveNoShare(t *testing.T) {
	p, err := vision.New([]vision.Transform{vision.FixedCrop{Left: 50, Top: 40, Size: vision.Size{Height: 100, Width: 200}}, vision.Resize{Size: vision.Size{Height: 50, Width: 50}}, vision.RandomHorizontalFlip{P: 1}})
	require.NoError(t, err)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	loadAll(t, 1, []nwt.Field{p.Field("image")}, func(dst *nwt.Sample) error {
		draw, err := p.Choose(dst, 0, read(t, "photo.jpg"))
		require.NoError(t, err)
		for _, c := range []struct {
			box, want vision.Box
			share     float64
		}{
			{vision.Box{50, 40, 250, 140}, vision.Box{0, 0, 50, 50}, 1},
			{vision.Box{0, 0, 500, 375}, vision.Box{0, 0, 50, 50}, 200 * 100 / 500.0 / 375},
			{vision.Box{40, 30, 60, 50}, vision.Box{47.5, 0, 50, 5}, .25}, // a corner
			{vision.Box{90, 60, 130, 80}, vision.Box{30, 10, 40, 20}, 1},
			{vision.Box{0, 0, 50, 40}, vision.Box{50, 0, 50, 0}, 0},           // touches the corner
			{vision.Box{250, 60, 260, 80}, vision.Box{0, 10, 0, 20}, 0},       // touches the rim
			{vision.Box{300, 200, 310, 210}, vision.Box{0, 50, 0, 50}, 0},     // far off
			{vision.Box{100, 60, 100, 80}, vision.Box{37.5, 10, 37.5, 20}, 0}, // no width
			{vision.Box{130, 80, 90, 60}, vision.Box{40, 20, 30, 10}, 0},      // turned over
		} {
			got, share := draw.Box(c.box)
			require.InDelta(t, c.share, share, 1e-9, "%v", c.box)
			require.InDeltaSlice(t, c.want[:], got[:], 1e-4, "%v", c.box)
		}
		for _, odd := range []vision.Box{{nan, 60, 130, 80}, {90, nan, 130, nan}, {-inf, -inf, inf, inf}, {90, 60, inf, 80}} {
			_, share := draw.Box(odd)
			require.Zero(t, share, "%v", odd)
		}
		x, y, seen := draw.Point(90, 60)
		require.Equal(t, []any{float32(40), float32(10), true}, []any{x, y, seen})
		x, y, seen = draw.Point(49, 60)
		require.Equal(t, []any{float32(50.25), float32(10), false}, []any{x, y, seen})
		_, _, seen = draw.Point(nan, 60)
		require.False(t, seen)
		return nil
	})
}

// A mistake that would give other crops, or half of a clip, must be an error.
func TestWhatWouldNotBelongTogetherIsAnError(t *testing.T) {
	crop := []vision.Transform{vision.RandomResizedCrop{Size: vision.Square(8)}, vision.ColorJitter{Hue: .1}}
	p, err := vision.New(crop)
	require.NoError(t, err)
	another, err := vision.New(crop)
	require.NoError(t, err)
	masks, err := p.Masks(nwt.Uint8, 0)
	require.NoError(t, err)
	others, err := another.Masks(nwt.Uint8, 0)
	require.NoError(t, err)
	photo, mask, small := read(t, "photo.jpg"), read(t, "mask.png"), read(t, "420.jpg")
	fields := []nwt.Field{p.Field("image"), masks.Field("mask"), p.Frames("clip", 4)}
	for want, load := range map[string]func(dst *nwt.Sample, draw vision.Choices) error{
		"all must have the same size":                        func(_ *nwt.Sample, draw vision.Choices) error { return draw.Load(p, 0, small) },
		"240 × 180 pixels, the sample's first one 500 × 375": func(_ *nwt.Sample, draw vision.Choices) error { return draw.Load(masks, 1, read(t, "palette.png")) },
		"Masks pipeline makes no choices":                    func(dst *nwt.Sample, _ vision.Choices) error { return masks.Load(dst, 1, mask) },
		"makes no choices of its own":                        func(dst *nwt.Sample, _ vision.Choices) error { _, err := masks.Choose(dst, 1, mask); return err },
		"or its Companion or Masks":                          func(_ *nwt.Sample, draw vision.Choices) error { return draw.Load(others, 1, mask) },
		"must be the one whose Choose was called":            func(_ *nwt.Sample, draw vision.Choices) error { return draw.Load(another, 0, photo) },
		"the pipeline is nil":                                func(_ *nwt.Sample, draw vision.Choices) error { return draw.Load(nil, 0, photo) },
		"no picture for field 2":                             func(_ *nwt.Sample, draw vision.Choices) error { return draw.Load(p, 2) },
		`field "clip" is Float32[4 3 8 8]: must be Float32[3 3 8 8], as Pipeline.Frames declares it`: func(_ *nwt.Sample, draw vision.Choices) error { return draw.Load(p, 2, photo, photo, photo) },
		"picture 3 of field 2: vision: ": func(_ *nwt.Sample, draw vision.Choices) error { return draw.Load(p, 2, photo, photo, photo, nil) },
		"the pipeline has chosen again since": func(dst *nwt.Sample, draw vision.Choices) error {
			second, err := p.Choose(dst, 0, photo)
			require.NoError(t, err)
			require.NoError(t, second.Load(p, 0, photo))
			require.NoError(t, draw.Load(masks, 1, mask), "its geometry is kept")
			return draw.Load(p, 0, photo)
		},
		"Choose returned an error": func(dst *nwt.Sample, _ vision.Choices) error {
			bad, err := p.Choose(dst, 0, nil)
			require.Error(t, err)
			require.Error(t, vision.Choices{}.LoadPixels(p, 0, nil, 1, 1, vision.CHW))
			return bad.Load(masks, 1, mask)
		},
		"7 bytes for 375 × 500 pixels": func(_ *nwt.Sample, draw vision.Choices) error {
			return draw.LoadPixels(masks, 1, make([]byte, 7), 375, 500, vision.CHW)
		},
	} {
		ds := nwt.NewDataset(1, fields, func(_ context.Context, _ int, dst *nwt.Sample) error {
			draw, err := p.Choose(dst, 0, photo)
			require.NoError(t, err)
			return load(dst, draw)
		})
		_, err := nwt.LoadSample(t.Context(), ds, 0)
		require.ErrorContains(t, err, want)
	}
	for want, make := range map[string]func() (*vision.Pipeline, error){
		"belongs in vision.New": func() (*vision.Pipeline, error) {
			return p.Companion([]vision.Transform{vision.RandomHorizontalFlip{P: 0.5}})
		},
		"must be Uint8, Uint16":     func() (*vision.Pipeline, error) { return p.Masks(nwt.Float16, 0) },
		"must be 0 … 255 for Uint8": func() (*vision.Pipeline, error) { return p.Masks(nwt.Uint8, -1) },
		"must come once": func() (*vision.Pipeline, error) {
			return p.Companion([]vision.Transform{vision.ImageNetNormalize, vision.ImageNetNormalize})
		},
	} {
		_, err := make()
		require.ErrorContains(t, err, want)
	}
	_, err = vision.OpenFolder(t.Context(), tree(t, "a/1.png"), masks)
	require.ErrorContains(t, err, "Companion or Masks")
}

func TestBatchesOfPicturesAndMasksAreTheSameAtAnyWorkerCount(t *testing.T) {
	p, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(24)}, vision.RandomHorizontalFlip{P: 0.5}, vision.ColorJitter{Hue: .2}, vision.RandomErasing{P: 0.5}})
	require.NoError(t, err)
	masks, err := p.Masks(nwt.Int64, 255)
	require.NoError(t, err)
	other, err := p.Companion([]vision.Transform{vision.ColorJitter{Brightness: .5}})
	require.NoError(t, err)
	photo, mask := read(t, "photo.jpg"), read(t, "mask.png")
	ds := nwt.NewDataset(40, []nwt.Field{p.Field("image"), masks.Field("mask"), other.Field("other")}, func(_ context.Context, i int, dst *nwt.Sample) error {
		if i%3 == 0 { // some samples fail between their pictures, and leave what they drew
			_, _ = p.Choose(dst, 0, photo)
			return errors.New("none")
		}
		draw, err := p.Choose(dst, 0, photo)
		return errors.Join(err, draw.Load(masks, 1, mask), draw.Load(other, 2, photo))
	})
	epoch := func(workers int) (all []byte) {
		l, err := nwt.NewLoader(ds, nwt.WithBatchSize(7), nwt.WithWorkers(workers), nwt.WithErrorBudget(40), nwt.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		defer l.Close()
		for b, err := range l.Epoch(t.Context(), 3) {
			require.NoError(t, err)
			all = slices.Concat(all, b.Bytes(0), b.Bytes(1), b.Bytes(2))
		}
		return all
	}
	require.True(t, bytes.Equal(epoch(0), epoch(5)))
}

func TestABoxOfNoNumbersIsNotVisible(t *testing.T) {
	p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Square(4)}}, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	_, err = loadOf(t, p.Field("image"), func(dst *nwt.Sample) error {
		draw, err := p.ChoosePixels(dst, 0, make([]byte, 3*8*8), 8, 8, vision.CHW)
		nan := float32(math.NaN())
		for i := range 4 {
			b := vision.Box{1, 1, 7, 7}
			b[i] = nan
			in, share := draw.Box(b)
			require.Equal(t, vision.Box{}, in)
			require.Zero(t, share)
		}
		return err
	})
	require.NoError(t, err)
}

func TestCropsOfAPictureAreThoseOfEachPipelineAndDecodedOnce(t *testing.T) {
	pipeline := func(steps []vision.Transform, opts ...vision.Option) *vision.Pipeline {
		p, err := vision.New(steps, append(opts, vision.WithType(nwt.Uint8), vision.WithOrientation())...)
		require.NoError(t, err)
		return p
	}
	half := pipeline([]vision.Transform{vision.Resize{Size: vision.Square(90)}})
	corner := pipeline([]vision.Transform{vision.FixedCrop{Left: 3, Top: 5, Size: vision.Square(40)}}, vision.WithLayout(vision.HWC))
	tiny := pipeline([]vision.Transform{vision.Resize{Size: vision.Square(2)}}) // averages first
	random := pipeline([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(20)}})
	for _, name := range []string{"exif1.jpg", "exif3.jpg", "exif6.jpg", "exif7.jpg", "rgb.png", "lossy.webp", "palette.gif"} {
		data := read(t, name)
		fields := []nwt.Field{half.Field("half"), corner.Field("corner"), tiny.Field("tiny"), half.Field("again"), random.Frames("random", 4)}
		crops := []vision.Crop{{half, 0}, {corner, 1}, {tiny, 2}, {half, 3}, {random, 4}}
		b := loadAll(t, 1, fields, func(dst *nwt.Sample) error { return vision.LoadCrops(dst, data, crops...) })
		for i, p := range []*vision.Pipeline{half, corner, tiny, half} {
			if p == tiny && strings.HasSuffix(name, ".jpg") {
				continue // alone it is decoded smaller
			}
			require.Equal(t, nwt.Values[uint8](load(t, p, data), 0), nwt.Values[uint8](b, i), "%s, crop %d", name, i)
		}
		four, n := nwt.Values[uint8](b, 4), 3*20*20
		require.NotEqual(t, four[:n], four[n:2*n])
		require.NotEqual(t, four[:n], four[3*n:])
	}
	looksOf := func(n int) int {
		ctx := &looks{Context: context.Background()}
		ds := nwt.NewDataset(1, []nwt.Field{tiny.Frames("", n)}, func(_ context.Context, _ int, dst *nwt.Sample) error {
			return vision.LoadCrops(dst, read(t, "rgb.png"), vision.Crop{Pipeline: tiny})
		})
		_, err := nwt.LoadSample(ctx, ds, 0)
		require.NoError(t, err)
		return ctx.n
	}
	require.Less(t, looksOf(11)-looksOf(1), 10*100, "decoding looks 180 times, at each row")
	_, err := loadOf(t, half.Field(""), func(dst *nwt.Sample) error { return vision.LoadCrops(dst, nil) })
	require.ErrorContains(t, err, "at least one crop")
	_, err = loadOf(t, half.Field(""), func(dst *nwt.Sample) error { return vision.LoadCrops(dst, nil, vision.Crop{}) })
	require.ErrorContains(t, err, "the pipeline is nil")
	_, err = loadOf(t, half.Field(""), func(dst *nwt.Sample) error { return vision.LoadCrops(dst, []byte("x"), vision.Crop{Pipeline: half}) })
	require.Error(t, err)
}
