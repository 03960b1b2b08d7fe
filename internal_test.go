package nwt

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/oncelog"
	"github.com/nwt-go/nwt/internal/watch"
)

// A field that report lacks is one that its words can't be of, and one that isn't handed over is zero there.
func TestWhatIsReportedIsWhatATuningFound(t *testing.T) {
	filled := &Result{Trials: []Trial{{}}, RuledOut: []RuledOut{{}}, waited: 1}
	for _, v := range []any{filled, &filled.Trials[0], &filled.RuledOut[0]} {
		fillFields(reflect.ValueOf(v).Elem())
	}
	for _, tt := range []struct {
		found, reported any
		own             []string // what the report doesn't speak of
	}{
		{*filled, *filled.report(), []string{"Iterations", "waited"}},
		{filled.Trials[0], filled.report().Trials[0], []string{"Iterations", "Median", "P99", "FirstBatch", "Step", "Copy", "Bandwidth", "Memory", "PeakRSS", "PeakExact", "SystemUsed"}},
		{filled.RuledOut[0], filled.report().RuledOut[0], nil},
	} {
		found, reported := reflect.ValueOf(tt.found), reflect.ValueOf(tt.reported)
		for name := range found.Type().Fields() {
			if !slices.Contains(tt.own, name.Name) {
				require.True(t, reported.FieldByName(name.Name).IsValid(), "%T lacks %s", tt.reported, name.Name)
			}
		}
		for field, value := range reported.Fields() {
			require.False(t, value.IsZero(), "%T: %s isn't filled", tt.reported, field.Name)
		}
	}
}

// fillFields sets each exported field that is zero to something else.
func fillFields(v reflect.Value) {
	for field, value := range v.Fields() {
		switch {
		case !field.IsExported() || !value.IsZero():
		case value.CanInt():
			value.SetInt(1)
		case value.CanFloat():
			value.SetFloat(1)
		case value.Kind() == reflect.String:
			value.SetString("x")
		case value.Kind() == reflect.Bool:
			value.SetBool(true)
		case value.Kind() == reflect.Slice:
			value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		case value.Kind() == reflect.Struct:
			fillFields(value)
		}
	}
}

func TestTheMemoryOfACacheShowsOnceThroughEverythingMadeOfIt(t *testing.T) {
	bytes := []Field{{Name: "x", Type: Uint8, Shape: []int{100}}}
	source := NewDataset(10, bytes, func(context.Context, int, *Sample) error { return nil })
	c := Cached(source, 1<<20)
	part, err := Subset(c, []int{1, 2})
	require.NoError(t, err)
	both, err := Concat(part, c)
	require.NoError(t, err)
	ds := Map(both, bytes, func(context.Context, *Sample, *Sample) error { return nil })
	require.EqualValues(t, 80, cacheBytes(ds))
	for i := range 5 {
		_, err := LoadSample(t.Context(), ds, i)
		require.NoError(t, err)
	}
	require.EqualValues(t, 80+3*100, cacheBytes(ds), "samples 1 and 2 of the subset, 0 to 2 of the whole")
	l, err := NewLoader(ds)
	require.NoError(t, err)
	require.EqualValues(t, 80+3*100, l.Stats().DatasetBytes)
	require.NoError(t, l.Close())
	require.NoError(t, c.Close())
	require.Zero(t, cacheBytes(ds))
	require.Zero(t, cacheBytes(source))
}

func TestARankReadsItsShareOfTheStreamThatHasTheMostShards(t *testing.T) {
	for world := 1; world <= 7; world++ {
		sum := 0
		for rank := range world {
			s := &setup{shards: []int{3, 7, 5}, opts: &options{rank: rank, world: world}}
			require.Contains(t, []int{7 / world, 7/world + 1}, s.shardsOfRank())
			sum += s.shardsOfRank()
		}
		require.Equal(t, 7, sum)
	}
}

// lines returns a dataset of ragged samples: sample i is i%5 bytes of value i.
func lines(n int) Dataset {
	return NewDataset(n, []Field{{Name: "line", Type: Uint8, Shape: []int{4}, RaggedDims: 1}}, func(_ context.Context, i int, dst *Sample) error {
		dst.SetLen(0, i%5)
		copy(dst.Bytes(0), bytes.Repeat([]byte{byte(i)}, 4))
		return nil
	})
}

