//go:build !race

package nwt_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// Each tenth step saves the model.
func savingEachTenth() nwt.Option {
	n := 0
	return nwt.WithStep(func(context.Context, *nwt.Batch) error {
		if n++; n%10 == 0 {
			time.Sleep(490 * msec)
		}
		time.Sleep(10 * msec)
		return nil
	})
}

// Loading is hidden by steps that are long now and then, but only if there is a worker.
func TestWithoutWorkersLoadingIsNotHiddenBehindLongSteps(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			r := tune(t, sleeping(1_000_000, msec), nwt.WithShuffle(seed), savingEachTenth())
			require.Positive(t, r.Workers, "%v", r)
			none := trialOf(t, r, 0)
			require.InDelta(t, 32*msec, none.Wait, float64(msec), "%v", r)
		})
	}
}

// Of a batch that takes eight seconds, windows may see no step. Then the step isn't known to be short.
func TestStepsBesideVerySlowBatchesAreMeasuredAsTheyAre(t *testing.T) {
	const step = 2 * time.Second
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			r := tune(t, sleeping(1_000_000, 250*msec), nwt.WithShuffle(seed), stepOf(step))
			require.Equal(t, step, r.Floor, "%v", r)
			shows(t, r, 8*time.Second, step)
		})
	}
}

// Steps that are short or long in turn make a few workers wait in some windows, but not over many.
func TestTheTableHasTheChoiceAsNearToTheFastestAsTheRuleSaysOrTheHeadlineDoubtsIt(t *testing.T) {
	for name, step := range map[string]nwt.Option{
		"in turn": func() nwt.Option {
			n := 0
			return nwt.WithStep(func(context.Context, *nwt.Batch) error {
				n++
				time.Sleep([]time.Duration{3 * msec, 3 * msec, 30 * msec, 30 * msec}[n/7%4])
				return nil
			})
		}(),
		"saving each tenth": savingEachTenth(),
	} {
		for seed := range uint64(4) {
			synctest.Test(t, func(t *testing.T) {
				r := tune(t, sleeping(1_000_000, msec), nwt.WithShuffle(seed), step)
				chosen, fastest := trialOf(t, r, r.Workers), trialOf(t, r, r.Fastest)
				if chosen.Total-fastest.Total > r.Alpha {
					require.Contains(t, r.Reason, "the measurements overlap", "%s: %v", name, r)
				}
				for _, one := range r.Trials {
					require.Equal(t, one.Mean, one.Wait+one.Transfer+one.Step, "%v", r)
				}
			})
		}
	}
}

// Where training hardly waits, more time would find nothing better; where more workers were faster,
// they help.
func TestNothingIsSaidOfATuningThatWasCutShortWhichItDidNotSee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tune(t, sleeping(1_000_000, msec), stepOf(20*time.Second))
		require.NotContains(t, r.String(), "the time for tuning was over", "%v", r)
	})
	for left := 30 * msec; left < 100*msec; left += 2 * msec {
		synctest.Test(t, func(t *testing.T) {
			r := tune(t, sleeping(1_000_000, msec), stepOf(4*msec), nwt.WithTuningTime(left))
			if slow := trialOf(t, r, r.Workers).Mean > trialOf(t, r, r.Fastest).Mean*11/10; slow {
				require.NotContains(t, r.String(), "more workers don't help", "%v", r)
			}
		})
	}
}
