package main

import (
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/nwt-go/nwt/internal/human"
)

// Okabe and Ito's colors, which the color-blind tell apart. Beside them each line has a shape
// of its own.
var colors = []color.Color{color.Black, rgb(0x606060), rgb(0xd55e00), rgb(0x0072b2), rgb(0x009e73), rgb(0xe69f00), rgb(0x56b4e9), rgb(0xcc79a7)}

func rgb(x uint32) color.Color { return color.RGBA{uint8(x >> 16), uint8(x >> 8), uint8(x), 0xff} }

// plot draws batches per second by worker count, a panel for each workload but photographs and a
// line for each peer, at each count that of its fastest variant. What Tune chose is marked. One
// legend for all stands beside them.
func (r *run) plot(path string) error {
	const gap = vg.Centimeter / 2
	figs := figures(r.Measurements)
	legend, rows := plot.NewLegend(), make([][]*plot.Plot, 2)
	legend.Top, legend.Left, legend.Padding, legend.TextStyle.Font.Size = true, true, 2*vg.Millimeter, 9
	names := map[string]bool{}        // that the legend has
	for i, w := range workloads[:4] { // the ordinary ones
		p, err := r.panel(w.title, w.name, where(figs, workload(w.name)), func(name string, thumbs ...plot.Thumbnailer) {
			if !names[name] {
				names[name] = true
				legend.Add(name, thumbs...)
			}
		})
		if err != nil {
			return err
		}
		rows[i/2] = append(rows[i/2], p)
	}
	canvas := vgsvg.New(30*vg.Centimeter, 20*vg.Centimeter)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	side := legend.Rectangle(all).Size().X + gap
	tiles := draw.Tiles{Rows: 2, Cols: 2, PadX: gap, PadY: 2 * gap, PadTop: gap, PadBottom: gap, PadLeft: gap, PadRight: gap}
	for i, row := range plot.Align(rows, tiles, draw.Crop(all, 0, -side, 0, 0)) {
		for j, c := range row {
			rows[i][j].Draw(c)
		}
	}
	legend.Draw(draw.Crop(all, all.Max.X-side, 0, 0, -2*gap))
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

func (r *run) panel(name, work string, figs []figure, legend func(string, ...plot.Thumbnailer)) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.Title.Padding = name, 2*vg.Millimeter
	p.X.Label.Text = "workers"
	p.Y.Label.Text = "batches per second"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(decades)
	if len(figs) == 0 {
		p.Y.Min, p.Y.Max = 1, 10 // a logarithm needs a range
	}
	grid := plotter.NewGrid()
	grid.Vertical.Width, grid.Horizontal.Color = 0, color.Gray{0xe0}
	p.Add(grid)

	var counts []int
	for _, f := range figs {
		counts = append(counts, f.Workers)
	}
	slices.Sort(counts)
	counts = slices.Compact(counts)
	ticks := make(plot.ConstantTicks, len(counts))
	for i, n := range counts {
		ticks[i] = plot.Tick{Value: float64(i), Label: human.Number(float64(n))}
	}
	p.X.Tick.Marker = ticks

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
		line.Color, marks.Color = colors[i%len(colors)], colors[i%len(colors)]
		marks.Shape, marks.Radius, line.Width = plotutil.Shape(i), 2.5, 1
		switch {
		case peer == "nwt":
			line.Width = 2.5
		case peer == "bound":
			line.Dashes = plotutil.Dashes(2)
		case i >= len(colors):
			line.Dashes = plotutil.Dashes(1)
		}
		p.Add(line, marks)
		legend(title(peer), line, marks)
		if at := slices.IndexFunc(r.Tuned, func(t tuning) bool { return t.Workload == work }); at >= 0 && peer == "nwt" {
			if x := slices.Index(counts, r.Tuned[at].Workers); x >= 0 {
				rate, _ := fastest(where(figs, peers(peer), workers(counts[x])))
				ring, err := plotter.NewScatter(plotter.XYs{{X: float64(x), Y: rate.rate}})
				if err != nil {
					return nil, err
				}
				ring.Shape, ring.Radius, ring.Color = draw.RingGlyph{}, 7, color.Black
				p.Add(ring)
				legend("nwt.Tune's choice", ring)
			}
		}
	}
	return p, nil
}

// decades are ticks of a logarithmic axis: powers of ten, as people write them, and 2 and 5 times
// those where there is room.
func decades(low, high float64) (ticks []plot.Tick) {
	for power := math.Pow(10, math.Floor(math.Log10(low))); power <= high; power *= 10 {
		for times := 1.0; times < 10; times++ {
			if x := times * power; x >= low && x <= high {
				tick := plot.Tick{Value: x}
				if times == 1 || high/low < 1000 && (times == 2 || times == 5) {
					tick.Label = human.Number(x)
				}
				ticks = append(ticks, tick)
			}
		}
	}
	return ticks
}
