package nwt

import (
	"github.com/nwt-go/nwt/internal/human"
)

// leftOut logs that a sample is left out. While tuning it logs each sample once; in an epoch it logs less
// and less often: numbers 1 … 10, 20 … 100, 200 and so on.
func (l *engine) leftOut(err *LoadError, bad int) {
	if l.tunes && !l.once.first(err.Index) {
		return
	}
	digits := bad
	for digits%10 == 0 {
		digits /= 10
	}
	if digits > 9 {
		return
	}
	log := l.opts.log
	if err.origin != "" {
		log = log.With("origin", err.origin)
	}
	log.Warn("nwt: a bad sample is left out", "during", l.during(), "index", err.Index, "position", err.Position,
		"epoch", err.Epoch, "worker", err.Worker, "bad", bad, "budget", l.opts.maxBad, "error", err.Err)
}

// failedTogether logs that a LoadMany has failed, but only the first time. A bad sample is reported
// again when Load fails for it. But if LoadMany fails and Load doesn't, loading is slow, and this log is
// the only hint.
func (l *engine) failedTogether(err error) {
	if l.once.first("LoadMany") {
		l.opts.log.Warn("nwt: LoadMany failed: its halves are tried, and their halves, until the bad samples are found; this is logged once", "during", l.during(), "error", err)
	}
}

// tellIfBegun logs, once, that an epoch begins again: the program may have forgotten to count its epochs.
func (l *engine) tellIfBegun(epoch, n int) {
	type begun struct{ epoch, n int }
	if !l.tunes && !l.once.first(begun{epoch, n}) && l.once.first("begins anew") {
		l.opts.log.Warn("nwt: a shuffled epoch begins anew, in the same order as before: count the epochs, as Epochs does", "epoch", epoch)
	}
}

// lostAgain returns the error for a record that was delivered before and now can't be read: what follows
// isn't the rest of the epoch. With an error budget it only warns, since the record may have been bad
// then too.
func (l *engine) lostAgain(epoch int, err error) error {
	if l.opts.maxBad == 0 {
		return err
	}
	l.opts.log.Warn("nwt: a record that was delivered before can't be read now: unless it was bad then, samples are lost", "epoch", epoch, "error", err)
	return nil
}

// mixing counts bytes that enter a shuffle window or, if negative, leave it. It warns when they take much
// of the memory that was left before.
func (l *engine) mixing(bytes int) {
	most := l.mixed.room()
	now := l.mixed.bytes.Add(int64(bytes))
	if float64(now) > most && float64(now-int64(bytes)) <= most && l.once.first("WithShuffleWindow") {
		l.opts.log.Warn("nwt: the records that are mixed take more than an eighth of the memory left: lower WithShuffleWindow",
			"during", l.during(), "WithShuffleWindow", l.opts.window, "bytes", human.Bytes(uint64(now)), "left", human.Bytes(uint64(most/extraShare)))
	}
}
