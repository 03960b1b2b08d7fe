//go:build !explore

package ring

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	for range 100 { // on a busy machine a goroutine that was joined may take a while to end
		err := goleak.Find()
		if code != 0 || err == nil {
			os.Exit(code)
		}
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(1)
}

// parcel is the content of a batch: how often each place was claimed.
type parcel struct {
	claimed []atomic.Int32
	skipped atomic.Bool // by a worker that saw the ring stopped
}

func newParcel(places int) *parcel { return &parcel{claimed: make([]atomic.Int32, places)} }

// model is the ring as one thread sees it: what is open, claimed and done.
type model struct {
	t       *testing.T
	r       *Ring[parcel]
	first   uint64
	batches []modelBatch
	quota   int
	out     []Claim[parcel] // claimed and not done
}

type modelBatch struct {
	size int
	next int // the first place that nobody has claimed
	done int
}

func (m *model) open(places int) {
	m.r.Open(m.first+uint64(len(m.batches)), newParcel(places), places)
	m.batches = append(m.batches, modelBatch{size: places})
}

// next returns the first batch that has a place to claim, or len(m.batches).
func (m *model) next() int {
	if i := slices.IndexFunc(m.batches, func(b modelBatch) bool { return b.next < b.size }); i >= 0 {
		return i
	}
	return len(m.batches)
}

func (m *model) claim(worker, most int) bool {
	c, got := m.r.Claim(worker, most)
	batch := m.next()
	require.Equal(m.t, batch < len(m.batches) && worker < m.quota, got)
	if !got {
		return false
	}
	b := &m.batches[batch]
	require.Equal(m.t, m.first+uint64(batch), c.Seq)
	require.Same(m.t, m.r.Item(c.Seq), c.Item)
	require.Equal(m.t, b.next, c.From)
	require.Equal(m.t, min(b.size, b.next+most), c.To)
	b.next = c.To
	m.out = append(m.out, c)
	return true
}

func (m *model) finish(i int) {
	c := m.out[i]
	m.out = append(m.out[:i:i], m.out[i+1:]...)
	m.r.Done(c.Seq, c.To-c.From)
	m.batches[c.Seq-m.first].done += c.To - c.From
}

// await waits for one batch.
func await[T any](r *Ring[T], seq uint64) bool {
	_, ok := r.Await([]uint64{seq})
	return ok
}

func (m *model) check() {
	for i, b := range m.batches {
		seq := m.first + uint64(i)
		require.Equal(m.t, b.done == b.size, m.r.Ready(seq))
		if b.done == b.size {
			require.True(m.t, await(m.r, seq))
		}
	}
	batch := m.next()
	if batch < len(m.batches) && m.quota == 0 {
		require.False(m.t, await(m.r, m.first+uint64(batch)), "nobody else would ever claim the rest")
	}
	end := m.first + uint64(len(m.batches))
	require.Equal(m.t, batch == len(m.batches), m.r.Exhausted(end))
	require.Equal(m.t, len(m.batches)-batch, unclaimed(m.r, end))
}

// Every sequence of up to eight calls, with two batches of up to three places.
func TestEverySmallSequenceOfCallsBehavesAsThePlainModel(t *testing.T) {
	depth := 8
	if testing.Short() {
		depth = 6
	}
	r := New[parcel](2, false)
	first, sequences := uint64(0), 0
	var run func(prefix []int)
	ops := []func(m *model) bool{
		func(m *model) bool { return m.grow(1) },
		func(m *model) bool { return m.grow(3) },
		func(m *model) bool { return m.claim(0, 1) },
		func(m *model) bool { return m.claim(1, 2) },
		func(m *model) bool { return len(m.out) > 0 && m.drop(0) },
		func(m *model) bool { return len(m.out) > 1 && m.drop(len(m.out)-1) },
		func(m *model) bool { m.quota = (m.quota + 1) % 3; m.r.SetQuota(m.quota); return true },
	}
	run = func(prefix []int) {
		for op := range ops {
			m := &model{t: t, r: r, first: first, quota: 2}
			r.Reset(first)
			r.SetQuota(2)
			useful := true
			program := append(prefix, op)
			for _, op := range program {
				useful = ops[op](m)
			}
			m.check()
			for len(m.out) > 0 {
				m.finish(0)
			}
			r.Halt(first)
			first += uint64(len(m.batches))
			sequences++
			if useful && len(program) < depth {
				run(program)
			}
		}
	}
	run(nil)
	t.Logf("%d sequences", sequences)
}

