package streams_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

func TestMain(m *testing.M) { kit.Main(m) }

func TestARankReadsItsShardsInTurnAndOneSampleFromEachThatIsOpen(t *testing.T) {
	for _, c := range []struct {
		interleave, rank, world int
		want                    []int64
	}{
		{1, 0, 1, []int64{0, 1, 2, 3, 4, 5, 6, 7}},
		{2, 0, 1, []int64{0, 2, 1, 3, 4, 6, 5, 7}},
		{4, 0, 1, []int64{0, 2, 4, 6, 1, 3, 5, 7}},
		{1, 1, 2, []int64{2, 3, 6, 7}},
		{2, 0, 2, []int64{0, 4, 1, 5}},
	} {
		l := kit.NewLoader(t, nwt.Streamed(kit.NewShelves(2, 2, 2, 2)), nwt.WithInterleave(c.interleave), nwt.WithRank(c.rank, c.world), nwt.WithBatchSize(3), kit.Silent)
		for epoch := range 2 {
			got, err := kit.Values(t, l, epoch)
			require.NoError(t, err)
			require.Equal(t, c.want, got, "%+v", c)
		}
	}
}

func TestTheEpochOfTheHighestNumberEnds(t *testing.T) {
	for _, workers := range []int{0, 2} {
		for _, opts := range [][]nwt.Option{nil, {nwt.WithEpochSamples(40), nwt.WithShuffle(1)}} {
			l := kit.NewLoader(t, nwt.Streamed(kit.NewShelves(8, 8, 3)), append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(workers))...)
			samples := map[int]int{}
			for b, err := range l.Epochs(t.Context(), math.MaxInt-1, math.MaxInt) {
				require.NoError(t, err)
				samples[b.Epoch()] += b.Len()
			}
			for b, err := range l.Epoch(t.Context(), math.MaxInt) {
				require.NoError(t, err)
				if samples[b.Epoch()] += b.Len(); len(samples) > 2 {
					break
				}
			}
			require.Len(t, samples, 2)
			require.Equal(t, samples[math.MaxInt], samples[math.MaxInt-1])
		}
	}
}

func TestLeavingAStreamAnywhereClosesItsShards(t *testing.T) {
	s := kit.NewShelves(10, 25, 7, 31, 12)
	for _, workers := range []int{0, 1, 4} {
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithShuffle(1))
		for cut := range 30 {
			for b, err := range l.Epoch(t.Context(), cut) {
				require.NoError(t, err)
				if b.Number() == cut%25 {
					break
				}
			}
			require.Zero(t, s.Opened.Load())
		}
	}
}

func TestTheSeedOfRandomnessDoesNotChangeAStreamsOrder(t *testing.T) {
	read := func(opts ...nwt.Option) (numbers, noise []int64) {
		opts = append(opts, nwt.WithBatchSize(8), nwt.WithShuffle(1), nwt.WithShuffleWindow(20))
		for b, err := range kit.NewLoader(t, nwt.Streamed(kit.NewShelves(40, 50)), opts...).Epoch(t.Context(), 1) {
			require.NoError(t, err)
			numbers, noise = append(numbers, nwt.Values[int64](b, 0)...), append(noise, nwt.Values[int64](b, 1)...)
		}
		return numbers, noise
	}
	numbers, noise := read()
	same, other := read(nwt.WithSeed(7))
	require.Equal(t, numbers, same)
	require.NotEqual(t, noise, other)
}