func TestADescriptionThatCannotBeReadIsOfSomethingElse(t *testing.T) {
	want := &precomputedFor{Version: "v1", Samples: 3, Fields: lines(3).Fields()}
	for _, description := range []string{"", "{}", `{"Fields":[{"Type":"Complex64"}]}`, `{"Version":7}`, `{"Version":"v1","Samples":3,"Fields":[{}]}`} {
		require.NotEmpty(t, want.difference([]byte(description)), description)
	}
}

func TestTypesAreWrittenByName(t *testing.T) {
	for d := Bool; d.valid(); d++ {
		name, err := d.MarshalText()
		require.NoError(t, err)
		var back DType
		require.NoError(t, back.UnmarshalText(name))
		require.Equal(t, d, back)
	}
	_, err := DType(0).MarshalText()
	require.ErrorContains(t, err, "DType(0)")
	require.ErrorContains(t, new(DType).UnmarshalText([]byte("Complex64")), `unknown type "Complex64"`)
}

// setenv sets variables for a test: "NAME=value NAME=value …".
func setenv(t *testing.T, assignments string) {
	for assignment := range strings.FieldsSeq(assignments) {
		name, value, _ := strings.Cut(assignment, "=")
		t.Setenv(name, value)
	}
}

// anewOnce makes options of a process that has logged nothing yet.
func anewOnce() Option {
	logged := &oncelog.Log{}
	return func(o *options) error { o.logged = logged; return nil }
}

func TestTheRankIsLoggedOnceAProcess(t *testing.T) {
	var out strings.Builder
	opts := []Option{WithRankFromEnv(), WithLogger(slog.New(slog.NewTextHandler(&out, nil))), anewOnce()}
	lines := func() int {
		_, err := newOptions(opts)
		require.NoError(t, err)
		return strings.Count(out.String(), "launcher: torchrun")
	}
	setenv(t, "RANK=5 WORLD_SIZE=7")
	require.Equal(t, 1, lines())
	require.Equal(t, 1, lines(), "Tune, NewLoader and each trial read the options anew")
	setenv(t, "RANK=6")
	require.Equal(t, 2, lines(), "another rank is news")
	_, err := newOptions([]Option{WithRankFromEnv(), WithLogger(nil)})
	require.ErrorContains(t, err, "WithLogger")
}

func TestThatWithRankDividesNoCPUsIsLoggedOnceAProcess(t *testing.T) {
	var out strings.Builder
	once := anewOnce()
	lines := func(opts ...Option) int {
		_, err := newOptions(append(opts, once, WithLogger(slog.New(slog.NewTextHandler(&out, nil)))))
		require.NoError(t, err)
		return strings.Count(out.String(), "CPUs aren't divided")
	}
	require.Zero(t, lines())
	require.Zero(t, lines(WithRank(0, 1)))
	require.Zero(t, lines(WithRank(1, 2), WithWorkers(3)), "the program says how many")
	require.Equal(t, 1, lines(WithRank(1, 2)))
	require.Equal(t, 1, lines(WithRank(0, 2)))
	setenv(t, "RANK=5 WORLD_SIZE=7")
	once = anewOnce()
	require.Equal(t, 1, lines(WithRankFromEnv()))
}

func TestRankFromEnvReadsTheEnvironmentOfTheProcess(t *testing.T) {
	setenv(t, "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4")
	got, err := RankFromEnv(nil)
	require.NoError(t, err)
	require.Equal(t, "rank 5 of 8, 1 of 4 on this host, launcher: torchrun (WORLD_SIZE=8 RANK=5 LOCAL_WORLD_SIZE=4 LOCAL_RANK=1)", got.String())
	none, err := RankFromEnv(func(string) (string, bool) { return "", false })
	require.NoError(t, err)
	require.Equal(t, "rank 0 of 1, 0 of 1 on this host, launcher: none", none.String())
}

func TestFiguresThatGrowForeverDoNotWrapOn32Bits(t *testing.T) {
	l, err := NewLoader(NewDataset(1, []Field{{Name: "x", Type: Uint8}}, func(context.Context, int, *Sample) error { return nil }))
	require.NoError(t, err)
	defer l.Close()
	l.engine.counters.samples.Store(1 << 31)
	s := l.Stats()
	require.Equal(t, int64(1<<31), s.Samples)
	s.CopiedBytes = 1 << 40
	require.Equal(t, int64(1<<39), s.Since(Stats{CopiedBytes: 1 << 39}).CopiedBytes)
}

// stubs are poolHooks without a loader: a worker does what it is told.
type stubs struct {
	t    *testing.T
	pool *pool

	mu    sync.Mutex
	told  map[*worker]chan func(*worker) (leaves bool) // what a worker is to do
	using map[int]*worker                              // by number: of those that have a goroutine
	away  []*worker                                    // whose calls were given up
	quota int
	over  bool
}

