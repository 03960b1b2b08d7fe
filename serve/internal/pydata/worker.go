//go:build unix

package pydata

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/nwt-go/nwt"
)

// A worker is what a worker of the loader keeps: its child, and what is left of a call that failed.
type worker struct {
	d       *Dataset
	child   *child // nil if none was needed yet, or the last one has ended
	todo    []job
	request []byte

	// If samples of a LoadMany are bad, the loader asks again for each half, and for the halves of these, until
	// it calls Load for a bad one. Nothing is made twice: what was made, or was bad, is kept until the loader
	// asks for something else.
	kept map[key]kept
}

// A job is a sample that is to be made.
type job struct {
	key
	dst  *nwt.Sample
	done bool
}

type key struct{ index, epoch, position int }

// kept is a sample that was made, or why it couldn't be.
type kept struct {
	parts [][]byte // what is in each field
	err   error
	again bool // the error is temporary: the sample is made again
}

func (d *Dataset) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	return d.LoadMany(ctx, []int{index}, []*nwt.Sample{dst})
}

func (d *Dataset) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	w, err := nwt.Scratch(dst[0], func() (*worker, error) { return &worker{d: d, kept: map[key]kept{}}, nil })
	if err != nil {
		return err
	}
	return w.load(ctx, indices, dst)
}

// Close ends the child.
func (w *worker) Close() error {
	w.drop()
	return nil
}

func (w *worker) drop() {
	if w.child != nil {
		w.child.close()
		w.child = nil
	}
}

func (w *worker) load(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	w.todo = w.todo[:0]
	for i, s := range dst {
		j := job{key: key{indices[i], s.Epoch(), s.Position()}, dst: s}
		old, known := w.kept[j.key]
		if i == 0 && !known {
			clear(w.kept)
		}
		switch {
		case !known || old.again:
			w.todo = append(w.todo, j)
		case old.err != nil:
			return old.err
		default:
			w.d.give(s, old.parts)
		}
	}
	for part := range slices.Chunk(w.todo, w.d.slots) {
		if err := w.make(ctx, part); err != nil {
			for _, j := range w.todo {
				if j.done {
					w.kept[j.key] = kept{parts: w.d.take(j.dst)}
				}
			}
			return err
		}
	}
	return nil
}

// make makes samples, as many as a child has memory for. If one is bad it returns the error. If the child ends,
// or has to, what it hasn't begun is left to the loader's next call.
func (w *worker) make(ctx context.Context, todo []job) (bad error) {
	if err := w.ready(ctx); err != nil {
		return err
	}
	keep := func(j job, k kept) {
		w.kept[j.key] = k
		if bad == nil {
			bad = k.err
		}
	}
	if w.d.config.Input != nil {
		loaded := todo[:0]
		for _, j := range todo {
			switch err := w.input(ctx, j, len(loaded)); {
			case err == nil:
				loaded = append(loaded, j)
			case ctx.Err() != nil:
				return err
			default:
				keep(j, kept{err: err, again: true}) // it may be temporary
			}
		}
		if todo = loaded; len(todo) == 0 {
			return bad
		}
	}
	if err := w.ask(todo); err != nil {
		return err
	}
	err := w.child.await(ctx, w.d.config.Timeout)
	if err != nil && ctx.Err() != nil {
		return err // the answer is still to come: see ready
	}
	n, mem := len(todo), w.child.mem
	if err != nil {
		n = w.child.made()
	}
	for _, text := range w.child.told {
		var f fault
		if json.Unmarshal(text, &f) == nil && f.place >= 0 && f.place < n {
			keep(todo[f.place], kept{err: f.err(), again: f.temporary})
			mem[f.place] = unmade
		}
	}
	for slot, j := range todo[:n] {
		switch mem[slot] {
		case made:
			w.d.giveFrom(mem, slot, j.dst)
			todo[slot].done = true
		case failed: // the child was ended before what it said was read
			keep(j, kept{err: nwt.Retryable(errors.New("the process that makes it hasn't said why it failed")), again: true})
		}
	}
	if err != nil {
		w.drop()
	}
	if n < len(todo) {
		lost := kept{err: nwt.Retryable(err), again: true}
		if errors.Is(err, errSilent) {
			lost = kept{err: tooLate{w.d.config.Timeout}}
		}
		keep(todo[n], lost)
	}
	return bad
}