func TestShuffledStreamsStayWhatTheyWere(t *testing.T) {
	read := func(ds nwt.Dataset, opts ...nwt.Option) (numbers []int64) {
		for b, err := range kit.NewLoader(t, ds, append(opts, nwt.WithBatchSize(8), nwt.WithShuffle(5), nwt.WithInterleave(2))...).Epoch(t.Context(), 1) {
			require.NoError(t, err)
			numbers = append(numbers, nwt.Values[int64](b, 0)...)
		}
		return numbers
	}
	stream := nwt.Streamed(kit.NewShelves(4, 0, 7, 3, 6))
	require.Equal(t, []int64{4, 5, 0, 6, 2, 7, 1, 3, 8, 14, 15, 9, 10, 16, 11, 12, 17, 13, 18, 19}, read(stream, nwt.WithShuffleWindow(2)))
	require.Equal(t, []int64{6, 2, 4, 8, 15, 0, 14, 16, 7, 5, 1, 11, 12, 18, 19, 17, 13, 9, 3, 10}, read(stream, nwt.WithShuffleWindow(8)))
	require.Equal(t, []int64{16, 17, 14, 18, 1, 0, 3, 15, 19, 2}, read(stream, nwt.WithShuffleWindow(8), nwt.WithRank(1, 2)))
	mixed, err := nwt.MixedStreams(nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}, 7, kit.NewShelves(20), kit.NewShelves(20))
	require.NoError(t, err)
	require.Equal(t, []int64{4, 5, 5, 2, 0, 8, 3, 8, 11, 1, 11, 9, 12, 9, 13, 14, 0, 6, 13, 7}, read(mixed, nwt.WithShuffleWindow(8), nwt.WithEpochSamples(20)))
}

func TestAStreamWithoutOrderHasNoState(t *testing.T) {
	for _, workers := range []int{0, 2} {
		l := kit.NewLoader(t, nwt.Streamed(kit.NewShelves(10, 10)), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithUnordered())
		for b, err := range l.Epoch(t.Context(), 2) {
			require.NoError(t, err)
			require.Equal(t, nwt.State{Epoch: 2, Samples: -1, World: 1}, kit.Progress(b.State()))
		}
	}
}

// Batch.Rand depends on seed, epoch and the position of the batch's first sample alone.
func TestBatchesOfAStreamHaveTheirOwnRandomness(t *testing.T) {
	draws := func(rank, workers int, from nwt.State) (numbers []uint64, states []nwt.State) {
		l := kit.NewLoader(t, nwt.Streamed(kit.NewShelves(9, 9, 9, 9)), nwt.WithBatchSize(4), nwt.WithRank(rank, 2), nwt.WithWorkers(workers))
		for b, err := range l.Resume(t.Context(), from) {
			require.NoError(t, err)
			numbers, states = append(numbers, b.Rand().Uint64()), append(states, b.State())
		}
		return numbers, states
	}
	all := map[uint64]bool{}
	for rank := range 2 {
		for epoch := range 2 {
			whole, states := draws(rank, 0, nwt.State{Epoch: epoch, World: 2})
			require.Len(t, whole, 5)
			for k, n := range whole {
				require.False(t, all[n], "drawn before")
				all[n] = true
				rest, _ := draws(rank, k%3, states[k])
				require.Equal(t, whole[k+1:], append([]uint64{}, rest...))
			}
		}
	}
}

// Each epoch of WithEpochSamples begins its shards anew.
func TestAnEpochThatEndsBeforeItsShardsIsToldOnce(t *testing.T) {
	told := func(samples int, workers int, ds nwt.Dataset, opts ...nwt.Option) int {
		var log kit.Journal
		l := kit.NewLoader(t, ds, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithEpochSamples(samples), log.Option())...)
		for b, err := range l.Epochs(t.Context(), 0, 4) {
			require.NoError(t, err)
			require.LessOrEqual(t, b.Number(), samples/4)
		}
		return strings.Count(log.String(), "nwt: an epoch has ended before its streams did")
	}
	for _, workers := range []int{0, 2} {
		for _, opts := range [][]nwt.Option{nil, {nwt.WithShuffle(1), nwt.WithShuffleWindow(10)}, {nwt.WithInterleave(2)}, {nwt.WithDropLast()}} {
			s := kit.NewShelves(50, 50, 50, 50)
			require.Equal(t, 1, told(40, workers, nwt.Streamed(s), opts...))
			require.Equal(t, 1, told(70, workers, nwt.Streamed(s), opts...))
			require.Zero(t, told(200, workers, nwt.Streamed(s), opts...), "all are read")
			require.Zero(t, told(300, workers, nwt.Streamed(s), opts...))
			require.Zero(t, told(180, workers, nwt.Streamed(kit.NewShelves(50, 20, 50, 60)), opts...))
			shuffled := len(opts) == 2
			require.Equal(t, shuffled, told(150, workers, nwt.Streamed(kit.NewShelves(50, 20, 50, 60)), opts...) == 0, "a shard has ended: if the next epoch has another order, the ends of the others come in that")
			require.Zero(t, told(40, workers, nwt.Streamed(kit.NewCounted(50, 50, 50, 50)), opts...))
		}
		m := nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{9, 1}}}}
		ds, err := nwt.MixedStreams(m, 1, kit.NewShelves(10, 10), kit.NewShelves(50, 50))
		require.NoError(t, err)
		require.Equal(t, 1, told(100, workers, ds))
		var log kit.Journal
		three := kit.MixedOf(t, nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 1, 1}}}}, kit.NewShelves(50, 50), kit.NewShelves(7), kit.NewShelves(40))
		l := kit.NewLoader(t, three, nwt.WithWorkers(workers), nwt.WithEpochSamples(60), log.Option())
		for _, err := range l.Epochs(t.Context(), 0, 2) {
			require.NoError(t, err)
		}
		require.Contains(t, log.String(), `WithEpochSamples=60 streams="[0 2]" "shards of each"="[2 1 1]"`, "all that lose records, but not the one that comes whole")
		ds, err = nwt.MixedStreams(m, 1, kit.NewShelves(10, 10), kit.NewShelves(3, 4))
		require.NoError(t, err)
		require.Zero(t, told(100, workers, ds))
	}
}

