package model_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// A cloth is a dataset woven at random of others: Map, Zip, Concat, Cached and so on, in
// each other. Its samples have four fields for each name.
type cloth interface {
	// of is what a plain loop would make of sample i, which draws from a Rand; nil if the
	// sample is bad.
	of(i int, rand *draws) []thread
	len() int
	// ids is sample i's number for each name.
	ids(i int) []int
	dataset(w *weaver) (nwt.Dataset, error)
	fmt.Stringer
}

// A thread is the fields of a name: the others follow from its number.
type thread struct {
	id    int
	noise int64
}

// draws is what a Rand gives.
type draws struct {
	numbers []int64
	at      int
}

func (d *draws) next() int64 { d.at++; return d.numbers[d.at-1] }

// randsOf returns what each position's Rand gives in an epoch.
func randsOf(t testing.TB, seed uint64, epoch, n int) (all []*draws) {
	ds := nwt.NewDataset(n, []nwt.Field{{Name: "x", Type: nwt.Int64, Shape: []int{400}}}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		for k := range nwt.Values[int64](dst, 0) {
			nwt.Values[int64](dst, 0)[k] = dst.Rand().Int64()
		}
		return nil
	})
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(1), nwt.WithWorkers(0), nwt.WithSeed(seed))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(context.Background(), epoch) {
		require.NoError(t, err)
		all = append(all, &draws{numbers: slices.Clone(nwt.Values[int64](b, 0))})
	}
	return all
}

// A weaver makes cloths, and sees what their datasets do.
type weaver struct {
	t       testing.TB
	rng     *rand.Rand
	dir     string
	timeout bool
	alone   []*draws // of epoch 0 and seed 0
	files   int
	open    atomic.Int32 // tools that aren't closed
	closers []io.Closer
}

func (w *weaver) one(in int) bool { return w.rng.IntN(in) == 0 }

// A tool is what a cloth keeps by Scratch.
type tool struct {
	w    *weaver
	of   cloth
	busy atomic.Bool
}

func (x *tool) Close() error {
	if x.busy.Load() {
		return errors.New("in use")
	}
	x.w.open.Add(-1)
	return nil
}

// with calls f while it has the cloth's tool, which nobody else may have.
func (w *weaver) with(c cloth, s *nwt.Sample, f func() error) error {
	x, err := nwt.Scratch(s, func() (*tool, error) { w.open.Add(1); return &tool{w: w, of: c}, nil })
	if err != nil || x.of != c || x.busy.Swap(true) {
		w.t.Errorf("a tool of %v for %v: %v", x.of, c, err)
	}
	defer x.busy.Store(false)
	return f()
}

// sizesOf returns the length of a sample's text, and height and width of its image.
func sizesOf(id int) [3]int { return [3]int{id % 6, id / 2 % 4, id / 3 % 5} }

func threadFields(names []string) (fields []nwt.Field) {
	for _, name := range names {
		fields = append(fields, nwt.Field{Name: name + "id", Type: nwt.Int64}, nwt.Field{Name: name + "text", Type: nwt.Uint8, Shape: []int{5}, RaggedDims: 1},
			nwt.Field{Name: name + "noise", Type: nwt.Int64}, nwt.Field{Name: name + "image", Type: nwt.Int16, Shape: []int{3, 4, 2}, RaggedDims: 2})
	}
	return fields
}

func writeThread(dst *nwt.Sample, k int, t thread) {
	sizes := sizesOf(t.id)
	nwt.Values[int64](dst, 4*k)[0], nwt.Values[int64](dst, 4*k+2)[0] = int64(t.id), t.noise
	dst.SetLen(4*k+1, sizes[0])
	dst.SetShape(4*k+3, sizes[1:]...)
	kit.Fill(dst.Bytes(4*k+1), byte(t.id))
	kit.Fill(dst.Bytes(4*k+3), byte(t.id))
}

// cut spoils what a sample lets a call write to.
func cut(dst *nwt.Sample, names []string) {
	for k := range names {
		writeThread(dst, k, thread{0, -1})
		kit.Fill(dst.Bytes(4*k+1), 0xee)
		kit.Fill(dst.Bytes(4*k+3), 0xee)
	}
}