func (s *stubs) newWorker(seat, number int, _ *watch.Watchdog) *worker {
	w := &worker{seat: seat, number: number, loop: loadLoop{scratch: &scratchValues{}}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told[w] = make(chan func(*worker) bool, 1)
	return w
}

func (s *stubs) work(w *worker) {
	s.mu.Lock()
	require.Nil(s.t, s.using[w.number], "no two have a number at a time")
	s.using[w.number] = w
	told := s.told[w]
	s.mu.Unlock()
	for do := range told {
		if do(w) {
			break
		}
		if !w.loop.call.clock.End() { // the call was given up
			s.forget(w)
			s.pool.returned(w)
			return
		}
		if s.pool.leave(w) {
			break
		}
	}
	s.forget(w)
}

func (s *stubs) forget(w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.using, w.number)
}

func (s *stubs) giveUp(w *worker) handover {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = append(s.away, w)
	return handover{}
}

func (s *stubs) setQuota(workers int) { s.quota = workers }
func (s *stubs) isEnding() bool       { return s.over }

// staffed makes a pool in a bubble of virtual time.
func staffed(t *testing.T, timeout time.Duration, size int, f func(t *testing.T, s *stubs, c *pool)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubs{t: t, told: map[*worker]chan func(*worker) bool{}, using: map[int]*worker{}}
		s.pool = newPool(s, timeout, size)
		f(t, s, s.pool)
		synctest.Wait()
		require.Empty(t, s.using, "a goroutine is left")
		require.Zero(t, s.pool.watchdog.Away())
	})
}

// seated are the numbers of those that have seats, by seat; −1 for a free one.
func (s *stubs) seated() (numbers []int) {
	synctest.Wait()
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	for _, w := range s.pool.seats {
		if w == nil {
			numbers = append(numbers, -1)
		} else {
			numbers = append(numbers, w.number)
		}
	}
	return numbers
}

// tell has the worker of a seat do something.
func (s *stubs) tell(seat int, do func(w *worker) (leaves bool)) {
	synctest.Wait()
	s.pool.mu.Lock()
	w := s.pool.seats[seat]
	s.pool.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told[w] <- do
}

// everyone has all that have seats look whether they are surplus.
func (s *stubs) everyone() {
	for seat, number := range s.seated() {
		if number >= 0 {
			s.tell(seat, func(*worker) bool { return false })
		}
	}
}

func (s *stubs) quit() {
	require.Nil(s.t, s.pool.close())
	var dismissing sync.WaitGroup
	dismissing.Go(s.pool.dismiss)
	s.everyone()
	dismissing.Wait()
}

func TestWorkersAreHiredForARunAndSurplusOnesLeave(t *testing.T) {
	staffed(t, 0, 3, func(t *testing.T, s *stubs, c *pool) {
		require.Empty(t, s.seated(), "between runs nobody is hired")
		r := &run{}
		require.NoError(t, c.begin(r, func() {}))
		require.ErrorIs(t, c.begin(&run{}, func() {}), ErrBusy)
		c.start()
		require.Equal(t, []int{0, 1, 2}, s.seated())
		require.True(t, c.resize(5, false))
		require.Equal(t, 5, s.quota)
		require.Equal(t, []int{0, 1, 2, 3, 4}, s.seated(), "at once")
		require.True(t, c.resize(1, true))
		s.everyone()
		require.Equal(t, []int{0, -1, -1, -1, -1}, s.seated())
		require.False(t, c.resize(4, false), "the program has said how many")
		c.rest()
		c.end(func() {})
		require.True(t, c.resize(3, true))
		require.Equal(t, []int{0, -1, -1, -1, -1}, s.seated(), "between runs nobody is hired")
		require.NoError(t, c.begin(r, func() {}))
		c.start()
		require.Equal(t, []int{0, 1, 2, -1, -1}, s.seated(), "the lowest numbers that are free")
		require.Same(t, r, c.close())
		require.False(t, c.resize(2, true))
		c.rest()
		c.end(func() {})
		require.ErrorIs(t, c.whileFree(func() {}), ErrClosed)
		s.quit()
	})
}

