package nwt_test

import (
	"context"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/host"
)

// hangingAt takes a millisecond for each sample, except for one that waits for its context.
func hangingAt(bad int) nwt.Dataset {
	return nwt.NewDataset(64, scalar, func(ctx context.Context, index int, _ *nwt.Sample) error {
		if index == bad {
			<-ctx.Done()
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
		return nil
	})
}

// Only with workers can a call be given up, so 0 workers aren't measured.
func TestWithATimeoutTuningEndsThoughASampleHangs(t *testing.T) {
	for name, opts := range map[string][]nwt.Option{
		"default":              {nwt.WithMaxWorkers(8)},
		"iterations":           {nwt.WithMaxWorkers(8), nwt.WithIterations(20)},
		"every count":          {nwt.WithMaxWorkers(8), nwt.WithIterations(20), nwt.WithStrategy(nwt.Exhaustive())},
		"every count of 1 CPU": {nwt.WithIterations(20), nwt.WithStrategy(nwt.Exhaustive()), nwt.NewVirtualMachine(1).Option()},
		"one worker at most":   {nwt.WithMaxWorkers(1), nwt.WithIterations(20)},
		"a step":               {nwt.WithMaxWorkers(8), nwt.WithIterations(20), nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(time.Millisecond); return nil })},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				opts := append([]nwt.Option{nwt.WithBatchSize(4), nwt.WithTimeout(time.Second), silent, virtual}, opts...)
				_, err := nwt.Tune(ctx, hangingAt(40), opts...)
				var bad *nwt.LoadError
				require.ErrorAs(t, err, &bad)
				require.Equal(t, 40, bad.Index)

				r, err := nwt.Tune(ctx, hangingAt(40), append(opts, nwt.WithErrorBudget(1))...)
				require.NoError(t, err)
				require.Positive(t, r.Workers, "%v", r)
				require.Positive(t, r.Trials[0].Workers, "%v", r)
				require.Contains(t, r.String(), "0 workers weren't tried: WithTimeout")
			})
		})
	}
}

func TestWithATimeoutALoaderThatTunesItselfEndsThoughASampleHangs(t *testing.T) {
	for _, batch := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
			defer cancel()
			ds := nwt.NewDataset(5000, scalar, func(ctx context.Context, index int, _ *nwt.Sample) error {
				if index%1000 == 999 {
					<-ctx.Done()
				}
				return ctx.Err()
			})
			l := newLoader(t, ds, nwt.WithBatchSize(batch), nwt.WithAutoWorkers(), nwt.WithWorkers(0), nwt.WithMaxWorkers(4),
				nwt.WithTimeout(time.Second), nwt.WithErrorBudget(5), silent, virtual)
			for _, err := range l.Epoch(ctx, 0) {
				require.NoError(t, err)
				require.Positive(t, l.Workers(), "%v", l.Result())
				time.Sleep(time.Millisecond) // loading is nothing beside it
			}
		})
	}
}

func TestIfNoOtherCountIsLeftNoWorkersAreMeasuredAndTheResultWarns(t *testing.T) {
	const size = 32 << 20 // a batch
	large := nwt.NewDataset(100, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{size}}}, func(_ context.Context, _ int, s *nwt.Sample) error {
		clear(s.Bytes(0))
		return nil
	})
	debug.FreeOSMemory() // as tuning does
	for name, only := range map[string]nwt.Option{
		"WithMaxWorkers": nwt.WithMaxWorkers(0),
		"memory":         nwt.WithMemoryLimit(host.Memory().RSS + 2*size),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), large, nwt.WithBatchSize(1), nwt.WithPrefetch(8), nwt.WithIterations(2), nwt.WithTimeout(time.Minute), only, silent)
			require.NoError(t, err)
			require.Equal(t, 0, r.Workers, "%v", r)
			require.Contains(t, r.Warnings, "WithTimeout doesn't hold without workers: a call that hangs is waited for")
		})
	}
}

func TestATuningTimeThatIsOverBeforeACountFitsIntoMemoryIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := nwt.Tune(t.Context(), sleeping(1000, time.Second), nwt.WithMemoryLimit(1), nwt.WithTuningTime(time.Millisecond), silent, virtual)
		require.ErrorContains(t, err, "nwt: the time for tuning was over before a worker count fitted into memory: 4 workers took")
	})
}