func (m *model) grow(places int) bool {
	if len(m.batches) == 2 {
		return false
	}
	m.open(places)
	return true
}

func (m *model) drop(i int) bool { m.finish(i); return true }

func TestAnOwnerWithoutWorkersClaimsOneBatchAtATime(t *testing.T) {
	r := New[parcel](1, false)
	r.Reset(7)
	r.Open(7, newParcel(3), 3)
	r.Open(8, newParcel(2), 2)
	_, ok := r.Claim(0, 10)
	require.False(t, ok, "the quota is 0")
	for _, n := range []int{1, 2} {
		require.False(t, await(r, 7))
		c, ok := r.ClaimOf(7, n)
		require.True(t, ok)
		require.Equal(t, n, c.To-c.From)
		r.Done(7, n)
	}
	_, ok = r.ClaimOf(7, 10)
	require.False(t, ok, "places of batch 8 are not of batch 7")
	require.True(t, await(r, 7))
	r.Halt(8)
}

// crew is workers as a loader has them: they leave when they are too many, and
// are hired again when they are too few.
type crew struct {
	t     testing.TB
	r     *Ring[parcel]
	most  func() int
	pause func()
	stage bool

	mu    sync.Mutex
	want  int
	alive []bool
	wg    sync.WaitGroup
}

func newCrew(t testing.TB, maxWorkers int, stage bool, most func() int, pause func()) *crew {
	return &crew{t: t, r: New[parcel](maxWorkers, stage), most: most, pause: pause, stage: stage, alive: make([]bool, maxWorkers)}
}

func (c *crew) set(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want = n
	c.r.SetQuota(n)
	for id := range n {
		if !c.alive[id] {
			c.alive[id] = true
			c.wg.Go(func() { c.work(id) })
		}
	}
}

func (c *crew) work(id int) {
	for {
		if claim, ok := c.r.Claim(id, c.most()); ok {
			c.load(claim)
		} else if !c.r.Park(id) && c.leave(id) {
			return
		}
	}
}

func (c *crew) leave(id int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id < c.want {
		return false
	}
	c.alive[id] = false
	return true
}

func (c *crew) load(claim Claim[parcel]) {
	if c.r.Stopped() {
		claim.Item.skipped.Store(true)
	}
	c.pause()
	for p := claim.From; p < claim.To; p++ {
		if n := claim.Item.claimed[p].Add(1); n != 1 {
			c.t.Errorf("place %d of batch %d was claimed %d times", p, claim.Seq, n)
		}
	}
	c.r.Done(claim.Seq, claim.To-claim.From)
}

// run opens batches of random sizes from seq on, up to ahead of them at once,
// and awaits them in order, until n are delivered or the ring is stopped. It
// is the sequence number after the last one opened.
func (c *crew) run(rng *rand.Rand, seq uint64, n, ahead int) uint64 {
	c.r.Reset(seq)
	next, opened, end := seq, seq, seq+uint64(n)
	stage, stop := c.transfer()
	for next < end {
		for opened < min(next+uint64(ahead), end) {
			places := 1 + rng.IntN(9)
			c.r.Open(opened, newParcel(places), places)
			if stage != nil {
				stage <- opened
			}
			opened++
		}
		for !await(c.r, next) {
			if c.r.Stopped() {
				stop()
				c.r.Halt(next)
				return opened
			}
			if claim, ok := c.r.ClaimOf(next, 1+rng.IntN(9)); ok {
				c.load(claim)
			}
		}
		item := c.r.Item(next)
		if item.skipped.Load() {
			c.t.Errorf("batch %d was delivered, but not all of it was loaded", next)
		}
		for p := range item.claimed {
			if got := item.claimed[p].Load(); got != 1 {
				c.t.Errorf("place %d of batch %d was delivered having been claimed %d times", p, next, got)
			}
		}
		next++
	}
	stop()
	c.r.Halt(next)
	return opened
}

