// Command compare measures nwt beside its peers, in Go and in Python, and writes the
// tables and the pictures of docs/compared.md and README.md.
//
//	go run ./compare                       # everything, about 12 minutes on two CPUs
//	go run ./compare -seconds 0.2 -rounds 1 -only 'augment|raw'
//	go run ./compare -report               # from results.json, without measuring
//	go run ./compare -photos               # only photographs, about 12 minutes; with -report the chart and tables from photos.json
//	go run ./compare -tensors              # the same as bytes, about 10 minutes
//	go run ./compare -own                  # datasets in Python, about 2 minutes
//	go run ./compare -formats              # JPEG, PNG and WebP files on one thread, about 3 minutes
//	go run ./compare -shards               # photographs in shards, about 5 minutes
//	go run ./compare -tail -limit 30m      # slow samples and a step that pauses, about 25 minutes
//
// It runs in the folder of its module. Every measurement is a process of its own
// that has the machine for itself, so nothing else should run beside it. The
// peers in Python are those that peers/setup could install; a line says which
// are missing.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nwt-go/nwt"
)

// A run is what results.json holds.
type run struct {
	Date         string        `json:"date"`
	Machine      nwt.Hardware  `json:"machine"`
	System       string        `json:"system"`
	Go           string        `json:"go"`
	Seconds      float64       `json:"seconds"`
	Tuned        []tuning      `json:"tuned"`
	Measurements []measurement `json:"measurements"`
}

// A tuning is what nwt.Tune has found for a workload.
type tuning struct {
	Workload string  `json:"workload"`
	Variant  string  `json:"variant"`
	Workers  int     `json:"workers"`
	Seconds  float64 `json:"seconds"`
	Reason   string  `json:"reason"`
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("compare: ")
	o := options{group: ordinary}
	flag.Float64Var(&o.seconds, "seconds", 0, "that a loader is measured in steady state (default 0.7, with -tensors and -own 3, with -shards 5, with -tail 30)")
	flag.IntVar(&o.rounds, "rounds", 3, "in which measurements are repeated; after the first only what may win")
	flag.DurationVar(&o.limit, "limit", 15*time.Minute, "after which no measurement begins")
	flag.BoolVar(&o.all, "all", false, "measure every worker count of every peer: about an hour")
	only := flag.String("only", "", "measure what matches this expression, as in \"torch augment sample 2\"")
	results := flag.String("results", "", "where measurements are kept (default results.json, photos.json, tensors.json, own.json, shards.json or tail.json)")
	photos := flag.Bool("photos", false, "photographs instead of all others; peers/photos.py makes them")
	bytes := flag.Bool("tensors", false, "photographs as bytes instead of all others")
	own := flag.Bool("own", false, "datasets in Python, beside PyTorch's DataLoader, instead of all others")
	sharded := flag.Bool("shards", false, "photographs in shards, instead of all others; peers/shards.py makes them")
	tail := flag.Bool("tail", false, "slow samples and a step that pauses, instead of all others")
	formats := flag.Bool("formats", false, "JPEG, PNG and WebP files beside torchvision and Pillow, on one thread, instead of all others")
	report := flag.Bool("report", false, "measure nothing: write the document from the results")
	document := flag.String("document", "", "whose part between the markers is replaced; pictures go beside it (default README.md for small samples, else ../docs/compared.md)")
	flag.Parse()
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		log.Fatalf("-only: %v", err)
	}
	for g, wanted := range map[*group]bool{photographs: *photos, tensors: *bytes, ownData: *own, shards: *sharded, tails: *tail} {
		switch {
		case wanted && o.group != ordinary:
			log.Fatal("-photos, -tensors, -own, -shards, -tail: one of them at a time")
		case wanted:
			o.group = g
		}
	}
	if *results == "" {
		*results = o.group.results
	}
	if *document == "" {
		*document = "../docs/compared.md"
		if o.group == ordinary && !*formats {
			*document = "README.md"
		}
	}
	if o.seconds == 0 {
		o.seconds = o.group.seconds
	}
	if o.seconds <= 0 || o.rounds < 1 {
		log.Fatalf("-seconds %v -rounds %d: must be above 0, and at least 1", o.seconds, o.rounds)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *formats {
		if err := o.build(ctx, func() error { return o.formats(ctx, *document) }); err != nil {
			log.Fatal(err)
		}
		return
	}
	if !*report {
		r, err := o.measure(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if err := save(*results, r); err != nil {
			log.Fatal(err)
		}
	}
	r, err := load(*results)
	if err == nil {
		err = r.writeDocument(*document, o.group)
	}
	if err != nil {
		log.Fatal(err)
	}
}

type options struct {
	seconds float64
	rounds  int
	limit   time.Duration
	all     bool
	group   *group
	only    *regexp.Regexp

	binary string // of measure
	python string
}

// build builds measure, and then calls f.
func (o *options) build(ctx context.Context, f func() error) error {
	dir, err := os.MkdirTemp("", "compare")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o.binary, o.python = filepath.Join(dir, "measure"), filepath.Join("peers", ".venv", "bin", "python")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", o.binary, "./measure").CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./measure: %w\n%s", err, out)
	}
	return f()
}

