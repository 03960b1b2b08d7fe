package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/search"
)

// A Strategy decides which worker counts [Tune] measures, and for how long.
// There are two: [Greedy] and [Exhaustive].
type Strategy interface {
	fmt.Stringer
	search() search.Strategy
}

type strategy struct{ search.Strategy }

func (s strategy) search() search.Strategy { return s.Strategy }

// Greedy looks at the count that training would have without tuning, at higher ones while
// training waits, at lower ones until they are hopeless, and between them, until another run
// would choose the same in 95 % of cases.
func Greedy() Strategy { return strategy{search.Greedy{}} }

// Exhaustive measures every count in ascending order, 0 … CPUs−1, in four rounds, and goes on as
// long as more workers win while CPUs are idle.
func Exhaustive() Strategy { return strategy{search.Exhaustive{}} }
