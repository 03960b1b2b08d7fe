// Command measure measures one Go loader on one workload, once, and prints one
// JSON object of the form that peers/run.py prints:
//
//	measure -peer nwt -workload augment -workers 2
//	measure -list
//	measure -tune -workload augment
//
// In steady state, after the first batch and a warm-up, it counts batches a
// second and allocations a batch; memory is sampled afterwards, while no time is
// taken. A bound isn't a loader, and has batches a second alone.
package main

import (
	"encoding/json"
	"flag"
	"iter"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nwt-go/nwt"
)

// A combination is something to measure.
type combination struct {
	Peer     string `json:"peer"`
	Workload string `json:"workload"`
	Variant  string `json:"variant"`
	Workers  int    `json:"workers"`
}

type measurement struct {
	combination
	Version        string  `json:"version"`
	BatchesPerS    float64 `json:"batches_per_s"`
	FirstBatchS    float64 `json:"first_batch_s,omitempty"`
	PeakBytes      int64   `json:"peak_bytes,omitempty"`
	DatasetBytes   int64   `json:"dataset_bytes,omitempty"`
	AllocsPerBatch float64 `json:"allocs_per_batch"`
	CPUPerSampleS  float64 `json:"cpu_s_per_sample,omitempty"`
	Difference     float64 `json:"difference,omitempty"` // to Pillow's crops
}

// A tuning is what nwt.Tune has found.
type tuning struct {
	Workload string  `json:"workload"`
	Variant  string  `json:"variant"`
	Workers  int     `json:"workers"`
	Seconds  float64 `json:"seconds"`
	Reason   string  `json:"reason"`

	Hardware nwt.Hardware `json:"hardware"`
}

var (
	workloads = []string{"augment", "raw", "wait", "empty", "photos", "bytes", "large", "largebytes", "shards", "tail", "pauses"}
	// What is made of JPEG files.
	ofPhotographs = []string{"photos", "bytes", "large", "largebytes", "shards"}

	modules = map[string]string{"rill": "github.com/destel/rill", "gomlx": "github.com/gomlx/gomlx"}
)

// variants returns what peer offers for a workload: a whole batch at a time, a sample
// at a time, or both. nil: not measured.
func variants(peer, workload string) []string {
	switch {
	case peer == "nwt" && workload == "photos":
		return []string{"decoded", "first", "precomputed"}
	case peer == "nwt" && workload == "large":
		return []string{"decoded", "first"}
	case peer == "nwt" && slices.Contains(ofPhotographs, workload):
		return []string{"decoded"}
	case peer == "bound" && workload == "photos":
		return []string{"batch"}
	case slices.Contains(ofPhotographs, workload), peer == "bound" && workload == "empty":
		return nil
	case peer == "nwt" && workload == "tail":
		return []string{"sample", "unordered"}
	case workload == "pauses" && peer != "nwt" && peer != "bound":
		return nil
	case peer == "nwt" && (workload == "raw" || workload == "empty"):
		return []string{"sample", "vectorised"}
	case peer == "nwt":
		return []string{"sample"}
	case peer == "rill" && (workload == "wait" || workload == "tail"):
		return []string{"batch", "sample"}
	}
	return []string{"batch"}
}

func combinations() (all []combination) {
	for _, workload := range workloads {
		for _, peer := range []string{"nwt", "hand", "gomlx", "rill", "bound"} {
			counts := []int{0, 1, 2, 4, 16}
			if workload == "wait" {
				counts = append(counts, 32, 64, 128, 256)
			}
			switch {
			case slices.Contains(ofPhotographs, workload):
				counts = []int{0, 1, 2, 4}
			case workload == "tail", workload == "pauses":
				counts = []int{0, 16}
			}
			if peer == "rill" || peer == "bound" { // nothing without goroutines
				counts = counts[1:]
			}
			for _, variant := range variants(peer, workload) {
				for _, workers := range counts {
					all = append(all, combination{peer, workload, variant, workers})
				}
			}
		}
	}
	return all
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("measure: ")
	c := combination{}
	flag.StringVar(&c.Peer, "peer", "nwt", "nwt, hand, gomlx, rill or bound")
	flag.StringVar(&c.Workload, "workload", "augment", strings.Join(workloads, ", "))
	flag.StringVar(&c.Variant, "variant", "", "by default the peer's first")
	flag.IntVar(&c.Workers, "workers", 1, "goroutines that load")
	seconds := flag.Float64("seconds", 1.5, "of steady state")
	step := flag.Duration("step", 0, "that the training step takes for each batch, without CPUs; its batches per second count it")
	list := flag.Bool("list", false, "print every combination, a JSON object a line")
	tuned := flag.Bool("tune", false, "print the worker count that nwt.Tune finds for the workload")
	each := flag.Bool("formats", false, "print the rates of JPEG, PNG and WebP files on one thread instead")
	flag.Parse()

	if *each {
		formats(*seconds)
		return
	}
	print := json.NewEncoder(os.Stdout).Encode
	if *list {
		for _, c := range combinations() {
			_ = print(c)
		}
		return
	}
	offered := variants(c.Peer, c.Workload)
	if c.Variant == "" && len(offered) > 0 {
		c.Variant = offered[0]
	}
	if !slices.Contains(workloads, c.Workload) || !slices.Contains(offered, c.Variant) {
		log.Fatalf("%s %s -variant %q: there is %q", c.Peer, c.Workload, c.Variant, offered)
	}
	switch c.Workload {
	case "augment":
		answer(augmented(makeImages(50_000)), c, *seconds, *step, *tuned)
	case "raw":
		answer(raw(makeImages(50_000)), c, *seconds, *step, *tuned)
	case "wait":
		answer(waiting(), c, *seconds, *step, *tuned)
	case "empty":
		answer(empty(), c, *seconds, *step, *tuned)
	case "photos", "large", "shards":
		answer(photographs[float32](c.Workload), c, *seconds, *step, *tuned)
	case "bytes", "largebytes":
		answer(photographs[uint8](c.Workload), c, *seconds, *step, *tuned)
	case "tail":
		answer(tailed(128_000), c, *seconds, *step, *tuned)
	case "pauses":
		answer(pausing(128_000), c, *seconds, *step, *tuned)
	}
}

