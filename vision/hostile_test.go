package vision_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// loadOf returns what a dataset of one sample gives whose Load is f.
func loadOf(t testing.TB, field nwt.Field, f func(dst *nwt.Sample) error) (*nwt.Sample, error) {
	ds := nwt.NewDataset(1, []nwt.Field{field}, func(_ context.Context, _ int, dst *nwt.Sample) error { return f(dst) })
	return nwt.LoadSample(t.Context(), ds, 0)
}

func TestACropMayLieInThePaddingAlone(t *testing.T) {
	p, err := vision.New([]vision.Transform{
		vision.RandomCrop{Size: vision.Square(20), Padding: 400}, vision.RandomHorizontalFlip{P: 0.5}, vision.RandomVerticalFlip{P: 0.5},
	}, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	l, err := nwt.NewLoader(repeated(p, 100, read(t, "420.jpg")), nwt.WithBatchSize(10), nwt.WithWorkers(0))
	require.NoError(t, err)
	defer l.Close()
	black := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		for i := range b.Len() {
			if n := 3 * 20 * 20; bytes.Equal(b.Bytes(0)[i*n:(i+1)*n], make([]byte, n)) {
				black++
			}
		}
	}
	require.Greater(t, black, 50)
	require.Less(t, black, 100)
}

// Contrast blends with the mean grey of the whole result, black padding and all,
// as torchvision's does.
func TestPaddingChangesItsColoursAsTorchvisionChangesThem(t *testing.T) {
	white := bytes.Repeat([]byte{255}, 8*8*3)
	p, err := vision.New([]vision.Transform{
		vision.CenterCrop{Size: vision.Square(16)}, vision.ColorJitter{Contrast: 1},
	}, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	lighter := 0
	for i := range 20 {
		ds := nwt.NewDataset(i+1, []nwt.Field{p.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
			return p.LoadPixels(dst, 0, white, 8, 8, vision.CHW)
		})
		s, err := nwt.LoadSample(t.Context(), ds, i)
		require.NoError(t, err)
		v := nwt.Values[uint8](s, 0)
		corner, middle := float64(v[0]), float64(v[8*16+8])
		if middle > 250 {
			continue // a factor above 1
		}
		lighter++
		// factor × 255 + (1 − factor) × mean, and (1 − factor) × mean; the mean is 63.75.
		factor := (middle - corner) / 255
		require.InDelta(t, (1-factor)*63.75, corner, 1.5)
	}
	require.Positive(t, lighter)
}

func TestSizesThatOverflowAreRefused(t *testing.T) {
	p := small(t)
	const wraps = 1 << (strconv.IntSize / 2)
	for _, size := range [][2]int{{wraps, wraps}, {wraps - 2, wraps / 2}, {-2, -2}, {0, 10}} {
		_, err := loadOf(t, p.Field("image"), func(dst *nwt.Sample) error {
			return p.LoadPixels(dst, 0, nil, size[0], size[1], vision.CHW)
		})
		require.ErrorContains(t, err, "must ")
		var bad *nwt.LoadError
		require.ErrorAs(t, err, &bad)
		require.Nil(t, bad.Stack)
	}
}

// On CPUs of 32 bits, one of these sides would have 2³² pixels or more.
func TestAResultThatCannotBeCountedIsRefused(t *testing.T) {
	white := bytes.Repeat([]byte{255}, 1<<20)
	for _, shorter := range []int{256, 4096, 16384} {
		p, err := vision.New([]vision.Transform{vision.Resize{Shorter: shorter}, vision.CenterCrop{Size: vision.Square(2)}}, vision.WithType(nwt.Uint8))
		require.NoError(t, err)
		for _, size := range [][2]int{{1, 1 << 20}, {1 << 20, 1}, {4, 1 << 18}} {
			s, err := loadOf(t, p.Field("image"), func(dst *nwt.Sample) error {
				return p.LoadPixels(dst, 0, white, size[0], size[1], vision.CHW)
			})
			if err != nil {
				require.Equal(t, 32, strconv.IntSize)
				require.ErrorContains(t, err, "would become")
				continue
			}
			require.Equal(t, white[:12], nwt.Values[uint8](s, 0))
		}
	}
}

// A PNG file of 90 kB may hold one row of 90 million pixels.
func TestOneLongRowIsRefused(t *testing.T) {
	p := small(t)
	for _, size := range [][2]int{{1, 1<<20 + 1}, {1<<20 + 1, 1}} {
		_, err := loadOf(t, p.Field("image"), func(dst *nwt.Sample) error {
			return p.LoadPixels(dst, 0, make([]byte, size[0]*size[1]), size[0], size[1], vision.CHW)
		})
		require.ErrorContains(t, err, "each side must be at most 1048576")
	}
}

func TestAFieldOfAnotherSizeIsRefused(t *testing.T) {
	p := small(t)
	for _, shape := range [][]int{{3, 5, 5}, {3, 2, 2}, {1, 4, 4}, {4, 4, 3}, {1, 4, 4, 3}} {
		_, err := loadOf(t, nwt.Field{Name: "x", Type: nwt.Uint8, Shape: shape}, func(dst *nwt.Sample) error {
			return p.Load(dst, 0, read(t, "420.jpg"))
		})
		require.ErrorContains(t, err, fmt.Sprintf(`field "x" is Uint8%v: must be Uint8[3 4 4], as Pipeline.Field declares it`, shape))
	}
}

// intervals returns where the restart markers of a JPEG file stand.
func intervals(data []byte) (all []int) {
	for i := bytes.Index(data, []byte{0xff, 0xda}) + 2; i+1 < len(data); i++ {
		if data[i] == 0xff && data[i+1]&^7 == 0xd0 {
			all = append(all, i)
		}
	}
	return all
}

func TestDamageBetweenRestartMarkersIsAnError(t *testing.T) {
	for _, name := range []string{"restart.jpg", "restarts-progressive.jpg"} {
		t.Run(name, func(t *testing.T) { damageBetweenRestartMarkers(t, read(t, name)) })
	}
}

func damageBetweenRestartMarkers(t *testing.T, data []byte) {
	at := intervals(data)
	require.Greater(t, len(at), 4)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	p := full(t)
	whole := nwt.Values[uint8](load(t, p, data), 0)
	for name, bad := range map[string][]byte{
		"an interval is lost": join(data[:at[1]], data[at[2]:]),
		"an interval twice":   join(data[:at[2]], data[at[1]:]),
	} {
		_, err := nwt.LoadSample(t.Context(), one(p, bad), 0)
		require.Error(t, err, name)
	}
	end := len(data) - 2
	for name, good := range map[string][]byte{
		"fill bytes, as T.81, B.1.1.2 allows":    join(data[:at[1]], []byte{0xff, 0xff}, data[at[1]:]),
		"bytes that no block has, as of webcams": join(data[:at[1]], []byte{1, 2, 3, 0xff, 0, 4, 5}, data[at[1]:]),
		"a marker behind the last row":           join(data[:end], []byte{0xff, 0xd0 + byte(len(at)%8)}, data[end:]),
		"rows below the last, as of scanners":    join(data[:end], []byte{0xff, 0xd0 + byte(len(at)%8)}, data[at[len(at)-1]+2:end], data[end:]),
	} {
		require.Equal(t, whole, nwt.Values[uint8](load(t, p, good), 0), name)
	}
}

func TestTurnedPicturesCostNoAllocation(t *testing.T) {
	p, err := vision.New(recipe, vision.WithOrientation())
	require.NoError(t, err)
	data := read(t, "exif6.jpg")
	var perPicture float64
	_, err = loadOf(t, p.Field("image"), func(dst *nwt.Sample) error {
		perPicture = testing.AllocsPerRun(50, func() { _ = p.Load(dst, 0, data) })
		return nil
	})
	require.NoError(t, err)
	require.Less(t, perPicture, 1.0)
}

func TestMoreScansThanAnyEncoderWritesAreRefused(t *testing.T) {
	data := read(t, "progressive.jpg")
	last := bytes.LastIndex(data, []byte{0xff, 0xda})
	scan := data[last : len(data)-2]
	many := append(bytes.Clone(data[:len(data)-2]), bytes.Repeat(scan, 600)...)
	_, err := nwt.LoadSample(t.Context(), one(small(t), append(many, 0xff, 0xd9)), 0)
	require.ErrorContains(t, err, "scans: must be at most 500")
}

func TestOfALargePictureFewerScansAreRead(t *testing.T) {
	data := read(t, "progressive.jpg")
	last := bytes.LastIndex(data, []byte{0xff, 0xda})
	scan := data[last : len(data)-2]
	many := append(bytes.Clone(data[:len(data)-2]), bytes.Repeat(scan, 100)...)
	frame := bytes.Index(many, []byte{0xff, 0xc2})
	copy(many[frame+5:], []byte{9000 >> 8, 9000 & 255, 9000 >> 8, 9000 & 255}) // 81 megapixels
	_, err := nwt.LoadSample(t.Context(), one(small(t), append(many, 0xff, 0xd9)), 0)
	require.ErrorContains(t, err, "scans: must be at most 64")
}

func TestWhatFollowsAPictureHasNoScans(t *testing.T) {
	data := read(t, "progressive.jpg")
	film := bytes.Repeat([]byte{0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0}, 600)
	p := small(t)
	whole := nwt.Values[uint8](load(t, p, data), 0)
	require.Equal(t, whole, nwt.Values[uint8](load(t, p, append(bytes.Clone(data), film...)), 0))
}

// dht is a segment of Huffman tables.
func dht(tables ...byte) []byte {
	return append([]byte{0xff, 0xc4, byte((len(tables) + 2) >> 8), byte(len(tables) + 2)}, tables...)
}

// An invalid table has three codes of one bit.
var invalidTable = append([]byte{0x13, 3}, make([]byte, 15+3)...)

func TestAHuffmanTableThatNoScanUsesMayBeInvalid(t *testing.T) {
	for _, name := range []string{"420.jpg", "grey.jpg", "progressive.jpg", "separate.jpg", "cmyk.jpg"} {
		data := read(t, name)
		want, err := pixels(t, full(t), data)
		require.NoError(t, err)
		got, err := pixels(t, full(t), slices.Concat(data[:2], dht(invalidTable...), data[2:]))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
		used := bytes.Clone(invalidTable)
		used[0] = 0x10
		scan := bytes.LastIndex(data, []byte{0xff, 0xda})
		if name == "separate.jpg" {
			scan = bytes.Index(data, []byte{0xff, 0xda})
		}
		_, err = pixels(t, full(t), slices.Concat(data[:scan], dht(used...), data[scan:]))
		require.ErrorContains(t, err, "too many codes", name)
	}
}

func TestAFileThatIsTooShortForItsFirstScanTakesNoMemory(t *testing.T) {
	for _, name := range []string{"420.jpg", "progressive.jpg", "separate.jpg", "cmyk.jpg", "grey.jpg"} {
		data := bytes.Clone(read(t, name))
		frame := bytes.Index(data, []byte{0xff, 0xc0, 0})
		if frame < 0 {
			frame = bytes.Index(data, []byte{0xff, 0xc2, 0})
		}
		copy(data[frame+5:], []byte{9459 >> 8, 9459 & 255, 9459 >> 8, 9459 & 255})
		for what, file := range map[string][]byte{"whole": data, "cut": data[:len(data)/2]} {
			p := small(t)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := pixels(t, p, file)
			runtime.ReadMemStats(&after)
			require.ErrorContains(t, err, "the data ends before the picture does", "%s, %s", name, what)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), "%s, %s", name, what)
		}
	}
}
