package vision_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/image/tiff"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// What libjpeg only warns of, or doesn't mind, is no damage.
func TestUnusualMarkersChangeNothing(t *testing.T) {
	data := read(t, "420.jpg")
	require.Equal(t, "JFIF", string(data[6:10]))
	segments := func(all ...[]byte) []byte { return slices.Concat(data[:2], slices.Concat(all...), data[20:]) }
	jfif := data[2:20]
	adobe := func(transform byte) []byte {
		return append([]byte("\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"), transform)
	}
	named := func(file []byte, ids string) []byte {
		file = bytes.Clone(file)
		frame, scan := bytes.Index(file, []byte{0xff, 0xc0, 0, 17, 8}), bytes.LastIndex(file, []byte{0xff, 0xda, 0, 12, 3})
		for i := range ids {
			file[frame+10+3*i], file[scan+5+2*i] = ids[i], ids[i]
		}
		return file
	}
	revision := bytes.Clone(data)
	revision[11] = 9
	huge := append([]byte{0xff, 0xe1, 0xff, 0xff}, make([]byte, 65533)...)
	for name, file := range map[string][]byte{
		"a transform that Adobe doesn't know":  segments(adobe(2)),
		"a revision that JFIF doesn't have":    revision,
		"no end":                               data[:len(data)-2],
		"two pictures":                         append(bytes.Clone(data), data...),
		"components R, G, B that JFIF names":   named(data, "RGB"),
		"components R, G, B that Adobe names":  named(segments(adobe(1)), "RGB"),
		"JFIF, and an Adobe that denies it":    segments(jfif, adobe(0)),
		"no marker of an application":          segments(),
		"a megabyte of markers":                segments(jfif, bytes.Repeat(huge, 16)),
		"a picture in a marker":                segments(jfif, []byte{0xff, 0xe1, byte((len(data) + 2) >> 8), byte(len(data) + 2)}, data),
		"a comment that looks like the pixels": segments(jfif, []byte("\xff\xfe\x00\x08\xff\xda\xff\xc0\xff\xd9")),
		"fill bytes":                           segments(bytes.Repeat([]byte{0xff}, 50), jfif),
	} {
		for _, size := range []vision.Size{{Height: 180, Width: 240}, {Height: 20, Width: 30}} { // whole, and down to a row
			p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: size}})
			require.NoError(t, err)
			want := nwt.Values[float32](load(t, p, data), 0)
			got := nwt.Values[float32](load(t, p, file), 0)
			require.Equal(t, want, got, name)
		}
	}
}

func TestTheFirstPictureOfAnAnimationIsTaken(t *testing.T) {
	p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Square(150)}})
	require.NoError(t, err)
	chunk := func(name string, content []byte) []byte {
		c := binary.LittleEndian.AppendUint32([]byte(name), uint32(len(content)))
		return append(append(c, content...), make([]byte, len(content)%2)...)
	}
	canvas := []byte{239, 0, 0, 179, 0, 0}
	animation := func(still []byte, x byte) []byte {
		pixels := still[12:]
		if string(pixels[:4]) == "VP8X" {
			pixels = pixels[18:]
		}
		frame := slices.Concat([]byte{x, 0, 0, 0, 0, 0}, canvas, []byte{10, 0, 0, 0}, pixels)
		content := slices.Concat([]byte("WEBP"), chunk("VP8X", append([]byte{0x12, 0, 0, 0}, canvas...)), chunk("ICCP", []byte("odd")),
			chunk("ANIM", make([]byte, 6)), chunk("ANMF", frame), chunk("ANMF", frame[:30]))
		return chunk("RIFF", content)
	}
	for _, name := range []string{"lossy.webp", "alpha.webp", "lossless.webp"} {
		still := read(t, name)
		want, got := load(t, p, still), load(t, p, animation(still, 0))
		require.Equal(t, nwt.Values[float32](want, 0), nwt.Values[float32](got, 0), name)

		_, err := nwt.LoadSample(t.Context(), one(p, animation(still, 1)), 0)
		require.ErrorContains(t, err, "isn't in its frame")
		canvas[0], canvas[3] = 15, 15 // of 16 × 16 pixels; the decoder must not trust what comes later
		_, err = nwt.LoadSample(t.Context(), one(p, animation(still, 0)), 0)
		require.Error(t, err)
		canvas[0], canvas[3] = 239, 179
		for n := range 200 { // cut anywhere
			file := animation(still, 0)
			_, err := nwt.LoadSample(t.Context(), one(p, file[:len(file)*n/200]), 0)
			require.Error(t, err)
		}
	}
}

