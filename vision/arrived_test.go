package vision_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// full makes pictures of 240 × 180 bytes that aren't resampled.
func full(t testing.TB, opts ...vision.Option) *vision.Pipeline {
	t.Helper()
	p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Size{Height: 180, Width: 240}}}, append(opts, vision.WithType(nwt.Uint8))...)
	require.NoError(t, err)
	return p
}

// top needs some rows in the middle only.
func top(t testing.TB, opts ...vision.Option) *vision.Pipeline {
	t.Helper()
	p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Size{Height: 20, Width: 30}}}, append(opts, vision.WithType(nwt.Uint8))...)
	require.NoError(t, err)
	return p
}

// pixels returns what a pipeline makes of a file; nil if it is an error.
func pixels(t testing.TB, p *vision.Pipeline, data []byte) ([]uint8, error) {
	s, err := nwt.LoadSample(t.Context(), one(p, data), 0)
	if err != nil {
		var bad *nwt.LoadError
		require.ErrorAs(t, err, &bad)
		require.Nil(t, bad.Stack, "%v", bad)
		return nil, err
	}
	return nwt.Values[uint8](s, 0), nil
}

// oddly are files of the same picture, of which libjpeg has something to say although
// nothing is missing.
func oddly(t testing.TB, data []byte) map[string][]byte {
	insert := func(at int, b ...byte) []byte { return slices.Concat(data[:at], b, data[at:]) }
	first := 4 + int(data[4])<<8 + int(data[5]) - 2 + 2 // behind the first segment
	require.Equal(t, byte(0xff), data[first])
	end := bytes.LastIndex(data, []byte{0xff, 0xd9})
	scan := bytes.LastIndex(data, []byte{0xff, 0xda})
	return map[string][]byte{
		"two bytes behind the first segment":  insert(first, 0, 0),
		"twenty bytes before the last scan":   insert(scan, make([]byte, 20)...),
		"bytes behind the last row":           insert(end, 1, 2, 3, 4, 5, 6, 7, 8),
		"bytes behind the end of the picture": append(bytes.Clone(data), 1, 2, 3),
	}
}

func TestWhetherAFileIsWholeIsDecidedByWhatArrivedWhateverElseIsOdd(t *testing.T) {
	whole, upper, damaged := full(t), top(t), full(t, vision.WithDamaged())
	for _, name := range []string{"420.jpg", "444.jpg", "grey.jpg", "progressive.jpg", "restart.jpg", "restarts-progressive.jpg", "cmyk.jpg", "rgb.jpg"} {
		data := read(t, name)
		want, err := pixels(t, whole, data)
		require.NoError(t, err)
		for how, odd := range oddly(t, data) {
			what := fmt.Sprintf("%s, %s", name, how)
			got, err := pixels(t, whole, odd)
			require.NoError(t, err, what)
			require.Equal(t, want, got, what)
			for _, share := range []int{50, 90} {
				for with, end := range map[string][]byte{"": nil, " with an end": {0xff, 0xd9}} {
					cut := append(bytes.Clone(odd[:len(odd)*share/100]), end...)
					_, err = pixels(t, whole, cut)
					require.Error(t, err, "%s, cut to %d %%%s", what, share, with)
					_, err = pixels(t, damaged, cut)
					require.NoError(t, err, "%s, cut to %d %%%s", what, share, with)
				}
				_, err = pixels(t, upper, odd[:len(odd)*share/100])
				require.Error(t, err, "%s: a file that is cut is cut for all crops", what)
			}
		}
	}
}

func TestACutJPEGFileIsAnErrorOrHasAllItsPixels(t *testing.T) {
	most := 60 // cuts of each file; all at each 37th byte take minutes
	if testing.Short() {
		most = 8
	}
	files, err := filepath.Glob("testdata/*.j*g")
	require.NoError(t, err)
	for _, file := range files {
		name := filepath.Base(file)
		data := read(t, name)
		if len(data) > 40_000 && testing.Short() {
			continue
		}
		for how, data := range map[string][]byte{"": data, ", with bytes behind a segment": oddly(t, data)["two bytes behind the first segment"]} {
			want, err := pixels(t, full(t), data)
			require.NoError(t, err, "%s%s", name, how)
			for n := 0; n < len(data); n += max(37, len(data)/most) {
				if got, err := pixels(t, full(t), data[:n]); err == nil {
					require.True(t, bytes.Equal(want, got), "%s%s, cut to %d bytes", name, how, n)
				}
				_, _ = pixels(t, full(t, vision.WithDamaged()), data[:n]) // no panic
			}
		}
	}
}

// An end marker behind a scan says that the picture is whole, and libjpeg believes it.
func TestAFileWhoseLaterScansAreMissingIsAnErrorThoughItHasAnEnd(t *testing.T) {
	for _, name := range []string{"progressive.jpg", "restarts-progressive.jpg", "separate.jpg"} {
		data := read(t, name)
		n := bytes.Count(data, []byte{0xff, 0xda})
		whole, upper, damaged := full(t), top(t), full(t, vision.WithDamaged())
		want, err := pixels(t, whole, data)
		require.NoError(t, err)
		at := bytes.Index(data, []byte{0xff, 0xda})
		for scan := 1; scan < n; scan++ {
			from := at + 2
			at = from + bytes.Index(data[from:], []byte{0xff, 0xda})
			end := at // or where the tables of the next scan begin
			if tables := bytes.Index(data[from:at], []byte{0xff, 0xc4}); tables >= 0 {
				end = from + tables
			}
			some := append(bytes.Clone(data[:end]), 0xff, 0xd9)
			what := fmt.Sprintf("%s, %d scans", name, scan)
			for _, p := range []*vision.Pipeline{whole, upper} {
				_, err := pixels(t, p, some)
				require.ErrorContains(t, err, "scan", what)
			}
			got, err := pixels(t, damaged, some)
			require.NoError(t, err, what)
			require.NotEqual(t, want, got, what)
		}
	}
	want, err := pixels(t, full(t), read(t, "odd.jpg"))
	require.NoError(t, err)
	got, err := pixels(t, full(t), read(t, "separate.jpg"))
	require.NoError(t, err)
	require.Equal(t, want, got)
}
