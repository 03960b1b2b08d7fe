package vision_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// everyCPU are pipelines of all transforms and element types.
func everyCPU(t *testing.T) (all []*vision.Pipeline) {
	for _, of := range []struct {
		steps []vision.Transform
		opts  []vision.Option
	}{
		{[]vision.Transform{
			vision.RandomResizedCrop{Size: vision.Square(64)}, vision.RandomHorizontalFlip{P: 0.5},
			vision.ColorJitter{Brightness: .4, Contrast: .4, Saturation: .4, Hue: .5}, vision.ImageNetNormalize, vision.RandomErasing{P: 0.5},
		}, nil},
		{[]vision.Transform{vision.RandomResizedCrop{Size: vision.Size{Height: 50, Width: 70}}, vision.RandomVerticalFlip{P: 0.5}, vision.ImageNetNormalize}, nil},
		{[]vision.Transform{vision.RandomCrop{Size: vision.Square(90), Padding: 9, PadIfNeeded: true}, vision.RandomGrayscale{P: .3}},
			[]vision.Option{vision.WithType(nwt.Uint8), vision.WithLayout(vision.HWC), vision.WithOrientation()}},
		{[]vision.Transform{vision.Resize{Shorter: 81}, vision.CenterCrop{Size: vision.Square(60)}, vision.ImageNetNormalize}, []vision.Option{vision.WithType(nwt.Float16)}},
		{[]vision.Transform{vision.Resize{Size: vision.Size{Height: 7, Width: 5}}, vision.Grayscale{}}, []vision.Option{vision.WithType(nwt.BFloat16)}},
	} {
		p, err := vision.New(of.steps, of.opts...)
		require.NoError(t, err)
		all = append(all, p)
	}
	return all
}

// littleEndian returns the values of a sample's picture in the same bytes on each CPU.
func littleEndian(t *testing.T, s *nwt.Sample, of nwt.DType) (b []byte) {
	var values any
	switch of {
	case nwt.Float32:
		values = nwt.Values[float32](s, 0)
	case nwt.Uint8:
		values = nwt.Values[uint8](s, 0)
	default:
		values = nwt.Values[uint16](s, 0)
	}
	b, err := binary.Append(nil, binary.LittleEndian, values)
	require.NoError(t, err)
	return b
}

// .ci/platforms runs this on other CPUs too. If pixels have to change, testdata/pixels gets the sums that
// the test tells.
func TestPixelsDependOnTheFileAndTheTransformsAlone(t *testing.T) {
	want := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(read(t, "pixels")))
	for lines.Scan() {
		var name, sum string
		_, err := fmt.Sscan(lines.Text(), &sum, &name)
		require.NoError(t, err)
		want[name] = sum
	}
	made := regexp.MustCompile(`^(expected|together)|\.(json|py)$|^pixels$`)
	files, err := os.ReadDir("testdata")
	require.NoError(t, err)
	pipelines := everyCPU(t)
	for _, file := range files {
		name := file.Name()
		if file.IsDir() || made.MatchString(name) {
			continue
		}
		data, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		sum := sha256.New()
		for _, p := range pipelines {
			ds := nwt.NewDataset(5, []nwt.Field{p.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error { return p.Load(dst, 0, data) })
			for i := range ds.Len() {
				s, err := nwt.LoadSample(t.Context(), ds, i)
				require.NoError(t, err, name)
				sum.Write(littleEndian(t, s, p.Field("image").Type))
			}
		}
		if got := fmt.Sprintf("%.8x", sum.Sum(nil)); got != want[name] {
			t.Errorf("pixels differ: %s %s", got, name)
		}
	}
}
