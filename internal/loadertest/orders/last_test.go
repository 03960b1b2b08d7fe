package orders_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

// requireLast checks that Last tells exactly the last batch of each epoch.
func requireLast(t *testing.T, seq iter.Seq2[*nwt.Batch, error]) (batches int) {
	t.Helper()
	epoch, last := -1, true
	for b, err := range seq {
		require.NoError(t, err)
		require.Equal(t, b.Epoch() != epoch, last, "batch %d of epoch %d", b.Number(), b.Epoch())
		epoch, last = b.Epoch(), b.Last()
		require.Equal(t, last, b.Last())
		batches++
	}
	require.True(t, last)
	return batches
}

func TestLastTellsTheLastBatchOfEachEpoch(t *testing.T) {
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		opts []nwt.Option
	}{
		"plain":   {kit.Numbers(0, 95), nil},
		"dropped": {kit.Numbers(0, 95), []nwt.Option{nwt.WithDropLast()}},
		"ranks":   {kit.Numbers(0, 91), []nwt.Option{nwt.WithRank(1, 3), nwt.WithErrorBudget(100)}},
		"budget":  {kit.Numbers(0, 95), []nwt.Option{nwt.WithErrorBudget(100)}},
		"bad in between": {kit.Numbered(95, func(_ context.Context, i int, _ *nwt.Sample) error {
			if i < 40 && i > 5 || i == 94 {
				return kit.ErrTorn
			}
			return nil
		}), []nwt.Option{nwt.WithErrorBudget(35)}},
		"batches of their own sizes": {kit.Numbers(0, 95), []nwt.Option{nwt.WithSampler(kit.Must(sampler.TokenBatches(95, func(i int) int { return i%7 + 1 }, sampler.Tokens{Max: 30, MaxSamples: 10}, 1))(t)), nwt.WithErrorBudget(9)}},
		"a stream":                   {nwt.Streamed(kit.NewShelves(30, 0, 25)), nil},
		"a stream with a length":     {nwt.Streamed(kit.NewShelves(30, 25)), []nwt.Option{nwt.WithEpochSamples(70)}},
	} {
		for _, workers := range []int{0, 1, 3} {
			for also, opts := range map[string][]nwt.Option{"": nil, "unordered": {nwt.WithUnordered()}, "device": {nwt.WithDevice(oneBuffer())}, "prefetch": {nwt.WithPrefetch(1)}} {
				t.Run(fmt.Sprintf("%s/workers=%d/%s", name, workers, also), func(t *testing.T) {
					opts := append(append([]nwt.Option{nwt.WithBatchSize(10), nwt.WithWorkers(workers), kit.Silent}, c.opts...), opts...)
					n := 0
					unasked := kit.NewLoader(t, c.ds, opts...)
					for _, err := range unasked.Epochs(t.Context(), 0, 3) {
						require.NoError(t, err)
						n++
					}
					require.NoError(t, unasked.Close()) // its device has room for one loader
					l := kit.NewLoader(t, c.ds, opts...)
					check := requireLast
					if also == "unordered" {
						if strings.HasPrefix(name, "a stream") || strings.HasPrefix(name, "bad") {
							t.Skip("the end isn't known before, or the batch that comes last may be all bad")
						}
						check = requireLastUnordered
					}
					require.Equal(t, n, check(t, l.Epochs(t.Context(), 0, 3)))
					require.Equal(t, n/3, check(t, l.Epoch(t.Context(), 1)))
				})
			}
		}
	}
}

// requireLastUnordered is requireLast for batches of several epochs in turn.
func requireLastUnordered(t *testing.T, seq iter.Seq2[*nwt.Batch, error]) (batches int) {
	t.Helper()
	ended := map[int]bool{}
	for b, err := range seq {
		require.NoError(t, err)
		require.False(t, ended[b.Epoch()], "batch %d of epoch %d", b.Number(), b.Epoch())
		ended[b.Epoch()] = b.Last()
		batches++
	}
	for _, last := range ended {
		require.True(t, last)
	}
	return batches
}

// cramped is a device with memory for one batch.
type cramped struct {
	kit.Nowhere
	taken atomic.Bool
}

func oneBuffer() nwt.Device { return &cramped{} }

func (d *cramped) Alloc(int) (uintptr, error) {
	if d.taken.Swap(true) {
		return 0, kit.ErrTorn
	}
	return 1, nil
}

func (d *cramped) Free(uintptr) error { d.taken.Store(false); return nil }

func TestLastIsFalseInTheFunctionOfWithBatchTransform(t *testing.T) {
	l := kit.NewLoader(t, kit.Numbers(0, 20), nwt.WithErrorBudget(20), nwt.WithBatchTransform(func(_ context.Context, b *nwt.Batch) error {
		require.False(t, b.Last())
		return nil
	}))
	require.Equal(t, 1, requireLast(t, l.Epoch(t.Context(), 0)))
}