func TestAGIFIsBlackWhereItsFirstPictureIsTransparentOrMissing(t *testing.T) {
	colours := color.Palette{color.RGBA{10, 20, 30, 255}, color.RGBA{200, 100, 50, 255}, color.RGBA{}}
	frame := image.NewPaletted(image.Rect(1, 1, 4, 3), colours)
	copy(frame.Pix, []byte{0, 1, 2, 2, 1, 0})
	file := encoded(t, func(b *bytes.Buffer) error {
		return gif.EncodeAll(b, &gif.GIF{
			Image: []*image.Paletted{frame, frame}, Delay: []int{1, 1}, Config: image.Config{ColorModel: colours, Width: 5, Height: 4},
		})
	})
	want := make([]byte, 3*5*4)
	for i, c := range frame.Pix {
		at := 3 * ((1+i/3)*5 + 1 + i%3)
		copy(want[at:], []byte{colours[c].(color.RGBA).R, colours[c].(color.RGBA).G, colours[c].(color.RGBA).B})
	}
	require.Equal(t, want, nwt.Values[uint8](load(t, of(t, 5, 4), file), 0))
	_, err := pixels(t, of(t, 5, 4, vision.WithDamaged()), file[:len(file)/3])
	require.Error(t, err, "a GIF file that is cut")
}

// exif is EXIF data that has an orientation alone.
func exif(orientation byte, long bool) []byte {
	if long {
		return []byte{'M', 'M', 0, '*', 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 4, 0, 0, 0, 1, 0, 0, 0, orientation, 0, 0, 0, 0}
	}
	return []byte{'I', 'I', '*', 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0, 0, 0, 0, 0}
}

// withEXIF are files of the same picture, which say how it is turned.
func withEXIF(t testing.TB, orientation byte) map[string][]byte {
	chunk := func(name string, data ...string) []byte {
		all := name + strings.Join(data, "")
		c := append(binary.BigEndian.AppendUint32(nil, uint32(len(all)-4)), all...)
		return binary.BigEndian.AppendUint32(c, crc32.ChecksumIEEE(c[4:]))
	}
	file := read(t, "rgb.png")
	with := func(chunks ...[]byte) []byte { return slices.Concat(file[:33], slices.Concat(chunks...), file[33:]) }
	png := func(data []byte) []byte { return with(chunk("eXIf", string(data))) }
	pixels := read(t, "lossless.webp")[12:]
	webp := slices.Concat([]byte("RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x08\x00\x00\x00\xef\x00\x00\xb3\x00\x00"), pixels,
		[]byte("EXIF\x1a\x00\x00\x00"), exif(orientation, false))
	binary.LittleEndian.PutUint32(webp[4:], uint32(len(webp)-8))
	jpeg := read(t, "444.jpg")
	segment := func(data []byte) []byte {
		return slices.Concat([]byte{0xff, 0xe1, 0, byte(8 + len(data))}, []byte("Exif\x00\x00"), data)
	}
	return map[string][]byte{
		"PNG":                   png(exif(orientation, false)),
		"PNG, as in JPEG":       png(append([]byte("Exif\x00\x00"), exif(orientation, false)...)),
		"PNG, a long number":    png(exif(orientation, true)),
		"WebP":                  webp,
		"JPEG":                  slices.Concat(jpeg[:2], segment(exif(orientation, false)), jpeg[2:]),
		"JPEG, a long number":   slices.Concat(jpeg[:2], segment(exif(orientation, true)), jpeg[2:]),
		"JPEG, a signed number": slices.Concat(jpeg[:2], segment(changed(exif(orientation, false), 12, 8)), jpeg[2:]),
		"PNG, a signed number":  png(changed(exif(orientation, true), 13, 9)),
		"JPEG, a second label":  slices.Concat(jpeg[:2], segment(exif(orientation, false)), segment(exif(9-orientation, false)), jpeg[2:]),
	}
}

