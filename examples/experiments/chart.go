package main

import (
	"bytes"
	"image/color"
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// A figure has lines over an axis of few values.
type figure struct {
	title, x, y string
	ticks       []string // the values on the x axis
	log         bool     // of the y axis
	lines       []line
	marks       []mark
}

// A line has a y for each tick.
type line struct {
	name   string
	y      []float64
	dashed bool
}

// A mark is a ring around a point.
type mark struct {
	name string
	tick int
	y    float64
}

// drawTo writes figures, one below the other, as a PNG. With an empty path it does
// nothing.
func drawTo(path string, figures ...figure) error {
	if path == "" {
		return nil
	}
	img := vgimg.New(18*vg.Centimeter, vg.Length(len(figures))*10*vg.Centimeter)
	var plots [][]*plot.Plot
	for _, f := range figures {
		p, err := f.plot()
		if err != nil {
			return err
		}
		plots = append(plots, []*plot.Plot{p})
	}
	const edge = vg.Centimeter / 3
	tiles := draw.Tiles{Rows: len(figures), Cols: 1, PadY: vg.Centimeter, PadTop: edge, PadBottom: edge, PadRight: edge, PadLeft: edge}
	for i, row := range plot.Align(plots, tiles, draw.New(img)) {
		plots[i][0].Draw(row[0])
	}
	var b bytes.Buffer
	if _, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(&b); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func (f figure) plot() (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = f.title, f.x, f.y
	p.NominalX(f.ticks...)
	p.X.Min, p.X.Max = -0.25, float64(len(f.ticks))-0.75
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Padding = true, vg.Points(3)
	for i, l := range f.lines {
		points := make(plotter.XYs, len(l.y))
		for i, y := range l.y {
			points[i] = plotter.XY{X: float64(i), Y: y}
		}
		drawn, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		drawn.Color, dots.Color = plotutil.Color(i), plotutil.Color(i)
		drawn.Width, dots.Shape = vg.Points(1.5), draw.CircleGlyph{}
		if l.dashed {
			drawn.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		p.Add(drawn, dots)
		p.Legend.Add(l.name, drawn, dots)
	}
	for i, m := range f.marks {
		ring, err := plotter.NewScatter(plotter.XYs{{X: float64(m.tick), Y: m.y}})
		if err != nil {
			return nil, err
		}
		ring.GlyphStyle = draw.GlyphStyle{Color: color.Black, Radius: vg.Points(5 + 3*float64(i)), Shape: draw.RingGlyph{}}
		p.Add(ring)
		p.Legend.Add(m.name, ring)
	}
	const room = 1.3 // for the legend
	if f.log {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Max *= math.Pow(p.Y.Max/p.Y.Min, room-1)
	} else {
		p.Y.Min, p.Y.Max = 0, room*p.Y.Max
	}
	return p, nil
}
