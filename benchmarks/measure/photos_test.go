package main

import (
	"image"
	"image/jpeg"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/vision"
)

func TestPhotographsComeOnceAnEpochByEachWay(t *testing.T) {
	photoFolder = t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(photoFolder, "0"), 0o755))
	w := photographs()
	w.samples = 100
	for i := range w.samples {
		f, err := os.Create(filepath.Join(photoFolder, "0", strconv.Itoa(i)+".jpg"))
		require.NoError(t, err)
		img := image.NewGray(image.Rect(0, 0, 8, 8))
		for k := range img.Pix {
			img.Pix[k] = uint8(2 * i)
		}
		require.NoError(t, jpeg.Encode(f, img, &jpeg.Options{Quality: 100}))
		require.NoError(t, f.Close())
	}
	t.Setenv("TMPDIR", t.TempDir())
	for _, variant := range variants("nwt", "photos") {
		if found, _ := vision.Turbo(); variant == "turbo" && !found {
			continue
		}
		for _, samples := range epochs(t, w, nwtLoader(w, variant, 2)) {
			var greys []float32
			for _, s := range samples {
				greys = append(greys, s[0])
			}
			slices.Sort(greys)
			require.Len(t, slices.Compact(greys), w.samples, variant)
		}
	}
}
