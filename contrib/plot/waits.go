package plot

import (
	"errors"
	"fmt"
	"image/color"
	"time"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/nwt-go/nwt"
)

// A Moment is a snapshot of a loader's Stats at a time.
type Moment struct {
	At time.Time
	nwt.Stats
}

// SaveWaits writes a picture of a training run to path, in a format that [Save] knows. The moments are
// snapshots of one loader, in order of time; take them between two batches, at any intervals. The upper
// panel shows the mean time per batch between two moments, divided into the part in which training
// waited for data and the rest. The lower panel shows the number of workers, and the prefetch: how many
// batches may be loaded ahead of the one in use. A moment is left out if no batch came since the moment
// before it, so the time after the last batch isn't drawn.
func SaveWaits(moments []Moment, path string) error {
	if len(moments) < 2 {
		return fmt.Errorf("plot: SaveWaits: %d moments: must be at least 2", len(moments))
	}
	var spans []span
	longest, from := time.Duration(0), moments[0]
	for i, m := range moments[1:] {
		last := moments[i]
		if !m.At.After(last.At) || m.Batches < last.Batches || m.Wait < last.Wait {
			return fmt.Errorf("plot: SaveWaits: moments[%d] (%v, batch %d) must be after moments[%d] (%v, batch %d), of the same loader",
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
		return errors.New("plot: SaveWaits: no batch was delivered between the first moment and the last: take moments while training runs")
	}
	return write(path, []panel{batchPanel(spans, longest), aheadPanel(spans)})
}

// A span is the time between two moments.
type span struct {
	from, to    Moment
	batch, wait time.Duration // mean per batch
}

// stairs returns the values of spans over the time since the first moment.
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

func batchPanel(spans []span, longest time.Duration) panel {
	scale := scaleOf(longest)
	p := overTime(spans, "time per batch ("+scale.unit+")")
	var all, waited time.Duration
	for _, s := range spans {
		n := time.Duration(s.to.Batches - s.from.Batches)
		all, waited = all+n*s.batch, waited+n*s.wait
	}
	p.Title.Text = fmt.Sprintf("training waited for data %s of the time", share(waited.Seconds()/all.Seconds()))
	area := func(name string, c color.Color, value func(span) time.Duration) {
		line := stairs(spans, func(s span) float64 { return float64(value(s)) / scale.size })
		line = append(line, plotter.XY{X: line[len(line)-1].X}, plotter.XY{X: line[0].X})
		polygon := must(plotter.NewPolygon(line))
		polygon.Color, polygon.LineStyle.Width = c, 0
		p.Add(polygon)
		p.legend.Add(name, polygon)
	}
	area("waiting for data", choice, func(s span) time.Duration { return s.batch })
	area("step, and all else", ink, func(s span) time.Duration { return s.batch - s.wait })
	p.Y.Max *= 1.05
	return p
}

func aheadPanel(spans []span) panel {
	p := overTime(spans, "batches, workers")
	line := func(name string, c color.Color, dashes []vg.Length, value func(span) float64) {
		l := must(plotter.NewLine(stairs(spans, value)))
		l.Color, l.Width, l.Dashes = c, vg.Points(2), dashes
		p.Add(l)
		p.legend.Add(name, l)
	}
	line("batches ahead, at most", choice, []vg.Length{vg.Points(5), vg.Points(3)}, func(s span) float64 { return float64(s.to.Prefetch) })
	line("workers", ink, nil, func(s span) float64 { return float64(s.to.Workers) })
	p.Y.Max = max(1, 1.1*p.Y.Max)
	return p
}

func overTime(spans []span, label string) panel {
	unit, _ := clock(spans)
	p := newPanel()
	p.X.Label.Text, p.Y.Label.Text = "time since the first moment ("+unit+")", label
	p.X.Padding = 0 // time and the axes begin at 0
	return p
}
