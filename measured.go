package nwt

import (
	"math"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/durations"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/tune"
)

// A ledger holds what was found out while tuning.
type ledger struct {
	counts  counts
	last    *count         // the count that was measured last
	refused map[int]string // worker counts that may not be chosen, and why
	first   time.Duration  // until the very first batch
	again   bool           // samples have been loaded a second time
	noted   string         // why peaks aren't exact
}

// A count holds what was measured at one worker count.
type count struct {
	Trial
	n     int     // number of windows
	tells float64 // number of batches that they cover
	mean, wait, transfer, step,
	cpu, gc, queue, reading float64 // weighted sums
	other, otherTime, measured float64
	took                       durations.Histogram // of the iterations
}

// add adds a window to the count.
func (c *count) add(w tune.Window) {
	c.n++
	c.tells += w.Tells
	c.mean += w.Tells * float64(w.Mean)
	c.wait += w.Tells * float64(w.Wait)
	c.transfer += w.Tells * float64(w.Transfer)
	c.step += w.Tells * float64(w.Body)
	per := func(sum float64) time.Duration { return time.Duration(math.Round(sum / c.tells)) }
	c.Iterations, c.Mean, c.Wait, c.Transfer, c.Step = max(1, int(math.Round(c.tells))), per(c.mean), per(c.wait), per(c.transfer), per(c.step)
	c.Median, c.P99 = c.took.Quantile(0.5), c.took.Quantile(0.99)
}

// used adds what a window used of the machine, and returns the shares of the CPUs that it used and
// waited for.
func (c *count) used(u host.Use, took time.Duration, o *options, reading float64) (own, queued float64) {
	cpus, weight := o.machine.CPUs(), float64(max(took, 1))
	share := func(used float64) float64 { return cpus.Share(used, o.ranks(), o.cpus()) }
	own, queued = share(u.Own), share(u.Waiting)
	c.measured += weight
	c.cpu, c.gc, c.queue, c.reading = c.cpu+own*weight, c.gc+share(u.Collector)*weight, c.queue+queued*weight, c.reading+min(1, reading)*weight
	c.CPU, c.CollectorCPU, c.queued, c.Reading = c.cpu/c.measured, c.gc/c.measured, c.queue/c.measured, c.reading/c.measured
	if u.OthersKnown {
		c.other, c.otherTime = c.other+cpus.OthersShare(u.Others, o.ranks(), o.cpus())*weight, c.otherTime+weight
		c.OtherCPU = min(c.other/c.otherTime, 1-c.CPU)
	}
	return own, queued
}

// counts holds the worker counts that were measured, in the order of their first windows.
type counts []*count

// at returns what is known of a worker count, or nil if it wasn't measured.
func (c counts) at(workers int) *count {
	i := slices.IndexFunc(c, func(c *count) bool { return c.Workers == workers })
	if i < 0 {
		return nil
	}
	return c[i]
}

// windows returns how many windows there were.
func (c counts) windows() (n int) {
	for _, one := range c {
		n += one.n
	}
	return n
}

// peaks returns how much memory the counts need.
func (c counts) peaks() []memoryPeak {
	out := make([]memoryPeak, len(c))
	for i, one := range c {
		out[i] = memoryPeak{one.Workers, one.needs()}
	}
	return out
}
