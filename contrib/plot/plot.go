// Package plot draws a result of nwt's tuning.
//
// It is a separate module, so programs that only tune and train don't depend on a plotting library.
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
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/nwt-go/nwt"
)

const (
	width  = 22 * vg.Centimeter // including the legend's column
	height = 8 * vg.Centimeter  // of a panel
	gap    = 4 * vg.Millimeter

	tallest = 4 // times the fastest count's time: a line that goes higher is cut
)

// Okabe and Ito's colors, which color-blind people can tell apart.
var (
	ink    = color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}
	choice = color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}
	best   = color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff}
	band   = color.RGBA{R: 0xc8, G: 0xe8, B: 0xdc, A: 0xff}
)

// Save writes a picture of r to path. The extension selects the format: png, svg, pdf, jpg, tif, eps or
// tex.
//
// The upper panel shows the time of Result.Iterations batches for each worker count, with 95 % intervals. Its
// time axis goes from 0 to at most four times the time of the fastest count. A band shows the times that are
// at most Result.Alpha above the fastest time. If tuning had a step, a line shows Result.Floor. The lower
// panel shows the peak memory, if it was measured. The chosen count and the fastest count are marked.
func Save(r *nwt.Result, path string) error {
	if r == nil || len(r.Trials) == 0 {
		return errors.New("plot: Save: the result is nil or has no trials: Loader.Result returns nil until tuning has ended")
	}
	panels := []panel{timePanel(r)}
	if slices.ContainsFunc(r.Trials, func(t nwt.Trial) bool { return t.PeakRSS > 0 }) {
		panels = append(panels, memoryPanel(r))
	}
	return write(path, panels)
}

// A panel is a plot whose legend stands beside it.
type panel struct {
	*plot.Plot
	legend *plot.Legend
}

func newPanel() panel {
	legend := plot.NewLegend()
	p := panel{plot.New(), &legend}
	p.legend.Top, p.legend.Left, p.legend.Padding = true, true, 2*vg.Millimeter
	p.legend.TextStyle.Font.Size = 10
	p.Title.Padding, p.Y.Min, p.Y.Padding = 3*vg.Millimeter, 0, 0
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color = color.Gray{0xe0}
	p.Add(grid)
	return p
}

// write draws panels one below the other, and each legend at the right of its panel.
func write(path string, panels []panel) error {
	format := strings.ToLower(strings.TrimPrefix(filepath.Ext(path), "."))
	if !slices.Contains([]string{"eps", "jpeg", "jpg", "pdf", "png", "svg", "tex", "tif", "tiff"}, format) {
		return fmt.Errorf("plot: %q: the extension must be one of png, svg, pdf, jpg, tif, eps, tex", path)
	}
	c, err := newCanvas(height*vg.Length(len(panels)), format)
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	all, side, rows := draw.New(c), vg.Length(0), [][]*plot.Plot{}
	for _, p := range panels {
		words := p.legend.Rectangle(all)
		side = max(side, words.Max.X-words.Min.X)
		rows = append(rows, []*plot.Plot{p.Plot})
	}
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: gap, PadTop: gap, PadBottom: gap, PadLeft: gap, PadRight: gap}
	for i, row := range plot.Align(rows, tiles, draw.Crop(all, 0, -side-gap, 0, 0)) {
		panels[i].Draw(row[0])
		data := panels[i].DataCanvas(row[0])
		data.Min.X, data.Max.X = row[0].Max.X+gap, all.Max.X
		panels[i].legend.Draw(data)
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

// newCanvas returns a canvas that needs no font in the viewer: a browser takes the one in an SVG.
func newCanvas(height vg.Length, format string) (vg.CanvasWriterTo, error) {
	if format == "svg" {
		return vgsvg.NewWith(vgsvg.UseWH(width, height), vgsvg.EmbedFonts(true)), nil
	}
	return draw.NewFormattedCanvas(width, height, format)
}

// points are the trials as a line with intervals.
type points struct {
	plotter.XYs
	plotter.YErrors
}

func timePanel(r *nwt.Result) panel {
	line := points{}
	quickest, slowest := math.Inf(1), 0.0
	for _, t := range r.Trials {
		quickest, slowest = min(quickest, float64(max(t.Total, 1))), max(slowest, float64(t.Total))
	}
	scale := scaleOf(time.Duration(quickest))
	size, top := scale.size, min(1.1*slowest, tallest*quickest)
	var above []string
	for _, t := range r.Trials {
		n := float64(r.Iterations) / size
		line.XYs = append(line.XYs, plotter.XY{X: float64(t.Workers), Y: float64(max(t.Total, 1)) / size})
		interval := struct{ Low, High float64 }{}
		if 0 < t.Low && t.Low <= t.Mean && t.Mean <= t.High {
			interval.Low, interval.High = float64(t.Mean-t.Low)*n, float64(t.High-t.Mean)*n
		}
		line.YErrors = append(line.YErrors, interval)
		if float64(t.Total) > top {
			above = append(above, strconv.Itoa(t.Workers))
		}
	}
	p := overWorkers(r)
	p.Title.Text = title(r)
	p.Y.Label.Text = fmt.Sprintf("time of %d batches (%s)", r.Iterations, scale.unit)
	from := line.XYs[at(r, r.Fastest)].Y
	ignored := alphaBand{from, from + float64(r.Alpha)/size}
	p.Add(ignored)
	decorate(p, r, line)
	p.legend.Add("ignored (alpha)", ignored)
	if r.Floor > 0 {
		y := float64(r.Floor) * float64(r.Iterations) / size
		floor := must(plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: y}, {X: p.X.Max, Y: y}}))
		floor.Color, floor.Dashes = color.Gray{0x40}, []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(floor)
		p.legend.Add("floor: no waiting", floor)
	}
	if len(above) > 0 {
		p.legend.Add("off the top: " + strings.Join(above, ", "))
	}
	p.Y.Max = max(top, 1) / size
	return p
}

