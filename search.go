package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/search"
)

// A Strategy decides which counts of workers [Tune] measures, and for how long.
type Strategy int

const (
	// Greedy tries more workers while training waits, and then fewer, until they are clearly too few. It
	// ends when 95 % of repeated tunings would choose the same count.
	Greedy Strategy = iota
	// Exhaustive measures every count, 0 … CPUs−1, in four rounds, and higher counts as long as more
	// workers are faster and CPUs are idle.
	Exhaustive
)

var strategies = [...]search.Strategy{Greedy: search.Greedy{}, Exhaustive: search.Exhaustive{}}

func (s Strategy) known() bool { return s >= 0 && int(s) < len(strategies) }

func (s Strategy) String() string {
	if !s.known() {
		return fmt.Sprintf("Strategy(%d)", int(s))
	}
	return strategies[s].String()
}

// WithStrategy sets how [Tune] searches: [Greedy] by default, or [Exhaustive].
func WithStrategy(s Strategy) Option {
	return option("WithStrategy", inTune, errorIf(!s.known(), "WithStrategy", s, "must be Greedy or Exhaustive"), func(o *options) { o.strategy = s })
}
