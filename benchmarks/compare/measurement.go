package main

import (
	"cmp"
	"slices"
)

// A combination is what is measured: a peer's variant on a workload with so many
// workers.
type combination struct {
	Peer     string `json:"peer"`
	Workload string `json:"workload"`
	Variant  string `json:"variant"`
	Workers  int    `json:"workers"`
}

// A measurement is a line of measure or peers/run.py.
type measurement struct {
	combination
	Round   int    `json:"round"`
	Version string `json:"version"`
	Python  string `json:"python,omitempty"`

	BatchesPerS    float64 `json:"batches_per_s,omitempty"`
	FirstBatchS    float64 `json:"first_batch_s,omitempty"`
	PeakBytes      int64   `json:"peak_bytes,omitempty"`
	DatasetBytes   int64   `json:"dataset_bytes,omitempty"`
	AllocsPerBatch float64 `json:"allocs_per_batch,omitempty"`
	CPUPerSampleS  float64 `json:"cpu_s_per_sample,omitempty"`

	// What crops of photographs differ from Pillow's by; nil if that isn't measured.
	Difference *float64 `json:"difference,omitempty"`

	Error   string `json:"error,omitempty"`
	Skipped string `json:"skipped,omitempty"`
}

// A figure is the medians of a combination's measurements.
type figure struct {
	combination
	rate   float64  // batches a second
	first  float64  // seconds
	memory float64  // bytes above the dataset
	allocs float64  // a batch
	cpu    float64  // seconds a sample; 0: not measured
	pillow *float64 // difference to Pillow, the same in each round
	rounds int
}

// figures are the medians by combination, in the order of the first measurement
// of each. Those that failed are left out.
func figures(all []measurement) (figs []figure) {
	groups := map[combination][]measurement{}
	var order []combination
	for _, m := range all {
		if m.BatchesPerS == 0 {
			continue
		}
		if groups[m.combination] == nil {
			order = append(order, m.combination)
		}
		groups[m.combination] = append(groups[m.combination], m)
	}
	for _, c := range order {
		of := func(value func(measurement) float64) float64 { return median(groups[c], value) }
		figs = append(figs, figure{
			combination: c,
			rate:        rateOf(groups[c]),
			first:       of(func(m measurement) float64 { return m.FirstBatchS }),
			memory:      of(func(m measurement) float64 { return float64(max(0, m.PeakBytes-m.DatasetBytes)) }),
			allocs:      of(func(m measurement) float64 { return m.AllocsPerBatch }),
			cpu:         of(func(m measurement) float64 { return m.CPUPerSampleS }),
			pillow:      groups[c][0].Difference,
			rounds:      len(groups[c]),
		})
	}
	return figs
}

// rateOf returns the fastest or the median, as the workload's group has it.
func rateOf(group []measurement) float64 {
	rate := func(m measurement) float64 { return m.BatchesPerS }
	if shards.has(group[0].Workload) {
		return rate(slices.MaxFunc(group, func(a, b measurement) int { return cmp.Compare(rate(a), rate(b)) }))
	}
	return median(group, rate)
}

func median(group []measurement, value func(measurement) float64) float64 {
	var values []float64
	for _, m := range group {
		values = append(values, value(m))
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// where returns the figures that satisfy all conditions.
func where(figs []figure, conditions ...func(figure) bool) (some []figure) {
	for _, f := range figs {
		if !slices.ContainsFunc(conditions, func(ok func(figure) bool) bool { return !ok(f) }) {
			some = append(some, f)
		}
	}
	return some
}

func peers(names ...string) func(figure) bool {
	return func(f figure) bool { return slices.Contains(names, f.Peer) }
}

// others are the loaders in Python that aren't nwt.
func others(f figure) bool { return f.Peer != "client" && slices.Contains(pythonPeers, f.Peer) }

func variants(names ...string) func(figure) bool {
	return func(f figure) bool { return slices.Contains(names, f.Variant) }
}

func workload(name string) func(figure) bool {
	return func(f figure) bool { return f.Workload == name }
}

// fastest returns the figure with the highest rate; ok: there is one.
func fastest(figs []figure) (best figure, ok bool) {
	if len(figs) == 0 {
		return best, false
	}
	return slices.MaxFunc(figs, func(a, b figure) int { return cmp.Compare(a.rate, b.rate) }), true
}
