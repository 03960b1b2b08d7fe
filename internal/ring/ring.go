// Package ring hands the places of batches to many workers, and hands the finished batches, in order, to
// one consumer.
//
// A batch has a sequence number and a number of places. The owner opens batches. Workers claim runs of
// places, batch by batch, and report them as done; several workers may share one batch. The owner awaits the
// batch it wants.
//
//	owner    Open ──► limit                     Await ◄─┐      Halt, Reset
//	                    │ claimable: cursor … limit     │
//	workers             └─► Claim ──► … load … ──► Done ┘      Park
//
// No worker goes on to the next batch before every place of the current one is claimed.
//
// Nothing here allocates after New, and no lock is taken while there is work: a claim is one
// compare-and-swap, and a report is one addition.
package ring

const (
	// MaxPlaces bounds the places of one batch.
	MaxPlaces = 1<<posBits - 1

	posBits = 24
	halted  = ^uint64(0) // as a cursor: no limit is above it; as an entry's next: it belongs to no batch
)

// A Ring holds batches whose content is a T.
//
// The owner is the goroutine that may call Open, Await, Halt and Reset. There is one at a time; owners
// hand over with their own synchronization.
type Ring[T any] struct {
	// cursor is the first batch with unclaimed places: pack(seq, 0). It is advanced, by compare-and-swap,
	// by the goroutine that claims the last of these places or finds none left. Halt stores halted, so
	// that nobody looks for a batch; Reset stores the first batch of the next run.
	//
	// A claim reads limit before cursor, and takes places only if cursor is below limit. So it takes none if
	// Halt and Reset run in between: the old limit is at most the first batch of the next run, and the new
	// cursor is at least that. In the other order, the old cursor would be below the new limit. The claim
	// could then take places of the old run's last batch, if that was announced but not yet offered.
	cursor atomicUint64
	_      [56]byte

	// limit is the first place that isn't open: pack(seq, place). The place is 0, except for a batch of a
	// stream. The owner writes limit; between Reset and Halt, for a stream, its reader does (see
	// Announce). It writes limit only after the entry below it: a worker that sees a limit sees the
	// entry.
	limit atomicUint64
	_     [56]byte

	// quota is how many workers there should be: Park sends away workers whose id is
	// quota or higher. SetQuota writes it.
	quota atomicInt32
	// parked counts workers that sleep, or are about to, and that have not been woken yet. A worker adds
	// itself; whoever subtracts one owes it a token.
	parked atomicInt32
	tokens tokens // one for each wake-up under way; sending never blocks

	loaded  gate       // belongs to the stage if there is one, else to the owner
	staged  gate       // belongs to the owner if there is a stage
	stage   int32      // 1 if there is a stage, else 0
	stopped atomicBool // set by Stop, cleared by Reset
	// interrupted is set by Interrupt and cleared by the owner, in Await or Reset.
	interrupted atomicBool

	entries [Capacity]entry[T]
}

// entry holds a batch. The owner writes item while the batch is closed; the limit publishes it.
type entry[T any] struct {
	item *T
	// size, the number of places, is atomic because a worker with an outdated cursor may read it while the
	// owner reuses the entry. The owner stores next before it. Such a worker reads next after it, and sees
	// that it belongs to another batch.
	size atomicInt32
	// pending is the number of places that aren't done, plus one if there is a stage. The goroutine that
	// brings it to goal announces the batch.
	pending atomicInt32
	goal    atomicInt32 // 0, except in Halt: the number of places that will never be claimed
	_       [44]byte

	// next is the first unclaimed place: pack(seq, place). Workers advance it by compare-and-swap. The owner
	// swaps it to halted.
	next atomicUint64
	_    [56]byte
}

// New makes a ring for workers with ids 0 … maxWorkers−1. With a stage, a batch whose places are done is
// announced to AwaitLoaded; it is announced to Await once Staged has been called for it.
func New[T any](maxWorkers int, stage bool) *Ring[T] {
	r := &Ring[T]{tokens: newTokens(maxWorkers)}
	r.loaded.token, r.staged.token = newTokens(1), newTokens(1)
	if stage {
		r.stage = 1
	}
	r.cursor.Store(halted)
	return r
}

