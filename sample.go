package nwt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
)

// A Sample is a place in a batch that a dataset loads a sample into. It is
// valid during that Load only.
type Sample struct {
	layout  *layout
	mem     []byte    // the slot
	lens    []int32   // ragged × capacity, field by field
	offsets []int     // of the fields in mem
	records []*Record // of the batch, for a stream
	place   int

	seedKey      uint64
	epoch, index int
	worker       int

	rand   *rand.Rand // over pcg, which is seeded when a sample first uses it
	pcg    rand.PCG
	seeded bool

	outer   *Sample   // of a scratch sample: the one it is for, whose Rand it shares
	scratch []*Sample // one for each layout that was asked for
}

// Bytes is the memory of a field of the sample.
func (s *Sample) Bytes(field int) []byte {
	b, _ := s.memory(field)
	return b
}

func (s *Sample) memory(field int) ([]byte, *column) {
	c := s.layout.column(field)
	from := s.offsets[field] + s.place*c.size
	return s.mem[from : from+c.size : from+c.size], c
}

// SetLen sets the length of a ragged field's first dimension. Load must call
// it for each ragged field. It panics where the field isn't ragged or n is out
// of range; inside Load that becomes a [LoadError].
func (s *Sample) SetLen(field, n int) {
	c := s.layout.column(field)
	switch {
	case c.ragged < 0:
		panic(fmt.Sprintf("nwt: SetLen(%d, %d): field %q is not ragged (Field.MaxLen is false)", field, n, c.name))
	case n < 0 || n > c.rows:
		panic(fmt.Sprintf("nwt: SetLen(%d, %d): length %d of field %q is out of range 0 … %d", field, n, n, c.name, c.rows))
	}
	*s.lenOf(c) = int32(n)
}

// Len is the length set for a ragged field, −1 before SetLen.
func (s *Sample) Len(field int) int {
	c := s.layout.column(field)
	if c.ragged < 0 {
		panic(fmt.Sprintf("nwt: Len(%d): field %q is not ragged (Field.MaxLen is false)", field, c.name))
	}
	return int(*s.lenOf(c))
}

func (s *Sample) lenOf(c *column) *int32 {
	return &s.lens[c.ragged*(len(s.lens)/s.layout.ragged)+s.place]
}

// Rand is the sample's source of randomness. It is seeded by (seed, epoch,
// index) alone, so that augmentation doesn't depend on workers or timing.
func (s *Sample) Rand() *rand.Rand {
	if s.outer != nil {
		return s.outer.Rand()
	}
	if !s.seeded {
		s.seeded = true
		key := epochKey(s.seedKey, s.epoch) + uint64(s.index)*golden
		s.pcg.Seed(mix64(key), mix64(key^golden))
	}
	return s.rand
}

// Index is the sample's index in the dataset.
func (s *Sample) Index() int { return s.index }

// Epoch is the epoch that the sample is loaded for.
func (s *Sample) Epoch() int { return s.epoch }

// Worker is the number of the worker that loads the sample, 0-based; 0 too
// where the caller loads. No two goroutines have the same number at a time.
func (s *Sample) Worker() int { return s.worker }

// begin turns s to another sample of its batch.
func (s *Sample) begin(place, index int) {
	s.place, s.index, s.seeded = place, index, false
	if s.layout.ragged > 0 {
		for at := place; at < len(s.lens); at += len(s.lens) / s.layout.ragged {
			s.lens[at] = -1
		}
	}
}

// end checks and completes what Load left to the loader.
func (s *Sample) end() error {
	for f := range s.layout.columns {
		c := &s.layout.columns[f]
		if c.ragged < 0 {
			continue
		}
		n := *s.lenOf(c)
		if n < 0 {
			return fmt.Errorf("nwt: Load did not call SetLen(%d, n) for the ragged field %q", f, c.name)
		}
		clear(s.Bytes(f)[int(n)*c.row:])
	}
	return nil
}

func (s *Sample) init(l *layout, offsets []int) {
	s.layout, s.offsets, s.seedKey = l, offsets, seedKey(0)
	s.rand = rand.New(&s.pcg)
}

// newSample makes a sample with memory of its own.
func newSample(l *layout) *Sample {
	offsets, size := l.offsets(1)
	s := &Sample{mem: heapBytes(size), lens: make([]int32, l.ragged)}
	s.init(l, offsets)
	return s
}

// scratchOf is a sample of another layout to load into on the way to s, of the
// same epoch, index and worker. It lives as long as s, which is a worker's, so
// that nothing is allocated or locked for each sample.
func (s *Sample) scratchOf(l *layout) *Sample {
	i := slices.IndexFunc(s.scratch, func(t *Sample) bool { return t.layout == l })
	if i < 0 {
		i = len(s.scratch)
		t := newSample(l)
		t.outer = s
		s.scratch = append(s.scratch, t)
	}
	t := s.scratch[i]
	t.epoch, t.worker = s.epoch, s.worker
	t.begin(0, s.index)
	return t
}

// LoadSample loads one sample by itself, for epoch 0 and seed 0: for tests and
// a look at the data. The sample has memory of its own and stays valid. Its
// errors are those of [NewLoader] for a dataset that can't be used, and
// *[LoadError].
func LoadSample(ctx context.Context, ds Dataset, index int) (*Sample, error) {
	n, l, err := checkDataset(ds)
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= n {
		return nil, optionError("index", index, "is out of range 0 … %d", n-1)
	}
	s := newSample(l)
	s.begin(0, index)
	if err := s.load(ctx, ds); err != nil {
		return nil, err
	}
	return s, nil
}

// load loads the sample that begin has named.
func (s *Sample) load(ctx context.Context, ds Dataset) (err error) {
	finished := false
	defer func() {
		if !finished {
			stack, cause := recovered(recover())
			err = s.error(cause, stack)
		}
	}()
	err = ds.Load(ctx, s.index, s)
	if err == nil {
		err = s.end()
	}
	finished = true
	if err != nil {
		return s.error(err, nil)
	}
	return nil
}

// error says that the sample couldn't be loaded.
func (s *Sample) error(err error, stack []byte) *LoadError {
	return &LoadError{Index: s.index, Epoch: s.epoch, Worker: s.worker, Err: err, Stack: stack}
}