func (o *options) measure(ctx context.Context) (r *run, err error) {
	err = o.build(ctx, func() error {
		r, err = o.measureAll(ctx)
		return err
	})
	return r, err
}

func (o *options) measureAll(ctx context.Context) (*run, error) {
	if slices.Contains([]*group{photographs, tensors, ownData}, o.group) { // also from Python
		program := filepath.Join(filepath.Dir(o.binary), "nwt-serve")
		if out, err := exec.CommandContext(ctx, "go", "build", "-C", "../serve", "-o", program, "./cmd/nwt-serve").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build nwt-serve: %w\n%s", err, out)
		}
		if err := os.Setenv("NWT_SERVE", program); err != nil {
			return nil, err
		}
	}
	r := &run{Date: time.Now().UTC().Format("2006-01-02"), System: system(), Go: runtime.Version(), Seconds: o.seconds}
	plan, err := o.plan(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if r.Machine, plan, err = o.tune(ctx, r, plan); err != nil {
		return nil, err
	}
	log.Printf("%d combinations: the first round takes about %v, %d rounds about %v",
		len(plan), costOf(plan, o.seconds).Round(time.Second), o.rounds,
		(costOf(plan, o.seconds) * time.Duration(7+3*o.rounds) / 10).Round(time.Second))

	for round := range o.rounds {
		if round == 1 {
			plan = contenders(plan, figures(r.Measurements))
			log.Printf("%d combinations that may win, again: about %v a round", len(plan), costOf(plan, o.seconds).Round(time.Second))
		}
		if round > 0 {
			slices.Reverse(plan) // so that a machine that slows down is fair to all
		}
		for i, c := range plan {
			if time.Since(began) > o.limit {
				log.Printf("%v are over: %d measurements of round %d are left out", o.limit, len(plan)-i, round+1)
				return r, nil
			}
			m := o.one(ctx, c)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			m.Round = round
			r.Measurements = append(r.Measurements, m)
			log.Print(m)
		}
	}
	log.Printf("measured in %v", time.Since(began).Round(time.Second))
	return r, nil
}

// plan returns what to measure, the peers of a workload side by side.
func (o *options) plan(ctx context.Context) ([]combination, error) {
	plan, err := lines[combination](ctx, o.binary, "-list")
	if err != nil {
		return nil, err
	}
	python, err := lines[combination](ctx, o.python, "peers/run.py", "--list")
	if err != nil {
		log.Printf("skipped: all peers in Python: %v (peers/setup installs them)", err)
	}
	plan = slices.DeleteFunc(append(plan, python...), func(c combination) bool {
		return !o.only.MatchString(c.String()) || !o.group.has(c.Workload) || !o.all && !worthMeasuring(c)
	})
	slices.SortStableFunc(plan, func(a, b combination) int { return placeOf(a.Workload) - placeOf(b.Workload) })
	return plan, nil
}

