package shards

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/usercall"
	"github.com/nwt-go/nwt/internal/watch"
)

// A library has shards whose records are "shard/number", in 100 bytes each.
type library struct {
	lengths []int
	next    func(ctx context.Context, shard, record int) error // called before a record is read; may be nil
	read    atomic.Int64                                       // records
	open    atomic.Int32
	mixing  atomic.Int64 // bytes in windows
	stopped error
}

type page struct {
	l           *library
	shard, next int
}

func (p *page) Next(ctx context.Context, r *[]byte) error {
	if p.next == p.l.lengths[p.shard] {
		return io.EOF
	}
	if p.l.next != nil {
		if err := p.l.next(ctx, p.shard, p.next); err != nil {
			return err
		}
	}
	*r = fmt.Appendf(slices.Grow((*r)[:0], 100)[:0:100], "%d/%d", p.shard, p.next)
	p.next++
	p.l.read.Add(1)
	return ctx.Err()
}

func (p *page) Close() error { p.l.open.Add(-1); return nil }

type leaper struct{ *page }

func (p leaper) Skip(_ context.Context, n int) (int, error) {
	n = min(n, p.l.lengths[p.shard]-p.next)
	if p.next += n; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// config reads the library with readers that skip.
func (l *library) config(atOnce int) Config[[]byte] {
	return Config[[]byte]{
		Open: func(_ context.Context, shard int) (Reader[[]byte], error) {
			if l.lengths[shard] < 0 {
				return nil, fs.ErrNotExist
			}
			l.open.Add(1)
			return leaper{&page{l: l, shard: shard}}, nil
		},
		Again: func(_ context.Context, _ int, err error) error { return err },
		Size:  func(r *[]byte) int { return cap(*r) },
		Failed: func(shard, record int, err error) error {
			return fmt.Errorf("shard %d from record %d on: %w", shard, record, err)
		},
		Shards: func(epoch int) (all []int) {
			for i := range l.lengths {
				all = append(all, (i+epoch)%len(l.lengths))
			}
			return all
		},
		AtOnce: atOnce,
		Draw:   func(epoch, i, n int) int { return int(uint(epoch*31+i*7919) % uint(n)) },
	}
}

func (l *library) group(ctx context.Context, ahead bool, timeout time.Duration) *Group {
	g := &Group{Context: ctx, Log: slog.New(slog.DiscardHandler), Mixing: func(n int) { l.mixing.Add(int64(n)) }, Ahead: ahead, Stop: func(err error) { l.stopped = err }}
	if timeout > 0 {
		g.Watchdog = watch.New(timeout)
		go g.Watchdog.Serve(ctx.Done())
	}
	return g
}

// rest reads what is left of the epoch: records, and errors as text.
func rest(s *Set[[]byte]) (got []string) {
	for r := s.Blank(); s.Next(&r); {
		if r.Err != nil {
			got = append(got, r.Err.Error())
		} else {
			got = append(got, string(r.Record))
		}
	}
	return got
}

const roomy = 1 << 20

func TestRecordsComeInTheSameOrderHoweverFastEachShardIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &library{lengths: []int{3, 1, 2, 2}}
		order := func(ahead bool, epoch, draws int) []string {
			s := New(l.group(t.Context(), ahead, 0), 0, l.config(2))
			s.Begin(epoch, draws, roomy)
			s.GoAhead()
			defer s.Stop()
			if draws < math.MaxInt {
				var got []string
				for r := s.Blank(); len(got) < draws && s.Next(&r); {
					got = append(got, string(r.Record))
				}
				return got
			}
			return rest(s)
		}
		// Shards 0 and 2 in one lane, 1 and 3 in the other, a record of each in turn.
		want := []string{"0/0", "1/0", "0/1", "3/0", "0/2", "3/1", "2/0", "2/1"}
		require.Equal(t, want, order(false, 0, math.MaxInt))
		require.NotEqual(t, want, order(false, 1, math.MaxInt), "the shards of epoch 1 are in another order")
		l.next = func(context.Context, int, int) error {
			time.Sleep(rand.N(time.Second))
			return nil
		}
		for range 20 {
			require.Equal(t, want, order(true, 0, math.MaxInt))
		}
		require.Equal(t, append(want, want[:3]...), order(true, 0, 11), "an epoch that takes more begins another pass")
		require.Zero(t, l.open.Load())
	})
}

func TestNoMoreIsReadAheadThanTheBoundAndARecordThatIsNeededIsReadAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &library{lengths: []int{500, 500}}
		s := New(l.group(t.Context(), true, 0), 0, l.config(2))
		s.Begin(0, math.MaxInt, 4000)
		s.GoAhead()
		synctest.Wait()
		require.InDelta(t, 2000/100, int(l.read.Load()), 4, "half of the bound is shared")
		require.Len(t, rest(s), 1000)
		s.Stop()

		l.read.Store(0)
		s.Begin(0, math.MaxInt, 0)
		s.GoAhead()
		synctest.Wait()
		require.Less(t, int(l.read.Load()), 5)
		require.Len(t, rest(s), 1000)
		s.Stop()
	})
}

