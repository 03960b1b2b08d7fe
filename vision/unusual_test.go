package vision_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

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
		for way, opts := range decoders(t) {
			for _, size := range []vision.Size{{Height: 180, Width: 240}, {Height: 20, Width: 30}} { // whole, and down to a row
				p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: size}}, opts...)
				require.NoError(t, err)
				want := nwt.Values[float32](load(t, p, data), 0)
				got := nwt.Values[float32](load(t, p, file), 0)
				require.Equal(t, want, got, fmt.Sprint(way, ": ", name))
			}
		}
	}
}
