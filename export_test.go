package nwt

// MaxSamples is the longest a dataset or an epoch may be.
const MaxSamples = maxSamples

// SlotCount is a loader's slots as its tests see them.
type SlotCount struct{ Memory, Free, Retained int }

// SlotCount counts the slots that have memory, and of these those that nobody
// uses and those that are retained past their iteration.
func (l *Loader) SlotCount() SlotCount {
	l.slots.mu.Lock()
	defer l.slots.mu.Unlock()
	return SlotCount{l.slots.total, len(l.slots.free), l.slots.loose}
}
