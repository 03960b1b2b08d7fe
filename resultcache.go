package nwt

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/memlimit"
	"github.com/nwt-go/nwt/internal/report"
	"github.com/nwt-go/nwt/internal/resultfile"
)

// keptResult is a result as it stands in the file.
type keptResult struct {
	*Result
	Before uint64 `json:"memory_before"` // bytes that the process needed before it tuned
}

const (
	// forgetDoubtful is how long a result holds if it isn't sure, or if counts were ruled out because
	// memory was short.
	forgetDoubtful = 24 * time.Hour

	// forgetAtOnce is how long a result holds if other programs may have influenced it, or if it is
	// largely chance: long enough for the processes that wait for it, but not for the next day's
	// training.
	forgetAtOnce = 10 * time.Minute
	byChance     = 0.80 // confidence
)

// holds returns how long a result holds.
func (s *source) holds(r *Result) time.Duration {
	switch {
	case r.Repeatability < byChance, slices.ContainsFunc(r.Trials, func(t Trial) bool { return t.OtherCPU > report.BusyOthers }):
		return forgetAtOnce
	case r.Repeatability < report.Unsure, s.opts.maxMemory == 0 && slices.ContainsFunc(r.RuledOut, func(out RuledOut) bool { return report.RuledOut(out).ForMemory() }):
		return forgetDoubtful
	}
	return math.MaxInt64
}

// recall returns the result in the file, and when it was saved; nil if the file has no result that may
// still hold.
func (s *source) recall(limit memlimit.Limit, file resultfile.File, key resultfile.Key) (found *Result, saved time.Time) {
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
	if time.Since(saved).Abs() > s.holds(r.Result) { // a clock may have been wrong
		return nil, saved
	}
	if why := r.outgrows(limit); why != "" {
		file.Log.Info("nwt: tuning anew", "path", file.Path, "reason", why)
		return nil, saved
	}
	r.Cached = true
	return r.Result, saved
}

// impossible returns what no tuning can have found in the result, or "" if there is nothing of the kind.
func (r *Result) impossible() string {
	for _, workers := range []int{r.Workers, r.Fastest} {
		if t := r.trial(workers); t.Iterations < 1 || t.Mean < 1 || workers < 0 || workers > maxWorkers {
			return fmt.Sprintf("%s chosen or fastest, but not tried", human.Workers(workers))
		}
	}
	return ""
}

// resultKey returns everything that the answer depends on. It leaves out what only changes which samples
// are loaded, or how the search proceeds.
func (s *source) resultKey() resultfile.Key {
	o := s.opts
	pinned := "default"
	if o.pinned != nil {
		pinned = fmt.Sprint(*o.pinned)
	}
	device := o.device.String()
	if gpu, ok := o.device.(cudaDevice); ok {
		device = "cuda (" + gpu.Name() + ")" // any GPU of this kind on the host
	}
	return resultfile.Key{
		Hardware:   resultfile.ThisHardware(),
		Device:     device,
		Fields:     s.layout.String(),
		BatchBytes: int64(s.layout.Size) * int64(s.first.perBatch),
		Options: fmt.Sprintf("name=%q prefetch=%d unordered=%t pinned=%s timeout=%t ranks=%d cpus=%d alpha=%v/%v iterations=%d max=%d memory=%d step=%t init=%t transform=%t interleave=%d",
			o.resultName, o.prefetch, o.unordered, pinned, o.timeout > 0, o.ranks(), o.cpus(), o.alpha.Total, o.alpha.Share, o.iterations, o.most, o.maxMemory,
			o.step != nil, o.init != nil, o.transform != nil, o.interleave),
	}
}

// outgrows says why the choice of a kept result doesn't fit into memory today, or returns "" if it does.
// Since it was saved, the program may have grown, and the machine may have less memory left.
func (r keptResult) outgrows(l memlimit.Limit) (why string) {
	chosen := r.trial(r.Workers)
	grows := chosen.needs() - min(r.Before, chosen.needs())
	if grows == 0 {
		return ""
	}
	now := neededNow()
	return l.Over(r.Workers, now+min(grows, math.MaxUint64-now))
}
