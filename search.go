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

// Greedy first looks at the count that training would have without tuning. It halves
// that count until fewer workers are hopeless, and doubles it up to the ceiling (see
// [WithMaxWorkers]). It then bisects to the fewest workers within alpha of the fastest. It
// goes on measuring the counts still in the race, round by round, until the choice is sure.
// It tells 1, 2, 3, 4, 6, 8, 12, 16, 24 … apart. It looks at counts between them only if times
// promise much there: finer counts differ by less than measuring tells.
func Greedy() Strategy { return strategy{search.Greedy{}} }

// Exhaustive measures every count in ascending order, 0 … CPUs−1 as the paper
// does, in four rounds. With [WithTimeout] it begins at 1. As long as more workers win while
// CPUs are idle, it goes on beyond CPUs−1 as Greedy does, but leaves out none of the counts
// between. If loading only waits, that may be 1024 counts. [WithMaxWorkers] and
// [WithTuningTime] bound it.
func Exhaustive() Strategy { return strategy{search.Exhaustive{}} }
