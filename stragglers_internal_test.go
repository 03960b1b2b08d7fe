package nwt

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A call that ignores its context returns after an hour.
func TestStragglersAreWaitedForNoLongerThanIsPromised(t *testing.T) {
	const soon, later = 200 * time.Millisecond, 5 * time.Second
	for name, tt := range map[string]struct {
		opts          []Option
		time, context time.Duration // until they end; 0: never
		call, want    time.Duration
	}{
		"a second":                               {call: time.Hour, want: time.Second},
		"until they return":                      {call: 700 * time.Millisecond, want: 700 * time.Millisecond},
		"until the time for tuning is over":      {time: soon, context: later, call: time.Hour, want: soon},
		"until the context ends":                 {time: later, context: soon, call: time.Hour, want: soon},
		"as long as a call may take":             {opts: []Option{WithTimeout(soon)}, time: later, call: time.Hour, want: soon},
		"no longer, since time is over":          {time: -soon, call: time.Hour, want: 0},
		"not at all, since nothing is under way": {want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ds := NewDataset(1, []Field{{Name: "x", Type: Uint8}}, func(context.Context, int, *Sample) error {
					time.Sleep(tt.call)
					return nil
				})
				l, err := NewLoader(ds, append(tt.opts, WithWorkers(0))...)
				require.NoError(t, err)
				defer l.Close()
				c := timeCalls(l)
				ctx, deadline := t.Context(), time.Time{}
				if tt.context > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.context)
					defer cancel()
				}
				if tt.time != 0 {
					deadline = time.Now().Add(tt.time)
				}
				c.begin()
				var calls sync.WaitGroup
				defer calls.Wait()
				calls.Go(func() { _ = l.loadSample(ctx, 0, &Sample{common: &common{}}) })
				synctest.Wait()
				began := time.Now()
				s := c.end(ctx, began, deadline)
				require.Equal(t, tt.want, time.Since(began))
				if tt.call == tt.want {
					require.Equal(t, served{1, tt.call, tt.call}, s)
				} else {
					require.Zero(t, s, "a call that doesn't return in time doesn't count")
				}
			})
		})
	}
}
