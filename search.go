package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/search"
)

// A Strategy decides which worker counts [Tune] measures, and for how long.
type Strategy int

const (
	// Greedy tries more workers while training waits. Then it tries fewer workers, until they are clearly too
	// few. Greedy ends when 95 % of repeated tunings would choose the same count.
	Greedy Strategy = iota
	// Exhaustive measures every count from 0 to CPUs − 1, in four rounds. It also measures higher counts
	// while more workers are faster and CPUs are idle.
	Exhaustive
)

var strategies = [...]struct {
	name string
	next search.Strategy
}{Greedy: {"greedy", search.Greedy}, Exhaustive: {"exhaustive", search.Exhaustive}}

func (s Strategy) known() bool { return s >= 0 && int(s) < len(strategies) }

func (s Strategy) String() string {
	if !s.known() {
		return fmt.Sprintf("Strategy(%d)", int(s))
	}
	return strategies[s].name
}

// WithStrategy sets how [Tune] searches. The default is [Greedy].
func WithStrategy(s Strategy) Option {
	return option("WithStrategy", inTune, errorIf(!s.known(), "WithStrategy", s, "must be Greedy or Exhaustive"), func(o *options) { o.strategy = s })
}
