package plot

import (
	"errors"
	"fmt"
	"image/color"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/human"
)

// A Moment is what a loader had done by then.
type Moment struct {
	At time.Time
	nwt.Stats
}

// SaveWaits writes a picture of a training run to path, in a format as for [Save]. The
// moments are of one loader, in the order of time; take them between two batches, at
// any intervals. The upper panel shows the mean time per batch between two moments: the
// part in which training waited for data, and all else. The lower one shows the workers
// and how many batches could be ahead of the one in use. Moments between which no batch
// was delivered are drawn as one; what comes after the last batch is left out.
func SaveWaits(moments []Moment, path string) error {
	if len(moments) < 2 {
		return fmt.Errorf("plot: %d moments are too few: two are needed", len(moments))
	}
	var spans []span
	longest, from := time.Duration(0), moments[0]
	for i, m := range moments[1:] {
		last := moments[i]
		if !m.At.After(last.At) || m.Batches < last.Batches || m.Wait < last.Wait {
			return fmt.Errorf("plot: moment %d (%v, batch %d) is not after moment %d (%v, batch %d) of one loader",
				i+1, m.At.Format(time.TimeOnly), m.Batches, i, last.At.Format(time.TimeOnly), last.Batches)
		}
		n := time.Duration(m.Batches - from.Batches)
		if n == 0 {
			continue
		}
		took := m.At.Sub(from.At)
		s := span{from: from, to: m, batch: took / n, wait: min(m.Wait-from.Wait, took) / n}
		spans, longest, from = append(spans, s), max(longest, s.batch), m
	}
	if len(spans) == 0 {
		return errors.New("plot: no batch was delivered between the first moment and the last")
	}
	return write(path, [][]*plot.Plot{{batchPanel(spans, longest)}, {aheadPanel(spans)}})
}

// A span is the time between two moments.
type span struct {
	from, to    Moment
	batch, wait time.Duration // per batch
}

// stairs are the values of spans against the time since the first.
func stairs(spans []span, value func(span) float64) (line plotter.XYs) {
	_, size := clock(spans)
	for _, s := range spans {
		for _, m := range []Moment{s.from, s.to} {
			line = append(line, plotter.XY{X: float64(m.At.Sub(spans[0].from.At)) / size, Y: value(s)})
		}
	}
	return line
}

// clock returns the unit of the time axis.
func clock(spans []span) (string, float64) {
	switch all := spans[len(spans)-1].to.At.Sub(spans[0].from.At); {
	case all >= 10*time.Hour:
		return "h", float64(time.Hour)
	case all >= 10*time.Minute:
		return "min", float64(time.Minute)
	}
	return "s", float64(time.Second)
}

func batchPanel(spans []span, longest time.Duration) *plot.Plot {
	scale := human.ScaleOf(longest)
	p := overTime("time per batch (" + scale.Unit + ")")
	area := func(name string, c color.Color, value func(span) time.Duration) {
		line := stairs(spans, func(s span) float64 { return float64(value(s)) / scale.Size })
		line = append(line, plotter.XY{X: line[len(line)-1].X}, plotter.XY{X: line[0].X})
		polygon, err := plotter.NewPolygon(line)
		if err != nil {
			panic(err) // the figures of Stats are finite
		}
		polygon.Color, polygon.LineStyle.Width = c, 0
		p.Add(polygon)
		p.Legend.Add(name, polygon)
	}
	area("waiting", choice, func(s span) time.Duration { return s.batch })
	area("step", ink, func(s span) time.Duration { return s.batch - s.wait })
	p.Y.Max *= 1.2 // room for the legend
	return p
}

func aheadPanel(spans []span) *plot.Plot {
	unit, _ := clock(spans)
	p := overTime("batches, workers")
	p.X.Label.Text = "time (" + unit + ")"
	line := func(name string, c color.Color, value func(span) float64) {
		l, err := plotter.NewLine(stairs(spans, value))
		if err != nil {
			panic(err)
		}
		l.Color, l.Width = c, vg.Points(1.5)
		p.Add(l)
		p.Legend.Add(name, l)
	}
	line("may be ahead", best, func(s span) float64 { return float64(s.to.Prefetch) })
	line("workers", ink, func(s span) float64 { return float64(s.to.Workers) })
	p.Y.Max *= 1.2
	return p
}

func overTime(label string) *plot.Plot {
	p := plot.New()
	p.Y.Label.Text = label
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, vg.Millimeter
	p.Add(grid())
	return p
}
