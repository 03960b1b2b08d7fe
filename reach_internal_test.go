package nwt

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// A shard is allowed more records just when it begins to stand still. In a bubble, so that
// one that waits for ever is seen to.
func TestAShardThatIsAllowedMoreRecordsWhileItComesToStandReadsOn(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			part := &streamPart{q: &sequence{reachShare: func() float64 { return 1 }}, bound: 1}
			var chains []*chain
			var picked sync.WaitGroup
			for range 1000 {
				c := &chain{part: part, ctx: ctx, due: 1 << 30, made: readAhead}
				b := newBacklog(readAhead)
				for range readAhead {
					b.full <- &Record{}
				}
				c.backlog.Store(b)
				chains = append(chains, c)
			}
			for _, c := range chains {
				begin := make(chan struct{})
				picked.Go(func() {
					close(begin)
					c.pick()
				})
				<-begin
				c.extend(2 * readAhead)
			}
			synctest.Wait()
			for i, c := range chains {
				require.NotNil(t, c.reading, "shard %d stands still", i)
			}
			picked.Wait()
		})
	}
}

// More of its records than it may have are full, so it may read on. What it reads has no
// Data all at once.
func TestAShardWhoseRecordsAreOfUnknownSizeWantsNoMore(t *testing.T) {
	c := &chain{}
	c.backlog.Store(newBacklog(readAhead))
	require.Zero(t, c.wants(1<<20))
	c.recent.Store(1)
	require.Positive(t, c.wants(1<<20))
}