// tune lets nwt find its worker counts, and adds them to the plan, and to the
// counts that its bounds are measured at.
func (o *options) tune(ctx context.Context, r *run, plan []combination) (hardware nwt.Hardware, _ []combination, err error) {
	var subjects []combination // nwt's variants, without a worker count
	for _, c := range plan {
		if c.Workers = 0; c.Peer == "nwt" && !slices.Contains(subjects, c) && (o.group != photographs || len(subjects) == 0) {
			subjects = append(subjects, c)
		}
	}
	if !o.group.tuned { // only the hardware is asked for
		subjects = []combination{{Peer: "nwt", Workload: "empty", Variant: "sample"}}
	}
	for _, subject := range subjects {
		type answer struct {
			tuning
			Hardware nwt.Hardware `json:"hardware"`
		}
		found, err := lines[answer](ctx, o.binary, "-tune", "-workload", subject.Workload, "-variant", subject.Variant)
		if err != nil {
			return hardware, nil, err
		}
		t := found[0].tuning
		if hardware = found[0].Hardware; !o.group.tuned {
			break
		}
		log.Printf("nwt.Tune, %s, %s: %d workers, in %.1f s. %s", t.Workload, t.Variant, t.Workers, t.Seconds, t.Reason)
		r.Tuned = append(r.Tuned, t)
		for _, c := range []combination{
			{Peer: "nwt", Workload: t.Workload, Variant: t.Variant, Workers: t.Workers},
			{Peer: "bound", Workload: t.Workload, Variant: "batch", Workers: max(1, t.Workers)},
		} {
			if !slices.Contains(plan, c) && !(c.Peer == "bound" && c.Workload == "empty") {
				i := slices.IndexFunc(plan, func(p combination) bool { return p.Workload == c.Workload })
				plan = slices.Insert(plan, i, c)
			}
		}
	}
	return hardware, plan, nil
}

// one measures a combination. What fails is a measurement too.
func (o *options) one(ctx context.Context, c combination) measurement {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	args := []string{
		"--peer", c.Peer, "--workload", c.Workload, "--variant", c.Variant,
		"--workers", fmt.Sprint(c.Workers), "--seconds", fmt.Sprint(o.seconds),
	}
	program := o.binary
	if slices.Contains(pythonPeers, c.Peer) {
		program, args = o.python, append([]string{"-W", "ignore", "peers/run.py", "--no-check"}, args...)
	}
	found, err := lines[measurement](ctx, program, args...)
	if len(found) == 0 {
		if ctx.Err() != nil {
			err = errors.New("no answer within two minutes")
		}
		return measurement{combination: c, Error: fmt.Sprint(err)}
	}
	return found[0]
}

// lines runs a program that prints JSON objects, one a line.
func lines[T any](ctx context.Context, program string, args ...string) (all []T, err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	// Worker processes end with their parent.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	runErr := cmd.Run()
	for s := bufio.NewScanner(&out); s.Scan(); {
		var line T
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("%s %s: %q: %w", program, strings.Join(args, " "), s.Text(), err)
		}
		all = append(all, line)
	}
	if len(all) == 0 && runErr != nil {
		said := strings.TrimSpace(complaints.String())
		return nil, fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), runErr, said[max(0, len(said)-300):])
	}
	return all, nil
}

func (c combination) String() string {
	return fmt.Sprintf("%s %s %s %d", c.Peer, c.Workload, c.Variant, c.Workers)
}

func (m measurement) String() string {
	switch {
	case m.Error != "":
		return fmt.Sprintf("%-32v failed: %s", m.combination, m.Error)
	case m.Skipped != "":
		return fmt.Sprintf("%-32v skipped: %s", m.combination, m.Skipped)
	}
	return fmt.Sprintf("%-32v %10.0f batches/s, the first in %s, %s above the dataset", m.combination, m.BatchesPerS,
		short(m.FirstBatchS), megabytes(float64(m.PeakBytes-m.DatasetBytes)))
}

func save(path string, r *run) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

func load(path string) (*run, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &run{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// system names the kernel, where that is known.
func system() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	version, _, _ := strings.Cut(strings.TrimSpace(string(release)), "-")
	return "Linux " + version
}