// pack puts a batch and a place in it into one word, so that both change in one atomic step. A later
// batch, or a later place of the same batch, gives a larger word.
func pack(seq uint64, place int) uint64 { return seq<<posBits | uint64(place) }

func seqOf(packed uint64) uint64 { return packed >> posBits }

func placeOf(packed uint64) int { return int(packed & MaxPlaces) }

func (r *Ring[T]) at(seq uint64) *entry[T] { return &r.entries[seq%Capacity] }

// Open lets workers claim the places of batch seq. The owner opens sequence numbers one after the other, at
// most Capacity of them ahead of the oldest it still needs.
func (r *Ring[T]) Open(seq uint64, item *T, places int) {
	r.Announce(seq, item, places)
	r.limit.Store(pack(seq+1, 0))
	r.wakeOne()
}

// Announce does what Open does, for a batch of a stream. Its places become claimable in portions, when
// the stream's reader calls Offer and Seal. The reader, not the owner, then writes limit. Announce
// happens before the reader's first Offer.
func (r *Ring[T]) Announce(seq uint64, item *T, places int) {
	e := r.at(seq)
	e.item = item
	e.next.Store(pack(seq, 0))
	set(&e.size, int32(places))
	set(&e.goal, 0)
	e.pending.Store(int32(places) + r.stage)
}

// set stores n unless the value is n already, because a load costs less than a store. No other goroutine
// may be writing.
func set(a *atomicInt32, n int32) {
	if a.Load() != n {
		a.Store(n)
	}
}

// Offer lets workers claim the places of batch seq below upto; upto must be less than the number of its
// places.
func (r *Ring[T]) Offer(seq uint64, upto int) {
	r.limit.Store(pack(seq, upto))
	r.tellOfMore()
}

// Seal lets workers claim the places of batch seq below upto, and drops the other
// places, none of which was offered.
func (r *Ring[T]) Seal(seq uint64, upto int) {
	e := r.at(seq)
	dropped := int(e.size.Swap(int32(upto))) - upto
	r.limit.Store(pack(seq+1, 0))
	r.tellOfMore()
	if dropped > 0 {
		r.Done(seq, dropped)
	}
}

// tellOfMore wakes a goroutine that can claim what the reader has offered: a worker or, if the quota is
// 0, the owner, which finds the batch OwnersOnly.
func (r *Ring[T]) tellOfMore() {
	r.wakeOne()
	if r.quota.Load() == 0 {
		r.ownersGate().wake()
	}
}

// ownersGate returns the gate at which Await sleeps.
func (r *Ring[T]) ownersGate() *gate {
	if r.stage != 0 {
		return &r.staged
	}
	return &r.loaded
}

// A Claim is the places From … To−1 of batch Seq. They belong to the claiming goroutine until it calls
// Done.
type Claim[T any] struct {
	Seq      uint64
	Item     *T
	From, To int
}

// Claim takes up to most places for a worker, at least 1, from the first batch that has any.
func (r *Ring[T]) Claim(worker, most int) (c Claim[T], ok bool) {
	if int32(worker) >= r.quota.Load() {
		return c, false
	}
	return r.claim(most, halted)
}

// ClaimOf does what Claim does, for batch seq only. It is for an owner without workers.
func (r *Ring[T]) ClaimOf(seq uint64, most int) (c Claim[T], ok bool) {
	return r.claim(most, pack(seq+1, 0))
}

func (r *Ring[T]) claim(most int, below uint64) (c Claim[T], ok bool) {
	for {
		limit := r.limit.Load() // before cursor: see Ring.cursor
		cursor := r.cursor.Load()
		if cursor >= min(limit, below) {
			return c, false
		}
		seq := seqOf(cursor)
		whole := seqOf(limit) > seq // all places of the batch are open
		e := r.at(seq)
		from, to, spent := e.claim(seq, most, limit)
		if spent && whole {
			r.cursor.CompareAndSwap(cursor, pack(seq+1, 0))
		}
		switch {
		case from < to:
			if r.parked.Load() > 0 && r.claimable() {
				r.wakeOne()
			}
			return Claim[T]{Seq: seq, Item: e.item, From: from, To: to}, true
		case spent && !whole: // the stream's reader offers more later
			return c, false
		}
	}
}

