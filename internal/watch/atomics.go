//go:build !explore

package watch

import (
	"sync"
	"sync/atomic"
)

// Goroutines share the data of a Clock through these types alone. The build tag explore replaces them by
// types for which every access is a step, and a test decides the order of the steps.
type (
	atomicUint64 = atomic.Uint64
	mutex        = sync.Mutex
)