func TestPicturesOfAllFormatsAreTurnedAsTheirEXIFDataSays(t *testing.T) {
	const height, width = 180, 240
	pipeline := func(size vision.Size, opts ...vision.Option) *vision.Pipeline {
		p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: size}}, append(opts, vision.WithType(nwt.Uint8), vision.WithLayout(vision.HWC))...)
		require.NoError(t, err)
		return p
	}
	for o := byte(1); o <= 8; o++ {
		size := vision.Size{Height: height, Width: width}
		if o >= 5 {
			size = vision.Size{Height: width, Width: height}
		}
		for name, file := range withEXIF(t, o) {
			stored := nwt.Values[uint8](load(t, pipeline(vision.Size{Height: height, Width: width}), file), 0)
			got := nwt.Values[uint8](load(t, pipeline(size, vision.WithOrientation()), file), 0)
			var want []uint8
			for y := range size.Height {
				for x := range size.Width {
					row, column := [...]int{y, y, height - 1 - y, height - 1 - y, x, height - 1 - x, height - 1 - x, x}[o-1],
						[...]int{x, width - 1 - x, width - 1 - x, x, y, y, width - 1 - y, width - 1 - y}[o-1]
					want = append(want, stored[3*(row*width+column):][:3]...)
				}
			}
			require.True(t, bytes.Equal(want, got), "%s, orientation %d", name, o)
		}
	}
}

// libjpeg smooths chroma only where a value stands for one or two pixels per side.
func TestChromaOfFourByTwoPixelsIsRepeated(t *testing.T) {
	picture := image.NewYCbCr(image.Rect(0, 0, 32, 8), image.YCbCrSubsampleRatio410)
	for i := range picture.Cb {
		picture.Cb[i], picture.Cr[i] = byte(60*i), byte(255-50*i)
	}
	const magic = "nwt 4:1:0 "
	image.RegisterFormat("nwt410", magic, func(io.Reader) (image.Image, error) { return picture, nil },
		func(io.Reader) (image.Config, error) { return image.Config{Width: 32, Height: 8}, nil })
	p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Size{Height: 8, Width: 32}}}, vision.WithType(nwt.Uint8), vision.WithLayout(vision.HWC))
	require.NoError(t, err)
	got := nwt.Values[uint8](load(t, p, []byte(magic)), 0)
	for y := range 8 {
		for x := range 32 {
			corner := got[3*(y/2*2*32+x/4*4):][:3]
			require.Equal(t, corner, got[3*(y*32+x):][:3], "row %d, column %d", y, x)
		}
	}
}

func TestADecoderThatReturnsAnotherSizeThanItSaidIsAnError(t *testing.T) {
	const magic = "nwt other size "
	image.RegisterFormat("nwtother", magic, func(io.Reader) (image.Image, error) { return image.NewGray(image.Rect(0, 0, 32, 7)), nil },
		func(io.Reader) (image.Config, error) { return image.Config{Width: 32, Height: 8}, nil })
	_, err := pixels(t, of(t, 32, 8), []byte(magic))
	require.ErrorContains(t, err, "(0,0)-(32,7)")
}

