// Package plot draws what nwt measured: what tuning found, and what training waited for.
//
// It is a separate module, so that programs that only tune and train don't depend
// on a plotting library.
package plot

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/human"
)

const (
	width  = 18 * vg.Centimeter
	height = 16 * vg.Centimeter
)

var (
	ink    = color.RGBA{R: 0x1f, G: 0x4e, B: 0x79, A: 0xff}
	choice = color.RGBA{R: 0xc0, G: 0x39, B: 0x2b, A: 0xff}
	best   = color.RGBA{R: 0x2e, G: 0x7d, B: 0x32, A: 0xff}
	band   = color.RGBA{R: 0xd0, G: 0xea, B: 0xd5, A: 0xff}
)

// Save writes a picture of r to path. The extension names the format: png, svg, pdf,
// jpg, tif, eps or tex. The upper panel shows the time of Result.Iterations batches
// against workers with 95 % intervals, and the band that alpha ignores. The lower
// one shows the peak memory if it was measured. The choice and the fastest are
// marked, as [nwt.Result.Mark] calls them.
func Save(r *nwt.Result, path string) error {
	if r == nil || len(r.Trials) == 0 {
		return errors.New("plot: the result has no trials")
	}
	panels := [][]*plot.Plot{{timePanel(r)}}
	if slices.ContainsFunc(r.Trials, func(t nwt.Trial) bool { return t.PeakRSS > 0 }) {
		panels = append(panels, []*plot.Plot{memoryPanel(r)})
	}
	return write(path, panels)
}