// ready gets a child that has nothing to do. What was asked for before, for a run that has ended, is waited for.
func (w *worker) ready(ctx context.Context) (err error) {
	if w.child != nil && w.child.pending > 0 {
		if err := w.child.await(ctx, w.d.config.Timeout); err != nil {
			if ctx.Err() != nil {
				return err
			}
			w.drop()
		}
	}
	if w.child == nil {
		if w.child, err = w.d.child(ctx); err != nil {
			return unstartable{err}
		}
	}
	return nil
}

// input loads what a sample is made of, and the fields that it has from there.
func (w *worker) input(ctx context.Context, j job, slot int) error {
	l := &w.d.layout
	in, err := nwt.LoadPart(ctx, w.d.config.Input, j.index, j.dst)
	if err != nil {
		return err
	}
	copy(w.child.mem[l.Input.Offset+slot*l.Stride:], in.Bytes(0))
	for f := range w.d.passed {
		copy(j.dst.Bytes(len(l.Fields)+f), in.Bytes(1+f))
	}
	return nil
}

// ask sends a request for samples.
func (w *worker) ask(todo []job) error {
	c := w.child
	w.request = w.request[:0]
	for _, j := range todo {
		w.request = binary.LittleEndian.AppendUint64(w.request, uint64(j.index))
		w.request = binary.LittleEndian.AppendUint64(w.request, j.dst.Rand().Uint64()) // drawn after what the input has drawn
	}
	clear(c.mem[:len(todo)])
	c.pending = len(todo)
	if err := c.send(load, uint32(len(todo)), w.request); err != nil {
		w.drop()
		return nwt.Retryable(fmt.Errorf("the process that makes it has ended: %w", err))
	}
	return nil
}

// unstartable is the error of a dataset whose processes can't be started: no sample is to blame.
type unstartable struct{ error }

func (e unstartable) Unwrap() error { return e.error }

func (unstartable) EndsEpoch() bool { return true }

// tooLate is the error of a sample that took too long. Trying again would take as long.
type tooLate struct{ bound time.Duration }

func (e tooLate) Error() string { return fmt.Sprintf("no sample within %v", e.bound) }

func (tooLate) Unwrap() error { return context.DeadlineExceeded }

func (tooLate) Temporary() bool { return false }

// A fault is why a sample is bad: its slot, whether the error is temporary, and the last lines of the traceback.
type fault struct {
	place     int
	temporary bool
	text      string
}

func (f *fault) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&f.place, &f.temporary, &f.text})
}

func (f fault) err() error {
	if f.temporary {
		return nwt.Retryable(errors.New(f.text))
	}
	return errors.New(f.text)
}

// giveFrom copies a sample from a child's memory into its batch.
func (d *Dataset) giveFrom(mem []byte, slot int, dst *nwt.Sample) {
	for f := range d.layout.Fields {
		field, from := &d.layout.Fields[f], slot*d.layout.Stride
		place := dst.Bytes(f)
		if field.Ragged {
			n := int(*(*int32)(unsafe.Pointer(&mem[field.Lens+from])))
			n = max(0, min(n, field.Shape[0]))
			dst.SetLen(f, n)
			place = place[:len(place)/field.Shape[0]*n]
		}
		copy(place, mem[field.Offset+from:])
	}
}

// take returns a copy of what is in each field of a sample.
func (d *Dataset) take(s *nwt.Sample) (parts [][]byte) {
	for f, field := range d.fields {
		place := s.Bytes(f)
		if field.RaggedDims > 0 {
			place = place[:len(place)/field.Shape[0]*s.Len(f, 0)]
		}
		parts = append(parts, slices.Clone(place))
	}
	return parts
}

// give copies what take has returned into a sample.
func (d *Dataset) give(dst *nwt.Sample, parts [][]byte) {
	for f, part := range parts {
		place := dst.Bytes(f)
		if field := &d.fields[f]; field.RaggedDims > 0 {
			dst.SetLen(f, len(part)/(len(place)/field.Shape[0]))
		}
		copy(place, part)
	}
}
