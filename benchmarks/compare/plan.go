package main

import (
	"runtime"
	"slices"
	"time"
)

var (
	// client is nwt's own.
	pythonPeers = []string{"torch", "threads", "tfdata", "grain", "spdl", "dali", "webdataset", "litdata", "client"}

	// Whether a variant's code handles a sample at a time or a whole batch.
	// "threads" of the waiting workload is neither: it waits in threads of its own,
	// beside the workers.
	bySample   = []string{"sample", "endless", "processes"}
	vectorised = []string{"vectorised", "split", "cores"}
)

// worthMeasuring leaves out, of a list of everything, the counts of slow peers
// that come nowhere near their best, so that a run takes minutes and not an hour.
func worthMeasuring(c combination) bool {
	python := slices.Contains(pythonPeers, c.Peer)
	switch {
	case c.Workload == "bytes":
		return c.Workers == runtime.NumCPU() || c.Workers == 2*runtime.NumCPU()
	case ownData.has(c.Workload):
		return true
	case tails.has(c.Workload):
		return c.Workers == 16
	case photographs.has(c.Workload), tensors.has(c.Workload), shards.has(c.Workload): // what has as many threads or processes as CPUs
		return c.Workers == runtime.NumCPU() || c.Workers > 1 && (c.Peer == "nwt" && c.Variant == "decoded" || c.Peer == "tfdata")
	case c.Peer == "nwt":
		return true
	case c.Peer == "bound":
		return c.Workload != "wait" || c.Workers == 16
	case !python:
		return c.Workload != "wait" || slices.Contains([]int{0, 1, 16, 64, 256}, c.Workers)
	case c.Workload == "wait" && c.Variant == "threads":
		return c.Workers == 2 || c.Workers == 4 && c.Peer == "torch" || c.Workers == 16 && c.Peer == "grain"
	case c.Workload == "wait":
		return c.Workers >= 16 && !(c.Variant == "processes" && c.Workers > 16)
	case c.Workers == 16:
		return c.Peer == "torch" && c.Variant != "split" || c.Workload == "augment" && c.Variant == "sample"
	case c.Workers == 1:
		return c.Peer == "spdl" // which has no 0
	case c.Workers == 4:
		return c.Peer == "torch" && c.Workload == "augment"
	case c.Workers == 2:
		return c.Workload == "augment" || c.Peer == "spdl" || c.Peer == "tfdata" && c.Variant == "vectorised"
	}
	return true
}

// contenders are the combinations to measure again after the first round: what
// the tables are made of. Those are nwt and the bounds, PyTorch's 16 workers, and
// whatever reaches 0.7 of the best rate of its kind among the Python peers or, in
// Go, of its own peer.
func contenders(plan []combination, figs []figure) (again []combination) {
	for _, c := range plan {
		i := slices.IndexFunc(figs, func(f figure) bool { return f.combination == c })
		if i < 0 {
			continue // failed or skipped, and would again
		}
		rivals := peers(c.Peer)
		if slices.Contains(pythonPeers, c.Peer) {
			rivals = others
		}
		best, _ := fastest(where(figs, rivals, workload(c.Workload), sameKind(c.Variant)))
		if shards.has(c.Workload) || tensors.has(c.Workload) || c.Peer == "nwt" || c.Peer == "client" || c.Peer == "bound" || c.Peer == "torch" && c.Workers == 16 || figs[i].rate >= 0.7*best.rate {
			again = append(again, c)
		}
	}
	return again
}

func sameKind(variant string) func(figure) bool {
	for _, kind := range [][]string{bySample, vectorised} {
		if slices.Contains(kind, variant) {
			return variants(kind...)
		}
	}
	return variants(variant)
}

// cost is about how long a measurement takes: to start, to load, and to watch
// memory.
func cost(c combination, seconds float64) time.Duration {
	start := map[string]float64{"torch": 2.5, "threads": 3, "tfdata": 5, "grain": 2, "spdl": 1.3, "dali": 2, "webdataset": 4, "litdata": 4, "client": 3}[c.Peer]
	processes := c.Peer == "torch" || c.Peer == "grain" && !(c.Workload == "wait" && c.Variant == "sample")
	if processes {
		start += 0.1 * float64(c.Workers)
		if c.Peer == "grain" {
			start += 0.2 * float64(c.Workers)
		}
	}
	return time.Duration((start + 0.8 + seconds) * float64(time.Second))
}

func costOf(plan []combination, seconds float64) (total time.Duration) {
	for _, c := range plan {
		total += cost(c, seconds)
	}
	return total
}