// write draws panels one below the other.
func write(path string, panels [][]*plot.Plot) error {
	format := strings.ToLower(strings.TrimPrefix(filepath.Ext(path), "."))
	if format == "" {
		return fmt.Errorf("plot: %q has no extension that names a format", path)
	}
	if !slices.Contains([]string{"eps", "jpeg", "jpg", "pdf", "png", "svg", "tex", "tif", "tiff"}, format) {
		return fmt.Errorf("plot: %q: the format %q is none of png, svg, pdf, jpg, tif, eps, tex", path, format)
	}
	c, err := draw.NewFormattedCanvas(width, height*vg.Length(len(panels))/2, format)
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadX: vg.Millimeter, PadY: 4 * vg.Millimeter,
		PadTop: 3 * vg.Millimeter, PadBottom: 3 * vg.Millimeter, PadLeft: 3 * vg.Millimeter, PadRight: 5 * vg.Millimeter}
	for i, row := range plot.Align(panels, tiles, draw.New(c)) {
		panels[i][0].Draw(row[0])
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	_, err = c.WriteTo(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// points are the trials as a line with intervals.
type points struct {
	plotter.XYs
	plotter.YErrors
}

func timePanel(r *nwt.Result) *plot.Plot {
	line := points{}
	fastest := math.Inf(1)
	for _, t := range r.Trials {
		fastest = min(fastest, float64(max(t.Total, 1)))
	}
	scale := human.ScaleOf(time.Duration(fastest))
	size := scale.Size
	for _, t := range r.Trials {
		n := float64(r.Iterations) / size
		line.XYs = append(line.XYs, plotter.XY{X: float64(t.Workers), Y: float64(max(t.Total, 1)) / size})
		interval := struct{ Low, High float64 }{}
		if 0 < t.Low && t.Low <= t.Mean && t.Mean <= t.High {
			interval.Low, interval.High = float64(t.Mean-t.Low)*n, float64(t.High-t.Mean)*n
		}
		line.YErrors = append(line.YErrors, interval)
	}
	p := panel(r, line)
	p.Title.Text = title(r)
	p.Y.Label.Text = fmt.Sprintf("time of %d batches (%s)", r.Iterations, scale.Unit)
	// Logarithmic, since what matters is close to the fastest.
	p.Y.Min, p.Y.Scale, p.Y.Tick.Marker = 0.8*fastest/size, plot.LogScale{}, plot.TickerFunc(oneTwoFive)
	from := line.XYs[at(r, r.Fastest)].Y
	ignored := alphaBand{from, from + float64(r.Alpha)/size}
	p.Add(ignored)
	decorate(p, r, line)
	p.Legend.Add("ignored (alpha)", ignored)
	p.Legend.Top, p.Legend.Padding = true, vg.Millimeter
	return p
}

func memoryPanel(r *nwt.Result) *plot.Plot {
	line := points{}
	least := uint64(math.MaxUint64)
	for _, t := range r.Trials {
		least = min(least, t.PeakRSS)
	}
	scale := human.ScaleOfBytes(least)
	for _, t := range r.Trials {
		line.XYs = append(line.XYs, plotter.XY{X: float64(t.Workers), Y: float64(t.PeakRSS) / scale.Size})
	}
	p := panel(r, line)
	p.Y.Label.Text = fmt.Sprintf("peak memory (%s)", scale.Unit)
	decorate(p, r, line)
	return p
}

func panel(r *nwt.Result, line points) *plot.Plot {
	p := plot.New()
	p.X.Label.Text = "workers"
	p.X.Tick.Marker = counts(r)
	p.X.Min, p.X.Max, p.X.Scale = 0, float64(max(1, r.Trials[len(r.Trials)-1].Workers)), doublings{}
	p.Y.Min = 0
	for _, xy := range line.XYs {
		p.Y.Max = max(p.Y.Max, 1.1*xy.Y)
	}
	p.Title.Padding = 2 * vg.Millimeter
	return p
}

// decorate draws the line, its intervals, and what is marked.
func decorate(p *plot.Plot, r *nwt.Result, line points) {
	l, dots, err := plotter.NewLinePoints(line.XYs)
	if err != nil {
		panic(err) // the figures of a Result are finite
	}
	l.Color, dots.Color = ink, ink
	dots.Shape, dots.Radius = draw.CircleGlyph{}, vg.Points(2.5)
	p.Add(grid(), l)
	if len(line.YErrors) > 0 {
		bars, err := plotter.NewYErrorBars(line)
		if err != nil {
			panic(err)
		}
		bars.Color = ink
		p.Add(bars)
	}
	p.Add(dots)
	mark := func(workers int, c color.Color) {
		dot, err := plotter.NewScatter(line.XYs[at(r, workers):][:1])
		if err != nil {
			panic(err)
		}
		dot.Color, dot.Shape, dot.Radius = c, draw.CircleGlyph{}, vg.Points(4)
		p.Add(dot)
		if len(line.YErrors) > 0 { // the legend of both panels
			p.Legend.Add(fmt.Sprintf("%s (%d)", r.Mark(workers), workers), dot)
		}
	}
	if r.Fastest != r.Workers {
		mark(r.Fastest, best)
	}
	mark(r.Workers, choice)
}

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Width = 0
	g.Horizontal.Color = color.Gray{0xe0}
	return g
}

// at returns the index of a worker count's trial.
func at(r *nwt.Result, workers int) int {
	return max(0, slices.IndexFunc(r.Trials, func(t nwt.Trial) bool { return t.Workers == workers }))
}

func title(r *nwt.Result) string {
	return fmt.Sprintf("%s search, batches of %d to %s\n%s", r.Strategy, r.BatchSize, r.Device, r.Hardware)
}

// counts makes ticks at the worker counts measured. It labels them as far as there
// is room, the choice and the fastest first.
func counts(r *nwt.Result) plot.Ticker {
	return plot.TickerFunc(func(low, high float64) (ticks []plot.Tick) {
		place := func(workers int) float64 { return doublings{}.Normalize(low, high, float64(workers)) }
		var taken []float64
		label := func(workers int) string {
			x := place(workers)
			if slices.ContainsFunc(taken, func(other float64) bool { return math.Abs(x-other) < 0.03 }) {
				return ""
			}
			taken = append(taken, x)
			return strconv.Itoa(workers)
		}
		labels := map[int]string{}
		for _, w := range []int{r.Workers, r.Fastest} {
			if _, done := labels[w]; !done {
				labels[w] = label(w)
			}
		}
		for _, t := range r.Trials {
			if _, done := labels[t.Workers]; !done {
				labels[t.Workers] = label(t.Workers)
			}
			ticks = append(ticks, plot.Tick{Value: float64(t.Workers), Label: labels[t.Workers]})
		}
		return ticks
	})
}

// doublings is an axis on which 0 has a place and, further out, each doubling takes
// the same room, since a search also goes through worker counts by doubling.
type doublings struct{}

func (doublings) Normalize(low, high, x float64) float64 {
	return math.Log((1+x)/(1+low)) / math.Log((1+high)/(1+low))
}

// oneTwoFive are the ticks 1, 2, 5, 10, 20 … of a logarithmic axis.
func oneTwoFive(low, high float64) (ticks []plot.Tick) {
	for exponent := math.Floor(math.Log10(low)); exponent <= math.Log10(high); exponent++ {
		power := math.Pow(10, exponent)
		for _, digit := range []float64{1, 2, 5} {
			if x := digit * power; x >= low && x <= high {
				ticks = append(ticks, plot.Tick{Value: x, Label: strconv.FormatFloat(x, 'g', 3, 64)})
			}
		}
	}
	return ticks
}

// alphaBand is what the choice ignores: from the fastest up.
type alphaBand struct{ low, high float64 }

// Plot implements plot.Plotter.
func (b alphaBand) Plot(c draw.Canvas, p *plot.Plot) {
	_, y := p.Transforms(&c)
	fill(c, y(b.low), y(b.high))
}

// Thumbnail implements plot.Thumbnailer, for the legend.
func (alphaBand) Thumbnail(c *draw.Canvas) { fill(*c, c.Min.Y, c.Max.Y) }

func fill(c draw.Canvas, low, high vg.Length) {
	c.FillPolygon(band, []vg.Point{{X: c.Min.X, Y: low}, {X: c.Max.X, Y: low}, {X: c.Max.X, Y: high}, {X: c.Min.X, Y: high}})
}
