package nwt_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/nwt-go/nwt"
)

var besides = flag.Int("besides", 0, "so many random loaders of TestWhatIsCalledBesideALoopHarmsNothing; 0: some dozens, more without -short, the same each time")

// A crowd is goroutines that call a loader beside its training loop, on a real clock: in a
// bubble of synctest, who waits for a mutex stops the time.
type crowd struct {
	loader  *nwt.Loader
	loading atomic.Int32  // calls of Load under way
	closed  atomic.Bool   // a Close has returned
	over    chan struct{} // closed after the loop
}

func (c *crowd) load(_ context.Context, i int, dst *nwt.Sample) error {
	c.loading.Add(1)
	defer c.loading.Add(-1)
	if c.closed.Load() {
		return errors.New("loaded after Close")
	}
	if i%7 == 0 {
		time.Sleep(time.Duration(i%5) * 20 * time.Microsecond)
	}
	nwt.Values[int64](dst, 0)[0] = int64(i)
	return nil
}

// call makes calls at random until the loop is over; the last one of closing, if not
// negative, is Close.
func (c *crowd) call(rng *rand.Rand, closing int) error {
	for ; ; closing-- {
		select {
		case <-c.over:
			return nil
		case <-time.After(time.Duration(rng.IntN(300)) * time.Microsecond):
		}
		if closing == 0 {
			err := c.loader.Close()
			c.closed.Store(true)
			if n := c.loading.Load(); n != 0 {
				return fmt.Errorf("%d samples are being loaded after Close", n)
			}
			return err
		}
		var err error
		switch rng.IntN(5) {
		case 0, 1:
			err = c.loader.SetWorkers(rng.IntN(9))
		case 2:
			if c.loader.SetWorkers([]int{-1, 1025}[rng.IntN(2)]) == nil {
				return errors.New("SetWorkers took a count that is out of bounds")
			}
		case 3:
			c.loader.Stats()
			c.loader.Result()
			c.loader.BadSamples()
		case 4:
			for _, err = range c.loader.Epoch(context.Background(), 0) {
				break // after the loop it is no longer refused
			}
		}
		if err != nil && !errors.Is(err, nwt.ErrClosed) && !errors.Is(err, nwt.ErrBusy) {
			return err
		}
	}
}

// train is a training loop beside which others call the loader.
func (c *crowd) train(rng *rand.Rand) error {
	ref := &plainLoop{n: 1 + rng.IntN(200), shuffle: rng.IntN(2) == 0, batch: 1 + rng.IntN(9), world: 1}
	const epochs = 4
	wants, _ := ref.batches(0, epochs, 0)
	opts := []nwt.Option{nwt.WithBatchSize(ref.batch), nwt.WithWorkers(rng.IntN(6)), nwt.WithLogger(slog.New(slog.DiscardHandler))}
	if ref.shuffle {
		opts = append(opts, nwt.WithShuffle(5))
	}
	if rng.IntN(2) == 0 {
		opts = append(opts, nwt.WithAutoWorkers())
	}
	if prefetch := rng.IntN(5); prefetch > 0 {
		opts = append(opts, nwt.WithPrefetch(prefetch))
	}
	if rng.IntN(4) == 0 {
		opts = append(opts, nwt.WithTimeout(time.Minute))
	}
	var err error
	fields := []nwt.Field{{Name: "id", Type: nwt.Int64}}
	if c.loader, err = nwt.NewLoader(nwt.NewDataset(ref.n, fields, c.load), opts...); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stops, how := rng.IntN(2*len(wants)), rng.IntN(3)
	callers, closing := 1+rng.IntN(3), rng.IntN(60)-20

	var group errgroup.Group
	var last error
	var kept []*nwt.Batch
	defer func() {
		for _, b := range kept {
			b.Release()
		}
	}()
	seen, left := 0, false
	for b, err := range c.loader.Epochs(ctx, 0, epochs) {
		if last = err; err != nil {
			continue
		}
		if seen == 0 {
			for k := range callers {
				seed := rng.Uint64()
				group.Go(func() error { return c.call(rand.New(rand.NewPCG(seed, 1)), closing+30*k) })
			}
		}
		if seen%8 == 0 && len(kept) < 64 {
			b.Retain()
			kept = append(kept, b)
		}
		if err := agrees(b, wants[seen]); err != nil {
			last = err
			break
		}
		seen++
		if seen == stops && how == 0 {
			cancel()
		}
		if left = seen == stops && how == 1; left {
			break
		}
	}
	close(c.over)
	err = errors.Join(group.Wait(), c.loader.Close())
	switch {
	case err != nil:
		return err
	case last == nil && !left && seen < len(wants):
		return fmt.Errorf("%d batches of %d, and no error", seen, len(wants))
	case last != nil && !errors.Is(last, nwt.ErrClosed) && !errors.Is(last, ctx.Err()):
		return last
	}
	for k, b := range kept {
		if err := agrees(b, wants[8*k]); err != nil {
			return fmt.Errorf("retained: %w", err)
		}
	}
	return nil
}

// agrees compares a batch with what it is to be.
func agrees(b *nwt.Batch, d delivery) error {
	if b.Epoch() != d.epoch || !slices.Equal(b.Indices(), d.index) {
		return fmt.Errorf("epoch %d: %v; want %+v", b.Epoch(), b.Indices(), d)
	}
	for p, id := range nwt.Values[int64](b, 0) {
		if id != int64(d.id[p]) {
			return fmt.Errorf("place %d of %v holds sample %d", p, d.index, id)
		}
	}
	return nil
}

// Whoever changes the workers, asks for figures, begins another epoch or closes the
// loader, from wherever and whenever, also while it tunes itself: the loop gets the
// batches that a plain loop would, or the error that says why not.
func TestWhatIsCalledBesideALoopHarmsNothing(t *testing.T) {
	for s := range seedsOf(*besides, 100, 200) {
		c := &crowd{over: make(chan struct{})}
		hung := time.AfterFunc(hangs, func() { panic(fmt.Sprintf("-seed=%d hangs", s)) })
		err := c.train(rand.New(rand.NewPCG(s, 9)))
		hung.Stop()
		require.NoError(t, err, "-seed=%d", s)
		require.Zero(t, c.loader.SlotCount().Memory, "-seed=%d", s)
	}
}
