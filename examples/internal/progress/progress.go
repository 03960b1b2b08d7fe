// Package progress shows how far a tuning has come: a bar on a terminal, a
// plain line now and then in a log.
package progress

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/nwt-go/nwt"
)

// Show returns a function for [nwt.WithProgress] that shows the progress on w, and a
// function that must be called before w is used for anything else.
func Show(w io.Writer) (report func(nwt.Progress), done func()) {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return bar(w)
	}
	return lines(w), func() {}
}

func bar(w io.Writer) (report func(nwt.Progress), done func()) {
	const ticks = 1000
	b := progressbar.NewOptions(ticks,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionClearOnFinish(),
	)
	report = func(p nwt.Progress) {
		b.Describe(describe(p))
		_ = b.Set(int(p.Done * ticks)) // its errors are about w, which is for looking only
	}
	return report, func() { _ = b.Finish() }
}

// interval is the time between two lines.
const interval = 5 * time.Second

func lines(w io.Writer) func(nwt.Progress) {
	var last time.Time
	return func(p nwt.Progress) {
		if now := time.Now(); now.Sub(last) >= interval {
			last = now
			fmt.Fprintf(w, "%3.0f%% %s\n", 100*p.Done, describe(p))
		}
	}
}

func describe(p nwt.Progress) string {
	s := fmt.Sprintf("%s, workers: %d", p.Phase, p.Workers)
	if p.Left > 0 {
		s += fmt.Sprintf(", %v left", p.Left.Round(time.Second))
	}
	return s
}
