package nwt_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// Some calls of the device fail or hang, sessions don't end, and the program cancels, breaks,
// retains batches and changes the number of workers. Whatever it is delivered is on the device,
// and all that the device gave comes back.
func TestRandomProgramsOnADeviceThatFails(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runRandomly(t, rand.New(rand.NewPCG(seed, 21))) })
		})
	}
}

func runRandomly(t *testing.T, rng *rand.Rand) {
	one := func(in int) bool { return rng.IntN(in) == 0 }
	upTo := func(n int) time.Duration { return time.Duration(rng.IntN(n)) * time.Millisecond }
	calls := []string{"AllocHost", "FreeHost", "Alloc", "Free", "NewEvent", "FreeEvent", "Open", "Copy", "Wait", "copying"}
	call, first := calls[rng.IntN(len(calls))], 1+rng.IntN(12)
	last := first + []int{-1, 0, 1, 3, 10000}[rng.IntN(5)]
	unended, hung := max(0, rng.IntN(5)-2), rng.IntN(40) // sessions that don't end; the copy that takes an hour, if there are so many
	dev := &fakeDevice{took: upTo(40), fail: func(c string, n int) error {
		switch {
		case c == "copying" && n == hung:
			time.Sleep(time.Hour)
		case c == "Close" && n <= unended, c == call && first <= n && n <= last:
			return errFake
		}
		return nil
	}}
	n, load := 1+rng.IntN(80), upTo(4)
	ds := ragged(n)
	slow := nwt.NewDataset(n, ds.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		time.Sleep(load * time.Duration(i%3))
		return errors.Join(ctx.Err(), ds.Load(ctx, i, dst))
	})
	l, err := nwt.NewLoader(slow, nwt.WithBatchSize(1+rng.IntN(9)), nwt.WithWorkers(rng.IntN(6)), nwt.WithPrefetch(1+rng.IntN(6)),
		nwt.WithDevice(dev), silent, nwt.WithPinned(!one(4)))
	require.NoError(t, err)
	var kept sync.WaitGroup
	for epoch := range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		if one(4) {
			time.AfterFunc(upTo(400), cancel)
		}
		workers, leave := rng.IntN(6), rng.IntN(20)
		time.AfterFunc(upTo(200), func() { _ = l.SetWorkers(workers) })
		i := 0
		var ended error
		for b, err := range l.Epoch(ctx, epoch) {
			if ended = err; err != nil {
				break
			}
			for k, v := range nwt.Values[uint8](b, 1) {
				require.Equal(t, uint8((i+k)%6), v)
			}
			require.True(t, dev.holds(b))
			i += b.Len()
			took := upTo(500)
			if time.Sleep(upTo(40)); one(4) {
				b.Retain()
				kept.Go(func() {
					time.Sleep(took)
					if !dev.holds(b) {
						t.Error("a batch that is retained has changed")
					}
					b.Release()
				})
			} else {
				dev.overwrite(b)
			}
			if b.Index() == leave {
				break
			}
		}
		if cancel(); ended != nil && !errors.Is(ended, context.Canceled) {
			require.ErrorIs(t, ended, errFake)
		}
	}
	if one(2) {
		kept.Wait()
	}
	require.NoError(t, l.Close())
	kept.Wait()
	dev.settled(t)
}
