package plot_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/contrib/plot"
)

// What training waited for, as a picture. The store is four times as slow in the second
// and third of four phases. In the third the loader has four times the workers.
func ExampleSaveWaits() {
	dir, phase := os.Getenv("PICTURES"), 3*time.Second
	if dir == "" {
		phase = 50 * time.Millisecond
		var err error
		if dir, err = os.MkdirTemp("", ""); err != nil {
			log.Fatal(err)
		}
		defer os.RemoveAll(dir)
	}
	moments, err := train(phase)
	if err != nil {
		log.Fatal(err)
	}
	err = plot.SaveWaits(moments, filepath.Join(dir, "waits.svg"))
	fmt.Println("written:", err == nil)
	// Output: written: true
}

func train(phase time.Duration) ([]plot.Moment, error) {
	start := time.Now()
	now := func() time.Duration { return time.Since(start) / phase }
	fields := []nwt.Field{{Name: "x", Type: nwt.Float32}}
	store := nwt.NewDataset(1<<20, fields, func(context.Context, int, *nwt.Sample) error {
		wait := 2 * time.Millisecond
		if p := now(); p == 1 || p == 2 {
			wait *= 4
		}
		time.Sleep(wait)
		return nil
	})
	loader, err := nwt.NewLoader(store, nwt.WithBatchSize(32), nwt.WithWorkers(8))
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	moments := []plot.Moment{{At: start, Stats: loader.Stats()}}
	for _, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			return nil, err
		}
		time.Sleep(12 * time.Millisecond) // the step
		if last := moments[len(moments)-1]; time.Since(last.At) > phase/20 {
			moments = append(moments, plot.Moment{At: time.Now(), Stats: loader.Stats()})
		}
		switch now() {
		case 0, 1, 3:
		case 2:
			if err := loader.SetWorkers(32); err != nil {
				return nil, err
			}
		default:
			return moments, nil
		}
	}
	return moments, nil
}
