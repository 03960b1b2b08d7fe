package vision_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// of makes pictures of one size that aren't resampled.
func of(t testing.TB, width, height int, opts ...vision.Option) *vision.Pipeline {
	t.Helper()
	p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Size{Height: height, Width: width}}},
		append(opts, vision.WithType(nwt.Uint8), vision.WithLayout(vision.HWC))...)
	require.NoError(t, err)
	return p
}

// onlyDamaged loads a file that is an error without WithDamaged.
func onlyDamaged(t *testing.T, width, height int, file []byte) []uint8 {
	t.Helper()
	_, err := pixels(t, of(t, width, height), file)
	require.Error(t, err)
	got, err := pixels(t, of(t, width, height, vision.WithDamaged()), file)
	require.NoError(t, err)
	return got
}

func TestBMPAndTIFFFilesAreDecoded(t *testing.T) {
	img, err := png.Decode(bytes.NewReader(read(t, "rgb.png")))
	require.NoError(t, err)
	p := of(t, 240, 180)
	want := nwt.Values[uint8](load(t, p, read(t, "rgb.png")), 0)
	dir := tree(t, "a/1.bmp", "a/2.TIF", "a/3.tiff")
	folder, err := vision.OpenFolder(t.Context(), dir, p)
	require.NoError(t, err)
	require.Equal(t, 3, folder.Len())
	for name, encode := range map[string]func(b *bytes.Buffer) error{
		"BMP":  func(b *bytes.Buffer) error { return bmp.Encode(b, img) },
		"TIFF": func(b *bytes.Buffer) error { return tiff.Encode(b, img, nil) },
		"TIFF, compressed": func(b *bytes.Buffer) error {
			return tiff.Encode(b, img, &tiff.Options{Compression: tiff.Deflate, Predictor: true})
		},
	} {
		require.Equal(t, want, nwt.Values[uint8](load(t, p, encoded(t, encode)), 0), name)
	}
}

// tagged returns a TIFF file in which the value of a tag, or another in its place, is changed.
func tagged(t *testing.T, file []byte, tag, to, value uint16) []byte {
	file = bytes.Clone(file)
	at := int(binary.LittleEndian.Uint32(file[4:])) + 2
	for ; binary.LittleEndian.Uint16(file[at:]) != tag; at += 12 {
		require.Less(t, at+12, len(file))
	}
	copy(file[at:], []byte{byte(to), byte(to >> 8), 3, 0, 1, 0, 0, 0, byte(value), byte(value >> 8), 0, 0})
	return file
}

func TestTIFFFilesAreTurnedOrRefusedWherePackageTIFFPassesOverWhatTheySay(t *testing.T) {
	colours, greys := image.NewNRGBA(image.Rect(0, 0, 3, 2)), image.NewGray(image.Rect(0, 0, 3, 2))
	copy(greys.Pix, []byte{1, 20, 40, 80, 160, 255})
	file := encoded(t, func(b *bytes.Buffer) error { return tiff.Encode(b, colours, nil) })
	_, err := pixels(t, of(t, 3, 2), tagged(t, file, 0x011b, 0x011c, 2)) // in the resolution's place
	require.ErrorContains(t, err, "PlanarConfiguration")
	file = encoded(t, func(b *bytes.Buffer) error { return tiff.Encode(b, greys, nil) })
	_, err = pixels(t, of(t, 3, 2), tagged(t, tagged(t, file, 0x0103, 0x0103, 4), 0x0106, 0x0106, 1))
	require.ErrorContains(t, err, "PhotometricInterpretation")
	_, err = pixels(t, of(t, 3, 2), tagged(t, file, 0x0111, 0x010a, 2))
	require.ErrorContains(t, err, "FillOrder")
	// One sample per pixel is the default.
	turned := nwt.Values[uint8](load(t, of(t, 3, 2), tagged(t, file, 0x0115, 0x0112, 3)), 0)
	for i := range 6 {
		require.Equal(t, slices.Repeat([]byte{greys.Pix[5-i]}, 3), turned[3*i:][:3], "upside down, as Pillow turns it")
	}
}

func TestAPNGFileWhosePixelsAreThereIsLoadedWithDamaged(t *testing.T) {
	file := read(t, "rgb.png")
	want := nwt.Values[uint8](load(t, of(t, 240, 180), file), 0)
	text := []byte("\x00\x00\x00\x04tEXta\x00b!\x01\x02\x03\x04")
	for name, bad := range map[string][]byte{
		"no end":                                file[:len(file)-12],
		"a wrong checksum of what isn't pixels": slices.Concat(file[:33], text, file[33:]),
		"a wrong checksum of the header":        changed(file, 29, file[29]+1),
		"the last checksum is cut":              file[:len(file)-14],
	} {
		require.Equal(t, want, onlyDamaged(t, 240, 180, bad), name)
	}
	_, err := pixels(t, of(t, 240, 180, vision.WithDamaged()), file[:len(file)/2])
	require.Error(t, err, "pixels are missing")
}

// As oxipng's test has it: three colours where pixels have one bit.
func TestAPaletteLongerThanThePixelsBitsAllowIsCut(t *testing.T) {
	colours := color.Palette{color.RGBA{10, 20, 30, 255}, color.RGBA{200, 100, 50, 255}}
	img := image.NewPaletted(image.Rect(0, 0, 40, 30), colours)
	for i := range img.Pix {
		img.Pix[i] = byte(i * i / 7 % 2)
	}
	file := encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, img) })
	require.Equal(t, "\x01\x03", string(file[24:26]), "bits, and a palette")
	want := nwt.Values[uint8](load(t, of(t, 40, 30), file), 0)
	at := bytes.Index(file, []byte("PLTE"))
	require.Equal(t, 37, at)
	longer := func(colours int) []byte {
		chunk := append([]byte("PLTE"), file[at+4:at+10]...)
		chunk = append(chunk, make([]byte, 3*(colours-2))...)
		chunk = binary.BigEndian.AppendUint32(chunk, crc32.ChecksumIEEE(chunk))
		return slices.Concat(file[:at-4], binary.BigEndian.AppendUint32(nil, uint32(3*colours)), chunk, file[at+14:])
	}
	for _, n := range []int{3, 256} {
		for _, opts := range [][]vision.Option{nil, {vision.WithDamaged()}} {
			require.Equal(t, want, nwt.Values[uint8](load(t, of(t, 40, 30, opts...), longer(n)), 0))
		}
	}
	_, err := pixels(t, of(t, 40, 30), longer(257))
	require.Error(t, err, "more than there are bytes")
	_, err = pixels(t, of(t, 40, 30), changed(longer(3), at+8, 99))
	require.Error(t, err, "a wrong checksum")
	_, err = pixels(t, of(t, 40, 30), longer(3)[:at+20])
	require.Error(t, err, "cut")
}

// libjpeg takes a length of 0 or 1 for one of 2, which is that of the length alone.
func TestACommentOfNoLengthInAJPEGFileIsPassedOver(t *testing.T) {
	data := read(t, "420.jpg")
	want := nwt.Values[uint8](load(t, full(t), data), 0)
	for _, marker := range []byte{0xfe, 0xe5} {
		for _, length := range []byte{0, 1} {
			file := slices.Concat(data[:2], []byte{0xff, marker, 0, length}, data[2:])
			got, err := pixels(t, full(t), file)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	_, err := pixels(t, full(t), slices.Concat(data[:2], []byte{0xff, 0xdb, 0, 0}, data[2:]))
	require.Error(t, err, "a table of no length")
}