// Pillow's convert("RGB") makes white of all levels above 255, of the 65 535 that there
// are. torchvision keeps all, and scales them.
func TestGreyOfSixteenBitsKeepsItsUpperBits(t *testing.T) {
	img := image.NewGray16(image.Rect(0, 0, 256, 4))
	for x := range 256 {
		for y := range 4 {
			img.SetGray16(x, y, color.Gray16{Y: uint16(x<<8 | 77*y)})
		}
	}
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, img))
	p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Size{Height: 4, Width: 256}}}, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	for i, v := range nwt.Values[uint8](load(t, p, b.Bytes()), 0) {
		require.EqualValues(t, i%256, v)
	}
}

func TestProgressiveFilesAreDecodedInGoAsTheirScansAre(t *testing.T) {
	data := read(t, "restarts-progressive.jpg")
	scans := bytes.Count(data, []byte{0xff, 0xda})
	require.Greater(t, scans, 5)
	whole := nwt.Values[uint8](load(t, small(t), data), 0)
	at := 0
	for range scans { // the file without its later scans, and with its end
		at += bytes.Index(data[at:], []byte{0xff, 0xda})
		_, err := nwt.LoadSample(t.Context(), one(small(t), append(bytes.Clone(data[:at+100]), 0xff, 0xd9)), 0)
		require.Error(t, err, "a scan is cut")
		_, err = nwt.LoadSample(t.Context(), one(small(t), data[:at+100]), 0)
		require.Error(t, err, "the file is cut")
		at += 2
	}
	left := nwt.Values[uint8](load(t, small(t, vision.WithDamaged()), data[:at+100]), 0)
	for i, v := range left { // all but the last bits are there
		require.InDelta(t, whole[i], v, 8)
	}
	for name, bad := range map[string][]byte{
		"two frame headers":    bytes.Replace(data, []byte{0xff, 0xda}, append(frameOf(t, data), 0xff, 0xda), 2),
		"a scan twice":         slices.Concat(data[:at-2], data[at-2:len(data)-2], data[at-2:]),
		"no scan of the DC":    slices.Concat(data[:bytes.Index(data, []byte{0xff, 0xda})], data[bytes.LastIndex(data, []byte{0xff, 0xc4}):]),
		"bits that can't be":   changed(data, at-2+9, 0x35),
		"an unknown component": changed(data, at-2+5, 99),
	} {
		_, err := nwt.LoadSample(t.Context(), one(small(t), bad), 0)
		require.Error(t, err, name)
		var broken *nwt.LoadError
		require.ErrorAs(t, err, &broken)
		require.Nil(t, broken.Stack, name)
	}
}

// frameOf returns the frame header of a progressive JPEG file.
func frameOf(t *testing.T, data []byte) []byte {
	at := bytes.Index(data, []byte{0xff, 0xc2, 0, 17, 8})
	require.Positive(t, at)
	return bytes.Clone(data[at : at+19])
}

func changed(data []byte, at int, to byte) []byte {
	data = bytes.Clone(data)
	data[at] = to
	return data
}

// As in jhead's poc2a.jpg, where the segment of the thumbnail is shorter than the thumbnail. Pillow refuses it.
func TestAThumbnailIsNotTakenForThePicture(t *testing.T) {
	data, thumbnail := read(t, "420.jpg"), read(t, "grey.jpg")
	for _, opts := range [][]vision.Option{nil, {vision.WithDamaged()}} {
		_, err := pixels(t, full(t, opts...), slices.Concat(data[:20], thumbnail, data[20:]))
		require.ErrorContains(t, err, "a second picture begins before the pixels of the first")
	}
}

func TestAJPEGFileOfAnotherProcessSaysWhichItNeeds(t *testing.T) {
	data := read(t, "420.jpg")
	for marker, want := range map[byte]string{0xc3: "lossless", 0xc9: "arithmetic coding", 0xca: "arithmetic coding"} {
		for _, opts := range [][]vision.Option{nil, {vision.WithDamaged()}} {
			_, err := pixels(t, full(t, opts...), changed(data, bytes.Index(data, []byte{0xff, 0xc0})+1, marker))
			require.ErrorContains(t, err, want)
		}
	}
}

