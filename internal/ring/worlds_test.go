//go:build explore

package ring

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/nwt-go/nwt/internal/exploretest"
)

var (
	turns     = flag.Int("turns", -1, "bound for each world, instead of its own")
	unbounded = flag.Bool("unbounded", false, "no bound for any world")
)

// A world is what the ring's users do in some epochs.
type world struct {
	name    string
	bound   int // see exploretest.Explorer
	workers int
	most    int     // places of a claim
	epochs  [][]int // places of each batch
	ahead   int     // batches open at once
	leave   []int   // by epoch: batches delivered until the owner leaves it; 0: all
	stream  bool
	short   int // of a stream: places that the last batch of an epoch lacks
	stage   bool
	stop    bool  // somebody calls Stop at some time in the first epoch
	quotas  []int // what somebody sets the workers to, one after the other
	rouse   bool  // somebody calls Interrupt at some time
	hold    bool  // what is claimed in the first epoch isn't done before the owner has left it
	any     bool  // batches are taken in whatever order they are ready

	// Below is of one execution.
	x *exploretest.Explorer
	r *Ring[shipment]
	*shared
}

const (
	mostEpochs  = 3
	mostBatches = 4
	mostWorkers = 4
)

// shared is what threads share beside the ring.
type shared struct {
	era      atomicUint64 // 2e+1 in epoch e, one more after its Halt
	items    [mostEpochs][mostBatches]shipment
	toFill   [mostEpochs]tokens
	quit     [mostEpochs]atomicBool
	fed      [mostEpochs]tokens
	toStage  [mostEpochs]tokens
	first    [mostEpochs]atomicUint64
	staged   [mostEpochs]tokens
	mu       tokens // of want and alive
	want     cell
	alive    [mostWorkers]cell
	hired    [mostWorkers]tokens
	finished tokens // quotas are set
	begun    tokens // the first epoch
	stopped  tokens
	left     tokens // the owner has left the first epoch
}

// shipment is the content of a batch.
type shipment struct {
	epoch   int
	seq     uint64
	size    int
	filled  atomicUint64 // of a stream: places that have a record
	taken   cell         // by place, a bit
	skipped cell         // 1: by a worker that saw the ring stopped
}

// set changes what no two threads touch at once, or in whatever order.
func (w *world) set(c *cell, v uint64) { w.x.Set(c, v) }

func (w *world) begin(x *exploretest.Explorer) {
	w.x, w.r = x, New[shipment](w.workers, w.stage)
	exploretest.Share(x, w.r)
	w.shared = exploretest.Share(x, &shared{})
	for e := range w.epochs {
		w.toFill[e], w.fed[e] = newTokens(9), newTokens(1)
		w.toStage[e], w.staged[e] = newTokens(1), newTokens(1)
	}
	w.mu, w.finished, w.begun, w.stopped, w.left = newTokens(1), newTokens(1), newTokens(1), newTokens(1), newTokens(9)
	w.mu.send()
	w.set(&w.want, uint64(w.workers))
	w.r.SetQuota(w.workers)
	if x.Needed = 1; len(w.quotas) > 0 {
		x.Needed = 1<<16 - 1 // workers have to leave too
	}
	if len(w.quotas) == 0 {
		x.Alike = [2]int{1, 1 + w.workers}
	}
	x.Spawn("owner", w.own)
	for id := range w.workers {
		w.set(&w.alive[id], 1)
		w.hired[id] = newTokens(2)
		x.Spawn(fmt.Sprint("worker", id), func() { w.work(id) })
	}
	for e := range w.epochs {
		if w.stream {
			x.Spawn(fmt.Sprint("reader", e), func() { w.read(e) })
		}
		if w.stage {
			x.Spawn(fmt.Sprint("stage", e), func() { w.transfer(e) })
		}
	}
	if len(w.quotas) > 0 {
		x.Spawn("tuner", w.tune)
	}
	if w.rouse {
		x.Spawn("rouser", w.r.Interrupt)
	}
	if w.stop {
		x.Spawn("stopper", func() { w.begun.receive(); w.r.Stop(); w.stopped.send() })
	}
}

