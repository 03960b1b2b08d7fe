package shards

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/lanes"
)

// halves makes the Lanes of the first of two ranks, which take a half each of steps of 8
// positions, in epochs of 50. There are 4 lanes, each a shard of the library's.
func (l *library) halves(t *testing.T) *Lanes[[]byte] {
	n := 0
	for _, k := range l.lengths {
		n += k
	}
	p := &lanes.Plan{N: n, Counts: l.lengths, Shard: func(_, i int) int { return i }, Lanes: 4, Block: 3}
	p.Begin(0, 50, 0)
	steps := &lanes.Steps{
		Lanes: 4, Epoch: 50, Step: 8, Head: 7, Whole: 7, Len: math.MaxInt,
		Span: func(k int) (first, after int64, low, high int) {
			epoch, from := k/7, k%7*8
			size := min(8, 50-from)
			return int64(50*epoch + from), int64(50*epoch + from + size), 0, size / 2
		},
	}
	return NewLanes(l.group(t.Context(), true, 0), 0, p, steps, l.config(1))
}

// The last step of an epoch has a record of a lane that the rank reads for nothing else.
func TestALaneThatIsSeldomReadIsNotReadFarAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &library{lengths: []int{1000, 1000, 1000, 1000}}
		var perShard [4][]int
		l.next = func(_ context.Context, shard, record int) error {
			perShard[shard] = append(perShard[shard], record)
			return nil
		}
		s := l.halves(t)
		defer s.Stop()
		s.Begin(roomy, 100)
		synctest.Wait()
		require.Equal(t, []int{24}, perShard[2], "of two epochs")
		require.Empty(t, perShard[3])
		for step := range 4 * 7 {
			s.Turn(step, int64(step/7+2)*50)
			r := s.lanes[0].Blank()
			var got []string
			for position, ok := s.Next(&r); ok; position, ok = s.Next(&r) {
				got = append(got, string(r.Record))
				require.Equal(t, fmt.Sprintf("%d/%d", position%4, position/4), string(r.Record))
			}
			require.Len(t, got, min(8, 50-step%7*8)/2)
		}
		synctest.Wait()
		require.Equal(t, []int{24, 49}, perShard[2])
	})
}