func answer[T float32 | uint8](w *workload[T], c combination, seconds float64, step time.Duration, tuned bool) {
	print := json.NewEncoder(os.Stdout).Encode
	if tuned {
		r := tune(w, c.Variant, step)
		_ = print(tuning{c.Workload, c.Variant, r.Workers, r.Elapsed.Seconds(), r.Reason, r.Hardware})
		return
	}
	d := time.Duration(seconds * float64(time.Second))
	if c.Peer == "bound" {
		_ = print(measurement{combination: c, Version: version(c.Peer), BatchesPerS: bound(w, c.Workers, d)})
		return
	}
	m := measure(w, stepping(w, loader(w, c), step), c, d)
	if w.size == photoSize && w.name != "shards" && c.Variant != "precomputed" {
		m.Difference = difference(filesOf(w.name), c.Variant)
	}
	_ = print(m)
}

// stepping is batches with a step after each, and the workload's pauses.
func stepping[T float32 | uint8](w *workload[T], batches iter.Seq[[]T], step time.Duration) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		n := 0
		for batch := range batches {
			time.Sleep(step)
			if n++; w.pauses > 0 && n%w.pauses == 0 {
				time.Sleep(w.pause)
			}
			if !yield(batch) {
				return
			}
		}
	}
}

func loader[T float32 | uint8](w *workload[T], c combination) iter.Seq[[]T] {
	switch c.Peer {
	case "nwt":
		return nwtLoader(w, c.Variant, c.Workers)
	case "hand":
		return handWritten(w, c.Workers)
	case "gomlx":
		return gomlxParallel(w, c.Workers)
	}
	if c.Variant == "sample" {
		return rillSamples(w, c.Workers)
	}
	return rillBatches(w, c.Workers)
}

// measure takes batches: the first, then a warm-up, then those that count, then
// some while memory is watched.
func measure[T float32 | uint8](w *workload[T], batches iter.Seq[[]T], c combination, steady time.Duration) measurement {
	m := measurement{combination: c, Version: version(c.Peer)}
	runtime.GC()
	m.DatasetBytes = pss()
	var (
		over           atomic.Bool // the phase is as long as it should be
		taken, samples int         // in the phase
		atLeast        = 1         // batches that it must have
		phase          int
		mallocs        uint64
		cpu            time.Duration
		stopMemory     func() int64
	)
	over.Store(true)
	began := time.Now()
	begin := func(d time.Duration, batches int) {
		taken, samples, atLeast = 0, 0, batches
		over.Store(false)
		time.AfterFunc(d, func() { over.Store(true) })
		began = time.Now()
	}
	for batch := range batches {
		taken++
		samples += len(batch) / w.size
		if !over.Load() || taken < atLeast || phase == 2 && w.pauses > 0 && taken%w.pauses != 0 { // whole periods count
			continue
		}
		elapsed := time.Since(began)
		switch phase++; phase {
		case 1:
			m.FirstBatchS = elapsed.Seconds()
			m.PeakBytes = pss()
			warm := max(4, 2*c.Workers)
			if w.size == photoSize { // what is remembered of a file counts from its second time on
				warm = max(warm, w.epochBatches())
			}
			begin(200*time.Millisecond, warm)
		case 2:
			mallocs, cpu = allocations(), cpuTime()
			begin(steady, min(10, 2*w.epochBatches()))
		case 3:
			m.CPUPerSampleS = (cpuTime() - cpu).Seconds() / float64(samples)
			m.AllocsPerBatch = float64(allocations()-mallocs) / float64(taken)
			m.BatchesPerS = float64(samples) / float64(w.batch) / elapsed.Seconds()
			stopMemory = watchMemory()
			begin(300*time.Millisecond, 4)
		case 4:
			m.PeakBytes = max(m.PeakBytes, stopMemory())
			return m
		}
	}
	return m
}

func allocations() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.Mallocs
}

// cpuTime returns that of the process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func version(peer string) string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, dep := range info.Deps {
			if dep.Path == modules[peer] {
				return dep.Version
			}
		}
	}
	return runtime.Version()
}
