package streams_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// readTimes says how long each record of each shard takes to read.
type readTimes [][]time.Duration

// longest returns how long the shard takes that takes longest.
func (times readTimes) longest() (d time.Duration) {
	for _, shard := range times {
		all := time.Duration(0)
		for _, t := range shard {
			all += t
		}
		d = max(d, all)
	}
	return d
}

// equalReads is shards whose records take equally long.
func equalReads(shards, records int, each time.Duration) readTimes {
	times := make(readTimes, shards)
	for i := range times {
		times[i] = slices.Repeat([]time.Duration{each}, records)
	}
	return times
}

// withTails makes one record of a hundred take 50 ms and the others half a millisecond:
// each by chance or, if even, one of each hundred.
func withTails(shards, records int, even bool) readTimes {
	rng := rand.New(rand.NewPCG(7, 7))
	times := equalReads(shards, records, time.Millisecond/2)
	for _, shard := range times {
		for k := range shard {
			if !even && rng.Float64() < 0.01 {
				shard[k] = 50 * time.Millisecond
			}
			if even && k%100 == 0 {
				shard[k+rng.IntN(min(100, len(shard)-k))] = 50 * time.Millisecond
			}
		}
	}
	return times
}

// In virtual time. If nothing waited for order, each shard would be read by itself, and all
// would be read when the one was that takes longest.
func TestAFewSlowRecordsHoldNoOtherShardUp(t *testing.T) {
	const records = 5000
	for _, shards := range []int{4, 16, 64} {
		for _, even := range []bool{false, true} {
			for name, opts := range map[string][]nwt.Option{"": nil, ", a fixed depth": {nwt.WithPrefetch(2)}} {
				t.Run(fmt.Sprintf("%d shards, one of each hundred: %v%s", shards, even, name), func(t *testing.T) {
					times := withTails(shards, records, even)
					synctest.Test(t, func(t *testing.T) {
						l := kit.NewLoader(t, nwt.Streamed(kit.Timed(times)), append(opts, nwt.WithBatchSize(64), nwt.WithWorkers(2), nwt.WithInterleave(shards), kit.NewVirtualMachine(4).Option())...)
						began := time.Now()
						for _, err := range l.Epoch(t.Context(), 0) {
							require.NoError(t, err)
						}
						share := float64(times.longest()) / float64(time.Since(began))
						t.Logf("%.3f", share)
						require.GreaterOrEqual(t, share, 0.93)
						require.NoError(t, l.Close())
					})
				})
			}
		}
	}
}

// valued is a stream whose records are values, whose size nobody knows.
type valued struct{ nwt.Stream }

func (s valued) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.Stream.Open(ctx, shard)
	return &valuedReader{ShardReader: r}, err
}

func (s valued) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	return s.Stream.Load(ctx, &nwt.Record{Data: binary.LittleEndian.AppendUint64(nil, r.Value.(uint64))}, dst)
}

type valuedReader struct {
	nwt.ShardReader
	of nwt.Record
}

func (r *valuedReader) Next(ctx context.Context, rec *nwt.Record) error {
	err := r.ShardReader.Next(ctx, &r.of)
	if err == nil {
		rec.Value = binary.LittleEndian.Uint64(r.of.Data)
	}
	return err
}

// mostAhead returns how many records of the stream were read and not loaded at most after a batch.
func mostAhead(t *testing.T, s *kit.Wide, step time.Duration, opts ...nwt.Option) (most int) {
	synctest.Test(t, func(t *testing.T) {
		l := kit.NewLoader(t, nwt.Streamed(s), append([]nwt.Option{nwt.WithBatchSize(64), nwt.WithWorkers(2), nwt.WithPrefetch(1), kit.NewVirtualMachine(4).Option()}, opts...)...)
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			time.Sleep(step)
			if b.Number() > 0 { // whose successor is being filled
				synctest.Wait()
				most = max(most, s.Ahead())
			}
		}
		require.NoError(t, l.Close())
	})
	return most
}

func TestShardsAreReadFarAheadOnlyIfTheSizeOfTheirRecordsIsKnown(t *testing.T) {
	const shards, records = 4, 2000
	plain := kit.Timed(equalReads(shards, records, time.Millisecond/2))
	for s, each := range map[nwt.Stream]int{plain: 256, valued{plain}: 16} {
		most := mostAhead(t, &kit.Wide{Stream: s}, 50*time.Millisecond)
		require.LessOrEqual(t, most, each*shards+64, "a batch may be half full")
		require.GreaterOrEqual(t, most, each*shards)
	}
}

