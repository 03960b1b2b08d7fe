package nwt_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// readTimes says how long each record of each shard takes to read.
type readTimes [][]time.Duration

// stream is one whose records take so long to read.
func (times readTimes) stream() *breaking {
	var lengths []int
	for _, shard := range times {
		lengths = append(lengths, len(shard))
	}
	return &breaking{shelves: newShelves(lengths...), onNext: func(shard, record int) error {
		if record < len(times[shard]) {
			time.Sleep(times[shard][record])
		}
		return nil
	}}
}

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
						l := newLoader(t, nwt.Streamed(times.stream()), append(opts, nwt.WithBatchSize(64), nwt.WithWorkers(2), nwt.WithInterleave(shards), nwt.NewVirtualMachine(4).Option())...)
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
func mostAhead(t *testing.T, s *wide, step time.Duration, opts ...nwt.Option) (most int) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoader(t, nwt.Streamed(s), append([]nwt.Option{nwt.WithBatchSize(64), nwt.WithWorkers(2), nwt.WithPrefetch(1), nwt.NewVirtualMachine(4).Option()}, opts...)...)
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			time.Sleep(step)
			if b.Index() > 0 { // whose successor is being filled
				synctest.Wait()
				most = max(most, s.ahead())
			}
		}
		require.NoError(t, l.Close())
	})
	return most
}

func TestShardsAreReadFarAheadOnlyIfTheSizeOfTheirRecordsIsKnown(t *testing.T) {
	const shards, records = 4, 2000
	plain := equalReads(shards, records, time.Millisecond/2).stream()
	for s, each := range map[nwt.Stream]int{plain: 256, valued{plain}: 16} {
		most := mostAhead(t, &wide{Stream: s}, 50*time.Millisecond)
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
			opts:  []nwt.Option{nwt.WithTimeout(time.Second), nwt.WithErrorBudget(3), nwt.WithInterleave(shards), silent},
			hangs: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				of := shards
				if tt.hangs > 0 {
					of *= 2
				}
				stream, release := withTails(of, 5000, false).stream(), make(chan struct{})
				slow := stream.onNext
				stream.onNext = func(shard, record int) error {
					if shard < tt.hangs && record == 50 {
						<-release
						return nil
					}
					return slow(shard, record)
				}
				s := &wide{Stream: stream}
				ds, chains := nwt.Streamed(s), shards
				if tt.mixed > 0 {
					var err error
					ds, err = nwt.MixedStreams(nwt.Mix{Phases: []nwt.Phase{{Weights: slices.Repeat([]float64{1}, tt.mixed)}}}, 7, slices.Repeat([]nwt.Stream{s}, tt.mixed)...)
					require.NoError(t, err)
					chains *= tt.mixed
				}
				l := newLoader(t, ds, append(tt.opts, nwt.WithBatchSize(64), nwt.WithWorkers(2), nwt.WithEpochSamples(quota), nwt.NewVirtualMachine(4).Option())...)
				most := 0
				for _, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					most = max(most, s.ahead())
				}
				require.Greater(t, most, 40*chains, "else nothing is to be left")
				require.LessOrEqual(t, int(s.read.Load()), quota+chains*18+tt.window)
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
			s := &wide{Stream: withTails(shards, 10_000, false).stream()}
			l := newLoader(t, nwt.Streamed(skimmed{s}), append(opts, nwt.WithBatchSize(64), nwt.WithWorkers(2), nwt.WithEpochSamples(quota), nwt.NewVirtualMachine(4).Option())...)
			most := 0
			for _, err := range l.Resume(t.Context(), nwt.State{Samples: from, World: 1}) {
				require.NoError(t, err)
				most = max(most, s.ahead())
			}
			require.Greater(t, most, 40*shards, "else nothing is to be left")
			require.LessOrEqual(t, int(s.read.Load()), quota-from+shards*18+40)
			require.NoError(t, l.Close())
		})
	}
}

// skimmed is a wide whose readers are Skippers.
type skimmed struct{ *wide }

func (s skimmed) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.wide.Open(ctx, shard)
	return &skimmedReader{wideReader: r.(*wideReader)}, err
}

