package nwt_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// In virtual time sleeping is exact, and nothing else takes any.
func TestTheChoiceIsTheFewestWorkersAtWhichTrainingDoesNotWait(t *testing.T) {
	for _, tt := range []struct {
		name       string
		load, step time.Duration // of a batch, as if one worker loaded it
		want       [2]int        // workers, from … to
	}{
		{"loading is faster than the step", 4 * time.Millisecond, 5 * time.Millisecond, [2]int{1, 1}},
		{"loading takes three steps", 15 * time.Millisecond, 5 * time.Millisecond, [2]int{3, 3}},
		{"the step is nothing beside loading", 16 * time.Millisecond, time.Millisecond, [2]int{15, 16}},
		{"loading is nothing beside the step", 0, 5 * time.Millisecond, [2]int{0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const batch = 16
				r, err := nwt.Tune(t.Context(), sleeping(100_000, tt.load/batch), nwt.WithBatchSize(batch), nwt.WithMaxWorkers(16), virtual,
					nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(tt.step); return nil }))
				require.NoError(t, err)
				require.GreaterOrEqual(t, r.Workers, tt.want[0], "%v", r)
				require.LessOrEqual(t, r.Workers, tt.want[1], "%v", r)
				require.Equal(t, tt.step, r.Floor)
			})
		})
	}
}

// XLA compiles for seconds when it sees a shape for the first time, and so for a
// last batch that is shorter too.
func TestACompilerInTheFirstStepIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step, compiling, budget = 5 * time.Millisecond, 4 * time.Second, 2 * time.Second
		compiled := map[int]bool{}
		r, err := nwt.Tune(t.Context(), sleeping(100, time.Millisecond), nwt.WithBatchSize(16), nwt.WithMaxWorkers(8),
			nwt.WithTuningTime(budget), virtual,
			nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
				if !compiled[b.Len()] {
					compiled[b.Len()] = true
					time.Sleep(compiling)
				}
				time.Sleep(step)
				return nil
			}))
		require.NoError(t, err)
		require.Len(t, compiled, 2)
		require.GreaterOrEqual(t, len(r.Trials), 3, "%v", r)
		for _, trial := range r.Trials {
			require.Equal(t, step, trial.Step, "%d workers", trial.Workers)
		}
		require.Equal(t, step, r.Floor)
		require.GreaterOrEqual(t, r.Elapsed, 2*compiling)
		require.LessOrEqual(t, r.Elapsed, 2*compiling+budget*12/10, "%v", r)
	})
}

// batched loads together what the other loads one by one.
type batched struct{ nwt.Dataset }

func (b batched) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	return b.Load(ctx, indices[0], dst[0])
}

func TestTheFloorIsWithoutAnyLoading(t *testing.T) {
	for name, ds := range map[string]nwt.Dataset{
		"one by one": sleeping(100_000, time.Millisecond),
		"together":   batched{sleeping(100_000, time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(8), virtual,
					nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(time.Microsecond); return nil }))
				require.NoError(t, err)
				require.Equal(t, time.Microsecond, r.Floor)
			})
		})
	}
}

// Eight workers that have a batch each finish at the same time: what is
// measured must not depend on where in such a wave a visit begins.
func TestWorkersThatFinishTogetherAreMeasuredInWholeWaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := nwt.Tune(t.Context(), sleeping(100_000, 8*time.Millisecond), nwt.WithBatchSize(1), nwt.WithMaxWorkers(8), nwt.WithIterations(8), virtual)
		require.NoError(t, err)
		require.Equal(t, 8, r.Workers, "%v", r)
		require.InEpsilon(t, time.Millisecond, r.Trials[len(r.Trials)-1].Mean, 0.1, "%v", r)
	})
}

func TestTuningEndsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 300 * time.Millisecond
		r, err := nwt.Tune(t.Context(), sleeping(100_000, time.Millisecond), nwt.WithMaxWorkers(64), nwt.WithTuningTime(limit), virtual)
		require.NoError(t, err)
		require.LessOrEqual(t, r.Elapsed, limit+32*time.Millisecond, "%v", r)
		require.Contains(t, r.String(), "the time for tuning was over")
	})
}
