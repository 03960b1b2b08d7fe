package nwt_test

import (
	"context"
	"io/fs"
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
	return &scarceReader{r, s}, err
}

type scarceReader struct {
	nwt.ShardReader
	s *scarce
}

func (r *scarceReader) Close() error { r.s.open.Add(-1); return r.ShardReader.Close() }

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
			require.ErrorContains(t, err, "too many files were open for a minute (a lower WithInterleave needs fewer)")
			require.InDelta(t, time.Minute, time.Since(began), float64(time.Second+time.Millisecond))
			require.NoError(t, l.Close())
		})
	}
}
