// Storage measures how many accelerators this host keeps busy: AU by MLPerf Storage's formula,
// not reviewed by MLCommons. An accelerator is a goroutine that sleeps for each batch, with a
// loader of its own, as a rank of them all.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nwt-go/nwt"
)

func main() {
	data := flag.String("data", "", "the folder that files.py made")
	name := flag.String("shape", "retinanet", "retinanet, decoded (its pictures, decoded), resnet50, flux or unet3d")
	system := flag.String("system", "nwt", "nwt or dlio")
	counts := flag.String("accelerators", "", "how many, with commas; default: half of the most, the most, and twice the most that are busy")
	workers := flag.Int("workers", -1, "per accelerator; -1: what Tune finds; for dlio, read_threads")
	steps := flag.Int("steps", 500, "per measurement")
	search := flag.Int("search", 100, "steps per measurement that looks for the most")
	flag.Parse()
	log.SetFlags(0)
	go precise()
	s, ok := shapes[*name]
	if !ok {
		log.Fatalf("-shape %s: no such shape", *name)
	}
	s.folder = filepath.Join(*data, s.folder)
	if err := s.warm(); err != nil {
		log.Fatal(err)
	}
	if *system == "nwt" && *workers < 0 {
		r, err := s.tune()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r)
		*workers = r.Workers
	}
	au := func(n, steps int) float64 {
		run := s.nwt
		if *system == "dlio" {
			run = s.dlio
		}
		au, err := run(n, *workers, steps)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s, %d workers each, %d steps: %3d accelerators: AU %.1f %%, %.0f samples/s\n",
			*system, *name, *workers, steps, n, 100*au, float64(n*s.batch)*au/s.step.Seconds())
		return au
	}
	var all []int
	for field := range strings.SplitSeq(*counts, ",") {
		if n, err := strconv.Atoi(field); err == nil {
			all = append(all, n)
		}
	}
	if *counts == "" {
		most := mostBusy(func(n int) bool { return au(n, *search) >= s.busy })
		all = []int{max(1, most/2), max(1, most), 2 * max(1, most)}
	}
	for _, n := range all {
		au(n, *steps)
	}
}

// warm reads all files, so that they are in the page cache.
func (s shape) warm() error {
	files, err := s.files()
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, file); err != nil {
			return err
		}
		file.Close()
	}
	return err
}

// mostBusy returns the highest count that is busy, if all below are.
func mostBusy(busy func(n int) bool) int {
	most, tooMany := 0, 1
	for busy(tooMany) {
		most, tooMany = tooMany, 2*tooMany
	}
	for tooMany-most > 1 {
		if n := (most + tooMany) / 2; busy(n) {
			most = n
		} else {
			tooMany = n
		}
	}
	return most
}

// tune finds the workers for one accelerator.
func (s shape) tune() (*nwt.Result, error) {
	ds, err := s.open(s, 1, 500)
	if err != nil {
		return nil, err
	}
	return nwt.Tune(context.Background(), ds, append(s.options, nwt.WithBatchSize(s.batch), nwt.WithStep(func(context.Context, *nwt.Batch) error {
		time.Sleep(s.step)
		return nil
	}))...)
}

// nwt returns the mean AU of n accelerators, which wait for each other after each step.
func (s shape) nwt(n, workers, steps int) (float64, error) {
	ds, err := s.open(s, n, steps)
	if err != nil {
		return 0, err
	}
	gate, aus := barrier{n: n, open: make(chan struct{})}, make(chan float64, n)
	for rank := range n {
		go func() {
			au, err := s.accelerator(ds, rank, n, workers, steps, gate.wait)
			if err != nil {
				log.Fatal(err) // the others would wait
			}
			aus <- au
		}()
	}
	sum := 0.0
	for range n {
		sum += <-aus
	}
	return sum / float64(n), nil
}

// accelerator returns compute time / running time after the first step, as DLIO's
// StatsCounter.compute_metrics_train.
func (s shape) accelerator(ds nwt.Dataset, rank, n, workers, steps int, wait func()) (float64, error) {
	l, err := nwt.NewLoader(ds, slices.Concat(s.options, []nwt.Option{nwt.WithBatchSize(s.batch), nwt.WithWorkers(workers), nwt.WithRank(rank, n)})...)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	var first time.Time
	k := 0
	for _, err := range l.Epoch(context.Background(), 0) {
		if err != nil {
			return 0, err
		}
		time.Sleep(s.step)
		if k == 0 {
			first = time.Now()
		}
		wait()
		if k++; k == steps {
			break
		}
	}
	if k < steps {
		return 0, fmt.Errorf("an epoch has only %d steps", k)
	}
	return (s.step * time.Duration(steps-1)).Seconds() / time.Since(first).Seconds(), nil
}

// precise keeps time.Sleep from being late by up to a millisecond while nothing runs: the runtime
// waits for whole milliseconds then.
func precise() {
	for {
		t := syscall.NsecToTimespec(100_000)
		syscall.Nanosleep(&t, nil)
		runtime.Gosched()
	}
}

// A barrier lets n goroutines wait for each other, any number of times.
type barrier struct {
	n int

	mu      sync.Mutex
	waiting int           // guarded by mu
	open    chan struct{} // guarded by mu; closed when all wait
}

func (b *barrier) wait() {
	b.mu.Lock()
	open := b.open
	if b.waiting++; b.waiting == b.n {
		b.waiting, b.open = 0, make(chan struct{})
		close(open)
	}
	b.mu.Unlock()
	<-open
}
