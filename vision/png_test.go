package vision_test

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// chunkOfPNG returns a chunk with its checksum.
func chunkOfPNG(name string, content []byte) []byte {
	c := append(append(binary.BigEndian.AppendUint32(nil, uint32(len(content))), name...), content...)
	return binary.BigEndian.AppendUint32(c, crc32.ChecksumIEEE(c[4:]))
}

// randomPNG returns a PNG file of random filters and pixels, in several chunks, with a palette if one is given.
func randomPNG(t testing.TB, r *rand.Rand, width, height, bits, kind int, interlaced bool, palette []byte) []byte {
	header := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(width)), uint32(height))
	header = append(header, byte(bits), byte(kind), 0, 0, 0)
	passes := [][4]int{{0, 0, 1, 1}}
	if interlaced {
		header[12] = 1
		passes = [][4]int{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}
	}
	channels := [...]int{1, 0, 3, 1, 2, 0, 4}[kind]
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	for _, p := range passes {
		columns := (width - p[0] + p[2] - 1) / p[2]
		for y := p[1]; columns > 0 && y < height; y += p[3] {
			row := []byte{byte(r.IntN(5))}
			for range (columns*bits*channels + 7) / 8 {
				row = append(row, byte(r.Uint32()))
			}
			_, err := z.Write(row)
			require.NoError(t, err)
		}
	}
	require.NoError(t, z.Close())
	file := append([]byte("\x89PNG\r\n\x1a\n"), chunkOfPNG("IHDR", header)...)
	if palette != nil {
		file = append(file, chunkOfPNG("PLTE", palette)...)
	}
	for part := range slices.Chunk(b.Bytes(), b.Len()/3+1) {
		file = append(file, chunkOfPNG("IDAT", part)...)
	}
	return append(file, chunkOfPNG("IEND", nil)...)
}

// plainColours returns the colours of an image by the standard library, without transparency.
func plainColours(img image.Image) (pixels []byte) {
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			switch c := img.At(x, y).(type) {
			case color.NRGBA64:
				pixels = append(pixels, byte(c.R>>8), byte(c.G>>8), byte(c.B>>8))
			default:
				c8 := color.NRGBAModel.Convert(c).(color.NRGBA)
				pixels = append(pixels, c8.R, c8.G, c8.B)
			}
		}
	}
	return pixels
}

// maskValues returns the values of a mask: indices of a palette, or greys.
func maskValues(img image.Image, bits int) (values []int32) {
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			switch src := img.(type) {
			case *image.Paletted:
				values = append(values, int32(src.ColorIndexAt(x, y)))
			case *image.Gray16:
				values = append(values, int32(src.Gray16At(x, y).Y))
			case *image.Gray:
				v := int32(src.GrayAt(x, y).Y)
				if bits == 1 {
					v /= 255
				}
				values = append(values, v)
			case *image.NRGBA64:
				values = append(values, int32(src.NRGBA64At(x, y).R))
			default:
				values = append(values, int32(color.NRGBAModel.Convert(img.At(x, y)).(color.NRGBA).R))
			}
		}
	}
	return values
}

func TestPNGFilesOfAllKindsHaveThePixelsThatPackagePNGReads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for kind, depths := range map[int][]int{0: {1, 2, 4, 8, 16}, 2: {8, 16}, 3: {1, 2, 4, 8}, 4: {8, 16}, 6: {8, 16}} {
		for _, bits := range depths {
			for _, size := range [][2]int{{1, 1}, {3, 2}, {5, 9}, {17, 13}, {40, 30}, {2, 33}} {
				for _, interlaced := range []bool{false, true} {
					var palette []byte
					if kind == 3 {
						palette = noise(3 << bits)
						if bits == 8 && size[0] > 10 { // colours that the palette hasn't are black
							palette = palette[:3*100]
						}
					}
					what := fmt.Sprintf("kind %d, %d bits, %v, interlaced: %v", kind, bits, size, interlaced)
					file := randomPNG(t, r, size[0], size[1], bits, kind, interlaced, palette)
					img, err := png.Decode(bytes.NewReader(file))
					require.NoError(t, err, what)
					want := plainColours(img)
					p := of(t, size[0], size[1])
					require.Equal(t, want, nwt.Values[uint8](load(t, p, file), 0), what)
					if kind == 2 || kind == 6 {
						continue
					}
					masks, err := p.Masks(nwt.Int32, -1)
					require.NoError(t, err)
					s := loadAll(t, 1, []nwt.Field{p.Field("image"), masks.Field("mask")}, func(dst *nwt.Sample) error {
						draw, err := p.Choose(dst, 0, file)
						if err != nil {
							return err
						}
						return draw.Load(masks, 1, file)
					})
					require.Equal(t, maskValues(img, bits), nwt.Values[int32](s, 1), what)
				}
			}
		}
	}
}

func TestACropOfAPNGFileIsThatOfTheWholePicture(t *testing.T) {
	const width, height = 61, 47
	r := rand.New(rand.NewPCG(3, 4))
	for _, interlaced := range []bool{false, true} {
		file := randomPNG(t, r, width, height, 8, 2, interlaced, nil)
		whole := nwt.Values[uint8](load(t, of(t, width, height), file), 0)
		for range 50 {
			size := vision.Size{Height: 1 + r.IntN(height), Width: 1 + r.IntN(width)}
			left, top := r.IntN(width-size.Width+1), r.IntN(height-size.Height+1)
			p, err := vision.New([]vision.Transform{vision.FixedCrop{Left: left, Top: top, Size: size}}, vision.WithType(nwt.Uint8), vision.WithLayout(vision.HWC))
			require.NoError(t, err)
			got := nwt.Values[uint8](load(t, p, file), 0)
			for y := range size.Height {
				require.Equal(t, whole[3*((top+y)*width+left):][:3*size.Width], got[3*y*size.Width:][:3*size.Width])
			}
		}
	}
}

// The upper rows are all that these crops need.
func TestDamageBelowACropOfAPNGFileIsAnErrorToo(t *testing.T) {
	file := randomPNG(t, rand.New(rand.NewPCG(5, 6)), 50, 80, 8, 2, false, nil)
	p, err := vision.New([]vision.Transform{vision.FixedCrop{Size: vision.Size{Height: 5, Width: 5}}})
	require.NoError(t, err)
	load(t, p, file)
	for n := range len(file) {
		_, err := nwt.LoadSample(t.Context(), one(p, file[:n]), 0)
		require.Error(t, err, "cut after %d bytes", n)
		_, err = nwt.LoadSample(t.Context(), one(p, changed(file, n, file[n]^4)), 0)
		require.Error(t, err, "damaged at %d", n)
	}
}

func TestAPNGFileThatLiesTakesNoMemory(t *testing.T) {
	small := randomPNG(t, rand.New(rand.NewPCG(7, 8)), 20, 20, 8, 2, false, nil)
	header := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 9000), 9000)
	huge := slices.Concat(small[:8], chunkOfPNG("IHDR", append(header, small[24:29]...)), small[33:])
	_, err := nwt.LoadSample(t.Context(), one(of(t, 9000, 9000), huge), 0)
	require.ErrorContains(t, err, "for 9000 × 9000 pixels: most are missing")
}
