package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/search"
)

// A Strategy decides which worker counts [Tune] measures, and for how long.
type Strategy interface {
	fmt.Stringer
	search() search.Strategy
}

type strategy struct{ search.Strategy }

func (s strategy) search() search.Strategy { return s.Strategy }

// Greedy tries more workers while training waits, and fewer until they are hopeless. It ends
// when another run would choose the same in 95 % of cases.
func Greedy() Strategy { return strategy{search.Greedy{}} }

// Exhaustive measures every count, 0 … CPUs−1, in four rounds, and goes on as long as more
// workers win while CPUs are idle.
func Exhaustive() Strategy { return strategy{search.Exhaustive{}} }
