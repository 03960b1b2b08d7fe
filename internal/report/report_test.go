package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/search"
)

func TestAHeadlineHasNoPercentageOfWhatWasHardlyMeasured(t *testing.T) {
	type row struct{ mean, margin time.Duration } // in microseconds
	for want, tt := range map[string]struct {
		one, two, four row
		fastest        int
	}{
		"2 workers: the fastest; 1 worker takes 90 % longer.":                                           {row{1900, 90}, row{1000, 50}, row{1010, 50}, 2},
		"2 workers: the fastest; 1 worker takes longer.":                                                {row{216_000, 0}, row{1000, 50}, row{1010, 50}, 2},
		"2 workers: the fastest.":                                                                       {row{1900, 1000}, row{1000, 50}, row{1010, 50}, 2},
		"2 workers: the fastest as far as was measured, which is hardly; 1 worker takes longer.":        {row{2900, 0}, row{1000, 0}, row{1010, 0}, 2},
		"2 workers: faster than 4 as far as was measured, which is hardly; 1 worker takes longer.":      {row{2900, 0}, row{1000, 0}, row{1010, 10}, 4},
		"2 workers: 4 workers may be faster, but that was hardly measured; 1 worker takes longer.":      {row{2900, 0}, row{1000, 0}, row{900, 0}, 4},
		"2 workers: 4 workers may be faster, but the measurements overlap; 1 worker takes 90 % longer.": {row{1900, 90}, row{1000, 50}, row{960, 50}, 4},
	} {
		r := Result{Workers: 2, Fastest: tt.fastest, Alpha: 20 * time.Microsecond}
		for i, one := range []row{tt.one, tt.two, tt.four} {
			at := func(d time.Duration) time.Duration { return d * time.Microsecond }
			r.Trials = append(r.Trials, Trial{Workers: 1 << i, Mean: at(one.mean), Total: at(one.mean), Low: at(one.mean - one.margin), High: at(one.mean + one.margin)})
		}
		r.Explain(search.Choice{}, 8)
		require.Equal(t, want, r.Reason)
	}
}
