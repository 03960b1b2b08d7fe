package nwt

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/results"
	"github.com/nwt-go/nwt/internal/search"
)

// remembered is tune, unless the file of WithResultCache has a result.
func (t *tuner) remembered(ctx context.Context) (*Result, error) {
	if t.opts.results == "" {
		return t.tune(ctx)
	}
	// The file is looked at twice, before and after this process waits for others that tune.
	file := results.File{Path: t.opts.results, Log: t.opts.log}
	again := results.File{Path: t.opts.results, Log: slog.New(slog.DiscardHandler)}
	key := t.resultKey()
	r, saved := t.recall(file, key, nil)
	if r != nil {
		return r, nil
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	err := file.WhileTuning(ctx, func() (err error) {
		if r, _ = t.recall(again, key, &saved); r != nil {
			return nil // the process that this one has waited for has found it
		}
		if r, err = t.tune(ctx); err != nil {
			return err
		}
		value, err := json.Marshal(keptResult{r, t.before})
		if err != nil {
			file.Log.Warn("nwt: tuning result not kept", "path", file.Path, "error", err)
			return nil
		}
		file.Store(ctx, key, value)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// keptResult is a result as the file has it.
type keptResult struct {
	*Result
	Before uint64 `json:"memory_before"` // bytes that the process had to have before it tuned
}

// forgetDoubtful is how long a result is kept if it isn't sure, or if counts were ruled out by
// the memory that was left then.
const forgetDoubtful = 24 * time.Hour

// recall is the result that the file has, and when it was saved; nil if the file has none that
// holds here and now. It is called before and after this process has waited for others that
// tune. first is when the result was saved that the first call has found; nil: this is the
// first call. A result that has come in between is by a process that had an equal part of the
// memory, so it isn't compared with the memory that is left now.
func (t *tuner) recall(file results.File, key results.Key, first *time.Time) (found *Result, saved time.Time) {
	entry, ok := file.Lookup(key)
	if !ok {
		return nil, saved
	}
	saved = entry.Saved
	r := keptResult{Result: &Result{}}
	if err := json.Unmarshal(entry.Value, &r); err != nil {
		file.Log.Warn("nwt: ignoring a kept tuning result", "path", file.Path, "error", err)
		return nil, saved
	}
	if what := r.impossible(); what != "" {
		file.Log.Warn("nwt: ignoring a kept tuning result", "path", file.Path, "error", what)
		return nil, saved
	}
	doubtful := r.Confidence < unsure || t.opts.maxMemory == 0 && slices.ContainsFunc(r.RuledOut, RuledOut.forMemory)
	if doubtful && time.Since(entry.Saved).Abs() > forgetDoubtful { // a clock may have been wrong
		return nil, saved
	}
	if why := t.outgrown(r); why != "" && (first == nil || saved.Equal(*first)) {
		file.Log.Info("nwt: tuning anew", "path", file.Path, "reason", why)
		return nil, saved
	}
	r.Cached = true
	t.show(search.Space{}, "done", r.Workers, nil)
	return r.Result, saved
}

// impossible says what is in the result that no tuning can have found; empty if nothing.
func (r *Result) impossible() string {
	tried := func(workers int) bool {
		return slices.ContainsFunc(r.Trials, func(t Trial) bool { return t.Workers == workers })
	}
	switch {
	case !tried(r.Workers):
		return fmt.Sprintf("%s chosen, but not tried", countWorkers(r.Workers))
	case !tried(r.Fastest):
		return fmt.Sprintf("%s fastest, but not tried", countWorkers(r.Fastest))
	case r.Iterations < 1 || r.Alpha < 0 || r.Floor < 0:
		return fmt.Sprintf("%d iterations, alpha %v, floor %v: must be at least 1, 0 and 0", r.Iterations, r.Alpha, r.Floor)
	case r.Confidence < 0 || r.Confidence > 1 || r.Slower < 0:
		return fmt.Sprintf("confidence %v, must be 0 to 1; slower by %v, must be at least 0", r.Confidence, r.Slower)
	}
	for i, t := range r.Trials {
		switch {
		case t.Workers < 0 || t.Workers > maxWorkers:
			return fmt.Sprintf("a trial of %d workers: must be 0 to %d", t.Workers, maxWorkers)
		case i > 0 && t.Workers <= r.Trials[i-1].Workers:
			return fmt.Sprintf("a trial of %s after one of %d: must be more", countWorkers(t.Workers), r.Trials[i-1].Workers)
		case t.Iterations < 1 || min(t.Mean, t.Low, t.High, t.Median, t.P99, t.Total) < 0:
			return fmt.Sprintf("a trial of %s: %d iterations, of %v: must be at least 1, and no time less than 0", countWorkers(t.Workers), t.Iterations, t.Mean)
		}
	}
	return ""
}

// outgrown says why the choice of a kept result doesn't fit into memory today; empty if it
// does. Since then the program may have grown, and the machine may have less left.
func (t *tuner) outgrown(r keptResult) (why string) {
	chosen := r.trial(r.Workers)
	grows := chosen.needs() - min(r.Before, chosen.needs())
	if now := neededNow(); grows > t.limit.bytes-min(now, t.limit.bytes) {
		return fmt.Sprintf("%s would take about %s: over the limit of %s", countWorkers(r.Workers), human.Bytes(now+min(grows, math.MaxUint64-now)), t.limit)
	}
	return ""
}

// resultKey names all that the answer depends on. It leaves out strategy, seed, rank, world
// size, retries, error budget and WithDropLast: they change which samples are loaded and how
// the answer is looked for, but not the answer. It includes whether the order is
// shuffled, because that matters to storage.
func (s *source) resultKey() results.Key {
	o := s.opts
	pinned := "default"
	if o.pinned != nil {
		pinned = fmt.Sprint(*o.pinned)
	}
	options := []string{
		"dataset=" + nameOf(s.ds),
		fmt.Sprintf("sampler=%T", s.sampler),
		fmt.Sprintf("prefetch=%d", o.prefetch),
		fmt.Sprintf("unordered=%t", o.unordered),
		"pinned=" + pinned,
		fmt.Sprintf("timeout=%t", o.timeout > 0), // calls are watched
		fmt.Sprintf("ranks=%d", o.ranks()),
		fmt.Sprintf("cpus=%d", o.cpus()), // two ranks of equal affinity may share their CPUs, or have each its own
		fmt.Sprintf("alpha=%v/%v", o.alpha.Total, o.alpha.Share),
		fmt.Sprintf("iterations=%d", o.iterations),
		fmt.Sprintf("max=%d", o.most),
		fmt.Sprintf("time=%v", o.tuningTime),
		fmt.Sprintf("memory=%d", o.maxMemory), // the default is compared when a result is found
	}
	if s.n == endless {
		options = append(options, fmt.Sprintf("interleave=%d", o.interleave), fmt.Sprintf("epoch=%d", o.epochSamples))
		if o.shuffle {
			options = append(options, fmt.Sprintf("window=%d", o.window))
		}
	}
	device := o.device.String()
	if gpu, ok := o.device.(cudaDevice); ok {
		device = "cuda (" + gpu.Name() + ")" // whichever of the host's GPUs it is
	}
	if o.init != nil {
		options = append(options, "init="+functionName(o.init))
	}
	if o.finish != nil {
		options = append(options, "finish="+functionName(o.finish))
	}
	if o.step != nil {
		options = append(options, "step="+functionName(o.step))
	}
	return results.Key{
		Hardware:   results.ThisHardware(),
		Device:     device,
		Fields:     s.layout.String(),
		BatchBytes: int64(s.layout.bytes) * int64(s.order.perBatch()),
		Options:    strings.Join(options, " "),
	}
}

// nameOf names a dataset: by its type, by the function that it was made from, or by the types
// of its streams. The names of the datasets that it is made of follow, each once.
func nameOf(ds Dataset) string {
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	switch ds := ds.(type) {
	case *funcDataset:
		return functionName(ds.load)
	case *streamDataset:
		for _, s := range ds.streams {
			add(fmt.Sprintf("%T", s))
		}
		return strings.Join(names, "+")
	case interface{ made() composed }:
		return nameOf(ds.made())
	case composed:
		for _, part := range ds.parts() {
			add(nameOf(part))
		}
		name := fmt.Sprintf("%T", ds)
		if m, ok := ds.(*mapped); ok {
			name += " by " + functionName(m.f)
		}
		return fmt.Sprintf("%s(%s)", name, strings.Join(names, "+"))
	}
	return fmt.Sprintf("%T", ds)
}

func functionName(f any) string { return runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name() }

// String is the layout in a line: "image Uint8[3 224 224], label Int64".
func (l *layout) String() string {
	var fields []string
	for _, f := range l.fields {
		s := fmt.Sprintf("%s %v", f.Name, f.Type)
		if len(f.Shape) > 0 {
			s += fmt.Sprint(f.Shape)
		}
		s += strings.Repeat("…", f.raggedDims())
		fields = append(fields, s)
	}
	return strings.Join(fields, ", ")
}