// What is read ahead when an epoch of WithEpochSamples ends is of no use.
func TestAnEpochThatIsCutReadsLittleThatIsNotUsed(t *testing.T) {
	const shards, quota = 4, 8000
	for name, tt := range map[string]struct {
		opts   []nwt.Option
		hangs  int // shards that end by a call that is given up, after which others are read
		mixed  int // streams; 0 = not
		window int
	}{
		"in order": {},
		"shuffled": {opts: []nwt.Option{nwt.WithShuffle(3), nwt.WithShuffleWindow(40)}, window: 40},
		"mixed":    {mixed: 2},
		"calls that are given up": {
			opts:  []nwt.Option{nwt.WithTimeout(time.Second), nwt.WithErrorBudget(3), nwt.WithInterleave(shards), kit.Silent},
			hangs: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				of := shards
				if tt.hangs > 0 {
					of *= 2
				}
				stream, release := kit.Timed(withTails(of, 5000, false)), make(chan struct{})
				slow := stream.OnNext
				stream.OnNext = func(shard, record int) error {
					if shard < tt.hangs && record == 50 {
						kit.Hold(t, release)
						return nil
					}
					return slow(shard, record)
				}
				s := &kit.Wide{Stream: stream}
				ds, chains := nwt.Streamed(s), shards
				if tt.mixed > 0 {
					var err error
					ds, err = nwt.MixedStreams(nwt.Mix{Phases: []nwt.Phase{{Weights: slices.Repeat([]float64{1}, tt.mixed)}}}, 7, slices.Repeat([]nwt.Stream{s}, tt.mixed)...)
					require.NoError(t, err)
					chains *= tt.mixed
				}
				l := kit.NewLoader(t, ds, append(tt.opts, nwt.WithBatchSize(64), nwt.WithWorkers(2), nwt.WithEpochSamples(quota), kit.NewVirtualMachine(4).Option())...)
				most := 0
				for _, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					most = max(most, s.Ahead())
				}
				require.Greater(t, most, 40*chains, "else nothing is to be left")
				require.LessOrEqual(t, int(s.Read.Load()), quota+chains*18+tt.window)
				close(release)
				require.NoError(t, l.Close())
			})
		})
	}
}

func TestARestOfAnEpochThatIsSkippedToReadsLittleThatIsNotUsed(t *testing.T) {
	for _, opts := range [][]nwt.Option{nil, {nwt.WithShuffle(3), nwt.WithShuffleWindow(40)}} {
		synctest.Test(t, func(t *testing.T) {
			const shards, quota, from = 4, 16_000, 8000
			s := &kit.Wide{Stream: kit.Timed(withTails(shards, 10_000, false))}
			l := kit.NewLoader(t, nwt.Streamed(skimmed{s}), append(opts, nwt.WithBatchSize(64), nwt.WithWorkers(2), nwt.WithEpochSamples(quota), kit.NewVirtualMachine(4).Option())...)
			most := 0
			for _, err := range l.Resume(t.Context(), nwt.State{Samples: from, World: 1}) {
				require.NoError(t, err)
				most = max(most, s.Ahead())
			}
			require.Greater(t, most, 40*shards, "else nothing is to be left")
			require.LessOrEqual(t, int(s.Read.Load()), quota-from+shards*18+40)
			require.NoError(t, l.Close())
		})
	}
}

// skimmed is a wide whose readers are Skippers.
type skimmed struct{ *kit.Wide }

func (s skimmed) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.Wide.Open(ctx, shard)
	return &skimmedReader{WideReader: r.(*kit.WideReader)}, err
}

type skimmedReader struct {
	*kit.WideReader
	of nwt.Record
}

func (r *skimmedReader) Skip(ctx context.Context, n int) (int, error) {
	for k := range n {
		if err := r.ShardReader.Next(ctx, &r.of); err != nil {
			return k, err
		}
	}
	return n, nil
}