// tellsOf returns the Sizes of a cloth.
func tellsOf(c cloth) func(i int, sizes []int) {
	return func(i int, sizes []int) {
		for k, id := range c.ids(i) {
			s := sizesOf(id)
			copy(sizes[3*k:], s[:])
		}
	}
}

// A yarn is a cloth that isn't made of others.
type yarn struct {
	w        *weaver
	names    []string
	n, first int
	together string // what its LoadMany does with bad samples: "": it has none
	bad      map[int]string
}

func (y *yarn) len() int { return y.n }
func (y *yarn) String() string {
	return fmt.Sprintf("yarn(%v, %d, %q, %v)", y.names, y.n, y.together, y.bad)
}

func (y *yarn) ids(i int) (ids []int) {
	for k := range y.names {
		ids = append(ids, y.first+i+k)
	}
	return ids
}

func (y *yarn) of(i int, rand *draws) (all []thread) {
	if y.bad[i] != "" {
		return nil
	}
	for _, id := range y.ids(i) {
		all = append(all, thread{id, rand.next()})
	}
	return all
}

func (y *yarn) write(i int, dst *nwt.Sample) {
	for k, id := range y.ids(i) {
		writeThread(dst, k, thread{id, dst.Rand().Int64()})
	}
}

func (y *yarn) load(ctx context.Context, i int, dst *nwt.Sample) error {
	return y.w.with(y, dst, func() error {
		y.write(i, dst)
		switch how := y.bad[i]; {
		case how == "panic":
			panic(kit.ErrBoom)
		case how == "hang" && y.w.timeout:
			time.Sleep(time.Duration(1200+300*i) * time.Millisecond)
			cut(dst, y.names)
			return kit.ErrBoom
		case how != "":
			return kit.ErrBoom
		}
		return ctx.Err()
	})
}

func (y *yarn) dataset(*weaver) (nwt.Dataset, error) {
	ds := nwt.NewDataset(y.n, threadFields(y.names), y.load)
	if y.together == "" {
		return ds, nil
	}
	return kit.InOneCall{Dataset: ds, Call: y.loadBatch}, nil
}

func (y *yarn) loadBatch(indices []int, dst []*nwt.Sample) error {
	return y.w.with(y, dst[0], func() error {
		if y.together == "reverses" {
			slices.Reverse(indices)
			slices.Reverse(dst)
		}
		failed := false
		for k, i := range indices {
			switch how := y.bad[i]; {
			case how == "hang" && y.w.timeout:
				time.Sleep(time.Duration(1200*len(indices)+300*i) * time.Millisecond)
				for k := range indices {
					indices[k] = 384 + k
					cut(dst[k], y.names)
				}
				panic("late")
			case how != "" && y.together == "panics":
				panic(kit.ErrBoom)
			case how != "":
				failed = true
			default:
				y.write(i, dst[k])
			}
		}
		if failed {
			return kit.ErrBoom
		}
		return nil
	})
}

// A weave is a cloth of others.
type weave struct {
	kind  string
	names []string
	parts []cloth
	order []int        // of Subset and Split: the parts' samples
	bad   map[int]bool // of Map, by the sample's first number
	bytes int64        // of Cached
}

func (c *weave) String() string {
	return fmt.Sprintf("%s(%v, %v, %d)", c.kind, c.parts, c.bad, c.bytes)
}

func (c *weave) len() (n int) {
	switch c.kind {
	case "Subset":
		return len(c.order)
	case "Concat":
		return c.parts[0].len() + c.parts[1].len()
	}
	return c.parts[0].len()
}

// at returns the part that sample i is of, and its index there.
func (c *weave) at(i int) (cloth, int) {
	switch n := c.parts[0].len(); {
	case c.kind == "Subset":
		i = c.order[i]
	case c.kind == "mirrored":
		i = n - 1 - i
	case c.kind == "Concat" && i >= n:
		return c.parts[1], i - n
	}
	return c.parts[0], i
}

func (c *weave) ids(i int) []int {
	if c.kind == "Zip" {
		return append(c.parts[0].ids(i), c.parts[1].ids(i)...)
	}
	part, i := c.at(i)
	return part.ids(i)
}

