package main

import (
	"slices"
	"time"
)

var (
	pythonPeers = []string{"torch", "tfdata", "grain", "spdl"}
	goPeers     = []string{"hand", "gomlx", "rill"}

	// Whether a variant's code handles a sample at a time or a whole batch.
	// "threads" of the waiting workload is neither: it waits in threads of its own,
	// beside the workers.
	bySample   = []string{"sample", "endless", "processes"}
	vectorised = []string{"vectorised", "split", "cores"}
)

// worthMeasuring leaves out, of a list of everything, the counts of slow peers
// that nothing is compared with, so that a run takes minutes and not an hour.
func worthMeasuring(c combination) bool {
	switch {
	case c.Peer == "nwt":
		return true
	case c.Peer == "bound":
		return c.Workload != "wait" || c.Workers == 16
	case slices.Contains(goPeers, c.Peer):
		return c.Workers != 32 && c.Workers != 128
	case c.Workload == "wait" && c.Variant == "threads":
		return c.Workers != 0 && c.Workers <= 16
	case c.Workload == "wait":
		return c.Workers >= 16 && !(c.Variant == "processes" && c.Workers > 16)
	case c.Workers == 16:
		return c.Peer == "torch" || c.Workload == "augment"
	case c.Workers == 1:
		return c.Peer == "spdl" // which has no 0
	case c.Workers == 4:
		return c.Peer == "torch" && c.Workload == "augment"
	}
	return true
}

// contenders are the combinations to measure again after the first round: nwt
// and the bounds, whatever reaches half of the best rate among its peer's
// variants of its kind, and PyTorch's 16 workers.
func contenders(plan []combination, figs []figure) (again []combination) {
	for _, c := range plan {
		i := slices.IndexFunc(figs, func(f figure) bool { return f.combination == c })
		if i < 0 {
			continue // failed or skipped, and would again
		}
		rivals := where(figs, peers(c.Peer), workload(c.Workload), sameKind(c.Variant))
		best, _ := fastest(rivals)
		if c.Peer == "nwt" || c.Peer == "bound" || c.Peer == "torch" && c.Workers == 16 || figs[i].rate >= best.rate/2 {
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
	start := map[string]float64{"torch": 2.5, "tfdata": 5, "grain": 2, "spdl": 1.3}[c.Peer]
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