func TestWithDropLastOnlyTheSmallerLastBatchIsLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		opts []nwt.Option
		want []int // samples of each batch; the last one is left out
	}{
		"samples":              {kit.Numbers(0, 10), nil, []int{4, 4, 2}},
		"ranks":                {kit.Numbers(0, 22), []nwt.Option{nwt.WithRank(1, 2)}, []int{4, 4, 3}},
		"the sampler's own":    {kit.Numbers(0, 12), []nwt.Option{nwt.WithSampler(kit.Sizes{2, 3, 1, 4, 2}), nwt.WithRank(1, 2)}, []int{3, 4, 1}},
		"stream":               {nwt.Streamed(kit.NewShelves(6, 4)), nil, []int{4, 4, 2}},
		"stream with a length": {nwt.Streamed(kit.NewShelves(6, 7)), []nwt.Option{nwt.WithEpochSamples(10)}, []int{4, 4, 2}},
		"counted stream":       {nwt.Streamed(kit.NewCounted(6, 4)), nil, []int{4, 4, 2}},
	} {
		for _, drop := range []bool{false, true} {
			opts, want := append(slices.Clip(c.opts), nwt.WithBatchSize(4)), c.want
			if drop {
				opts, want = append(opts, nwt.WithDropLast()), want[:len(want)-1]
			}
			var got []int
			for b, err := range kit.NewLoader(t, c.ds, opts...).Epoch(t.Context(), 0) {
				require.NoError(t, err)
				got = append(got, b.Len())
			}
			require.Equal(t, want, got, "%s, %t", name, drop)
		}
	}
	l := kit.NewLoader(t, kit.Numbers(0, 12), nwt.WithBatchSize(4), nwt.WithDropLast())
	require.Equal(t, 3, l.Len(), "a whole batch is the last one too")
}

// A progress bar of Index and Len ends at its end, wherever it begins.
func TestNumberEndsWithLenWhereverAnEpochIsResumed(t *testing.T) {
	for name, ds := range map[string]nwt.Dataset{"samples": kit.Numbers(0, 100), "stream": nwt.Streamed(kit.NewShelves(30, 12, 9))} {
		for _, opts := range [][]nwt.Option{nil, {nwt.WithDropLast()}, {nwt.WithRank(1, 2)}} {
			opts = append(opts, nwt.WithBatchSize(8))
			if name == "stream" {
				opts = append(opts, nwt.WithEpochSamples(100))
			}
			l := kit.NewLoader(t, ds, opts...)
			for from := 0; from <= 100; from += 2 {
				next := -1
				for b, err := range l.Resume(t.Context(), nwt.State{Samples: from}) {
					require.NoError(t, err)
					require.True(t, next < 0 || b.Number() == next)
					next = b.Number() + 1
					require.Equal(t, next == l.Len(), b.Last(), "from %d, batch %d of %d", from, b.Number(), l.Len())
				}
				require.True(t, next < 0 || next == l.Len(), "from %d: %d of %d", from, next, l.Len())
			}
		}
	}
}

func TestResumeEpochsIsResumeAndThenEpochs(t *testing.T) {
	trace := func(seqs ...iter.Seq2[*nwt.Batch, error]) (all []string) {
		for _, seq := range seqs {
			for b, err := range seq {
				require.NoError(t, err)
				all = append(all, fmt.Sprint(b.Epoch(), b.Number(), b.Indices(), nwt.Values[int64](b, 0), b.State(), b.Last()))
			}
		}
		return all
	}
	for name, ds := range map[string]nwt.Dataset{"samples": kit.Numbers(0, 50), "stream": nwt.Streamed(kit.NewShelves(30, 12, 8))} {
		for _, opts := range [][]nwt.Option{nil, {nwt.WithWorkers(0)}, {nwt.WithEpochSamples(40)}} {
			l := kit.NewLoader(t, ds, append(opts, nwt.WithBatchSize(8), nwt.WithShuffle(4))...)
			for _, s := range []nwt.State{{}, {Epoch: 1, Samples: 16}, {Epoch: 1, Samples: 21}, {Epoch: 1, Samples: 40}} {
				want := trace(l.Resume(t.Context(), s), l.Epochs(t.Context(), s.Epoch+1, s.Epoch+3))
				require.Equal(t, want, trace(l.ResumeEpochs(t.Context(), s, s.Epoch+3)), "%s from %v", name, s)
				require.Equal(t, trace(l.Resume(t.Context(), s)), trace(l.ResumeEpochs(t.Context(), s, s.Epoch+1)))
			}
		}
	}
}

func TestResumeEpochsChecksItsArguments(t *testing.T) {
	l := kit.NewLoader(t, kit.Numbers(0, 50))
	require.ErrorContains(t, kit.Refusal(t, l.ResumeEpochs(t.Context(), nwt.State{Epoch: 3}, 2)), "ResumeEpochs: end: 2: must be at least 3, the state's epoch")
	for range l.ResumeEpochs(t.Context(), nwt.State{Epoch: 3}, 3) {
		t.Fatal("training was over")
	}
	require.ErrorContains(t, kit.Refusal(t, l.ResumeEpochs(t.Context(), nwt.State{Epoch: -1}, 3)), "State.Epoch")
	require.ErrorContains(t, kit.Refusal(t, l.ResumeEpochs(t.Context(), nwt.State{Samples: 51}, 3)), "State.Samples: 51: an epoch has 50 samples")
	require.ErrorContains(t, kit.Refusal(t, l.ResumeEpochs(t.Context(), nwt.State{Samples: -1}, 3)), "WithUnordered")
}

// In a training program that resumes, the next epoch is loaded ahead.
func TestResumeEpochsLoadsTheNextEpochAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loaded atomic.Int64
		ds := nwt.NewDataset(20, []nwt.Field{{Name: "i", Type: nwt.Int64}}, func(_ context.Context, _ int, dst *nwt.Sample) error {
			loaded.Store(max(loaded.Load(), int64(dst.Epoch())))
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(1))
		for b, err := range l.ResumeEpochs(t.Context(), nwt.State{Samples: 10}, 2) {
			require.NoError(t, err)
			time.Sleep(time.Second)
			require.EqualValues(t, 1, loaded.Load())
			if b.Last() {
				break
			}
		}
	})
}