func TestAStreamReadsNoMoreBytesAheadThanItsBound(t *testing.T) {
	for _, c := range []struct {
		bytes       int
		most, least int32 // records ahead once each shard has shown how large its records are, until one ends
	}{
		{512, 4 * 16, 4 * 16}, // half of the bound is for each shard's share
		{16_000, 2, 2},        // larger than a share: the other half is for those that come next
		{25_600, 1, 1},
		{192 << 10, 0, 0}, // larger than the bound
	} {
		for _, opts := range [][]nwt.Option{{}, {nwt.WithShuffle(3), nwt.WithShuffleWindow(7)}} {
			opts = append(opts, nwt.WithBatchSize(4), nwt.WithPrefetch(1))
			var want []int64
			for epoch := 1; epoch < 4; epoch++ {
				one, err := kit.Values(t, kit.NewLoader(t, nwt.Streamed(kit.NewShelves(100, 80, 100, 90, 40)), append(opts, nwt.WithWorkers(0))...), epoch)
				require.NoError(t, err)
				want = append(want, one...)
			}
			t.Run(fmt.Sprint(c.bytes, len(opts)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &kit.Wide{Stream: kit.NewShelves(100, 80, 100, 90, 40), Bytes: c.bytes}
					l := kit.NewLoader(t, nwt.Streamed(s), append(opts, nwt.WithWorkers(2), kit.WithReadAhead(64<<10))...)
					var got []int64
					for b, err := range l.Epochs(t.Context(), 1, 4) {
						require.NoError(t, err)
						got = append(got, nwt.Values[int64](b, 0)...)
						synctest.Wait()
						ahead := s.Read.Load() - s.Loaded.Load()
						if len(opts) > 2 {
							ahead -= 6 // the window's
						}
						if b.Number() >= 10 && (b.Number() < 20 || b.Epoch() == 3) { // else the next epoch's shards begin
							require.LessOrEqual(t, ahead, c.most)
						}
						if b.Number() >= 10 && b.Number() < 20 {
							require.GreaterOrEqual(t, ahead, c.least, "it does read ahead")
						}
					}
					require.Equal(t, want, got)
					require.NoError(t, l.Close())
				})
			})
		}
	}
}

// Records of which 32 were ahead become so large that only two have room. Load keeps the
// memory of these.
func TestMemoryThatIsNotUsedTakesNoRoomFromLargerRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const small, large = 1000, 16_000
		s := &kit.Wide{Stream: kit.NewShelves(400), Keeps: large, Size: func(_, nth int) int {
			if nth < 100 {
				return small
			}
			return large
		}}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithPrefetch(1), nwt.WithWorkers(2), nwt.WithInterleave(1), kit.WithReadAhead(4*large))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			synctest.Wait()
			if b.Number() >= 10 && b.Number() < 16 {
				require.Equal(t, 32, s.Ahead(), "batch %d", b.Number())
			}
			if b.Number() >= 32 && b.Number() < 90 {
				require.Equal(t, 2, s.Ahead(), "batch %d", b.Number())
			}
		}
		require.NoError(t, l.Close())
	})
}

// With WithEpochSamples a stream that ends is read again, and read ahead as before.
func TestEveryPassOverTheShardsIsReadAhead(t *testing.T) {
	for bytes, ahead := range map[int]int32{500: 4 * 16, 16_000: 2} {
		synctest.Test(t, func(t *testing.T) {
			s := &kit.Wide{Stream: kit.NewShelves(50, 50, 50, 50), Bytes: bytes}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithPrefetch(1), nwt.WithWorkers(2), nwt.WithEpochSamples(600), kit.WithReadAhead(64_000))
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				synctest.Wait()
				if at := b.Number() % 50; at > 5 && at < 25 {
					require.Equal(t, ahead, s.Read.Load()-s.Loaded.Load(), "batch %d", b.Number())
				}
			}
			require.NoError(t, l.Close())
		})
	}
}

// megabytes is counted shelves whose records have a megabyte each.
type megabytes struct{ nwt.CountedStream }

func (s megabytes) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.CountedStream.Open(ctx, shard)
	return megabyteReader{r}, err
}

type megabyteReader struct{ nwt.ShardReader }

func (r megabyteReader) Next(ctx context.Context, rec *nwt.Record) error {
	if cap(rec.Data) == 0 {
		rec.Data = make([]byte, 8, 1<<20)
	}
	return r.ShardReader.Next(ctx, rec)
}

// The records that a shuffle window holds are memory: 1024 of 4 MB take 4 GB.
func TestAShuffleWindowThatTakesMuchOfTheMemoryIsToldOnce(t *testing.T) {
	for name, test := range map[string]struct {
		counted bool
		left    uint64
		warned  int
	}{"plain, much": {false, 160 << 20, 1}, "plain, little": {false, 1 << 30, 0}, "counted, much": {true, 160 << 20, 1}, "counted, little": {true, 1 << 30, 0}} {
		for _, workers := range []int{0, 2} {
			t.Run(name, func(t *testing.T) {
				var log kit.Journal
				m := kit.NewVirtualMachine(1)
				m.Left = test.left
				var s nwt.Stream = megabytes{kit.NewCounted(50, 50, 50, 50)}
				if !test.counted {
					s = struct{ nwt.Stream }{s}
				}
				l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithShuffle(1), nwt.WithShuffleWindow(60), m.Option(), log.Option())
				most := 0
				for epoch := range 2 {
					for _, err := range l.Epoch(t.Context(), epoch) {
						require.NoError(t, err)
						most = max(most, int(l.Stats().WindowBytes))
					}
					require.Zero(t, l.Stats().WindowBytes, "between epochs")
				}
				for b := range l.Resume(t.Context(), nwt.State{Samples: 80}) {
					most = max(most, int(l.Stats().WindowBytes))
					if b.Number() > 30 {
						break
					}
				}
				require.Zero(t, l.Stats().WindowBytes, "after a loop that is left")
				require.Greater(t, most, 30<<20)
				require.LessOrEqual(t, most, 60<<20)
				require.Equal(t, test.warned, strings.Count(log.String(), "more than an eighth of the memory left: lower WithShuffleWindow"))
				require.NoError(t, l.Close())
			})
		}
	}
}