// transfer returns the stage, where there is one: it takes the batches it is told
// of until the function it returns is called.
func (c *crew) transfer() (opened chan<- uint64, stop func()) {
	if !c.stage {
		return nil, func() {}
	}
	batches := make(chan uint64, Capacity)
	var wg sync.WaitGroup
	wg.Go(func() {
		for seq := range batches {
			c.r.AwaitLoaded(seq)
			if c.r.Loaded(seq) && !c.r.Stopped() { // in this order, as in Await
				c.pause()
				c.r.Staged(seq)
			}
		}
	})
	return batches, sync.OnceFunc(func() { close(batches); c.r.Stop(); wg.Wait() })
}

func (c *crew) close() {
	c.set(0)
	c.wg.Wait()
}

// In a bubble a lost wake-up is a deadlock, which fails the test, and sleeps
// of random lengths interleave the goroutines in as many orders as there are
// seeds, whatever the machine does.
func TestNobodySleepsForeverWhateverHappensWhen(t *testing.T) {
	seeds := 400
	if testing.Short() {
		seeds = 60
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 1))
				c := newCrew(t, 8, seed%3 == 2, func() int { return 1 + int(rand.Uint32N(4)) }, func() {
					switch rand.Uint32N(3) {
					case 0:
						time.Sleep(time.Duration(rand.Uint32N(4)) * time.Microsecond)
					case 1:
						runtime.Gosched()
					}
				})
				c.set(rng.IntN(5))
				seq := uint64(rng.Uint32N(5000))
				for range 4 {
					var wg sync.WaitGroup
					changes := rng.IntN(20)
					wg.Go(func() { // somebody changes the number of workers
						for range changes {
							time.Sleep(time.Duration(rand.Uint32N(9)) * time.Microsecond)
							c.set(int(rand.Uint32N(9)))
						}
					})
					if rng.IntN(2) == 0 {
						wg.Go(func() { // and somebody stops the run
							time.Sleep(time.Duration(rand.Uint32N(60)) * time.Microsecond)
							c.r.Stop()
						})
					}
					seq = c.run(rng, seq, 40, 1+rng.IntN(6))
					wg.Wait()
				}
				c.close()
			})
		})
	}
}

// The same with real parallelism and more workers than processors.
func TestManyWorkersShareBatchesWithoutLosingOrRepeatingAPlace(t *testing.T) {
	batches := 30_000
	if testing.Short() {
		batches = 3000
	}
	for _, workers := range []int{1, 2, 7, 64} {
		for _, stage := range []bool{false, true} {
			c := newCrew(t, workers, stage, func() int { return 1 + int(rand.Uint32N(3)) }, func() {})
			c.set(workers)
			rng := rand.New(rand.NewPCG(uint64(workers), 2))
			seq := uint64(0)
			for range 3 {
				seq = c.run(rng, seq, batches/3, 1+rng.IntN(8))
			}
			require.Equal(t, uint64(batches), seq)
			c.close()
		}
	}
}

func TestTheEntriesAreUsedAgainAtFullCapacity(t *testing.T) {
	c := newCrew(t, 3, false, func() int { return 2 }, func() {})
	c.set(3)
	require.EqualValues(t, 5*Capacity, c.run(rand.New(rand.NewPCG(3, 3)), 0, 5*Capacity, Capacity))
	c.close()
}

// Who stops a run lets workers skip what they have claimed. No batch with such
// a gap may then pass for a ready one.
func TestABatchThatStopCutShortIsNeverReady(t *testing.T) {
	tries := uint64(200_000)
	if testing.Short() {
		tries = 20_000
	}
	r := New[parcel](1, false)
	r.SetQuota(1)
	var begun atomic.Uint64
	var wg sync.WaitGroup
	wg.Go(func() {
		for try := range tries {
			for begun.Load() <= try {
				runtime.Gosched()
			}
			for range try % 16 { // vary who comes first
				begun.Load()
			}
			r.Stop()
			r.Done(try, 1) // skipped
		}
	})
	passed := 0
	for try := range tries {
		r.Reset(try)
		r.Open(try, nil, 1)
		_, ok := r.Claim(0, 1)
		require.True(t, ok)
		begun.Store(try + 1)
		for range try % 13 {
			begun.Load()
		}
		if await(r, try) {
			passed++
		}
		r.Halt(try)
	}
	wg.Wait()
	require.Zero(t, passed, "of %d", tries)
}

// unclaimed returns how many batches before end have places that nobody has claimed.
func unclaimed[T any](r *Ring[T], end uint64) int {
	return int(end - min(end, r.cursor.Load()>>posBits))
}

func TestAnInterruptMakesTheOwnerLookOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New[int](1, false)
		r.SetQuota(1)
		r.Reset(0)
		r.Open(0, new(int), 1)
		require.Equal(t, 1, unclaimed(r, 1))
		require.False(t, r.Exhausted(1))
		go func() {
			time.Sleep(time.Second)
			r.Interrupt()
			c, _ := r.Claim(0, 1)
			time.Sleep(time.Second)
			r.Done(c.Seq, 1)
		}()
		began := time.Now()
		_, ok := r.Await([]uint64{0})
		require.False(t, ok)
		require.Equal(t, time.Second, time.Since(began))
		_, ok = r.Await([]uint64{0})
		require.True(t, ok)
		require.Equal(t, 2*time.Second, time.Since(began))
		require.True(t, r.Exhausted(1))
		require.Zero(t, unclaimed(r, 1))
	})
}

// sleeps runs f in a bubble, where time passes only while everybody sleeps, and
// requires that it takes so many hours.
func sleeps(t *testing.T, hours int, f func()) {
	t.Helper()
	began := time.Now()
	f()
	require.Equal(t, time.Duration(hours)*time.Hour, time.Since(began))
}

func TestTheOwnerSleepsUntilSomethingConcernsIt(t *testing.T) {
	for _, stage := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := New[parcel](2, stage)
			inAnHour := func(do func()) { time.AfterFunc(time.Hour, do) }
			r.SetQuota(1)
			r.Interrupt()
			r.Reset(0) // who has interrupted another run doesn't mean this one
			require.False(t, r.Loaded(0), "it isn't open")
			r.Open(0, newParcel(1), 1)
			c, ok := r.Claim(0, 1)
			require.True(t, ok)
			inAnHour(func() { assert.True(t, r.Done(c.Seq, 1), "it wakes somebody") })
			if stage {
				sleeps(t, 1, func() { r.AwaitLoaded(0) })
				inAnHour(func() { r.Staged(0) })
			}
			sleeps(t, 1, func() { require.True(t, await(r, 0)) })

			r.Open(1, newParcel(2), 2)
			inAnHour(func() { r.SetQuota(0) })
			sleeps(t, 1, func() { require.False(t, await(r, 1), "nobody else would load it") })
			c, ok = r.ClaimOf(1, 2)
			require.True(t, ok)
			require.False(t, r.Done(c.Seq, 2), "nobody sleeps")

			r.SetQuota(1)
			r.Open(2, newParcel(1), 1)
			inAnHour(r.Stop)
			if stage {
				sleeps(t, 1, func() { r.AwaitLoaded(2) })
				require.False(t, r.Loaded(2))
			} else {
				sleeps(t, 1, func() { require.False(t, await(r, 2)) })
			}
			r.Halt(1)
		})
	}
}

func TestHaltWaitsForWhatIsClaimed(t *testing.T) {
	for _, stage := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := New[parcel](2, stage)
			r.SetQuota(2)
			r.Reset(3)
			r.Open(3, newParcel(5), 5)
			r.Open(4, newParcel(3), 3)
			var claims []Claim[parcel]
			for range 6 {
				c, ok := r.Claim(0, 1)
				require.True(t, ok)
				claims = append(claims, c)
			}
			go func() {
				for _, c := range claims {
					time.Sleep(time.Hour)
					r.Done(c.Seq, 1)
				}
			}()
			sleeps(t, 6, func() { r.Halt(3) })

			r.Reset(5)
			r.Announce(5, newParcel(3), 3)
			r.Offer(5, 1)
			c, ok := r.Claim(1, 3)
			require.True(t, ok)
			time.AfterFunc(time.Hour, func() { r.Done(c.Seq, 1) })
			sleeps(t, 1, func() { r.Halt(5) })
		})
	}
}

func TestNoMoreSleepersAreWokenThanThereIsWorkFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New[parcel](3, false)
		r.SetQuota(3)
		r.Reset(0)
		var woken atomic.Int32
		for id := range 3 {
			go func() {
				for r.Park(id) && r.quota.Load() > 0 {
					woken.Add(1)
					if c, ok := r.Claim(id, 1); ok {
						time.Sleep(time.Hour)
						r.Done(c.Seq, 1)
					}
				}
			}()
		}
		synctest.Wait()
		for seq := range uint64(3) {
			places := int(seq) + 1
			r.Open(seq, newParcel(places), places)
			time.Sleep(2 * time.Hour)
			require.EqualValues(t, places, woken.Swap(0))
		}
		r.SetQuota(0)
		synctest.Wait()
	})
}