// claim takes places of batch seq below limit. spent reports that no more of them can be claimed. If claim
// took none and spent is false, others were faster: the caller must look at the ring again.
func (e *entry[T]) claim(seq uint64, most int, limit uint64) (from, to int, spent bool) {
	end := int(e.size.Load())
	if seqOf(limit) == seq { // the rest of the batch isn't offered yet
		end = min(end, placeOf(limit))
	}
	next := e.next.Load()
	from = placeOf(next)
	if to = min(from+most, end); seqOf(next) != seq { // the ring was halted, or the entry belongs to another batch by now
		return 0, 0, false
	}
	if from >= end {
		return 0, 0, true
	}
	if !e.next.CompareAndSwap(next, pack(seq, to)) {
		return 0, 0, false
	}
	return from, to, to == end
}

// claimable reports whether there may be places to claim.
func (r *Ring[T]) claimable() bool {
	cursor, limit := r.cursor.Load(), r.limit.Load()
	if cursor >= limit || cursor>>posBits < limit>>posBits { // seqOf would keep claimable from being inlined
		return cursor < limit
	}
	return r.at(cursor>>posBits).next.Load() < limit // for a stream
}

// Done reports n claimed places of batch seq as loaded. It returns whether this has woken a goroutine
// that waited for them.
func (r *Ring[T]) Done(seq uint64, n int) bool {
	e := r.at(seq)
	left := e.pending.Add(-int32(n))
	return left == e.goal.Load()+r.stage && r.loaded.announce(seq)
}

// Staged reports that the stage has done its work on batch seq.
func (r *Ring[T]) Staged(seq uint64) {
	if r.at(seq).pending.Add(-1) == 0 {
		r.staged.announce(seq)
	}
}

// Park sleeps until there may be places to claim. It returns false if the worker is surplus and should
// end.
func (r *Ring[T]) Park(worker int) bool {
	r.parked.Add(1)
	// Park first counts the worker and then looks. Opening a batch and lowering the quota do it in the
	// opposite order, so one of the two sees the other.
	if !r.claimable() && int32(worker) < r.quota.Load() || !r.unpark() {
		r.tokens.receive()
	}
	if int32(worker) < r.quota.Load() {
		return true
	}
	r.wakeOne() // the token may have been meant for a worker that stays
	return false
}

