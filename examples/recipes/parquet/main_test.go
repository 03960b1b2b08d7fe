package main

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func made(t *testing.T, groups, rows int) *table {
	t.Helper()
	path := filepath.Join(t.TempDir(), "table.parquet")
	require.NoError(t, writeTable(path, groups, rows, 4))
	tab, err := openTable(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tab.Close()) })
	return tab
}

// labels is the labels from a state on, by their position in the epoch, as all ranks
// together load them, in up to so many steps.
func labels(t *testing.T, tab *table, state nwt.State, world, batch, workers, steps int) (all map[int]int64, reached nwt.State) {
	t.Helper()
	order, err := tab.order(42)
	require.NoError(t, err)
	all = map[int]int64{}
	for rank := range world {
		l, err := nwt.NewLoader(tab, nwt.WithSampler(order), nwt.WithRank(rank, world), nwt.WithBatchSize(batch), nwt.WithWorkers(workers))
		require.NoError(t, err)
		reached = state
		done := 0
		for b, err := range l.Resume(t.Context(), state) {
			require.NoError(t, err)
			from, n := reached.Samples, b.State().Samples-reached.Samples
			for k, label := range tab.expected.Of(b) {
				all[from+n*rank/world+k] = label
				for c, x := range tab.feature.Of(b)[4*k : 4*k+4] {
					require.Equal(t, float32(label)+float32(c)/8, x)
				}
			}
			reached = b.State()
			if done++; done == steps {
				break
			}
		}
		require.NoError(t, l.Close())
	}
	return all, reached
}

func TestATableGoesOnInTheMiddleOfAnEpochOnOtherRanks(t *testing.T) {
	tab := made(t, 8, 100)
	start := nwt.State{Epoch: 1}
	whole, _ := labels(t, tab, start, 1, 32, 0, -1)
	require.Len(t, whole, 800)
	head, state := labels(t, tab, start, 2, 15, 2, 7)
	require.Equal(t, 210, state.Samples)
	tail, _ := labels(t, tab, state, 3, 20, 3, -1)
	maps.Copy(head, tail)
	require.Equal(t, whole, head)
}

func TestNoRowGroupIsDecodedTwiceInAnEpoch(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	var again int
	_, err := fmt.Sscanf(out.String(), "epoch 0: 100000 rows, 20 row groups, decoded: 20\nepoch 1: 100000 rows, 20 row groups, decoded: %d\n", &again)
	require.NoError(t, err, &out)
	require.LessOrEqual(t, again, 20, "the second epoch may find some that the first has left")
	require.Positive(t, again)
}

// The decoder of arrow-go allocates for every column of a row group. Batches whose rows are
// decoded cost nothing more.
func TestOnlyDecodingAllocates(t *testing.T) {
	const rows, batch = 1000, 50
	tab := made(t, 20, rows)
	order, err := tab.order(42)
	require.NoError(t, err)
	l, err := nwt.NewLoader(tab, nwt.WithSampler(order), nwt.WithBatchSize(batch), nwt.WithWorkers(0))
	require.NoError(t, err)
	defer l.Close()
	next, stop := iter.Pull2(l.Epoch(t.Context(), 0))
	defer stop()
	next()
	first := tab.decoded.Load()
	var decoding, decoded uint64 // allocations in batches for which a row group was decoded, and in the others
	without := uint64(0)         // number of those others
	for range 20*rows/batch - 1 {
		before := tab.decoded.Load()
		n := allocations(func() {
			_, err, more := next()
			require.NoError(t, err)
			require.True(t, more)
		})
		if tab.decoded.Load() > before {
			decoding += n
		} else {
			decoded += n
			without++
		}
	}
	require.Greater(t, without, uint64(300))
	require.Less(t, decoded, without/10, "of %d batches", without)
	groups := uint64(tab.decoded.Load() - first)
	perGroup := uint64(testing.AllocsPerRun(5, func() { require.NoError(t, tab.decode(&group{number: 3})) }))
	t.Logf("%d allocations for each of %d row groups, %d of them in decoding 5 columns", decoding/groups, groups, perGroup)
	require.Less(t, decoding, groups*(perGroup+20))
}

func allocations(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

func TestATableThatCannotBeReadIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.parquet")
	require.NoError(t, os.WriteFile(path, []byte("PAR1 is not enough PAR1"), 0o600))
	_, err := openTable(path)
	require.ErrorContains(t, err, path)
}
