package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// formats prints how many images a second package vision makes of each folder of peers/formats, on one
// thread: a random part of 224 × 224 bytes.
func formats(seconds float64) {
	runtime.GOMAXPROCS(1)
	folders, err := filepath.Glob(filepath.Join("peers", "formats", "*"))
	if err != nil || len(folders) == 0 {
		log.Fatalf("no files: peers/formats.py makes them (%v)", err)
	}
	p, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(photoSide)}, vision.RandomHorizontalFlip{P: 0.5}}, vision.WithType(nwt.Uint8))
	if err != nil {
		log.Fatal(err)
	}
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*"))
		if err != nil || len(files) == 0 {
			log.Fatalf("%s: no files (%v)", folder, err)
		}
		ds := nwt.NewDataset(len(files), []nwt.Field{p.Field("image")}, func(_ context.Context, i int, dst *nwt.Sample) error {
			data, err := os.ReadFile(files[i])
			if err != nil {
				return err
			}
			return p.Load(dst, 0, data)
		})
		l, err := nwt.NewLoader(ds, nwt.WithBatchSize(1), nwt.WithWorkers(0))
		if err != nil {
			log.Fatal(err)
		}
		images, began := 0, time.Now()
		for epoch := 0; time.Since(began).Seconds() < seconds; epoch++ {
			for _, err := range l.Epoch(context.Background(), epoch) {
				if err != nil {
					log.Fatal(err)
				}
				if images++; time.Since(began).Seconds() >= seconds {
					break
				}
			}
		}
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"peer": "nwt", "format": filepath.Base(folder), "images_per_s": float64(images) / time.Since(began).Seconds()})
		if err := l.Close(); err != nil {
			log.Fatal(err)
		}
	}
}