func (r *Ring[T]) unpark() bool {
	for {
		n := r.parked.Load()
		if n <= 0 {
			return false
		}
		if r.parked.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

func (r *Ring[T]) wakeOne() {
	if r.parked.Load() > 0 && r.unpark() {
		r.tokens.send()
	}
}

// AnyParked reports whether a worker is parked.
func (r *Ring[T]) AnyParked() bool { return r.parked.Load() > 0 }

// SetQuota sets how many workers there should be. Workers with ids of n or more
// leave once they have reported what they claimed.
func (r *Ring[T]) SetQuota(n int) {
	r.quota.Store(int32(n))
	// Wake as many as sleep now: workers that come back to Park see the new quota.
	for range r.parked.Load() {
		r.wakeOne()
	}
	r.loaded.wake()
	r.staged.wake()
}

// Ready reports, without waiting, whether batch seq is ready.
func (r *Ring[T]) Ready(seq uint64) bool { return r.at(seq).pending.Load() == 0 }

// Item returns the item with which batch seq was opened.
func (r *Ring[T]) Item(seq uint64) *T { return r.at(seq).item }

// Await sleeps until one of the batches seqs is ready, and returns the first of seqs that is. It returns
// false after Stop. It also returns false, and seqs[0], after Interrupt or if seqs[0] is OwnersOnly.
func (r *Ring[T]) Await(seqs []uint64) (seq uint64, ok bool) {
	g := r.ownersGate()
	for {
		// Look for ready batches before stopped: workers that see stopped skip places.
		seq, ok = r.anyReady(seqs)
		if r.stopped.Load() {
			return 0, false
		}
		if ok {
			return seq, true
		}
		if r.interrupted.Load() && r.interrupted.Swap(false) || r.OwnersOnly(seqs[0]) {
			return seqs[0], false
		}
		g.prepare(anySeq)
		_, ready := r.anyReady(seqs)
		g.sleep(anySeq, ready || r.stopped.Load() || r.interrupted.Load() || r.OwnersOnly(seqs[0]))
	}
}

// anySeq stands for any batch that is announced next.
const anySeq = ^uint64(0) - 1

func (r *Ring[T]) anyReady(seqs []uint64) (uint64, bool) {
	for _, seq := range seqs {
		if r.Ready(seq) {
			return seq, true
		}
	}
	return 0, false
}

// Interrupt makes Await return once. Any goroutine may call it.
func (r *Ring[T]) Interrupt() {
	r.interrupted.Store(true)
	r.ownersGate().wake()
}

// Exhausted reports whether all places of the batches before end are claimed.
func (r *Ring[T]) Exhausted(end uint64) bool { return r.cursor.Load() >= pack(end, 0) }

// OwnersOnly reports whether places of batch seq, or of an earlier one, may be claimed, but only by the
// owner.
func (r *Ring[T]) OwnersOnly(seq uint64) bool {
	return r.quota.Load() == 0 && r.cursor.Load() < pack(seq+1, 0) && r.claimable()
}

// Loaded reports whether batch seq is open and its places are done. AwaitLoaded is for the stage
// alone.
func (r *Ring[T]) Loaded(seq uint64) bool {
	return r.limit.Load() > pack(seq, 0) && r.at(seq).pending.Load() <= r.stage
}

// AwaitLoaded sleeps until Loaded or Stop.
func (r *Ring[T]) AwaitLoaded(seq uint64) {
	for !r.Loaded(seq) && !r.stopped.Load() {
		r.loaded.prepare(seq)
		r.loaded.sleep(seq, r.stopped.Load() || r.Loaded(seq))
	}
}

// Stop makes Await return false from now on. Any goroutine may call it.
func (r *Ring[T]) Stop() {
	r.stopped.Store(true)
	r.loaded.wake()
	r.staged.wake()
}

// Stopped reports whether Stop was called since the last Reset.
func (r *Ring[T]) Stopped() bool { return r.stopped.Load() }

// Halt ends claiming, and waits until all claimed places of the batches from oldest on are done. No stage
// may be waiting meanwhile.
func (r *Ring[T]) Halt(oldest uint64) {
	r.cursor.Store(halted)
	for seq := oldest; pack(seq, 0) < r.limit.Load(); seq++ {
		e := r.at(seq)
		unclaimed := e.size.Load() - int32(placeOf(e.next.Swap(halted)))
		e.goal.Store(unclaimed)
		for e.pending.Load() > unclaimed+r.stage {
			r.loaded.prepare(seq)
			r.loaded.sleep(seq, e.pending.Load() <= unclaimed+r.stage)
		}
	}
}

// Reset prepares a halted ring for batches from seq on.
func (r *Ring[T]) Reset(seq uint64) {
	r.stopped.Store(false)
	r.interrupted.Store(false)
	r.limit.Store(pack(seq, 0))
	r.cursor.Store(pack(seq, 0))
}

// A gate lets one goroutine sleep until a batch is announced.
type gate struct {
	// awaited is 1 + the sequence number for which the owner sleeps, or 0. The owner sets it; the
	// goroutine that changes it to 0 for the owner sends the token.
	awaited atomicUint64
	token   tokens
	_       [48]byte
}

// prepare announces that the gate's owner is about to sleep for batch seq. The owner then checks once
// more whether it must sleep, and calls sleep.
func (g *gate) prepare(seq uint64) { g.awaited.Store(seq + 1) }

// sleep sleeps until an announcement or a wake. It returns at once if sleeping is needless and no token
// has been sent yet.
func (g *gate) sleep(seq uint64, needless bool) {
	if needless && g.awaited.CompareAndSwap(seq+1, 0) {
		return
	}
	g.token.receive()
}

func (g *gate) announce(seq uint64) bool {
	a := g.awaited.Load()
	if a != seq+1 && a != anySeq+1 || !g.awaited.CompareAndSwap(a, 0) {
		return false
	}
	g.token.send()
	return true
}

func (g *gate) wake() {
	if g.awaited.Swap(0) != 0 {
		g.token.send()
	}
}