func (c *weave) of(i int, rand *draws) []thread {
	part, at := c.at(i)
	switch c.kind {
	case "Zip":
		left := c.parts[0].of(i, rand)
		right := []thread(nil)
		if left != nil {
			right = c.parts[1].of(i, rand)
		}
		if right == nil {
			return nil
		}
		return append(left, right...)
	case "Cached", "Precompute":
		return part.of(at, &draws{numbers: c.w().alone[at].numbers})
	}
	all := part.of(at, rand)
	if all == nil || c.kind == "Map" && c.bad[all[0].id] {
		return nil
	}
	for k := range all {
		if c.kind == "Map" || c.kind == "mirrored" {
			all[k].noise ^= rand.next()
		}
	}
	return all
}

// w returns the weaver of its yarn.
func (c *weave) w() *weaver {
	for part := c.parts[0]; ; {
		switch p := part.(type) {
		case *yarn:
			return p.w
		case *weave:
			part = p.parts[0]
		}
	}
}

// A mirror loads the samples of a dataset in reverse, and draws once more.
type mirror struct {
	nwt.Dataset
	names []string
}

func (m mirror) Load(ctx context.Context, i int, dst *nwt.Sample) error {
	if err := m.Dataset.Load(ctx, m.Len()-1-i, dst); err != nil {
		return err
	}
	for k := range m.names {
		nwt.Values[int64](dst, 4*k+2)[0] ^= dst.Rand().Int64()
	}
	return nil
}

func (c *weave) dataset(w *weaver) (nwt.Dataset, error) {
	var parts []nwt.Dataset
	for _, part := range c.parts {
		ds, err := part.dataset(w)
		if err != nil {
			return nil, err
		}
		parts = append(parts, ds)
	}
	switch c.kind {
	case "Subset":
		return nwt.Subset(parts[0], c.order)
	case "Concat":
		return nwt.Concat(parts...)
	case "Zip":
		return nwt.Zip(parts...)
	case "Sized":
		return nwt.Sized(parts[0], tellsOf(c)), nil
	case "mirrored":
		return mirror{parts[0], c.names}, nil
	case "Map":
		return nwt.Map(parts[0], threadFields(c.names), func(_ context.Context, src, dst *nwt.Sample) error { return c.apply(w, src, dst) }), nil
	}
	var ds nwt.Dataset = nwt.Cached(parts[0], c.bytes)
	if c.kind == "Precompute" {
		w.files++
		p, err := nwt.Precompute(context.Background(), parts[0], fmt.Sprint(w.dir, "/", w.files), "", append(w.options(), nwt.WithWorkers(2))...)
		if err != nil {
			return nil, err
		}
		ds = p
	}
	w.closers = append(w.closers, ds.(io.Closer))
	return ds, nil
}

// apply is the function of a Map.
func (c *weave) apply(w *weaver, src, dst *nwt.Sample) error {
	return w.with(c, dst, func() error {
		first := int(nwt.Values[int64](src, 0)[0])
		for k := range c.names {
			id, noise := int(nwt.Values[int64](src, 4*k)[0]), nwt.Values[int64](src, 4*k+2)[0]
			writeThread(dst, k, thread{id, noise ^ src.Rand().Int64()})
		}
		cut(src, c.names)
		if c.bad[first] {
			return kit.ErrBoom
		}
		return nil
	})
}

// weave makes a cloth of n samples, of so many layers.
func (w *weaver) weave(names []string, n, layers int) cloth {
	if layers == 0 {
		y := &yarn{w: w, names: names, n: n, first: w.rng.IntN(20), bad: map[int]string{}, together: []string{"", "fails", "panics", "reverses"}[w.rng.IntN(4)]}
		for range w.rng.IntN(4) {
			y.bad[w.rng.IntN(n)] = []string{"error", "panic", "hang"}[w.rng.IntN(3)]
		}
		return y
	}
	c := &weave{names: names, bad: map[int]bool{}, kind: []string{"Subset", "Concat", "Zip", "Sized", "mirrored", "Map", "Cached", "Cached", "Precompute"}[w.rng.IntN(9)]}
	switch {
	case c.kind == "Zip" && len(names) > 1:
		c.parts = []cloth{w.weave(names[:1], n, layers-1), w.weave(names[1:], n, layers-1)}
		return c
	case c.kind == "Concat" && n > 1:
		first := 1 + w.rng.IntN(n-1)
		c.parts = []cloth{w.weave(names, first, layers-1), w.weave(names, n-first, layers-1)}
		return c
	case c.kind == "Zip" || c.kind == "Concat" || c.kind == "Precompute" && !w.one(3):
		c.kind = "Map"
	}
	c.parts = []cloth{w.weave(names, n, layers-1)}
	for range n {
		c.order = append(c.order, w.rng.IntN(n))
	}
	if w.one(2) {
		c.bad[c.parts[0].ids(w.rng.IntN(n))[0]] = true
	}
	c.bytes = int64(1 + w.rng.IntN(300*n))
	return c
}

