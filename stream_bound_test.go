package nwt_test

import (
	"context"
	"iter"
	"runtime"
	"runtime/metrics"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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

func TestReadingAheadUpToTheBoundAllocatesNothingPerRecord(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // shards come to unequal parts of the bound more often
	for _, bytes := range []int{500, 1024, 4096, 8 << 10} {
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

// Load keeps each record's memory, so that a shard needs room for the next one.
func TestShardsReadAheadAsSoonAsARecordIsTaken(t *testing.T) {
	for fits, ahead := range map[int]int{4: 2, 6: 3, 8: 4, 16: 8} {
		synctest.Test(t, func(t *testing.T) {
			const bytes = 16_000
			s := &wide{Stream: newShelves(300, 300, 300, 300), bytes: bytes, keeps: 1}
			l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(3), nwt.WithPrefetch(1), nwt.WithWorkers(2), nwt.WithReadAhead(int64(fits*bytes)))
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				synctest.Wait()
				if b.Index() >= 20 && b.Index() < 300 {
					require.Equal(t, ahead, s.ahead(), "batch %d", b.Index())
				}
			}
			require.NoError(t, l.Close())
		})
	}
}

// Each record takes a millisecond to read. Half of the bound is for the shards whose turn is next.
func TestAsManyShardsAreReadAtOnceAsThereIsRoomFor(t *testing.T) {
	for _, keeps := range []int{0, 1} {
		for _, fits := range []int{1, 2, 4, 16, 32, 40} {
			synctest.Test(t, func(t *testing.T) {
				const bytes, shards, records = 16_000, 16, 50
				s := &wide{Stream: &breaking{shelves: newShelves(slices.Repeat([]int{records}, shards)...), onNext: func(int, int) error {
					time.Sleep(time.Millisecond)
					return nil
				}}, bytes: bytes, keeps: keeps}
				l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithPrefetch(1), nwt.WithWorkers(2), nwt.WithInterleave(shards), nwt.WithReadAhead(int64(fits*bytes)))
				began := time.Now()
				for _, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
				}
				require.Less(t, float64(time.Since(began).Milliseconds()), 1.1*shards*records/float64(min(max(1, fits/2), shards)), "%d records fit", fits)
				require.NoError(t, l.Close())
			})
		}
	}
}

// Each large record needs two thirds of the bound.
func TestNoShardWaitsForOneWhoseRecordsNeedMostOfTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const small, large, shards, records = 1500, 24_000, 16, 100
		s := &wide{Stream: &breaking{shelves: newShelves(slices.Repeat([]int{records}, shards)...), onNext: func(int, int) error {
			time.Sleep(time.Millisecond)
			return nil
		}}, keeps: 1, size: func(shard, _ int) int {
			if shard == 0 {
				return large
			}
			return small
		}}
		l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(8), nwt.WithPrefetch(1), nwt.WithWorkers(2), nwt.WithInterleave(shards), nwt.WithReadAhead(large*3/2))
		began := time.Now()
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		require.Less(t, float64(time.Since(began).Milliseconds()), 4.0*records, "one large, and twelve of the others at once")
		require.NoError(t, l.Close())
	})
}

// Each large record needs all the room. While it waits, the other shard reads up to its share.
func TestAShardBelowItsShareIsReadBesideAnotherThatWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const small, large, records = 1000, 8000, 100
		s := &wide{keeps: 1}
		s.Stream = &breaking{shelves: newShelves(records, records), onNext: func(int, int) error {
			time.Sleep(time.Millisecond)
			return nil
		}}
		s.size = func(shard, _ int) int { return []int{small, large}[shard] }
		l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(5), nwt.WithPrefetch(1), nwt.WithWorkers(2), nwt.WithReadAhead(large))
		began := time.Now()
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			time.Sleep(time.Millisecond / 2)
		}
		require.Less(t, float64(time.Since(began).Milliseconds()), 1.3*records, "both shards at once")
		require.NoError(t, l.Close())
	})
}

// Stream 1 isn't drawn in this phase, or seldom. What it has read ahead by then leaves
// stream 0 its share of the bound.
func TestAStreamOfAMixtureThatIsSeldomDrawnLeavesTheOthersRoom(t *testing.T) {
	for _, c := range []struct {
		weights, later []float64
		share          int // of stream 0, in records
	}{
		{[]float64{1, 0}, []float64{0, 1}, 4},
		{[]float64{99, 1}, []float64{0, 1}, 4},
		{[]float64{1, 0, 0}, []float64{0, 1, 1}, 2},
		{[]float64{1, 0, 0}, []float64{1, 1, 0}, 4},
		{[]float64{1, 0, 0}, []float64{1, 0, 0}, 8},
	} {
		synctest.Test(t, func(t *testing.T) {
			const bytes = 16_000
			var all []*wide
			var streams []nwt.Stream
			for range c.weights {
				all = append(all, &wide{Stream: newShelves(900, 900, 900, 900), bytes: bytes})
				streams = append(streams, all[len(all)-1])
			}
			ds := mixedOf(t, nwt.Mix{Block: 100, Phases: []nwt.Phase{{Samples: 900, Weights: c.weights}, {Weights: c.later}}}, streams...)
			l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithPrefetch(1), nwt.WithWorkers(2), nwt.WithEpochSamples(1000), nwt.WithReadAhead(16*bytes))
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				synctest.Wait()
				if b.Index() < 10 || b.Index() > 200 {
					continue
				}
				require.Equal(t, c.share, all[0].ahead(), "%v, then %v: batch %d", c.weights, c.later, b.Index())
				for k, s := range all[1:] {
					if c.weights[k+1] == 0 && c.later[k+1] == 0 {
						require.Zero(t, s.ahead())
						continue
					}
					require.LessOrEqual(t, s.ahead(), c.share+3, "the size of four records was unknown")
				}
			}
			require.NoError(t, l.Close())
		})
	}
}