func TestPlacesOfAStreamCanBeClaimedOnceTheyAreOffered(t *testing.T) {
	r := New[parcel](2, false)
	r.SetQuota(2)
	r.Reset(5)
	seq := uint64(5)
	claim := func(from, to int) {
		t.Helper()
		c, ok := r.Claim(0, 10)
		require.Equal(t, from < to, ok)
		if ok {
			require.Equal(t, [3]int{int(seq), from, to}, [3]int{int(c.Seq), c.From, c.To})
			r.Done(seq, to-from)
		}
	}
	r.Announce(5, newParcel(4), 4)
	claim(0, 0)
	r.Offer(5, 1)
	claim(0, 1)
	claim(0, 0)
	r.Offer(5, 2)
	r.Offer(5, 3)
	claim(1, 3)
	require.False(t, r.Ready(5), "a fourth may come")
	r.Seal(5, 3)
	claim(0, 0)
	require.True(t, await(r, 5), "the fourth was dropped")

	r.Announce(6, newParcel(4), 4)
	r.Seal(6, 0)
	claim(0, 0)
	require.True(t, await(r, 6), "nothing was in it")

	for seq = 7; seq < 9; seq++ {
		r.Announce(seq, newParcel(4), 4)
		r.Offer(seq, 1)
		claim(0, 1)
		r.Seal(seq, 1) // nobody looks before the next batch is there
		require.True(t, await(r, seq))
	}
	r.Halt(9)
}

func TestABatchThatWasNeverOfferedIsNobodysInTheNextRun(t *testing.T) {
	r := New[parcel](1, false)
	r.SetQuota(1)
	r.Reset(0)
	r.Announce(0, newParcel(2), 2)
	r.Announce(1, newParcel(2), 2)
	r.Offer(0, 1)
	c, ok := r.Claim(0, 1)
	require.True(t, ok)
	r.Done(0, 1)
	r.Halt(0)
	_, ok = r.Claim(0, 1)
	require.False(t, ok)
	r.Reset(2)
	_, ok = r.Claim(0, 1)
	require.False(t, ok)
	mine := newParcel(1)
	r.Open(2, mine, 1)
	c, ok = r.Claim(0, 1)
	require.True(t, ok)
	require.Same(t, mine, c.Item)
	r.Done(2, 1)
	r.Halt(3)
}

// Each load waits until all of them are under way, so that a worker that isn't
// woken is a deadlock.
func TestAsManySleepersAreWokenAsABatchHasWorkFor(t *testing.T) {
	for _, stream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const workers = 5
			var together sync.WaitGroup
			together.Add(workers)
			c := newCrew(t, workers, false, func() int { return 1 }, func() {
				together.Done()
				together.Wait()
			})
			c.set(workers)
			c.r.Reset(0)
			synctest.Wait()
			if stream {
				c.r.Announce(0, newParcel(workers+2), workers+2)
				for n := range workers {
					c.r.Offer(0, n)
				}
				c.r.Seal(0, workers)
			} else {
				c.r.Open(0, newParcel(workers), workers)
			}
			require.True(t, await(c.r, 0))
			c.r.Halt(1)
			c.close()
		})
	}
}

// An owner without workers has nothing to do while a reader has nothing to offer.
// In a bubble time passes only while everybody sleeps.
func TestAnOwnerWithoutWorkersSleepsUntilSomethingIsOffered(t *testing.T) {
	for _, stage := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := New[parcel](1, stage)
			r.Reset(5)
			r.Announce(5, newParcel(3), 3)
			go func() {
				for n := range 2 {
					time.Sleep(time.Hour)
					r.Offer(5, n+1)
				}
				time.Sleep(time.Hour)
				r.Seal(5, 3)
			}()
			for n := range 3 {
				sleeps(t, 1, func() { require.False(t, await(r, 5)) })
				c, ok := r.ClaimOf(5, 9)
				require.True(t, ok)
				require.Equal(t, n, c.From)
				r.Done(5, c.To-c.From)
			}
			if stage {
				require.True(t, r.Loaded(5))
				r.Staged(5)
			}
			require.True(t, await(r, 5))
			r.Stop()
			r.Halt(6)
		})
	}
}
