package nwt

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/durations"
	"github.com/nwt-go/nwt/internal/human"
)

// Stats is a snapshot of what a loader has done since it was made.
type Stats struct {
	Batches             int           // batches delivered
	Samples             int64         // samples delivered
	Bad                 int           // samples left out under WithErrorBudget
	Wait                time.Duration // how long the training loop waited for batches
	Occupancy           float64       // share of the batches that were ready when the loop asked for them, 0 … 1; 0 without workers
	LoadMedian, LoadP99 time.Duration // median and 99th percentile of the time that Load takes for a sample, within 10 %
	Copied              int           // batches that were copied to the device
	CopiedBytes         int64         // bytes that were copied to the device
	Transfer            time.Duration // how long the copies took, including the time in which they waited for the device
	DeviceBytes         int64         // bytes of device memory that the loader uses
	Workers             int
	Prefetch            int   // how many batches may now be ahead of the one in use
	Slots               int   // batch buffers that have memory now, retained batches included
	SlotBytes           int64 // bytes of that memory
	Retained            int   // batches retained past their iteration
	DatasetBytes        int64 // bytes of memory of datasets: samples of [Cached], what a vision.Folder remembers of its files, and processes that load for a dataset
	WindowBytes         int64 // bytes of Record.Data in a stream's shuffle window now

	elapsed time.Duration // since the loader was made
}

// Since returns what the loader has done since an earlier snapshot. Times per sample, memory, prefetch and
// workers are the figures in s, not differences.
func (s Stats) Since(earlier Stats) Stats {
	ready := s.Occupancy*float64(s.Batches) - earlier.Occupancy*float64(earlier.Batches)
	s.Batches, s.Samples, s.Bad = s.Batches-earlier.Batches, s.Samples-earlier.Samples, s.Bad-earlier.Bad
	s.Wait, s.Transfer, s.elapsed = s.Wait-earlier.Wait, s.Transfer-earlier.Transfer, s.elapsed-earlier.elapsed
	s.Copied, s.CopiedBytes = s.Copied-earlier.Copied, s.CopiedBytes-earlier.CopiedBytes
	s.Occupancy = min(1, max(0, ready/float64(max(1, s.Batches))))
	return s
}

// String returns the most useful figures in one line.
func (s Stats) String() string {
	waits := fmt.Sprintf("%s of them waited for, %s in all", human.Share(1-s.Occupancy), human.Duration(s.Wait))
	if s.Wait < s.elapsed/100 { // many short waits aren't worth a share
		waits = "hardly waited for, " + human.Duration(s.Wait) + " in all"
	}
	line := fmt.Sprintf("%d batches of %d samples, %s, %s", s.Batches, s.Samples, waits, human.Workers(s.Workers))
	if s.Bad > 0 {
		line += fmt.Sprintf(", %d bad samples left out", s.Bad)
	}
	return line + fmt.Sprintf("; a sample takes %s, %s at the 99th percentile", human.Duration(s.LoadMedian), human.Duration(s.LoadP99))
}

// counters holds the figures of Stats that are counted nowhere else.
type counters struct {
	// Only the consumer writes these fields.
	batches, samples, ready atomic.Int64
	wait, transfer          atomic.Int64 // nanoseconds

	loaded atomic.Int64 // written by workers while something tunes, in parts of wholeBatch

	reading        durations.Stopwatch // for a stream: runs while the records of a batch are read
	loads          durations.Histogram // written by workers
	bad            badSamples
	failedTogether atomic.Int64 // calls of LoadMany that failed, where Load did not
}

// wholeBatch is what one batch adds to counters.loaded.
const wholeBatch = 1 << 30
