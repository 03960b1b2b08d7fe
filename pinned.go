package nwt

import "fmt"

// Slots lie outside the Go heap: a gigabyte of them there would let the
// collector pile up a gigabyte of garbage, and would not go back to the system
// when a loader closes.

// allocSlot returns zeroed memory of the system's, page-aligned.
func allocSlot(size int) ([]byte, error) {
	mem, err := mapPages(size)
	if err != nil {
		return nil, fmt.Errorf("nwt: %d bytes for a batch: %w (a smaller WithBatchSize or WithPrefetch needs less)", size, err)
	}
	return mem, nil
}

// freeSlot gives mem back to the system.
func freeSlot(mem []byte) error { return unmapPages(mem) }
