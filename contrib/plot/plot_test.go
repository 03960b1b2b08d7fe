package plot_test

import (
	"bytes"
	"encoding/xml"
	"image/png"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/contrib/plot"
)

// The paper's Table 2, with counts in between.
func paper() *nwt.Result {
	r := &nwt.Result{
		Workers: 14, Fastest: 16, Reason: "14 workers: the fewest within 141 ms, over 100 batches, of the fastest (16).", Alpha: 141 * time.Millisecond, Iterations: 100, Strategy: "exhaustive",
		Device: "cuda:0 (GeForce RTX 3090)", BatchSize: 128, Hardware: nwt.Hardware{CPU: "AMD EPYC 7502", Logical: 64, GOMAXPROCS: 64, Memory: 270e9},
	}
	for _, row := range []struct {
		workers   int
		total, mb float64
	}{{0, 14.25, 2757.84}, {1, 13.9, 2110}, {2, 7.3, 2030}, {4, 3.9, 2005}, {8, 2.12, 2010}, {12, 1.62, 2018}, {14, 1.49, 2025.32},
		{16, 1.41, 2055.37}, {24, 1.47, 2160}, {32, 1.55, 2275.36}, {48, 1.83, 2510}, {63, 2.21, 2773.6}} {
		mean := time.Duration(row.total * 1e7)
		r.Trials = append(r.Trials, nwt.Trial{Workers: row.workers, Mean: mean, Low: mean - mean/25, High: mean + mean/25,
			Total: 100 * mean, PeakRSS: int64(row.mb * 1e6)})
	}
	return r
}

func TestAPictureIsWrittenInTheFormatOfItsName(t *testing.T) {
	dir := os.Getenv("PICTURES") // to look at them
	if dir == "" {
		dir = t.TempDir()
	}
	withStep := paper()
	withStep.Step, withStep.Floor = true, 9*time.Millisecond
	require.NoError(t, plot.Save(withStep, filepath.Join(dir, "step.svg")))
	for name, head := range map[string]string{"paper.png": "\x89PNG", "paper.svg": "<?xml", "paper.PDF": "%PDF", "paper.eps": "%%!PS"} {
		path := filepath.Join(dir, name)
		require.NoError(t, plot.Save(paper(), path))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, head, string(data[:len(head)]))
	}
}

func TestThePictureMarksCountsAsTheTableDoes(t *testing.T) {
	words := func(r *nwt.Result) string {
		path := filepath.Join(t.TempDir(), "x.svg")
		require.NoError(t, plot.Save(r, path))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(data)
	}
	r := paper()
	require.Contains(t, words(r), ">fastest (16)<")
	require.Contains(t, words(r), ">chosen (14)<")
	r.Fastest = 24 // 16 has the shorter time, but wasn't measured well
	require.Contains(t, r.String(), " ◄ fastest that was measured well\n")
	require.Contains(t, words(r), ">fastest (24)<")
	r.Workers = 24
	require.Contains(t, r.String(), " ◄ chosen, fastest that was measured well\n")
	require.Contains(t, words(r), ">chosen, fastest (24)<")
	r.Workers, r.Fastest = 16, 16
	require.Contains(t, words(r), ">chosen, fastest (16)<")
}

func TestAnSVGNeedsNoFont(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.svg")
	require.NoError(t, plot.Save(paper(), path))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(data), "@font-face")
	require.NoError(t, xml.Unmarshal(data, new(struct{})))
}

func TestCountsThatAreMuchSlowerAreNamedBesideThePicture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.svg")
	require.NoError(t, plot.Save(paper(), path))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Contains(data, []byte(">off the top: 0, 1, 2<")), "above four times the fastest")
}

func TestTheFloorIsDrawnOnceThereIsAStep(t *testing.T) {
	path, r := filepath.Join(t.TempDir(), "x.svg"), paper()
	for range 2 {
		require.NoError(t, plot.Save(r, path))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, r.Step, bytes.Contains(data, []byte(">floor: no waiting")))
		r.Step, r.Floor = true, 9*time.Millisecond
	}
}

func TestWhatWasNotMeasuredIsNotDrawn(t *testing.T) {
	height := func(r *nwt.Result) int {
		path := filepath.Join(t.TempDir(), "x.png")
		require.NoError(t, plot.Save(r, path))
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		c, err := png.DecodeConfig(f)
		require.NoError(t, err)
		return c.Height
	}
	r := paper()
	both := height(r)
	for i := range r.Trials {
		r.Trials[i].PeakRSS = 0
	}
	require.InDelta(t, both/2, height(r), 1)
	r.Workers, r.Fastest, r.Trials = 0, 0, r.Trials[:1]
	r.Trials[0].Low, r.Trials[0].High = 0, 0
	require.InDelta(t, both/2, height(r), 1)
}

func TestWhatCannotBeDrawnIsAnError(t *testing.T) {
	dir := t.TempDir()
	require.ErrorContains(t, plot.Save(nil, filepath.Join(dir, "x.png")), "no trials")
	require.ErrorContains(t, plot.Save(&nwt.Result{}, filepath.Join(dir, "x.png")), "no trials")
	require.ErrorContains(t, plot.Save(paper(), filepath.Join(dir, "x")), "the extension must be one of png")
	require.ErrorContains(t, plot.Save(paper(), filepath.Join(dir, "x.webp")), `x.webp": the extension must be one of png`)
	require.ErrorIs(t, plot.Save(paper(), filepath.Join(dir, "none", "x.png")), os.ErrNotExist)
}
