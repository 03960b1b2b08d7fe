package main

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/jpeg"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

// grey returns a JPEG file of one level.
func grey(t *testing.T, level uint8) []byte {
	img := image.NewGray(image.Rect(0, 0, 8, 8))
	for k := range img.Pix {
		img.Pix[k] = level
	}
	var file bytes.Buffer
	require.NoError(t, jpeg.Encode(&file, img, &jpeg.Options{Quality: 100}))
	return file.Bytes()
}

func TestPhotographsComeOnceAnEpochByEachWay(t *testing.T) {
	photoFolder = t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(photoFolder, "0"), 0o755))
	w := photographs[float32]("photos")
	w.samples = 100
	for i := range w.samples {
		require.NoError(t, os.WriteFile(filepath.Join(photoFolder, "0", strconv.Itoa(i)+".jpg"), grey(t, uint8(2*i)), 0o644))
	}
	t.Setenv("TMPDIR", t.TempDir())
	for _, variant := range variants("nwt", "photos") {
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

func TestShardsGiveEachPhotographWithItsLabelOnceAnEpoch(t *testing.T) {
	shardFolder = t.TempDir()
	const shards, each = 8, 12
	for s := range shards {
		f, err := os.Create(filepath.Join(shardFolder, fmt.Sprintf("photos-%06d.tar", s)))
		require.NoError(t, err)
		w := wds.NewWriter(f)
		for i := s * each; i < (s+1)*each; i++ {
			require.NoError(t, w.Write(fmt.Sprintf("%06d", i), wds.File{Ext: "jpg", Data: grey(t, uint8(2*i))}, wds.File{Ext: "cls", Data: []byte(strconv.Itoa(i))}))
		}
		require.NoError(t, w.Close())
		require.NoError(t, f.Close())
	}
	for _, variant := range variants("nwt", "shards") {
		ds, opts := nwtDataset(photographs[float32]("shards"), variant)
		l, err := nwt.NewLoader(ds, append(opts, nwt.WithWorkers(2))...)
		require.NoError(t, err)
		levels := make([]float32, shards*each) // by label
		var order []int64
		for b, err := range l.Epoch(context.Background(), 0) {
			require.NoError(t, err)
			order = append(order, nwt.Values[int64](b, 1)...)
			for k, label := range nwt.Values[int64](b, 1) {
				levels[label] = nwt.Values[float32](b, 0)[k*3*photoSide*photoSide]
			}
		}
		require.NoError(t, l.Close())
		require.False(t, slices.IsSorted(order), "the order is shuffled")
		require.Len(t, order, shards*each)
		require.True(t, slices.IsSorted(levels), "a higher label has a brighter photograph")
		require.Len(t, slices.Compact(levels), shards*each)
	}
}

func TestADifferenceToPillowIsTheMeanInLevels(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "photos")
	crops := filepath.Join(filepath.Dir(folder), "crops")
	require.NoError(t, os.Mkdir(folder, 0o755))
	require.NoError(t, os.Mkdir(crops, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "0.jpg"), grey(t, 100), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "1.jpg"), grey(t, 200), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(crops, "photos.json"), []byte(`[{"file": "0.jpg", "window": [1, 2, 6, 4]}, {"file": "1.jpg", "window": [0, 0, 8, 8]}]`), 0o644))
	theirs := slices.Concat(bytes.Repeat([]byte{103}, photoSize), bytes.Repeat([]byte{199}, photoSize))
	require.NoError(t, os.WriteFile(filepath.Join(crops, "photos.bin"), theirs, 0o644))
	require.Equal(t, 2.0, difference(folder, "decoded"))
}
