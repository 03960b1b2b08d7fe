package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/search"
)

// A Strategy decides which worker counts [Tune] measures, and for how long.
// [Greedy] and [Exhaustive] are the two there are.
type Strategy interface {
	fmt.Stringer
	search() search.Strategy
}

type strategy struct{ search.Strategy }

func (s strategy) search() search.Strategy { return s.Strategy }

// Greedy looks at 0, 1, 2, 4, 8 … workers first, up to one for each CPU, bisects
// to the fewest within alpha of the fastest, and spends its measuring on the
// counts still in the race, round by round, until the choice is sure. Counts
// closer together than a quarter to an eighth of themselves are not told apart.
func Greedy() Strategy { return strategy{search.Greedy{}} }

// Exhaustive measures every count in ascending order, 0 … CPUs−1 as the paper
// does, in a few interleaved rounds.
func Exhaustive() Strategy { return strategy{search.Exhaustive{}} }