type skimmedReader struct {
	*wideReader
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

// Whatever the tails, sizes, bounds, faults and options: the order is that of a plain loop,
// in whole epochs and in those that are resumed.
func TestRandomStreamsWithTailsAreReadInOrder(t *testing.T) {
	trials := 40
	if testing.Short() {
		trials = 10
	}
	for seed := range trials {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		p := &plainStreams{rank: rng.IntN(2), interleave: 1 + rng.IntN(9), window: 1 + rng.IntN(50), shuffle: rng.IntN(2) == 0, seed: 5}
		p.world = p.rank + 1 + rng.IntN(2)
		var streams []nwt.Stream
		id := 0
		for range 1 + rng.IntN(2) {
			times, slow := make(readTimes, p.world+rng.IntN(12)), 0.03*rng.Float64()
			hangs := rng.IntN(20 * len(times))
			var shards [][]int
			for i := range times {
				times[i] = make([]time.Duration, rng.IntN(1500)+1)
				for k := range times[i] {
					if times[i][k] = time.Duration(rng.IntN(1000)) * time.Microsecond; rng.Float64() < slow {
						times[i][k] *= 100
					}
				}
				records := indicesUpTo(len(times[i]))
				if i == hangs {
					at := rng.IntN(len(records))
					times[i][at] = time.Hour
					records = append(records[:at:at], lost)
				}
				shards = append(shards, records)
				id += len(times[i])
			}
			size := rng.IntN(4000)
			s := &wide{Stream: times.stream(), keeps: rng.IntN(2) * (1 + size/2), size: func(shard, nth int) int { return (size * (shard*31 + nth*17) % 4000) / 2 }}
			p.streams, streams = append(p.streams, shards), append(streams, s)
		}
		// The records of a shelf count through its shards.
		for _, shards := range p.streams {
			next := 0
			for i, records := range shards {
				n := len(records)
				if n > 0 && records[n-1] == lost {
					n--
				}
				for k := range n {
					records[k] += next
				}
				next += lengthsOf(streams[slices.IndexFunc(p.streams, func(s [][]int) bool { return &s[0] == &shards[0] })])[i]
			}
		}
		opts := []nwt.Option{
			nwt.WithBatchSize(1 + rng.IntN(40)), nwt.WithRank(p.rank, p.world), nwt.WithInterleave(p.interleave), nwt.WithShuffleWindow(p.window),
			nwt.WithTimeout(time.Minute), nwt.WithErrorBudget(1 << 20), nwt.NewVirtualMachine(64).Option(), quietLog,
		}
		if p.shuffle {
			opts = append(opts, nwt.WithShuffle(p.seed))
		}
		if rng.IntN(3) == 0 {
			opts = append(opts, nwt.WithReadAhead(int64(50_000+rng.IntN(1_000_000))))
		}
		ds := nwt.Streamed(streams[0])
		if len(streams) > 1 {
			p.mix, p.mixSeed = &nwt.Mix{Block: 40, Phases: []nwt.Phase{{Weights: []float64{1, float64(1 + rng.IntN(3))}}}}, 7
			ds = mixedOf(t, *p.mix, streams...)
		}
		if p.mix != nil || rng.IntN(3) == 0 {
			p.epochSamples = 2 + rng.IntN(8000)
			opts = append(opts, nwt.WithEpochSamples(p.epochSamples))
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				epoch := rng.IntN(3)
				all, _ := p.epoch(epoch)
				var want []int64
				for _, id := range all {
					if id != lost {
						want = append(want, int64(id))
					}
				}
				l := newLoader(t, ds, append(opts, nwt.WithWorkers(1+rng.IntN(3)))...)
				var got []int64
				var state nwt.State
				from, cut := 0, rng.IntN(100)
				for b, err := range l.Epoch(t.Context(), epoch) {
					require.NoError(t, err)
					got = append(got, nwt.Values[int64](b, 0)...)
					if b.Index() == cut {
						state, from = b.State(), len(got)
					}
				}
				require.Equal(t, want, got)
				if from > 0 {
					got = got[:from]
					for b, err := range l.Resume(t.Context(), state) {
						require.NoError(t, err)
						got = append(got, nwt.Values[int64](b, 0)...)
					}
					require.Equal(t, want, got)
				}
				require.NoError(t, l.Close())
				time.Sleep(2 * time.Hour) // calls that were given up return
			})
		})
	}
}

func lengthsOf(s nwt.Stream) []int { return s.(*wide).Stream.(*breaking).shelves.lengths }
