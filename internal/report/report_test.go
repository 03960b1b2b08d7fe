package report

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/memlimit"
	"github.com/nwt-go/nwt/internal/search"
)

func TestAHeadlineHasNoPercentageInsideItsErrorOrOfWhatWasHardlyMeasured(t *testing.T) {
	type row struct{ mean, margin time.Duration } // in microseconds
	for want, tt := range map[string]struct {
		one, two, four row
		fastest        int
	}{
		"2 workers: the fastest; 1 worker takes 90 % longer.":                                           {row{1900, 90}, row{1000, 50}, row{1010, 50}, 2},
		"2 workers: the fastest; 1 worker takes longer.":                                                {row{216_000, 0}, row{1000, 50}, row{1010, 50}, 2},
		"2 workers: the fastest.":                                                                       {row{1900, 1000}, row{1000, 50}, row{1010, 50}, 2},
		"2 workers: the fastest, but hardly measured; 1 worker takes longer.":                           {row{2900, 0}, row{1000, 0}, row{1010, 0}, 2},
		"2 workers: faster than 4, but hardly measured; 1 worker takes longer.":                         {row{2900, 0}, row{1000, 0}, row{1010, 10}, 4},
		"2 workers: 4 workers may be faster, but that was hardly measured; 1 worker takes longer.":      {row{2900, 0}, row{1000, 0}, row{900, 0}, 4},
		"2 workers: the fastest; 1 worker may be as fast, within the error.":                            {row{1060, 50}, row{1000, 50}, row{1010, 50}, 2},
		"2 workers: as fast as 4, the fastest, within the error; 1 worker takes 90 % longer.":           {row{1900, 90}, row{1000, 50}, row{985, 50}, 4},
		"2 workers: 1.5 % slower than 4, the fastest; 1 worker takes 90 % longer.":                      {row{1900, 90}, row{1000, 5}, row{985, 5}, 4},
		"2 workers: the fastest that was measured well; 1 worker takes 90 % longer.":                    {row{1900, 90}, row{1000, 50}, row{960, 0}, 2},
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

func TestWhereRepeatabilityIsNotPrintedTheWarningSaysWhy(t *testing.T) {
	for why, tt := range map[string]struct {
		repeatability, others float64
		slower                time.Duration
	}{
		"":                           {0.95, 0, 0},
		"nothing was measured twice": {0, 0, 0},
		"other processes kept more than half of the CPUs busy":              {0.6, 0.6, 0},
		"the measurements don't show that the choice is better than others": {0.6, 0, 30},
	} {
		r := Result{Workers: 2, Fastest: 4, Alpha: 20, Repeatability: tt.repeatability}
		r.Trials = []Trial{{Workers: 2, Mean: 1000, Total: 1000, OtherCPU: tt.others}, {Workers: 4, Mean: 1000 - tt.slower, Total: 1000 - tt.slower}}
		r.Warn(Circumstances{})
		require.Equal(t, why == "", strings.Contains(r.String(), "of tunings would choose the same"), "%v", &r)
		require.Equal(t, why != "", strings.Contains(r.String(), "no repeatability is told: "+why+"\n"), "%v", &r)
		require.NotContains(t, r.String(), "of them would choose", "%v", &r)
	}
	r := Result{Workers: 2, Fastest: 2, Repeatability: 0.6, Trials: make([]Trial, 2)}
	r.Warn(Circumstances{})
	require.Contains(t, r.String(), "other tunings may choose another count: 60 % of them would choose this one")
}

func TestEachRowSaysHowSureItsTimeIs(t *testing.T) {
	r := Result{Workers: 2, Fastest: 2, Trials: []Trial{{Workers: 1, Mean: 10, Low: 10, High: 10}, {Workers: 2, Mean: 10, Low: 9, High: 11}, {Workers: 4, Mean: 10, Low: 0, High: 30}}}
	require.Regexp(t, `(?m)^ +1 +10 +once `, r.String())
	require.Regexp(t, `(?m)^ +2 +10 +10\.0 % `, r.String())
	require.Regexp(t, `(?m)^ +4 +10 +> 100 % `, r.String())
}

func TestAtMostThreeLinesOfAdviceStandInTheOrderOfTheirUse(t *testing.T) {
	const ms = time.Millisecond
	t8 := Trial{Workers: 80, Mean: 50 * ms, Total: 50 * ms, Transfer: 20 * ms, Wait: 20 * ms, CollectorCPU: 0.2, CPU: 0.3}
	r := Result{Workers: 80, Fastest: 80, Step: true, Trials: []Trial{t8, {Workers: 96, Mean: 50 * ms}}}
	r.Advise(Circumstances{Mine: 4, Most: -1, Limit: memlimit.Limit{Bytes: math.MaxUint64}})
	require.Len(t, r.Advice, 3)
	require.Contains(t, r.Advice[0], "Training waits for data 80 % of the time")
	require.Contains(t, r.Advice[1], "storage, the network or a lock inside Load sets the pace")
	require.Contains(t, r.Advice[2], "The garbage collector")
}

func TestTheFirstPassIsComparedAtTheSameCount(t *testing.T) {
	blocks := func(means ...time.Duration) (bs []search.Block) {
		for _, m := range means {
			bs = append(bs, search.Block{Mean: m})
		}
		return bs
	}
	first := []search.Series{{Workers: 4, Blocks: blocks(30), First: 1}, {Workers: 8, Blocks: blocks(5), First: 1}}
	require.Zero(t, FirstPass(first), "nothing came later")
	seen := []search.Series{{Workers: 4, Blocks: blocks(30, 10, 10), First: 1}, {Workers: 8, Blocks: blocks(5), First: 1}, {Workers: 1, Blocks: blocks(1)}}
	require.EqualValues(t, 3, FirstPass(seen))
}
