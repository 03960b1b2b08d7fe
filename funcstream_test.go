package nwt_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

var (
	lineFields = []nwt.Field{{Name: "i", Type: nwt.Int64}}
	lineFiles  = []string{"0\n1\n2\n", "", "3\n4\n5\n6\n7\n"}
)

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
		l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(3), nwt.WithWorkers(workers), nwt.WithShuffle(1))
		got, err := values(t, l, 0)
		require.NoError(t, err)
		slices.Sort(got)
		require.Equal(t, upTo(8), got)
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
	got, err := values(t, newLoader(t, nwt.Streamed(s), nwt.WithInterleave(1), nwt.WithBatchSize(3), nwt.WithWorkers(2)), 0)
	require.NoError(t, err)
	require.Equal(t, upTo(8), got)
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
		l := newLoader(t, nwt.Streamed(s), nwt.WithInterleave(1), nwt.WithBatchSize(3))
		got, err := values(t, l, 0)
		require.ErrorIs(t, err, torn)
		var bad *nwt.ShardError
		require.True(t, errors.As(err, &bad))
		require.Equal(t, 0, bad.Shard)
		require.Equal(t, 3, bad.Record)
		require.Equal(t, upTo(3), got)
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
	got, err := values(t, newLoader(t, nwt.Streamed(s), nwt.WithWorkers(0), nwt.WithRetry(2, 1)), 0)
	require.NoError(t, err)
	require.Equal(t, upTo(2), got)
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
		got, err := values(t, newLoader(t, nwt.Streamed(s), nwt.WithWorkers(workers), nwt.WithRetry(1, 0)), 0)
		require.NoError(t, err)
		require.Equal(t, upTo(1000), got)
	}
}

type temporaryError struct{}

func (temporaryError) Error() string   { return "busy" }
func (temporaryError) Temporary() bool { return true }

func TestAStreamWithoutAFunctionIsRefused(t *testing.T) {
	_, err := nwt.NewLoader(nwt.Streamed(nwt.NewStream[int](lineFields, 1, nil, nil)))
	require.ErrorContains(t, err, "read and load must not be nil")
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
			opts := []nwt.Option{nwt.WithWorkers(2), nwt.WithShuffle(1), nwt.WithBatchSize(3), nwt.WithErrorBudget(50), nwt.WithTimeout(time.Minute), nwt.WithRetry(0, 0), quietLog}
			if name == "mixed" {
				opts = append(opts, nwt.WithEpochSamples(40))
			}
			l := newLoader(t, ds, opts...)
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
