package nwt_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestWhatHangsAfterAPauseIsGivenUpToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := numbered(64, func(ctx context.Context, i int, _ *nwt.Sample) error {
			if i == 60 {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Millisecond), nwt.WithErrorBudget(1), quietLog)
		for epoch := range 2 {
			n := 0
			for b, err := range l.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
				n += b.Len()
				time.Sleep(10 * time.Second)
			}
			require.Equal(t, 63, n)
			time.Sleep(10 * time.Second)
		}
	})
}

// late is a dataset of which one sample is loaded for so long, whatever its context says.
func late(n, bad int, d time.Duration) nwt.Dataset {
	return numbered(n, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == bad {
			time.Sleep(d)
		} else {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
}

func TestALoadThatIgnoresItsContextIsNamedAfterFiveSeconds(t *testing.T) {
	for name, end := range map[string]func(l *nwt.Loader, cancel func()) (leave bool){
		"break":  func(*nwt.Loader, func()) bool { return true },
		"cancel": func(_ *nwt.Loader, cancel func()) bool { cancel(); return false },
		"Close":  func(l *nwt.Loader, _ func()) bool { _ = l.Close(); return false },
	} {
		for _, takes := range []time.Duration{4 * time.Second, 20 * time.Second} {
			for _, opt := range []nwt.Option{quietLog, nwt.WithTimeout(time.Hour)} {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					var log journal
					l := newLoader(t, late(64, 13, takes), nwt.WithBatchSize(4), nwt.WithWorkers(2), opt, log.option())
					for b, err := range l.Epoch(ctx, 0) {
						if err != nil {
							continue
						}
						time.Sleep(time.Second)
						if b.Index() == 2 && end(l, cancel) {
							break
						}
					}
					if takes < 5*time.Second {
						require.Empty(t, log.String(), name)
						return
					}
					require.Equal(t, 1, strings.Count(log.String(), "\n"), name)
					require.Contains(t, log.String(), "a call of Load is still running", name)
					require.Contains(t, log.String(), "index=13 position=13 epoch=0 worker=", name)
					require.Contains(t, log.String(), "running=", name)
				})
			}
		}
	}
}

func TestALoadOfTheCallerThatIgnoresItsContextIsNamedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var log journal
		l := newLoader(t, late(64, 13, 20*time.Second), nwt.WithBatchSize(8), nwt.WithWorkers(0), log.option())
		time.AfterFunc(time.Second, cancel)
		_, err := epoch(ctx, l, 0)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, strings.Count(log.String(), "\n"))
		require.Contains(t, log.String(), "index=13 position=13 epoch=0 worker=0 running=")
	})
}

func TestACreateOfScratchThatIgnoresItsContextIsNamedWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var log journal
		ds := numbered(8, func(_ context.Context, i int, dst *nwt.Sample) error {
			time.Sleep(time.Second)
			_, err := nwt.Scratch(dst, func() (int, error) { time.Sleep(20 * time.Second); return i, nil })
			return err
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithTimeout(time.Hour), log.option())
		time.AfterFunc(2*time.Second, cancel)
		_, err := epoch(ctx, l, 0)
		require.ErrorIs(t, err, context.Canceled)
		require.Contains(t, log.String(), "index=0 position=0 epoch=0 worker=0 running=7s")
	})
}
