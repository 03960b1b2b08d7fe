package plot_test

import (
	"bytes"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/contrib/plot"
)

// training is looked at every hundred batches of 10 ms, of which it waits for so much.
func training(waits ...time.Duration) []plot.Moment {
	m := plot.Moment{At: time.Unix(1e9, 0), Stats: nwt.Stats{Workers: 4, Prefetch: 8}}
	moments := []plot.Moment{m}
	for _, wait := range waits {
		m.At, m.Batches, m.Wait = m.At.Add(time.Second), m.Batches+100, m.Wait+100*wait
		moments = append(moments, m)
	}
	return moments
}

func drawn(t *testing.T, moments []plot.Moment, name string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, plot.SaveWaits(moments, path))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

// dots are how many pixels have the color of waiting, and of the step.
func dots(t *testing.T, moments []plot.Moment) (red, blue float64) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(drawn(t, moments, "x.png")))
	require.NoError(t, err)
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			switch color.RGBAModel.Convert(img.At(x, y)) {
			case color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}:
				red++
			case color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}:
				blue++
			}
		}
	}
	return red, blue
}

func TestTheAreaOfWaitingIsItsShareOfTheTime(t *testing.T) {
	red, blue := dots(t, training(5*time.Millisecond, 5*time.Millisecond, 5*time.Millisecond))
	require.InEpsilon(t, 1, red/blue, 0.05)
	red, blue = dots(t, training(0, 9*time.Millisecond, 0))
	require.InEpsilon(t, 9.0/21, red/blue, 0.05)
	none, _ := dots(t, training(0, 0, 0))
	require.Less(t, none, red/20, "the legend alone")
}

func TestThePictureOfWaitsSaysWhatIsWhat(t *testing.T) {
	text := string(drawn(t, training(0, time.Millisecond), "x.svg"))
	for _, word := range []string{"training waited for data 5.0 % of the time", "waiting for data", "step, and all else",
		"batches ahead, at most", "workers", "time per batch (ms)", "time since the first moment (s)"} {
		require.Contains(t, "\n"+text+"\n", word+"\n")
	}
	long := training(make([]time.Duration, 700)...)
	require.Contains(t, string(drawn(t, long, "x.svg")), "moment (min)\n")
	long[700].At = long[700].At.Add(10 * time.Hour)
	require.Contains(t, string(drawn(t, long, "x.svg")), "moment (h)\n")
}

func TestMomentsWithoutABatchBetweenThemAreDrawnAsOne(t *testing.T) {
	moments := training(0, 0, 9*time.Millisecond)
	between := moments[2]
	between.At = between.At.Add(300 * time.Millisecond)
	after := moments[3]
	after.At = after.At.Add(time.Hour)
	with := []plot.Moment{moments[0], moments[1], moments[2], between, moments[3], after}
	require.Equal(t, drawn(t, moments, "x.svg"), drawn(t, with, "x.svg"))
}

func TestMomentsThatCannotBeDrawnAreAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.svg")
	m := training(0, time.Millisecond)
	require.ErrorContains(t, plot.SaveWaits(nil, path), "SaveWaits: 0 moments: must be at least 2")
	require.ErrorContains(t, plot.SaveWaits(m[:1], path), "SaveWaits: 1 moments: must be at least 2")
	require.ErrorContains(t, plot.SaveWaits([]plot.Moment{m[0], m[0]}, path), "moments[1] ")
	require.ErrorContains(t, plot.SaveWaits([]plot.Moment{m[0], m[2], m[1]}, path), "moments[2] ")
	another := m[2]
	another.Batches = 7
	require.ErrorContains(t, plot.SaveWaits([]plot.Moment{m[0], m[1], another}, path), "batch 7")
	still := m[0]
	still.At = still.At.Add(time.Second)
	require.ErrorContains(t, plot.SaveWaits([]plot.Moment{m[0], still}, path), "no batch")
	require.ErrorContains(t, plot.SaveWaits(m, filepath.Join(t.TempDir(), "x.webp")), "the extension must be one of png")
	require.NoFileExists(t, path)
}