func (w *weaver) options() []nwt.Option {
	opts := []nwt.Option{nwt.WithErrorBudget(1000), nwt.WithRetry(0, 0), kit.Silent}
	if w.timeout {
		opts = append(opts, nwt.WithTimeout(time.Second))
	}
	return opts
}

// looks compares a batch with what a plain loop would have put in it.
func looks(b *nwt.Batch, indices []int, want [][]thread) error {
	if !slices.Equal(b.Indices(), indices) {
		return fmt.Errorf("batch %d of epoch %d holds %v; want %v", b.Number(), b.Epoch(), b.Indices(), indices)
	}
	for p, threads := range want {
		for k, t := range threads {
			sizes, length := sizesOf(t.id), b.Shape(4*k + 1)[1]
			got := thread{int(nwt.Values[int64](b, 4*k)[p]), nwt.Values[int64](b, 4*k+2)[p]}
			if got != t {
				return fmt.Errorf("sample %d, place %d of epoch %d has %v; want %v", indices[p], p, b.Epoch(), got, t)
			}
			text := append(bytes.Repeat([]byte{byte(t.id)}, sizes[0]), make([]byte, length-sizes[0])...)
			if b.Lens(4*k+1, 0)[p] != int32(sizes[0]) || !bytes.Equal(b.Bytes(4*k + 1)[length*p:][:length], text) {
				return fmt.Errorf("sample %d has the text %v", indices[p], b.Bytes(4*k + 1)[length*p:][:length])
			}
			height, width := b.Shape(4*k + 3)[1], b.Shape(4*k + 3)[2]
			image := b.Bytes(4*k + 3)[4*height*width*p:][:4*height*width]
			for at, v := range image {
				inside := at/4/width < sizes[1] && at/4%width < sizes[2]
				if inside != (v == byte(t.id)) && t.id != 0 || !inside && v != 0 {
					return fmt.Errorf("sample %d has the image %v", indices[p], image)
				}
			}
		}
	}
	return nil
}

// use loads two epochs of a cloth, and compares each batch with what a loop would give.
func (w *weaver) use(ds nwt.Dataset, c cloth, rng *rand.Rand) error {
	batch := 1 + rng.IntN(12)
	opts := append(w.options(), nwt.WithBatchSize(batch), nwt.WithWorkers(1+rng.IntN(5)), nwt.WithShuffle(5))
	finished := rng.IntN(2) == 0
	if finished {
		opts = append(opts, nwt.WithBatchTransform(func(_ context.Context, b *nwt.Batch) error {
			for p := range nwt.Values[int64](b, 2) {
				nwt.Values[int64](b, 2)[p]++
			}
			return nil
		}))
	}
	l, err := nwt.NewLoader(ds, opts...)
	if err != nil {
		return err
	}
	defer l.Close()
	order := nwt.Shuffled(c.len(), 5)
	next := 0 // batch of both epochs
	steps := l.Len()
	rands := [][]*draws{randsOf(w.t, 5, 0, c.len()), randsOf(w.t, 5, 1, c.len())}
	expect := func() (indices []int, want [][]thread) {
		for ; next < 2*steps && len(indices) == 0; next++ {
			epoch, from := next/steps, next%steps*batch
			for p := from; p < min(from+batch, c.len()); p++ {
				i := order.At(epoch, p)
				if threads := c.of(i, &draws{numbers: rands[epoch][p].numbers}); threads != nil {
					if finished {
						threads[0].noise++
					}
					indices, want = append(indices, i), append(want, threads)
				}
			}
		}
		return indices, want
	}
	for b, err := range l.Epochs(context.Background(), 0, 2) {
		if err != nil {
			return err
		}
		indices, want := expect()
		if err := looks(b, indices, want); err != nil {
			return err
		}
		if err := l.SetWorkers(1 + rng.IntN(5)); err != nil {
			return err
		}
	}
	if indices, _ := expect(); len(indices) > 0 {
		return fmt.Errorf("no batch of %v", indices)
	}
	return nil
}

