//go:build explore

package ring

import "github.com/nwt-go/nwt/internal/exploretest"

// A ring that is built with this tag is of no use elsewhere.

// Capacity is so small that entries are used again.
const Capacity = 4

type (
	atomicUint64 = exploretest.Uint64
	atomicInt32  = exploretest.Int32
	atomicBool   = exploretest.Bool
	tokens       struct{ exploretest.Tokens }
	cell         = exploretest.Cell
)

func newTokens(n int) tokens { return tokens{exploretest.NewTokens(n)} }

func (t *tokens) send()    { t.Send() }
func (t *tokens) receive() { t.Receive() }
