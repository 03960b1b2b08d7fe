package main

import (
	"fmt"
	"strings"
)

func title(peer string) string {
	names := map[string]string{
		"torch": "PyTorch", "threads": "tuned threads", "tfdata": "tf.data", "grain": "Grain", "spdl": "SPDL", "dali": "DALI", "webdataset": "WebDataset", "litdata": "LitData", "client": "**nwt** from Python",
		"hand": "hand-written", "gomlx": "GoMLX", "bound": "the bound",
	}
	if name, ok := names[peer]; ok {
		return name
	}
	return peer
}

func rate(perSecond float64) string {
	if perSecond < 100 {
		return fmt.Sprintf("%.3g", perSecond)
	}
	digits := fmt.Sprintf("%.0f", perSecond)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteRune(' ') // a space that doesn't break
		}
		b.WriteRune(d)
	}
	return b.String()
}

func megabytes(bytes float64) string {
	if bytes < 9.95e6 {
		return fmt.Sprintf("%.1f MB", bytes/1e6)
	}
	return fmt.Sprintf("%.0f MB", bytes/1e6)
}

func short(seconds float64) string {
	switch {
	case seconds < 1e-3:
		return fmt.Sprintf("%.0f µs", seconds*1e6)
	case seconds < 1:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	}
	return fmt.Sprintf("%.3g s", seconds)
}