func TestRanksThatShareLanesAreToldWhatThatCosts(t *testing.T) {
	lines := func(world int, lengths []int, opts ...nwt.Option) string {
		var log kit.Journal
		l := kit.NewLoader(t, nwt.Streamed(kit.NewCounted(lengths...)), append(opts, nwt.WithRank(1, world), nwt.WithBatchSize(2), nwt.WithWorkers(1), log.Option())...)
		for _, err := range l.Epochs(t.Context(), 0, 2) {
			require.NoError(t, err)
		}
		require.LessOrEqual(t, strings.Count(log.String(), "drop it, unless the shards' readers can Skip"), 1)
		_, line, _ := strings.Cut(log.String(), "can Skip\"")
		line, _, _ = strings.Cut(line, "\n")
		return line
	}
	many := slices.Repeat([]int{20}, 97)
	require.Equal(t, ` stream=0 ranks=256 "at once"=32 factor=8 "less with"=WithInterleave(64)`, lines(256, many))
	require.Equal(t, ` stream=0 ranks=64 "at once"=32 factor=2 "less with"=WithInterleave(64)`, lines(64, many))
	require.Equal(t, ` stream=0 ranks=194 "at once"=97 factor=2 "less with"="more shards"`, lines(194, many, nwt.WithInterleave(97)))
	require.Equal(t, ` stream=0 ranks=101 "at once"=32 factor=101 "less with"="more shards"`, lines(101, many), "no number of lanes is better")
	require.Equal(t, ` stream=0 ranks=64 "at once"=97 factor=64 "less with"=WithInterleave(64)`, lines(64, many, nwt.WithInterleave(97)), "fewer are better")
	require.Equal(t, ` stream=0 ranks=10 "at once"=97 factor=10 "less with"=WithInterleave(20)`, lines(10, many, nwt.WithInterleave(97)), "a step has 20 records")
	require.Empty(t, lines(10, many, nwt.WithInterleave(20)))
	require.Empty(t, lines(10, many), "the default")
	require.Empty(t, lines(32, many))
	require.Empty(t, lines(64, many, nwt.WithInterleave(64)))
}

var lineFields = []nwt.Field{{Name: "i", Type: nwt.Int64}}

var lineFiles = []string{"0\n1\n2\n", "", "3\n4\n5\n6\n7\n"}

func lineNumber(_ context.Context, line []byte, dst *nwt.Sample) (err error) {
	nwt.Values[int64](dst, 0)[0], err = strconv.ParseInt(string(line), 10, 64)
	return err
}

// lines yields lines of which all share one buffer, as bufio.Scanner does.
func lines(text string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for s := bufio.NewScanner(strings.NewReader(text)); s.Scan() && yield(s.Bytes(), nil); {
		}
	}
}