func TestGreyOfSixteenBitsKeepsAllLevelsWhereTheFieldCanHoldThem(t *testing.T) {
	const side = 64 // 4096 levels, as of an X-ray picture
	img := image.NewGray16(image.Rect(0, 0, side, side))
	for i := range side * side {
		img.SetGray16(i%side, i/side, color.Gray16{Y: uint16(16 * i)})
	}
	crop := vision.CenterCrop{Size: vision.Square(side)}
	files := map[string][]byte{
		"PNG":  encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, img) }),
		"TIFF": encoded(t, func(b *bytes.Buffer) error { return tiff.Encode(b, img, nil) }),
	}
	for name, file := range files {
		for _, steps := range [][]vision.Transform{{crop}, {crop, vision.Grayscale{}}, {crop, vision.ImageNetNormalize}} {
			p, err := vision.New(steps)
			require.NoError(t, err)
			got := nwt.Values[float32](load(t, p, file), 0)
			for i, v := range got {
				want := float64(16*(i%(side*side))) / 65535
				if len(steps) == 2 && len(got) == 3*side*side {
					c := i / (side * side)
					want = (want - vision.ImageNetNormalize.Mean[c]) / vision.ImageNetNormalize.Std[c]
				}
				require.InDelta(t, want, v, 3e-7, name)
			}
		}
		p, err := vision.New([]vision.Transform{crop, vision.Grayscale{}}, vision.WithType(nwt.Uint16))
		require.NoError(t, err)
		for i, v := range nwt.Values[uint16](load(t, p, file), 0) {
			require.EqualValues(t, 16*i, v, name)
		}
		p, err = vision.New([]vision.Transform{crop, vision.ColorJitter{Brightness: .1}})
		require.NoError(t, err)
		distinct := map[float32]bool{}
		for _, v := range nwt.Values[float32](load(t, p, file), 0) {
			distinct[v] = true
		}
		require.LessOrEqual(t, len(distinct), 256, "changed colours have eight bits")
	}
	// A part that is scaled, mirrored and padded has the same values as in eight bits, but finer.
	narrow := image.NewGray(img.Rect)
	for i := range narrow.Pix {
		narrow.Pix[i] = byte(37 * i)
		img.SetGray16(i%side, i/side, color.Gray16{Y: 257 * uint16(narrow.Pix[i])})
	}
	both := [][]byte{encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, img) }), encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, narrow) })}
	for _, steps := range [][]vision.Transform{
		{vision.RandomResizedCrop{Size: vision.Square(20)}, vision.RandomHorizontalFlip{P: 0.5}, vision.RandomVerticalFlip{P: 0.5}},
		{vision.Resize{Size: vision.Size{Height: 90, Width: 3}}}, {vision.Resize{Size: vision.Square(100)}, vision.CenterCrop{Size: vision.Square(130)}},
	} {
		p, err := vision.New(steps)
		require.NoError(t, err)
		wide, eight := nwt.Values[float32](load(t, p, both[0]), 0), nwt.Values[float32](load(t, p, both[1]), 0)
		for i := range wide {
			require.InDelta(t, eight[i], wide[i], 3.0/255)
		}
	}
	p, err := vision.New([]vision.Transform{crop}, vision.WithType(nwt.Uint16))
	require.NoError(t, err)
	for i, v := range nwt.Values[uint16](load(t, p, both[1]), 0) {
		require.EqualValues(t, 257*int(narrow.Pix[i%len(narrow.Pix)]), v, "of eight bits")
	}
	_, err = vision.New([]vision.Transform{crop, vision.ImageNetNormalize}, vision.WithType(nwt.Uint16))
	require.ErrorContains(t, err, "can't be combined with Normalize")
}
