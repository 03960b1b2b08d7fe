// Recipes are the loading parts of training programs, each in its own file; docs/recipes.md says which is
// for what. They contain or make their data, run in a second, and print what a training step would get.
//
//	go run ./examples/recipes            # all
//	go run ./examples/recipes pretrain   # one
package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
)

var recipes = map[string]func(ctx context.Context, dir string, out io.Writer) error{
	"pretrain":     pretrain,
	"pictures":     pictures,
	"metric":       metric,
	"forecasting":  forecasting,
	"audio":        audio,
	"text":         text,
	"detection":    detection,
	"segmentation": segmentation,
	"shapes":       shapes,
	"jsonl":        jsonLines,
	"tfrecord":     tfRecordFiles,
	"tokens":       tokenFile,
	"checkpoint":   checkpoints,
	"replay":       replays,
	"negatives":    negatives,
	"tokenise":     packTexts,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "recipes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string, out io.Writer) error {
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(recipes))
	}
	for _, name := range names {
		recipe, ok := recipes[name]
		if !ok {
			return fmt.Errorf("%q: must be one of %q", name, slices.Sorted(maps.Keys(recipes)))
		}
		dir, err := os.MkdirTemp("", "recipe-")
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s:\n", name)
		err = recipe(ctx, dir, out)
		os.RemoveAll(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
