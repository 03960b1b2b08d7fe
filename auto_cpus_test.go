package nwt_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// Each sample waits, and then computes on one of a machine's CPUs.
type waiting struct {
	name          string
	wait, compute time.Duration
	steady        bool    // otherwise both vary exponentially
	crowded       float64 // by which computing is slower for each sample per CPU beyond two
	step          float64 // of the loop body, in times that all CPUs need for a batch
}

func (w waiting) dataset(m *nwt.VirtualMachine, seed uint64) nwt.Dataset {
	type state struct {
		rng   *rand.Rand
		under int
	}
	one := make(chan *state, 1) // a mutex would stop virtual time
	one <- &state{rng: rand.New(rand.NewPCG(seed, 0))}
	return nwt.NewDataset(10_000_000, scalar, func(context.Context, int, *nwt.Sample) error {
		st := <-one
		st.under++
		wait, compute := float64(w.wait), float64(w.compute)
		if !w.steady {
			wait, compute = wait*st.rng.ExpFloat64(), compute*st.rng.ExpFloat64()
		}
		compute *= 1 + w.crowded*max(0, float64(st.under)/float64(m.Procs())-2)
		one <- st
		time.Sleep(time.Duration(wait))
		m.Compute(time.Duration(compute))
		st = <-one
		st.under--
		one <- st
		return nil
	})
}

// With three CPUs of four in use, a third may be left to gain.
func TestALoaderThatTunesItselfUsesTheCPUsThatAreLeft(t *testing.T) {
	if !*calibrate {
		t.Skip("measured with -calibrate")
	}
	const batch, batches, fixed = 32, 4000, 600
	machines := []int{2, 8, 64}
	sources := []waiting{
		{name: "computing", compute: time.Millisecond, steady: true},
		{name: "computing that varies", compute: time.Millisecond},
		{name: "waiting a little", wait: 300 * time.Microsecond, compute: time.Millisecond},
		{name: "waiting as long", wait: time.Millisecond, compute: time.Millisecond},
		{name: "waiting as long, always", wait: time.Millisecond, compute: time.Millisecond, steady: true},
		{name: "waiting as long, and in each other's way", wait: time.Millisecond, compute: time.Millisecond, crowded: 0.3},
		{name: "waiting for longer", wait: 4 * time.Millisecond, compute: time.Millisecond},
		{name: "beside a step", wait: time.Millisecond, compute: time.Millisecond, step: 0.8},
	}
	var slower []float64
	for seed := range uint64(*seeds) {
		for _, cpus := range machines {
			for _, w := range sources {
				run := func(t *testing.T, batches int, opts ...nwt.Option) (l *nwt.Loader, perBatch float64) {
					synctest.Test(t, func(t *testing.T) {
						m := nwt.NewVirtualMachine(cpus)
						l = newLoader(t, w.dataset(m, seed), append(opts, nwt.WithBatchSize(batch), nwt.WithMaxWorkers(8*cpus), silent, m.Option())...)
						step := time.Duration(w.step * float64(batch*w.compute) / float64(cpus))
						perBatch = float64(train(t, l, batches, func() { time.Sleep(step) })) / float64(batches)
						require.NoError(t, l.Close())
					})
					return l, perBatch
				}
				t.Run(fmt.Sprintf("%d CPUs, %s", cpus, w.name), func(t *testing.T) {
					best, at := 1e18, 0
					for _, halves := range []int{2, 3, 4, 6, 8, 12, 16} {
						if _, took := run(t, fixed, nwt.WithWorkers(halves*cpus/2)); took < best {
							best, at = took, halves*cpus/2
						}
					}
					for _, start := range []int{cpus / 2, cpus, cpus + cpus/2} {
						l, took := run(t, batches, nwt.WithAutoWorkers(), nwt.WithWorkers(start))
						require.NotNil(t, l.Result())
						slower = append(slower, took/best-1)
						t.Logf("from %d: settled on %d, %.1f %% slower than the best, %d", start, l.Result().Workers, 100*(took/best-1), at)
					}
				})
			}
		}
	}
	slices.Sort(slower)
	median, most := slower[len(slower)/2], slower[len(slower)*95/100]
	t.Logf("%.1f %% in the median, %.1f %% at the 95th percentile, %.1f %% at worst, of %d", 100*median, 100*most, 100*slower[len(slower)-1], len(slower))
	require.LessOrEqual(t, median, 0.015)
	require.LessOrEqual(t, most, 0.08)
	require.LessOrEqual(t, slower[len(slower)-1], 0.2)
}