// places of what Forget is told
const (
	looking = iota
	parking
	loading
	reporting
	opening
	awaiting
	stopping
	halting
	reading
	staging
)

func (w *world) own() {
	var seq uint64
	for e := range w.epochs {
		seq = w.epoch(e, seq)
	}
	if len(w.quotas) == 0 {
		return
	}
	w.finished.receive()
	w.hire(0)
	for id := range w.workers {
		w.hired[id].send() // there is nothing to do any more
	}
}

// epoch returns the owner's part of an epoch whose batches begin at first.
func (w *world) epoch(e int, first uint64) (end uint64) {
	w.era.Store(uint64(2*e + 1))
	w.r.Reset(first)
	if e == 0 && w.stop {
		w.begun.send()
	}
	if w.stage {
		w.first[e].Store(first)
		w.toStage[e].send()
	}
	all := len(w.epochs[e])
	if w.leave != nil && w.leave[e] > 0 {
		all = w.leave[e]
	}
	var ahead []uint64
	opened := 0
	stopped := false
	for taken := 0; taken < all && !stopped; {
		for opened < len(w.epochs[e]) && len(ahead) < w.ahead {
			w.open(e, opened, first)
			ahead = append(ahead, first+uint64(opened))
			opened++
			w.x.Forget(append(ahead, opening, uint64(e), uint64(taken), uint64(opened))...)
		}
		w.x.Forget(append(ahead, awaiting, uint64(e), uint64(taken), uint64(opened))...)
		await := ahead[:1]
		if w.any {
			await = ahead
		}
		seq, ok := w.r.Await(await)
		switch {
		case ok:
			w.deliver(e, seq)
			for i, s := range ahead {
				if s == seq {
					ahead = append(ahead[:i:i], ahead[i+1:]...)
					break
				}
			}
			taken++
		case w.r.Stopped():
			stopped = true
		default:
			if c, ok := w.r.ClaimOf(seq, w.most); ok {
				w.load(c)
			}
		}
	}
	w.x.Forget(append(ahead, stopping, uint64(e), uint64(opened))...)
	w.r.Stop()
	if w.stage {
		w.staged[e].receive()
	}
	if w.stream {
		w.quit[e].Store(true)
		w.toFill[e].send()
		w.fed[e].receive()
	}
	if e == 0 && w.stop {
		w.stopped.receive()
	}
	if e == 0 && w.hold {
		for range w.workers {
			w.left.send()
		}
	}
	end = first + uint64(opened)
	w.x.Forget(append(ahead, halting, uint64(e), end)...)
	if len(ahead) > 0 {
		w.r.Halt(ahead[0])
	} else {
		w.r.Halt(end)
	}
	w.era.Store(uint64(2*e + 2))
	w.x.Forget(uint64(e), end)
	return end
}

func (w *world) open(e, i int, first uint64) {
	item := &w.items[e][i]
	places := w.epochs[e][i]
	item.epoch, item.seq, item.size = e, first+uint64(i), places
	if !w.stream {
		w.r.Open(item.seq, item, places)
		return
	}
	if i == len(w.epochs[e])-1 {
		item.size -= w.short
	}
	w.r.Announce(item.seq, item, places)
	w.toFill[e].send()
}

func (w *world) deliver(e int, seq uint64) {
	item := w.r.Item(seq)
	exploretest.Must(item.epoch == e && item.seq == seq, "batch %d holds batch %d of epoch %d", seq, item.seq, item.epoch)
	exploretest.Must(item.taken.V == 1<<item.size-1, "batch %d was delivered with places %b of %d", seq, item.taken.V, item.size)
	exploretest.Must(item.skipped.V == 0, "batch %d was delivered, but not all of it was loaded", seq)
}