func TestAPanicInTheLoadOfANewStreamNamesItsRecord(t *testing.T) {
	s := nwt.NewStream(lineFields, 3, func(_ context.Context, shard int) iter.Seq2[[]byte, error] { return lines(lineFiles[shard]) }, func(_ context.Context, line []byte, dst *nwt.Sample) error {
		if string(line) == "6" {
			panic("odd")
		}
		return lineNumber(t.Context(), line, dst)
	})
	for _, workers := range []int{0, 2} {
		_, err := kit.Values(t, kit.NewLoader(t, nwt.Streamed(s), nwt.WithWorkers(workers)), 0)
		require.ErrorContains(t, err, "record 3 of shard 2: panic: odd (")
		require.ErrorContains(t, err, "stream_test.go:")
	}
}

func TestAStreamOfTwoFunctionsMayUseItsBytesAgain(t *testing.T) {
	for _, workers := range []int{0, 3} {
		open := atomic.Int32{}
		s := nwt.NewStream(lineFields, 3, func(_ context.Context, shard int) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				open.Add(1)
				defer open.Add(-1)
				lines(lineFiles[shard])(yield)
			}
		}, lineNumber)
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(3), nwt.WithWorkers(workers), nwt.WithShuffle(1))
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		slices.Sort(got)
		require.Equal(t, kit.UpTo(8), got)
		for range l.Epoch(t.Context(), 0) {
			break
		}
		require.Zero(t, open.Load(), "a sequence that is left ends")
	}
}

func TestAStreamOfTwoFunctionsYieldsAnyType(t *testing.T) {
	type place struct{ file, line int }
	s := nwt.NewStream(lineFields, 3, func(_ context.Context, shard int) iter.Seq2[place, error] {
		return func(yield func(place, error) bool) {
			for i := range strings.Count(lineFiles[shard], "\n") {
				if !yield(place{shard, i}, nil) {
					return
				}
			}
		}
	}, func(_ context.Context, p place, dst *nwt.Sample) (err error) {
		nwt.Values[int64](dst, 0)[0], err = strconv.ParseInt(strings.Split(lineFiles[p.file], "\n")[p.line], 10, 64)
		return err
	})
	got, err := kit.Values(t, kit.NewLoader(t, nwt.Streamed(s), nwt.WithInterleave(1), nwt.WithBatchSize(3), nwt.WithWorkers(2)), 0)
	require.NoError(t, err)
	require.Equal(t, kit.UpTo(8), got)
}

func TestAnErrorThatASequenceYieldsEndsItsShard(t *testing.T) {
	for _, torn := range []error{io.ErrUnexpectedEOF, io.EOF} {
		s := nwt.NewStream(lineFields, 3, func(_ context.Context, shard int) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				lines(lineFiles[shard])(yield)
				if shard == 0 {
					yield(nil, torn)
				}
			}
		}, lineNumber)
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithInterleave(1), nwt.WithBatchSize(3))
		got, err := kit.Values(t, l, 0)
		require.ErrorIs(t, err, torn)
		var bad *nwt.ShardError
		require.True(t, errors.As(err, &bad))
		require.Equal(t, 0, bad.Shard)
		require.Equal(t, 3, bad.Record)
		require.Equal(t, kit.UpTo(3), got)
	}
}

func TestASequenceThatCannotBeginIsTriedAgain(t *testing.T) {
	calls := 0
	s := nwt.NewStream(lineFields, 1, func(context.Context, int) iter.Seq2[[]byte, error] {
		if calls++; calls < 3 {
			return func(yield func([]byte, error) bool) { yield(nil, temporaryError{}) }
		}
		return lines("0\n1\n")
	}, lineNumber)
	got, err := kit.Values(t, kit.NewLoader(t, nwt.Streamed(s), nwt.WithWorkers(0), nwt.WithRetry(2, 1)), 0)
	require.NoError(t, err)
	require.Equal(t, kit.UpTo(2), got)
}

func TestASequenceThatFailsForAWhileIsBegunAgainAndReadOn(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var begun atomic.Int32
		s := nwt.NewStream(lineFields, 1, func(context.Context, int) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				until := 96 * int(begun.Add(1))
				for i := range 1000 {
					if i == until {
						yield(nil, fmt.Errorf("line %d: %w", i, temporaryError{}))
						return
					}
					if !yield(strconv.AppendInt(nil, int64(i), 10), nil) {
						return
					}
				}
			}
		}, lineNumber)
		got, err := kit.Values(t, kit.NewLoader(t, nwt.Streamed(s), nwt.WithWorkers(workers), nwt.WithRetry(1, 0)), 0)
		require.NoError(t, err)
		require.Equal(t, kit.UpTo(1000), got)
	}
}

