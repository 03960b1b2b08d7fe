package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"text/template"
)

// A bar is a loader's photographs per second.
type bar struct {
	Name, Rate      string
	Ours            bool
	Top, Width, End int
}

// chartTemplate has a background of its own, so the chart is legible on light pages and on dark ones,
// even where the page and the reader's system differ.
var chartTemplate = template.Must(template.New("chart").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {{.Height}}" width="720" height="{{.Height}}" role="img">
<title>Photographs per second:{{range $i, $b := .Bars}}{{if $i}},{{end}} {{.Name}} {{.Rate}}{{end}}</title>
<style>
text { font: 15px -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: #1f2328 }
.small { font-size: 12px; fill: #59636e }
.card { fill: #fff }
rect.peer { fill: #afb8c1 }
rect.nwt { fill: #0072b2 }
text.nwt { font-weight: bold }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.small { fill: #9198a1 }
.card { fill: #0d1117 }
rect.peer { fill: #57606a }
rect.nwt { fill: #56b4e9 }
}
</style>
<rect class="card" width="720" height="{{.Height}}" rx="8"/>
<text x="20" y="32">Photographs per second (more is better)</text>
{{range .Bars}}{{$class := "peer"}}{{if .Ours}}{{$class = "nwt"}}{{end}}<g transform="translate(0 {{.Top}})"><text class="{{$class}}" x="132" y="16" text-anchor="end">{{.Name}}</text><rect class="{{$class}}" x="142" width="{{.Width}}" height="22" rx="3"/><text class="{{$class}}" x="{{.End}}" y="16">{{.Rate}}</text></g>
{{end}}<g transform="translate(20 {{.Below}})"><text class="small">{{.Work}}</text><text class="small" y="18">{{.Machine | html}}</text></g>
</svg>
`))

// chart draws photographs per second: a bar for each loader, with its best variant and worker count.
// Samples that were precomputed are left out: what they cost was paid before.
func (r *run) chart(path string) error {
	figs := where(bestOfEach(where(figures(r.Measurements), workload("photos"))), func(f figure) bool {
		return f.Peer != "bound" && f.Variant != "precomputed"
	})
	var bars []bar
	names := map[string]bool{}
	for _, f := range figs {
		if name := title(f.Peer); !names[name] {
			names[name] = true
			width := int(460 * f.rate / figs[0].rate)
			ours := f.Peer == "nwt" || f.Peer == "client"
			bars = append(bars, bar{strings.ReplaceAll(name, "*", ""), rate(f.rate * photoBatch), ours, 50 + 30*len(bars), width, 150 + width})
		}
	}
	below := 70 + 30*len(bars)
	var picture bytes.Buffer
	err := chartTemplate.Execute(&picture, map[string]any{
		"Bars": bars, "Below": below, "Height": below + 36,
		"Work":    "JPEG files of 500 × 375 pixels: a random crop, resized to 224 × 224, mirrored, normalized to float32",
		"Machine": fmt.Sprintf("%d CPUs (%s), %s; each loader with its best worker count", r.Machine.GOMAXPROCS, r.Machine.CPU, r.Date),
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, picture.Bytes(), 0o644)
}
