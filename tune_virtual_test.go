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
				r, err := nwt.Tune(t.Context(), sleeping(100_000, tt.load/batch), nwt.WithBatchSize(batch), nwt.WithMaxWorkers(16),
					nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(tt.step); return nil }))
				require.NoError(t, err)
				require.GreaterOrEqual(t, r.Workers, tt.want[0], "%v", r)
				require.LessOrEqual(t, r.Workers, tt.want[1], "%v", r)
				require.Equal(t, tt.step, r.Floor)
			})
		})
	}
}
