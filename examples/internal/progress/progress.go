// Package progress shows how far tuning has come: as a bar on a terminal, or as a plain line from time to
// time in a log.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nwt-go/nwt"
)

// Show returns a function for [nwt.WithProgress] that shows the progress on w, and a
// function that must be called before w is used for anything else.
func Show(w io.Writer) (report func(nwt.Progress), done func()) {
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return bar(w)
		}
	}
	return lines(w), func() {}
}

const width = 30 // of the bar

func bar(w io.Writer) (report func(nwt.Progress), done func()) {
	var drawn time.Time
	long := 0 // the longest line so far
	report = func(p nwt.Progress) {
		if time.Since(drawn) < 100*time.Millisecond {
			return
		}
		full := int(p.Done * width)
		line := fmt.Sprintf("%3.0f%% |%s%s| %s", 100*p.Done, strings.Repeat("█", full), strings.Repeat(" ", width-full), describe(p))
		long = max(long, utf8.RuneCountInString(line))
		fmt.Fprintf(w, "\r%s%s", line, strings.Repeat(" ", long-utf8.RuneCountInString(line)))
		drawn = time.Now()
	}
	return report, func() { fmt.Fprintf(w, "\r%s\r", strings.Repeat(" ", long)) }
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