// A record that is taken makes room for few others: if all shards that wait for room were
// woken each time, reading many shards at once would cost more than reading ahead saves.
func TestARecordThatIsTakenWakesOnlyShardsThatItMakesRoomFor(t *testing.T) {
	const shards, records = 1000, 4000
	s := &kit.Wide{Stream: kit.NewShelves(slices.Repeat([]int{records}, shards)...), Bytes: 2000}
	l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithInterleave(shards), nwt.WithBatchSize(1), nwt.WithPrefetch(1), nwt.WithWorkers(1), kit.WithReadAhead(64<<10))
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
		s := &kit.Wide{Stream: kit.NewShelves(1<<20, 1<<20, 1<<20, 1<<20), Bytes: bytes}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithPrefetch(8), nwt.WithWorkers(1), kit.WithReadAhead(64<<10))
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
			s := &kit.Wide{Stream: kit.NewShelves(300, 300, 300, 300), Bytes: bytes, Keeps: 1}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(3), nwt.WithPrefetch(1), nwt.WithWorkers(2), kit.WithReadAhead(int64(fits*bytes)))
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				synctest.Wait()
				if b.Number() >= 20 && b.Number() < 300 {
					require.Equal(t, ahead, s.Ahead(), "batch %d", b.Number())
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
				s := &kit.Wide{Stream: &kit.Breaking{Shelves: kit.NewShelves(slices.Repeat([]int{records}, shards)...), OnNext: func(int, int) error {
					time.Sleep(time.Millisecond)
					return nil
				}}, Bytes: bytes, Keeps: keeps}
				l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithPrefetch(1), nwt.WithWorkers(2), nwt.WithInterleave(shards), kit.WithReadAhead(int64(fits*bytes)))
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
		s := &kit.Wide{Stream: &kit.Breaking{Shelves: kit.NewShelves(slices.Repeat([]int{records}, shards)...), OnNext: func(int, int) error {
			time.Sleep(time.Millisecond)
			return nil
		}}, Keeps: 1, Size: func(shard, _ int) int {
			if shard == 0 {
				return large
			}
			return small
		}}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(8), nwt.WithPrefetch(1), nwt.WithWorkers(2), nwt.WithInterleave(shards), kit.WithReadAhead(large*3/2))
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
		s := &kit.Wide{Keeps: 1}
		s.Stream = &kit.Breaking{Shelves: kit.NewShelves(records, records), OnNext: func(int, int) error {
			time.Sleep(time.Millisecond)
			return nil
		}}
		s.Size = func(shard, _ int) int { return []int{small, large}[shard] }
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(5), nwt.WithPrefetch(1), nwt.WithWorkers(2), kit.WithReadAhead(large))
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
			var all []*kit.Wide
			var streams []nwt.Stream
			for range c.weights {
				all = append(all, &kit.Wide{Stream: kit.NewShelves(900, 900, 900, 900), Bytes: bytes})
				streams = append(streams, all[len(all)-1])
			}
			ds := kit.MixedOf(t, nwt.Mix{Block: 100, Phases: []nwt.Phase{{Samples: 900, Weights: c.weights}, {Weights: c.later}}}, streams...)
			l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithPrefetch(1), nwt.WithWorkers(2), nwt.WithEpochSamples(1000), kit.WithReadAhead(16*bytes))
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				synctest.Wait()
				if b.Number() < 10 || b.Number() > 200 {
					continue
				}
				require.Equal(t, c.share, all[0].Ahead(), "%v, then %v: batch %d", c.weights, c.later, b.Number())
				for k, s := range all[1:] {
					if c.weights[k+1] == 0 && c.later[k+1] == 0 {
						require.Zero(t, s.Ahead())
						continue
					}
					require.LessOrEqual(t, s.Ahead(), c.share+3, "the size of four records was unknown")
				}
			}
			require.NoError(t, l.Close())
		})
	}
}