// load is what a worker, or the owner, does with a claim.
func (w *world) load(c Claim[shipment]) {
	item := c.Item
	local := []uint64{loading, c.Seq, uint64(c.From), uint64(c.To), uint64(item.epoch)}
	w.x.Forget(local...)
	exploretest.Must(w.era.Load() == uint64(2*item.epoch+1), "places of epoch %d were claimed outside it", item.epoch)
	exploretest.Must(c.From < c.To && item.seq == c.Seq, "a claim of batch %d holds %d, places %d … %d", c.Seq, item.seq, c.From, c.To)
	if w.stream {
		exploretest.Must(uint64(c.To) <= item.filled.Load(), "places %d … %d of batch %d were claimed before they were offered", c.From, c.To, c.Seq)
	}
	for p := c.From; p < c.To; p++ {
		exploretest.Must(item.taken.V&(1<<p) == 0, "place %d of batch %d was claimed twice", p, c.Seq)
		w.set(&item.taken, item.taken.V|1<<p)
	}
	if w.hold && item.epoch == 0 {
		w.left.receive()
	}
	w.x.Forget(local...)
	if w.r.Stopped() {
		w.set(&item.skipped, 1)
	}
	local[0] = reporting
	w.x.Forget(local...)
	w.r.Done(c.Seq, c.To-c.From)
}

func (w *world) work(id int) {
	for {
		w.forgetWorker(looking, id)
		if c, ok := w.r.Claim(id, w.most); ok {
			w.load(c)
			continue
		}
		w.forgetWorker(parking, id)
		if !w.r.Park(id) && w.leaves(id) {
			w.hired[id].receive()
			if w.want.V == 0 {
				return
			}
		}
	}
}

func (w *world) forgetWorker(at uint64, id int) {
	if w.x.Alike[1] > 0 {
		id = 0
	}
	w.x.Forget(at, uint64(id))
}

// leaves lets a worker go that is one too many, unless that has changed again.
func (w *world) leaves(id int) bool {
	w.mu.receive()
	defer w.mu.send()
	if uint64(id) < w.want.V {
		return false
	}
	w.set(&w.alive[id], 0)
	return true
}

func (w *world) hire(n int) {
	w.mu.receive()
	defer w.mu.send()
	w.set(&w.want, uint64(n))
	w.r.SetQuota(n)
	for id := range n {
		if w.alive[id].V == 0 {
			w.set(&w.alive[id], 1)
			w.hired[id].send()
		}
	}
}

func (w *world) tune() {
	for _, n := range w.quotas {
		w.hire(n)
	}
	w.finished.send()
}

// read is a stream's reader in epoch e.
func (w *world) read(e int) {
	for i := 0; ; i++ {
		w.x.Forget(reading, uint64(i), uint64(e))
		w.toFill[e].receive()
		if w.quit[e].Load() {
			break
		}
		item := &w.items[e][i]
		n := 0
		for n < item.size && !w.r.Stopped() {
			n++
			item.filled.Store(uint64(n))
			if n < w.epochs[e][i] {
				w.r.Offer(item.seq, n)
			}
			w.x.Forget(reading, uint64(i), uint64(e), uint64(n))
		}
		item.size = n
		w.r.Seal(item.seq, n)
	}
	w.fed[e].send()
}

// transfer is the stage in epoch e.
func (w *world) transfer(e int) {
	w.toStage[e].receive()
	next := w.first[e].Load()
	for end := next + uint64(len(w.epochs[e])); next < end && !w.r.Stopped(); {
		w.x.Forget(staging, next, uint64(e))
		w.r.AwaitLoaded(next)
		if w.r.Loaded(next) && !w.r.Stopped() { // in this order, as in Await
			w.r.Staged(next)
			next++
		}
	}
	w.staged[e].send()
}

func TestEveryOrderOfStepsInSmallWorlds(t *testing.T) {
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			began := time.Now()
			x := &exploretest.Explorer{World: w.begin, Bound: w.bound}
			if *unbounded {
				x.Bound = -1
			} else if *turns >= 0 {
				x.Bound = *turns
			}
			failure := x.Explore()
			t.Logf("turns %d: %d executions, %d states, %d steps, %v", x.Bound, x.Executions, x.States(), x.Steps, time.Since(began).Round(time.Millisecond))
			if failure != "" {
				t.Fatal(failure)
			}
		})
	}
}

