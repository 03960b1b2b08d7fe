//go:build !explore

package ring

import "sync/atomic"

// Goroutines share data through these types alone. The build tag explore replaces them by types for which
// every access is a step, and a test decides the order of the steps.
type (
	atomicUint64 = atomic.Uint64
	atomicInt32  = atomic.Int32
	atomicBool   = atomic.Bool
	tokens       chan struct{}
)

// Capacity bounds the batches that are open at once.
const Capacity = 1024

func newTokens(n int) tokens { return make(tokens, n) }

func (t tokens) send()    { t <- struct{}{} }
func (t tokens) receive() { <-t }
