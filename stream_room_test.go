package nwt_test

import (
	"context"
	"iter"
	"runtime"
	"runtime/metrics"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A record that is taken makes room for few others: if all shards that wait for room were
// woken each time, reading many shards at once would cost more than reading ahead saves.
func TestARecordThatIsTakenWakesOnlyShardsThatItMakesRoomFor(t *testing.T) {
	const shards, records = 1000, 4000
	s := &wide{Stream: newShelves(slices.Repeat([]int{records}, shards)...), bytes: 2000}
	l := newLoader(t, nwt.Streamed(s), nwt.WithInterleave(shards), nwt.WithBatchSize(1), nwt.WithPrefetch(1), nwt.WithWorkers(1), nwt.WithReadAhead(64<<10))
	next, stop := iter.Pull2(l.Epoch(context.Background(), 0))
	defer stop()
	for range 2 * shards {
		next()
	}
	before := schedulings()
	for range records {
		_, err, ok := next()
		require.True(t, ok)
		require.NoError(t, err)
	}
	require.Less(t, schedulings()-before, uint64(shards/8*records))
}

// schedulings is about how often goroutines have begun to run. The runtime counts one of
// eight.
func schedulings() (n uint64) {
	m := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(m)
	for _, count := range m[0].Value.Float64Histogram().Counts {
		n += 8 * count
	}
	return n
}

// 16 records of each shard are exactly what may be read ahead.
func TestReadingAheadUpToTheBoundAllocatesNothingPerRecord(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // shards come to unequal parts of the bound more often
	for _, bytes := range []int{500, 1024, 4096, 16 << 10} {
		s := &wide{Stream: newShelves(1<<20, 1<<20, 1<<20, 1<<20), bytes: bytes}
		l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithPrefetch(8), nwt.WithWorkers(1), nwt.WithReadAhead(64<<10))
		next, stop := iter.Pull2(l.Epoch(t.Context(), 0))
		for range 500 {
			next()
		}
		grown := testing.AllocsPerRun(500, func() { next() })
		stop()
		require.Less(t, grown, 1.0, "records of %d bytes", bytes)
	}
}
