package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/checkpoint"
)

// Saving a checkpoint: model, state and the place in the log stand in one file, which is replaced in one
// step (examples/internal/checkpoint). So whenever the program is killed, even by a power cut, they belong
// together.

// A trained is all that training needs to continue. Log is how long the log was: lines that were written
// after the checkpoint are cut off, because their steps come again.
type trained struct {
	Weight float64
	State  nwt.State
	Log    int64
}

// trainFrom trains from the latest checkpoint on, and saves one every few steps. Steps is after how many it
// stops, as if it were killed.
func trainFrom(ctx context.Context, dir string, ds nwt.Dataset, value nwt.Column[float32], every, steps int) (err error) {
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(8), nwt.WithShuffle(42))
	if err != nil {
		return err
	}
	defer loader.Close()
	log, err := os.OpenFile(filepath.Join(dir, "log.jsonl"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	path := filepath.Join(dir, "checkpoint.json")
	var at trained
	if _, err := checkpoint.Restore(path, &at); err != nil {
		return err
	}
	if _, err := log.Seek(at.Log, io.SeekStart); err != nil {
		return err
	}
	if err := log.Truncate(at.Log); err != nil {
		return err
	}
	step := 0
	for batch, err := range loader.ResumeEpochs(ctx, at.State, 2) {
		if err != nil {
			return err
		}
		for _, x := range value.Of(batch) {
			at.Weight += 0.01 * (float64(x) - at.Weight) // a model with one weight
		}
		at.State = batch.State()
		n, err := fmt.Fprintf(log, "{\"epoch\":%d,\"batch\":%d,\"weight\":%.6f}\n", batch.Epoch(), batch.Number(), at.Weight)
		if err != nil {
			return err
		}
		at.Log += int64(n)
		if step++; step%every == 0 || batch.Last() {
			if err := errors.Join(log.Sync(), checkpoint.Save(path, at)); err != nil {
				return err
			}
		}
		if step == steps {
			return nil
		}
	}
	return nil
}

func checkpoints(ctx context.Context, dir string, out io.Writer) error {
	var schema nwt.Schema
	value := nwt.AddField[float32](&schema, "value")
	ds := nwt.NewDataset(100, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		value.Set(dst, float32(i))
		return nil
	})
	for _, steps := range []int{11, -1} { // killed after 11 steps, 3 after the latest checkpoint
		if err := trainFrom(ctx, dir, ds, value, 4, steps); err != nil {
			return err
		}
		var at trained
		if _, err := checkpoint.Restore(filepath.Join(dir, "checkpoint.json"), &at); err != nil {
			return err
		}
		fmt.Fprintf(out, "  saved: epoch %d, %d samples, weight %.3f, %d bytes of the log\n", at.State.Epoch, at.State.Samples, at.Weight, at.Log)
	}
	return nil
}
