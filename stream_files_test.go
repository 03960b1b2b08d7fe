package nwt_test

import (
	"context"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// scarce is a stream of which only so many shards can be open at once.
type scarce struct {
	nwt.Stream
	most, open atomic.Int32
}

func (s *scarce) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	if s.open.Add(1) > s.most.Load() {
		s.open.Add(-1)
		return nil, &fs.PathError{Op: "open", Path: "shard.tar", Err: syscall.EMFILE}
	}
	r, err := s.Stream.Open(ctx, shard)
	if skips, ok := r.(nwt.Skipper); ok {
		return &scarceSkipper{skips, s}, err
	}
	return &scarceReader{r, s}, err
}

type scarceReader struct {
	nwt.ShardReader
	s *scarce
}

func (r *scarceReader) Close() error { r.s.open.Add(-1); return r.ShardReader.Close() }

type scarceSkipper struct {
	nwt.Skipper
	s *scarce
}

func (r *scarceSkipper) Close() error { r.s.open.Add(-1); return r.Skipper.Close() }

// A shard has more records than are read ahead.
func TestMoreShardsAtOnceThanFilesMayBeOpenAreReadInTheSameOrder(t *testing.T) {
	const shards = 30
	for name, stream := range map[string]nwt.Stream{
		"readers":  newShelves(slices.Repeat([]int{700}, shards+3)...),
		"skippers": skimmed{&wide{Stream: newShelves(slices.Repeat([]int{700}, shards+3)...)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log journal
				s := &scarce{Stream: stream}
				s.most.Store(1000)
				l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(64), nwt.WithWorkers(2), nwt.WithInterleave(shards), nwt.WithTimeout(10*time.Second), log.option())
				want, err := values(t, l, 0)
				require.NoError(t, err)
				require.Len(t, want, 700*(shards+3))
				require.Empty(t, log.String())
				s.most.Store(7)
				began := time.Now()
				var got []int64
				var state nwt.State
				from := 0
				for b, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					if got = append(got, nwt.Values[int64](b, 0)...); b.Index() == 200 {
						state, from = b.State(), len(got)
					}
				}
				require.Equal(t, want, got)
				require.Equal(t, 1, strings.Count(log.String(), "too many files are open"), log.String())
				got = got[:from]
				for b, err := range l.Resume(t.Context(), state) {
					require.NoError(t, err)
					got = append(got, nwt.Values[int64](b, 0)...)
				}
				require.Equal(t, want, got)
				require.NoError(t, l.SetWorkers(0))
				got, err = values(t, l, 0)
				require.NoError(t, err)
				require.Equal(t, want, got)
				require.Less(t, time.Since(began), time.Second, "no shard waits for a file that the others hold")
				require.NoError(t, l.Close())
				require.Zero(t, s.open.Load())
			})
		})
	}
}

func TestAShardThatIsShorterWhenItIsOpenedAgainIsLost(t *testing.T) {
	const shards = 4
	stream := newShelves(slices.Repeat([]int{700}, shards)...)
	var opened [shards]atomic.Int32
	s := &scarce{Stream: &breaking{shelves: stream, onOpen: func(shard int) error { opened[shard].Add(1); return nil }, onNext: func(shard, record int) error {
		if shard == 1 && record == 100 && opened[shard].Load() > 1 {
			return io.EOF
		}
		return nil
	}}}
	s.most.Store(1) // so that each must be closed for the others
	l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithErrorBudget(1), quietLog)
	got, err := values(t, l, 0)
	require.NoError(t, err)
	require.Less(t, len(got), 4*700)
	require.Len(t, l.BadSamples(), 1)
	require.ErrorContains(t, l.BadSamples()[0], "shard 1 from record ")
	require.ErrorContains(t, l.BadSamples()[0], "it has fewer records than before")
}

func TestAShardWaitsAMinuteForAFile(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			var log journal
			s := &scarce{Stream: newShelves(10)}
			l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(2), nwt.WithWorkers(workers), nwt.WithInterleave(1), log.option())
			time.AfterFunc(50*time.Second, func() { s.most.Store(1) })
			got, err := values(t, l, 0)
			require.NoError(t, err)
			require.Equal(t, upTo(10), got)
			require.Contains(t, log.String(), "too many files are open")
			s.most.Store(0)
			began := time.Now()
			_, err = values(t, l, 1)
			require.ErrorIs(t, err, syscall.EMFILE)
			require.ErrorContains(t, err, "too many files were open for a minute, WithInterleave(1)")
			require.InDelta(t, time.Minute, time.Since(began), float64(time.Second+time.Millisecond))
			require.NoError(t, l.Close())
		})
	}
}
