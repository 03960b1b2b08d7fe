package nwt

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/resultfile"
	"github.com/nwt-go/nwt/internal/search"
)

// remembered is tune, unless the file of results has one that still holds.
func (t *tuneCall) remembered(ctx context.Context) (*Result, error) {
	file, key := resultfile.File{Path: t.opts.results, Log: t.opts.log}, t.resultKey()
	r, saved := t.recall(file, key)
	if r != nil {
		holds, err := t.confirm(ctx, file, r)
		if holds || err != nil {
			return r, err
		}
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	again := resultfile.File{Path: file.Path, Log: slog.New(slog.DiscardHandler)} // what is wrong with the file was said
	err := file.WhileTuning(ctx, func() (err error) {
		var since time.Time
		if r, since = t.recall(again, key); r != nil && !since.Equal(saved) {
			return nil // the process that this one has waited for has found it just now
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

const (
	// forgetDoubtful is how long a result holds if it isn't sure, or if counts were ruled out by the
	// memory that was left then.
	forgetDoubtful = 24 * time.Hour

	// forgetAtOnce is how long one holds that other programs may have had a part in, or that is a
	// matter of chance: for the processes that wait for it, and not for the next day's training.
	forgetAtOnce = 10 * time.Minute
	byChance     = 0.80 // confidence
)

// holds returns how long a result holds.
func (t *tuneCall) holds(r *Result) time.Duration {
	switch {
	case r.Confidence < byChance, slices.ContainsFunc(r.Trials, func(t Trial) bool { return t.OtherCPU > busyOthers }):
		return forgetAtOnce
	case r.Confidence < unsure, t.opts.maxMemory == 0 && slices.ContainsFunc(r.RuledOut, RuledOut.forMemory):
		return forgetDoubtful
	}
	return math.MaxInt64
}

// recall returns the result that the file has, and when it was saved; nil if the file has none that
// may hold.
func (t *tuneCall) recall(file resultfile.File, key resultfile.Key) (found *Result, saved time.Time) {
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
	if time.Since(saved).Abs() > t.holds(r.Result) { // a clock may have been wrong
		return nil, saved
	}
	if why := t.outgrown(r); why != "" {
		file.Log.Info("nwt: tuning anew", "path", file.Path, "reason", why)
		return nil, saved
	}
	r.Cached = true
	return r.Result, saved
}

// confirmed is the factor by which a batch may take more or less time than a kept result says.
const confirmed = 2

// confirm reports whether a batch takes about as long as the kept result says: the name that it is
// kept under may be another dataset's by now, or the storage may have changed.
func (t *tuneCall) confirm(ctx context.Context, file resultfile.File, r *Result) (holds bool, err error) {
	sp := t.space()
	sp.Start = r.Workers
	m := t.measured(sp)
	m.inline = true
	m.Next = func(seen []search.Series) (search.Request, bool) {
		return search.Request{Workers: r.Workers, Iterations: confirmOver}, len(seen) == 0
	}
	if err := t.measure(ctx, m); err != nil {
		return false, err
	}
	then, now := r.trial(r.Workers).Mean, m.counts[0].Mean
	if now > confirmed*then || then > confirmed*now {
		file.Log.Info("nwt: tuning anew", "path", file.Path, "name", t.opts.resultName, "reason",
			fmt.Sprintf("with %s a batch takes %s, and took %s when the result was kept", countWorkers(r.Workers), human.Duration(now), human.Duration(then)))
		return false, nil
	}
	if t.opts.progress != nil {
		t.opts.progress(Progress{Phase: "done", Workers: r.Workers, Done: 1, Elapsed: time.Since(t.began)})
	}
	return true, nil
}

const confirmOver = 20 // batches

// impossible says what is in the result that no tuning can have found; empty if nothing.
func (r *Result) impossible() string {
	for _, workers := range []int{r.Workers, r.Fastest} {
		if t := r.trial(workers); t.Iterations < 1 || t.Mean < 1 || workers < 0 || workers > maxWorkers {
			return fmt.Sprintf("%s chosen or fastest, but not tried", countWorkers(workers))
		}
	}
	return ""
}

// resultKey names all that the answer depends on. It leaves out what only changes which samples
// are loaded, or how the answer is looked for.
func (s *source) resultKey() resultfile.Key {
	o := s.opts
	pinned := "default"
	if o.pinned != nil {
		pinned = fmt.Sprint(*o.pinned)
	}
	device := o.device.String()
	if gpu, ok := o.device.(cudaDevice); ok {
		device = "cuda (" + gpu.Name() + ")" // whichever of the host's GPUs it is
	}
	return resultfile.Key{
		Hardware:   resultfile.ThisHardware(),
		Device:     device,
		Fields:     s.layout.String(),
		BatchBytes: int64(s.layout.Size) * int64(s.first.perBatch),
		Options: fmt.Sprintf("name=%q prefetch=%d unordered=%t pinned=%s timeout=%t ranks=%d cpus=%d alpha=%v/%v iterations=%d max=%d memory=%d step=%t init=%t finish=%t interleave=%d",
			o.resultName, o.prefetch, o.unordered, pinned, o.timeout > 0, o.ranks(), o.cpus(), o.alpha.Total, o.alpha.Share, o.iterations, o.most, o.maxMemory,
			o.step != nil, o.init != nil, o.finish != nil, o.interleave),
	}
}

// String returns the layout in a line: "image Uint8[3 224 224], label Int64".
func (l *fieldSet) String() string {
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
