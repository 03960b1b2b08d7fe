//go:build !explore

package ring

import "sync/atomic"

// What goroutines share goes through these types alone. Under the build tag
// explore they are others, whose every access is a step that a test orders.
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