func TestTheSeatOfACallThatIsGivenUpIsTakenAndNobodyWaitsForTheCall(t *testing.T) {
	staffed(t, time.Second, 2, func(t *testing.T, s *stubs, c *pool) {
		require.NoError(t, c.begin(&run{}, func() {}))
		c.start()
		release := make(chan struct{})
		hang := func(w *worker) bool {
			w.loop.call.clock.Begin(c.watchdog.Now(), 1)
			<-release
			return false
		}
		s.tell(1, hang)
		time.Sleep(2 * time.Second)
		require.Equal(t, []int{0, 2}, s.seated())
		s.tell(1, hang)
		time.Sleep(2 * time.Second)
		require.Equal(t, []int{0, 3}, s.seated(), "numbers 1 and 2 are those of the calls")
		require.Equal(t, 2, c.watchdog.Away())
		require.Len(t, s.away, 2)
		close(release)
		require.Equal(t, []int{0, 3}, s.seated())
		require.Zero(t, c.watchdog.Away())
		require.True(t, c.resize(4, true))
		require.Equal(t, []int{0, 3, 1, 2}, s.seated(), "numbers that have come back")
		release = make(chan struct{})
		s.tell(0, hang)
		time.Sleep(2 * time.Second)
		c.rest()
		c.end(func() {})
		s.quit() // though the call goes on
		require.Equal(t, 1, c.watchdog.Away())
		close(release)
	})
}

func TestARunWaitsForWorkersThatPrepareAndThenNobodyBegins(t *testing.T) {
	staffed(t, 0, 3, func(t *testing.T, s *stubs, c *pool) {
		r := &run{}
		require.NoError(t, c.begin(r, func() {}))
		c.start()
		var entered, refused []int
		prepare := func(w *worker) (leaves bool) {
			if of := c.enter(w); of == nil {
				refused = append(refused, w.seat)
				return true
			}
			time.Sleep(time.Minute)
			entered = append(entered, w.seat)
			c.entered()
			return false
		}
		s.tell(1, prepare)
		synctest.Wait()
		began := time.Now()
		c.awaitPrepared()
		require.Equal(t, time.Minute, time.Since(began))
		require.Equal(t, []int{1}, entered)
		s.tell(2, prepare)
		require.Equal(t, []int{0, 1, -1}, s.seated(), "who doesn't begin goes")
		require.Equal(t, []int{2}, refused)
		s.over = true
		c.end(func() {})
		require.NoError(t, c.begin(r, func() {}))
		c.start()
		s.tell(2, prepare)
		require.Equal(t, []int{0, 1, -1}, s.seated(), "nor for a run that ends")
		require.Equal(t, []int{2, 2}, refused)
		s.tell(0, func(w *worker) bool { c.desert(w); c.desert(w); return true })
		require.Equal(t, []int{-1, 1, -1}, s.seated())
		c.rest()
		c.end(func() {})
		s.quit()
	})
}

func TestWhateverHappensToAPoolNumbersAndSeatsAreRight(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		staffed(t, time.Second, rng.IntN(5), func(t *testing.T, s *stubs, c *pool) {
			var hanging []chan struct{}
			running := false
			for range 60 {
				switch rng.IntN(6) {
				case 0:
					require.True(t, c.resize(rng.IntN(6), true))
				case 1:
					if running {
						c.rest()
						c.end(func() {})
					} else {
						require.NoError(t, c.begin(&run{}, func() {}))
						c.start()
					}
					running = !running
				case 2:
					s.everyone()
				case 3:
					seats := s.seated()
					if len(seats) == 0 || !running {
						continue
					}
					seat := rng.IntN(len(seats))
					if seats[seat] < 0 {
						continue
					}
					release := make(chan struct{})
					hanging = append(hanging, release)
					s.tell(seat, func(w *worker) bool { w.loop.call.clock.Begin(c.watchdog.Now(), 1); <-release; return false })
					time.Sleep(2 * time.Second)
				case 4:
					if len(hanging) > 0 {
						i := rng.IntN(len(hanging))
						close(hanging[i])
						hanging = slices.Delete(hanging, i, i+1)
					}
				}
				seats := s.seated()
				require.Equal(t, len(hanging), c.watchdog.Away(), "seed %d", seed)
				busy := 0
				for seat, number := range seats {
					if number >= 0 {
						busy++
						require.Same(t, c.seats[seat], s.using[number])
					}
					require.True(t, !running || seat >= s.quota || number >= 0, "seed %d: seat %d is free", seed, seat)
				}
				require.Len(t, s.using, busy+len(hanging), "seed %d", seed)
			}
			if running {
				c.rest()
				c.end(func() {})
			}
			s.quit()
			for _, release := range hanging {
				close(release)
			}
		})
	}
}