type temporaryError struct{}

func (temporaryError) Error() string   { return "busy" }
func (temporaryError) Temporary() bool { return true }

func TestAStreamWithoutAFunctionIsRefused(t *testing.T) {
	_, err := nwt.NewLoader(nwt.Streamed(nwt.NewStream[int](lineFields, 1, nil, nil)))
	require.ErrorContains(t, err, "NewStream: read or load is nil")
}

// A stream of two functions with counts: it goes on with any number of ranks.
func ExampleNewStream() {
	files := []string{"0\n1\n2\n", "3\n4\n"} // opened by read, in a program
	stream := nwt.NewStream(lineFields, len(files), func(_ context.Context, shard int) iter.Seq2[[]byte, error] {
		return lines(files[shard])
	}, lineNumber)
	loader, err := nwt.NewLoader(nwt.Streamed(withCounts{stream, []int{3, 2}}), nwt.WithBatchSize(2))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(nwt.Values[int64](batch, 0), err)
	}
	// Output:
	// [0 3] <nil>
	// [1 4] <nil>
	// [2] <nil>
}

type withCounts struct {
	nwt.Stream
	counts []int
}

func (s withCounts) Records(shard int) int { return s.counts[shard] }

// countedLines is a CountedStream of lines.
type countedLines struct{ nwt.Stream }

func (countedLines) Records(shard int) int { return []int{7, 0, 9, 4}[shard] }

func TestABadRecordIsNamedByItsPlaceInItsShard(t *testing.T) {
	s := nwt.NewStream(lineFields, 4, func(_ context.Context, shard int) iter.Seq2[[2]int, error] {
		return func(yield func([2]int, error) bool) {
			for record := range (countedLines{}).Records(shard) {
				if !yield([2]int{shard, record}, nil) {
					return
				}
			}
		}
	}, func(ctx context.Context, at [2]int, dst *nwt.Sample) error {
		switch err := fmt.Errorf("bad is %d of %d:", at[1], at[0]); at[1] % 4 {
		case 1:
			return err
		case 2:
			panic(err)
		case 3:
			<-ctx.Done()
		}
		return nil
	})
	mixed, err := nwt.MixedStreams(nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}, 7, s, s)
	require.NoError(t, err)
	for name, ds := range map[string]nwt.Dataset{"plain": nwt.Streamed(s), "counted": nwt.Streamed(countedLines{s}), "mixed": mixed} {
		synctest.Test(t, func(t *testing.T) {
			opts := []nwt.Option{nwt.WithWorkers(2), nwt.WithShuffle(1), nwt.WithBatchSize(3), nwt.WithErrorBudget(50), nwt.WithTimeout(time.Minute), nwt.WithRetry(0, 0), kit.Silent}
			if name == "mixed" {
				opts = append(opts, nwt.WithEpochSamples(40))
			}
			l := kit.NewLoader(t, ds, opts...)
			world := map[string]int{"plain": 1, "counted": -1, "mixed": 1}[name]
			for _, err := range l.Resume(t.Context(), nwt.State{Samples: 2, World: world}) {
				require.NoError(t, err)
			}
			require.NotEmpty(t, l.BadSamples())
			for _, bad := range l.BadSamples() {
				var record, shard, i, of int
				_, err := fmt.Sscanf(bad.Err.Error(), "record %d of shard %d:", &record, &shard)
				require.NoError(t, err, bad.Err)
				if record%4 == 3 {
					require.ErrorIs(t, bad, context.DeadlineExceeded)
					continue
				}
				_, at, _ := strings.Cut(bad.Err.Error(), "bad is ")
				_, err = fmt.Sscanf(at, "%d of %d:", &i, &of)
				require.NoError(t, err, bad.Err)
				require.Equal(t, []int{i, of}, []int{record, shard % 4})
			}
		})
	}
}