func memoryPanel(r *nwt.Result) panel {
	line := points{}
	least, most := int64(math.MaxInt64), int64(0)
	for _, t := range r.Trials {
		least, most = min(least, t.PeakRSS), max(most, t.PeakRSS)
	}
	scale := scaleOfBytes(uint64(least))
	for _, t := range r.Trials {
		line.XYs = append(line.XYs, plotter.XY{X: float64(t.Workers), Y: float64(t.PeakRSS) / scale.size})
	}
	p := overWorkers(r)
	p.Y.Label.Text = fmt.Sprintf("peak memory (%s)", scale.unit)
	decorate(p, r, line)
	p.Y.Max = 1.1 * float64(most) / scale.size
	return p
}

func overWorkers(r *nwt.Result) panel {
	p := newPanel()
	p.X.Label.Text = "workers"
	p.X.Tick.Marker = counts(r)
	first, last := r.Trials[0].Workers, r.Trials[len(r.Trials)-1].Workers
	p.X.Min, p.X.Max, p.X.Scale = float64(first), float64(max(first+1, last)), doublings{}
	return p
}

// decorate draws the line, its intervals and the marks.
func decorate(p panel, r *nwt.Result, line points) {
	l := must(plotter.NewLine(line.XYs))
	dots := must(plotter.NewScatter(line.XYs))
	l.Color, dots.Color = ink, ink
	dots.Shape, dots.Radius = draw.CircleGlyph{}, vg.Points(2.5)
	p.Add(l)
	if len(line.YErrors) > 0 {
		bars := must(plotter.NewYErrorBars(line))
		bars.Color = ink
		p.Add(bars)
	}
	p.Add(dots)
	mark := func(word string, workers int, c color.Color, shape draw.GlyphDrawer) {
		dot := must(plotter.NewScatter(line.XYs[at(r, workers):][:1]))
		dot.Color, dot.Shape, dot.Radius = c, shape, vg.Points(4.5)
		p.Add(dot)
		p.legend.Add(fmt.Sprintf("%s (%d)", word, workers), dot)
	}
	if r.Fastest == r.Workers {
		mark("chosen, fastest", r.Workers, choice, draw.CircleGlyph{})
	} else {
		mark("chosen", r.Workers, choice, draw.CircleGlyph{})
		mark("fastest", r.Fastest, best, draw.BoxGlyph{})
	}
	p.legend.Add("measured", l, dots)
}

// must returns a plotter. A plotter refuses only infinite figures, and a Result has none.
func must[T any](p T, err error) T {
	if err != nil {
		panic(err)
	}
	return p
}

// at returns the index of a worker count's trial.
func at(r *nwt.Result, workers int) int {
	return max(0, slices.IndexFunc(r.Trials, func(t nwt.Trial) bool { return t.Workers == workers }))
}

// title returns the choice and its reason, in lines as wide as a panel, and what was measured.
func title(r *nwt.Result) string {
	const line = 80 // letters
	var b strings.Builder
	length := 0
	for word := range strings.FieldsSeq(r.Reason) {
		if length += 1 + len(word); length > line {
			b.WriteByte('\n')
			length = len(word)
		} else if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(word)
	}
	fmt.Fprintf(&b, "\n%s search, batches of %d to %s\n%s", r.Strategy, r.BatchSize, r.Device, r.Hardware)
	return strings.TrimPrefix(b.String(), "\n")
}

// counts makes ticks at the worker counts measured. It labels as many as there is room for, the chosen
// and the fastest count first.
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

// doublings is an axis that has a place for 0 and on which, further out, each doubling takes the same
// room, because a search also goes through worker counts by doubling.
type doublings struct{}

func (doublings) Normalize(low, high, x float64) float64 {
	return math.Log((1+x)/(1+low)) / math.Log((1+high)/(1+low))
}

// alphaBand is the band of times that the choice ignores: from the fastest count's time upwards.
type alphaBand struct{ low, high float64 }

// Plot implements plot.Plotter.
func (b alphaBand) Plot(c draw.Canvas, p *plot.Plot) {
	_, y := p.Transforms(&c)
	fill(c, y(b.low), min(y(b.high), c.Max.Y))
}

// Thumbnail implements plot.Thumbnailer, for the legend.
func (alphaBand) Thumbnail(c *draw.Canvas) { fill(*c, c.Min.Y, c.Max.Y) }

func fill(c draw.Canvas, low, high vg.Length) {
	c.FillPolygon(band, []vg.Point{{X: c.Min.X, Y: low}, {X: c.Max.X, Y: low}, {X: c.Max.X, Y: high}, {X: c.Min.X, Y: high}})
}
