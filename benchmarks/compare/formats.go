package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

var formatMarks = marks{"<!-- formats: written by benchmarks/compare -formats -->", "<!-- end of formats -->"}

// formatPeers are in the order in which they take turns.
var formatPeers = []string{"nwt", "torchvision", "pillow"}

var formatNames = []string{"JPEG, baseline", "JPEG, progressive", "JPEG of 12 MP", "PNG", "WebP, lossy", "WebP, lossless"}

// formats measures nwt, torchvision and Pillow on one thread in turn, and writes a table of their medians.
func (o *options) formats(ctx context.Context, document string) error {
	if _, err := os.Stat(filepath.Join("peers", "formats")); err != nil {
		log.Print("peers/formats.py makes files of all formats")
		if _, err := lines[struct{}](ctx, o.python, filepath.Join("peers", "formats.py"), "make"); err != nil {
			return err
		}
	}
	type rate struct {
		Peer    string  `json:"peer"`
		Format  string  `json:"format"`
		ImagesS float64 `json:"images_per_s"`
	}
	rates := map[[2]string][]float64{}
	for range o.rounds {
		for _, peer := range formatPeers {
			program, args := o.python, []string{filepath.Join("peers", "formats.py"), peer, "--seconds", fmt.Sprint(o.seconds)}
			if peer == "nwt" {
				program, args = o.binary, []string{"-formats", "-seconds", fmt.Sprint(o.seconds)}
			}
			found, err := lines[rate](ctx, program, args...)
			if err != nil {
				return err
			}
			for _, r := range found {
				k := [2]string{r.Peer, r.Format}
				rates[k] = append(rates[k], r.ImagesS)
			}
		}
	}
	of := func(peer, format string) float64 {
		all := slices.Sorted(slices.Values(rates[[2]string{peer, format}]))
		if len(all) == 0 {
			return 0
		}
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	hardware, _, err := (&options{binary: o.binary, group: tensors}).tune(ctx, &run{}, nil) // which only asks for it
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on one thread (%s), %s; %v s per measurement, medians of %d rounds, in images per second.\n\n",
		hardware.CPU, system(), o.seconds, o.rounds)
	b.WriteString("| | nwt | torchvision | Pillow | nwt ÷ torchvision |\n| --- | ---: | ---: | ---: | ---: |\n")
	for _, name := range formatNames {
		ours, theirs := of("nwt", name), of("torchvision", name)
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.0f | %.2f |\n", name, ours, theirs, of("pillow", name), ours/theirs)
	}
	fmt.Print(b.String())
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	replaced, err := formatMarks.replace(string(text), b.String())
	if err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	return os.WriteFile(document, []byte(replaced), 0o644)
}