// However datasets are made of others, with whatever faults, and however many loaders use
// them: each sample is what a plain loop would make, and each scratch value has one user
// and is closed.
func TestWovenDatasetsDeliverWhatALoopWould(t *testing.T) {
	alone := randsOf(t, 0, 0, 40)
	for seed := range seedsOf(0, 150, 1000) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		require.NoError(t, err)
		synctest.Test(t, func(t *testing.T) {
			w := &weaver{t: t, rng: rand.New(rand.NewPCG(seed, 6)), dir: dir, alone: alone}
			w.timeout = w.one(2)
			c := w.weave(strings.Split("a,b,c", ",")[:1+w.rng.IntN(3)], 1+w.rng.IntN(40), 1+w.rng.IntN(5))
			ds, err := c.dataset(w)
			require.NoError(t, err)
			var loaders sync.WaitGroup
			for k := range 1 + w.rng.Uint64N(2) {
				loaders.Go(func() {
					if err := w.use(ds, c, rand.New(rand.NewPCG(seed, 7+k))); err != nil {
						t.Errorf("seed %d: %v\n%v, timeout: %v", seed, err, c, w.timeout)
					}
				})
			}
			loaders.Wait()
			time.Sleep(time.Hour) // calls that were given up return
			for _, c := range w.closers {
				require.NoError(t, c.Close())
			}
			require.Zero(t, w.open.Load(), "seed %d: what Scratch keeps is closed", seed)
		})
		if t.Failed() {
			return
		}
	}
}

var besides = flag.Int("besides", 0, "so many random loaders of TestWhatIsCalledBesideALoopHarmsNothing; 0: some dozens, more without -short, the same each time")

// A crowd is goroutines that call a loader beside its training loop, on a real clock: in a
// bubble of synctest, who waits for a mutex stops the time.
type crowd struct {
	loader  *nwt.Loader
	loading atomic.Int32  // calls of Load under way
	closed  atomic.Bool   // a Close has returned
	over    chan struct{} // closed after the loop
}

func (c *crowd) load(_ context.Context, i int, dst *nwt.Sample) error {
	c.loading.Add(1)
	defer c.loading.Add(-1)
	if c.closed.Load() {
		return errors.New("loaded after Close")
	}
	if i%7 == 0 {
		time.Sleep(time.Duration(i%5) * 20 * time.Microsecond)
	}
	nwt.Values[int64](dst, 0)[0] = int64(i)
	return nil
}

// call makes calls at random until the loop is over; the last one of closing, if not
// negative, is Close.
func (c *crowd) call(rng *rand.Rand, closing int) error {
	for ; ; closing-- {
		select {
		case <-c.over:
			return nil
		case <-time.After(time.Duration(rng.IntN(300)) * time.Microsecond):
		}
		if closing == 0 {
			err := c.loader.Close()
			c.closed.Store(true)
			if n := c.loading.Load(); n != 0 {
				return fmt.Errorf("%d samples are being loaded after Close", n)
			}
			return err
		}
		var err error
		switch rng.IntN(5) {
		case 0, 1:
			err = c.loader.SetWorkers(rng.IntN(9))
		case 2:
			if c.loader.SetWorkers([]int{-1, 1025}[rng.IntN(2)]) == nil {
				return errors.New("SetWorkers took a count that is out of bounds")
			}
		case 3:
			c.loader.Stats()
			c.loader.Result()
			c.loader.BadSamples()
		case 4:
			for _, err = range c.loader.Epoch(context.Background(), 0) {
				break // after the loop it is no longer refused
			}
		}
		if err != nil && !errors.Is(err, nwt.ErrClosed) && !errors.Is(err, nwt.ErrBusy) {
			return err
		}
	}
}