func TestAShardThatFailsIsOneErrorInItsPlaceAndTheOthersAreRead(t *testing.T) {
	torn := errors.New("torn")
	for name, ahead := range map[string]bool{"by the caller": false, "ahead": true} {
		for how, fail := range map[string]func() error{"error": func() error { return torn }, "panic": func() error { panic(torn) }} {
			t.Run(name+", "+how, func(t *testing.T) {
				l := &library{lengths: []int{2, 3, 2}, next: func(_ context.Context, shard, record int) error {
					if shard == 1 && record == 1 {
						return fail()
					}
					return nil
				}}
				s := New(l.group(t.Context(), ahead, 0), 0, l.config(2))
				s.Begin(0, math.MaxInt, roomy)
				s.GoAhead()
				defer s.Stop()
				got := rest(s)
				require.Len(t, got, 6)
				require.Equal(t, []string{"0/0", "1/0", "0/1"}, got[:3])
				require.Contains(t, got[3], "shard 1 from record 1 on: ")
				require.Contains(t, got[3], "torn")
				require.Equal(t, []string{"2/0", "2/1"}, got[4:])
			})
		}
	}
}

func TestAShardThatHasVanishedIsOneErrorInItsPlace(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		l := &library{lengths: []int{2, -1, 2}}
		s := New(l.group(t.Context(), ahead, 0), 0, l.config(2))
		s.Begin(0, math.MaxInt, roomy)
		s.GoAhead()
		require.Equal(t, []string{"0/0", "shard 1 from record 0 on: it can't be opened: file does not exist", "0/1", "2/0", "2/1"}, rest(s))
		s.Stop()
	}
}

func TestACallThatStallsIsGivenUpAfterTheTimeoutAndTheEpochGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := &library{lengths: []int{2, 3, 2}, next: func(ctx context.Context, shard, record int) error {
			if shard == 1 && record == 2 {
				<-ctx.Done() // which tells the call that it is given up
				<-release
			}
			return nil
		}}
		g := l.group(t.Context(), true, time.Second)
		s := New(g, 0, l.config(3))
		s.Begin(0, math.MaxInt, roomy)
		s.GoAhead()
		require.Equal(t, []string{"0/0", "1/0", "2/0", "0/1", "1/1", "2/1", "shard 1 from record 2 on: no answer within WithTimeout(1s): context deadline exceeded"}, rest(s))
		s.Stop()
		synctest.Wait() // for the watchdog
		require.Equal(t, 1, g.Watchdog.Away())
		require.EqualValues(t, 1, l.open.Load(), "what the call may use stays open")
		close(release)
		synctest.Wait()
		require.Zero(t, g.Watchdog.Away())
		require.Zero(t, l.open.Load())
	})
}

func TestAReaderThatEndsItsGoroutineStopsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &library{lengths: []int{3}, next: func(_ context.Context, _, record int) error {
			if record == 1 {
				runtime.Goexit()
			}
			return nil
		}}
		s := New(l.group(t.Context(), true, 0), 0, l.config(1))
		s.Begin(0, math.MaxInt, roomy)
		s.GoAhead()
		require.Equal(t, []string{"0/0"}, rest(s))
		require.ErrorIs(t, l.stopped, usercall.ErrGoexit)
		s.Stop()
	})
}

func TestSkippingToARecordGivesTheRestThatReadingGives(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 7))
		l := &library{}
		total := 0
		for range 1 + random.IntN(6) {
			n := 1 + random.IntN(40)
			l.lengths, total = append(l.lengths, n), total+n
		}
		c, ahead := l.config(1+random.IntN(4)), random.IntN(2) == 0
		c.Window = random.IntN(12)
		n := random.IntN(total)
		read, skipped := New(l.group(t.Context(), ahead, 0), 0, c), New(l.group(t.Context(), ahead, 0), 0, c)
		read.Begin(2, math.MaxInt, roomy)
		read.GoAhead()
		want := rest(read)
		read.Stop()
		require.Len(t, want, total)
		l.read.Store(0)
		skipped.Begin(2, math.MaxInt, roomy)
		require.True(t, skipped.Skips())
		require.NoError(t, skipped.SkipTo(n, func(err error) error { return err }))
		require.Equal(t, want[n:], rest(skipped), "seed %d", seed)
		require.LessOrEqual(t, int(l.read.Load()), total-n+c.Window, "seed %d: what is skipped isn't read", seed)
		skipped.Stop()
		require.Zero(t, l.open.Load())
	}
}

func TestReadingEndsWithItsContextAndLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails if a goroutine is left
		ctx, cancel := context.WithCancel(t.Context())
		l := &library{lengths: slices.Repeat([]int{100}, 8), next: func(context.Context, int, int) error { time.Sleep(time.Minute); return nil }}
		s := New(l.group(ctx, true, 0), 0, l.config(4))
		s.Begin(0, math.MaxInt, roomy)
		s.GoAhead()
		time.AfterFunc(10*time.Minute+time.Second, cancel)
		require.Less(t, len(rest(s)), 60)
		s.Stop()
		require.Zero(t, l.open.Load())
	})
}
