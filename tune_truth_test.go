//go:build !race

package nwt_test

import (
	"context"
	"sync"
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
			r := tune(t, sleeping(1_000_000, msec), nwt.WithMaxWorkers(2), nwt.WithShuffle(seed), savingEachTenth())
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

// A step that computes on all CPUs takes longer the more workers compute beside it. What is told of a
// count is what a long run has at it.
func TestAStepThatComputesTakesAsLongAsInALongRunOfItsCount(t *testing.T) {
	const load, step, slice = 700 * us, 5 * msec, 500 * us
	for name, c := range map[string]struct {
		cpus int
		opt  nwt.Option
	}{
		"2 CPUs": {2, silent}, "4 CPUs, every count": {4, nwt.WithStrategy(nwt.Exhaustive())},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := nwt.NewVirtualMachine(c.cpus)
			compute := func() { // on each CPU
				var group sync.WaitGroup
				for range c.cpus {
					group.Go(func() {
						for range step / slice {
							m.Compute(slice)
						}
					})
				}
				group.Wait()
			}
			ds := waiting{compute: load, steady: true}.dataset(m, 1)
			r := tune(t, ds, m.Option(), nwt.WithMaxWorkers(16), c.opt, nwt.WithStep(func(context.Context, *nwt.Batch) error { compute(); return nil }))
			least := time.Hour
			for _, trial := range r.Trials {
				steps, n := time.Duration(0), 0
				l := newLoader(t, ds, nwt.WithWorkers(trial.Workers), silent, m.Option())
				took := train(t, l, 400, func() {
					began := time.Now()
					compute()
					steps, n = steps+time.Since(began), n+1
				})
				require.NoError(t, l.Close())
				mean, body := took/400, steps/time.Duration(n)
				require.InEpsilon(t, mean, trial.Mean, 0.12, "%s, %d workers: %v", name, trial.Workers, r)
				require.InEpsilon(t, body, trial.Step, 0.12, "%s, %d workers: %v", name, trial.Workers, r)
				require.InDelta(t, mean-body, trial.Wait, 0.12*float64(mean), "%s, %d workers: %v", name, trial.Workers, r)
				least = min(least, trial.Step)
			}
			require.Equal(t, least, r.Floor, "the step beside which nothing computes")
		})
	}
}