// train is a training loop beside which others call the loader.
func (c *crowd) train(rng *rand.Rand) error {
	ref := &plainLoop{n: 1 + rng.IntN(200), shuffle: rng.IntN(2) == 0, batch: 1 + rng.IntN(9), world: 1}
	const epochs = 4
	wants, _ := ref.batches(0, epochs, 0)
	opts := []nwt.Option{nwt.WithBatchSize(ref.batch), nwt.WithWorkers(rng.IntN(6)), nwt.WithLogger(slog.New(slog.DiscardHandler))}
	if ref.shuffle {
		opts = append(opts, nwt.WithShuffle(5))
	}
	if rng.IntN(2) == 0 {
		opts = append(opts, nwt.WithAutoWorkers())
	}
	if prefetch := rng.IntN(5); prefetch > 0 {
		opts = append(opts, nwt.WithPrefetch(prefetch))
	}
	if rng.IntN(4) == 0 {
		opts = append(opts, nwt.WithTimeout(time.Minute))
	}
	var err error
	fields := []nwt.Field{{Name: "id", Type: nwt.Int64}}
	if c.loader, err = nwt.NewLoader(nwt.NewDataset(ref.n, fields, c.load), opts...); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stops, how := rng.IntN(2*len(wants)), rng.IntN(3)
	callers, closing := 1+rng.IntN(3), rng.IntN(60)-20

	var group errgroup.Group
	var last error
	var kept []*nwt.Batch
	defer func() {
		for _, b := range kept {
			b.Release()
		}
	}()
	seen, left := 0, false
	for b, err := range c.loader.Epochs(ctx, 0, epochs) {
		if last = err; err != nil {
			continue
		}
		if seen == 0 {
			for k := range callers {
				seed := rng.Uint64()
				group.Go(func() error { return c.call(rand.New(rand.NewPCG(seed, 1)), closing+30*k) })
			}
		}
		if seen%8 == 0 && len(kept) < 64 {
			b.Retain()
			kept = append(kept, b)
		}
		if err := agrees(b, wants[seen]); err != nil {
			last = err
			break
		}
		seen++
		if seen == stops && how == 0 {
			cancel()
		}
		if left = seen == stops && how == 1; left {
			break
		}
	}
	close(c.over)
	err = errors.Join(group.Wait(), c.loader.Close())
	switch {
	case err != nil:
		return err
	case last == nil && !left && seen < len(wants):
		return fmt.Errorf("%d batches of %d, and no error", seen, len(wants))
	case last != nil && !errors.Is(last, nwt.ErrClosed) && !errors.Is(last, ctx.Err()):
		return last
	}
	for k, b := range kept {
		if err := agrees(b, wants[8*k]); err != nil {
			return fmt.Errorf("retained: %w", err)
		}
	}
	return nil
}

// agrees compares a batch with what it is to be.
func agrees(b *nwt.Batch, d delivery) error {
	if b.Epoch() != d.epoch || !slices.Equal(b.Indices(), d.index) {
		return fmt.Errorf("epoch %d: %v; want %+v", b.Epoch(), b.Indices(), d)
	}
	for p, id := range nwt.Values[int64](b, 0) {
		if id != int64(d.id[p]) {
			return fmt.Errorf("place %d of %v holds sample %d", p, d.index, id)
		}
	}
	return nil
}

// Whoever changes the workers, asks for figures, begins another epoch or closes the
// loader, from wherever and whenever, also while it tunes itself: the loop gets the
// batches that a plain loop would, or the error that says why not.
func TestWhatIsCalledBesideALoopHarmsNothing(t *testing.T) {
	for s := range seedsOf(*besides, 100, 200) {
		c := &crowd{over: make(chan struct{})}
		hung := time.AfterFunc(kit.Hangs, func() { panic(fmt.Sprintf("-seed=%d hangs", s)) })
		err := c.train(rand.New(rand.NewPCG(s, 9)))
		hung.Stop()
		require.NoError(t, err, "-seed=%d", s)
		require.Zero(t, c.loader.Stats().Slots, "-seed=%d", s)
	}
}
