package main

import (
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// plot draws batches a second by worker count, a panel for each workload but photographs and a
// line for each peer, at each count that of its fastest variant.
func (r *run) plot(path string) error {
	figs := figures(r.Measurements)
	panels := make([][]*plot.Plot, 2)
	for i, w := range workloads[:4] { // the ordinary ones
		p, err := panel(w.title, where(figs, workload(w.name)))
		if err != nil {
			return err
		}
		panels[i/2] = append(panels[i/2], p)
	}
	canvas := vgsvg.New(24*vg.Centimeter, 18*vg.Centimeter)
	tiles := draw.Tiles{Rows: 2, Cols: 2, PadX: vg.Centimeter / 2, PadY: vg.Centimeter / 2, PadTop: 4, PadRight: 8}
	for i, row := range plot.Align(panels, tiles, draw.New(canvas)) {
		for j, c := range row {
			panels[i][j].Draw(c)
		}
	}
	f, err := os.Create(filepath.Clean(path))
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

func panel(name string, figs []figure) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = name
	p.X.Label.Text = "workers"
	p.Y.Label.Text = "batches per second"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	if len(figs) == 0 {
		p.Y.Min, p.Y.Max = 1, 10 // a logarithm needs a range
	}
	p.Legend.Top = true
	p.Legend.TextStyle.Font.Size = 7

	var counts []int
	for _, f := range figs {
		counts = append(counts, f.Workers)
	}
	slices.Sort(counts)
	counts = slices.Compact(counts)
	ticks := make(plot.ConstantTicks, len(counts))
	for i, n := range counts {
		ticks[i] = plot.Tick{Value: float64(i), Label: strconv.Itoa(n)}
	}
	p.X.Tick.Marker = ticks
	p.X.Max = float64(len(counts)) + 1 // room for the legend

	for i, peer := range append([]string{"nwt", "bound"}, append(goPeers, pythonPeers...)...) {
		var points plotter.XYs
		for x, n := range counts {
			if best, ok := fastest(where(figs, peers(peer), workers(n))); ok {
				points = append(points, plotter.XY{X: float64(x), Y: best.rate})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, marks.Color = plotutil.Color(i), plotutil.Color(i)
		marks.Shape, marks.Radius = plotutil.Shape(i), 2
		if peer == "nwt" {
			line.Width, line.Color, marks.Color = 2, color.Black, color.Black
		}
		if peer == "bound" {
			line.Dashes = plotutil.Dashes(2)
		}
		p.Add(line, marks)
		p.Legend.Add(title(peer), line, marks)
	}
	return p, nil
}
