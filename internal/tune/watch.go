package tune

import (
	"time"

	"github.com/nwt-go/nwt/internal/search"
)

// A Normal is what was measured at the count that a loader has settled on, per batch.
type Normal struct {
	Mean, Wait, Body time.Duration
	Ignored          float64 // share of the time that alpha ignores
}

// A window of a settled loader shows whether training waits as before.
const (
	windowBatches = 64                     // batches per window, …
	windowTime    = 200 * time.Millisecond // … or more, if they take less than this time in all, …
	longWindow    = 3 * time.Second        // … or fewer, if they take longer than this, …
	fewestBatches = 4                      // … but no fewer than these
	lookEvery     = 16                     // batches between two looks
	otherBody     = 0.10                   // a window isn't weighed if its bodies differ by more than this share of its time
	waitMore      = 0.04                   // by how much the share of waiting must have grown …
	waitLess      = 0.10                   // … or fallen …
	muchLonger    = 1.5                    // … or by which factor the wait must have changed, where it is most of the time
)

// Watch watches a loader that has settled. It returns if training waits more, or less, than it did, for
// patience windows in a row (odd), or with a block of what was measured meanwhile, as soon as that has
// weighAt batches: it shows what windows are too short for. It returns false if the loop must end.
func (t *Tuner) Watch(normal Normal, patience, weighAt int) (b search.Block, odd, ok bool) {
	t.watching = true
	defer func() { t.watching, t.skip = false, 1 }()
	began, inRow := t.begins(), 0
	var since span // windows that haven't been weighed yet
	for t.await() {
		t.skip = lookEvery
		all := t.sum.plus(began, -1)
		if (all.Delivered < windowBatches || all.took < windowTime) && (all.Delivered < fewestBatches || all.took < longWindow) {
			continue
		}
		began = t.sum
		if inRow++; !normal.isOdd(all) {
			inRow = 0
		}
		if inRow >= patience {
			return b, true, true
		}
		if differs := all.body() - normal.Body; float64(differs.Abs())*float64(all.Asked) > otherBody*float64(all.took) {
			continue // a pause, or another step than before
		}
		if since = since.plus(all, 1); since.Delivered >= weighAt && inRow == 0 {
			return t.window(-1, since, nil).Block, false, true
		}
	}
	return b, false, false
}

// isOdd reports whether training waits more, or less, than is normal.
func (n Normal) isOdd(all span) bool {
	before, now := float64(n.Wait)/float64(max(n.Mean, 1)), float64(all.Wait)/float64(max(all.took, 1))
	if now > before+max(waitMore, 2*min(n.Ignored, waitLess)) || now < before-waitLess {
		return true
	}
	longer := float64(all.Wait) / float64(max(all.Asked, 1)) / float64(max(n.Wait, 1))
	return before > 0.5 && (longer > muchLonger || longer < 1/muchLonger)
}