var worlds = []*world{
	{name: "a worker, a batch", bound: -1, workers: 1, most: 1, epochs: [][]int{{2}}, ahead: 1},
	{name: "2 workers, 2 epochs", bound: 2, workers: 2, most: 1, epochs: [][]int{{2}, {1}}, ahead: 2},
	{name: "2 workers, an epoch that is left", bound: 2, workers: 2, most: 1, epochs: [][]int{{1, 1, 1}, {1}}, ahead: 2, leave: []int{1, 0}},
	{name: "3 workers, 3 batches", bound: 1, workers: 3, most: 1, epochs: [][]int{{2, 1, 1}}, ahead: 3},
	{name: "entries that are used again", bound: 2, workers: 2, most: 1, epochs: [][]int{{1, 1, 1}, {1, 2, 1}}, ahead: 3, leave: []int{1, 0}},
	{name: "batches in whatever order", bound: 2, workers: 2, most: 1, epochs: [][]int{{1, 1, 1}}, ahead: 3, any: true},
	{name: "a stop", bound: 1, workers: 2, most: 1, epochs: [][]int{{1, 2}, {1}}, ahead: 2, stop: true},
	{name: "an interrupt", bound: 2, workers: 1, most: 1, epochs: [][]int{{1, 1}, {1}}, ahead: 2, rouse: true},
	{name: "a stop while loads are under way", bound: 2, workers: 2, most: 1, epochs: [][]int{{1, 1}, {1}}, ahead: 2, stop: true, hold: true},
	{name: "a stop while loads are under way, with a stage", bound: 1, workers: 2, most: 1, epochs: [][]int{{1, 1}, {1}}, ahead: 2, stop: true, hold: true, stage: true},
	{name: "a stage", bound: 2, workers: 2, most: 1, epochs: [][]int{{1, 1}, {1}}, ahead: 2, stage: true, leave: []int{1, 0}},
	{name: "a stage and a stop", bound: 1, workers: 2, most: 2, epochs: [][]int{{2, 1}, {1}}, ahead: 2, stage: true, stop: true},
	{name: "as many workers once more", bound: -1, workers: 1, most: 1, epochs: [][]int{{1}}, ahead: 1, quotas: []int{1}},
	{name: "a worker fewer", bound: 1, workers: 2, most: 1, epochs: [][]int{{1}}, ahead: 1, quotas: []int{1}},
	{name: "another number of workers", bound: 1, workers: 2, most: 1, epochs: [][]int{{1, 2}, {1}}, ahead: 2, quotas: []int{0, 2}},
	{name: "a stream that is left", bound: -1, workers: 1, most: 1, epochs: [][]int{{1, 1, 1}, {1}}, ahead: 3, leave: []int{1, 0}, stream: true},
	{name: "a stream that is left, 2 workers", bound: 2, workers: 2, most: 1, epochs: [][]int{{2, 2}, {1}}, ahead: 2, leave: []int{1, 0}, stream: true},
	{name: "a stream that is left, 3 workers, 3 batches", bound: 1, workers: 3, most: 1, epochs: [][]int{{1, 2, 1}, {1}}, ahead: 3, leave: []int{1, 0}, stream: true},
	{name: "a stream that ends early", bound: 2, workers: 2, most: 2, epochs: [][]int{{2, 3}}, ahead: 2, stream: true, short: 2},
	{name: "a stream, a stage and a stop", bound: 1, workers: 2, most: 2, epochs: [][]int{{2, 1}, {1}}, ahead: 2, stream: true, stage: true, stop: true},
	{name: "a stream without workers from some time on", bound: 2, workers: 1, most: 1, epochs: [][]int{{2}, {1}}, ahead: 2, quotas: []int{0}, stream: true},
	{name: "a stream with a stage, without workers from some time on", bound: 1, workers: 1, most: 1, epochs: [][]int{{2}, {1}}, ahead: 2, quotas: []int{0}, stream: true, stage: true},
}
