//go:build unix

// Package pydata is a dataset whose samples Python makes. One process of the program's own Python, the
// template, reads the program's dataset. Each worker of a loader has a child of the template. The child makes
// the worker's samples in memory that both share. Their protocol is in nwt/_children.py.
package pydata

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nwt-go/nwt"
)

// A Config says what makes the samples.
type Config struct {
	Command        []string // starts the template
	Setup          []byte   // what the template reads first
	Stdout, Stderr *os.File // of the template and its children
	Timeout        time.Duration

	// Input is nil, or what the program's function changes, sample by sample: its first field, of uint8. The others
	// become the sample's, after those that the function makes. None is ragged.
	Input nwt.Dataset
}

// A Dataset is the program's dataset, or what its function makes of another.
type Dataset struct {
	config Config
	about  about
	fields []nwt.Field
	passed int // fields that are the input's
	slots  int // samples that a child makes per request
	layout layout

	mu       sync.Mutex
	template *template // guarded by mu
	closed   bool      // guarded by mu
}

// about is what a child says of the first sample.
type about struct {
	Failed string
	N      int
	Fields []field
	Tree   string // how a sample is divided into fields, for the program
}

type field struct {
	Name   string `json:"name"`
	DType  string `json:"dtype"`
	Shape  []int  `json:"shape"`
	Ragged bool   `json:"ragged"`
	Rest   bool   `json:"rest,omitempty"` // nobody reads what is behind its length
	Offset int    `json:"offset"`         // of the first sample's, in the memory
	Lens   int    `json:"lens,omitempty"` // of its length
}

// layout says where what is in the memory: a status for each sample, and the samples.
type layout struct {
	Slots  int     `json:"slots"`
	Stride int     `json:"stride"`          // bytes of a sample
	Input  *field  `json:"input,omitempty"` // what it is made of
	Fields []field `json:"fields"`
	Tree   string  `json:"tree"`
	size   int     // of the memory
}

const (
	mostSlots = 64
	slotBytes = 32 << 20 // of all samples that a child makes per request, apart from what usually stays empty
	align     = 64
)

// Open starts the template, and learns from a first sample which fields there are.
func Open(ctx context.Context, c Config) (*Dataset, error) {
	d := &Dataset{config: c}
	var err error
	if d.template, err = startTemplate(ctx, &d.config); err != nil {
		return nil, err
	}
	if err := d.describe(ctx); err != nil {
		d.template.close()
		return nil, err
	}
	return d, nil
}

func (d *Dataset) describe(ctx context.Context) error {
	l := d.layoutOf(1)
	c, err := newChild(ctx, d.template, l.size) // it writes no sample, but memory may not be empty
	if err != nil {
		return err
	}
	defer c.close()
	in := d.config.Input
	if in != nil {
		if err := c.layOut(l); err != nil {
			return err
		}
		if s, err := nwt.LoadSample(ctx, in, 0); err == nil { // else a black picture shows what the function makes
			copy(c.mem[l.Input.Offset:], s.Bytes(0))
		}
	}
	if d.about, err = c.describe(ctx); err != nil {
		return err
	}
	dense := 0
	for _, f := range d.about.Fields {
		kind, err := typeOf(f.DType)
		if err != nil {
			return fmt.Errorf("field %q: %w", f.Name, err)
		}
		made := nwt.Field{Name: f.Name, Type: kind, Shape: f.Shape}
		if f.Ragged {
			made.RaggedDims = 1
		} else {
			dense += bytesOf(f)
		}
		d.fields = append(d.fields, made)
	}
	if in != nil {
		d.about.N = in.Len()
		for _, f := range in.Fields()[1:] {
			if slices.ContainsFunc(d.fields, func(made nwt.Field) bool { return made.Name == f.Name }) {
				return fmt.Errorf("two fields are named %q: one that the function makes, and one of its input", f.Name)
			}
			d.fields = append(d.fields, f)
		}
		d.passed = len(d.fields) - len(d.about.Fields)
		dense += bytesOf(*l.Input)
	}
	d.slots = min(mostSlots, max(1, slotBytes/max(1, dense)))
	d.layout = d.layoutOf(d.slots)
	return nil
}

// layoutOf finds the place of each thing.
func (d *Dataset) layoutOf(slots int) (l layout) {
	up := func(n int) int { return (n + align - 1) / align * align }
	l = layout{Slots: slots, Tree: d.about.Tree}
	at := up(slots)
	from := at
	place := func(f field) field {
		if f.Ragged {
			f.Lens = at
			at += align
		}
		f.Offset = at
		at += up(bytesOf(f))
		return f
	}
	if in := d.config.Input; in != nil {
		f := place(field{DType: "uint8", Shape: in.Fields()[0].Shape})
		l.Input = &f
	}
	for _, f := range d.about.Fields {
		l.Fields = append(l.Fields, place(f))
	}
	l.Stride = at - from
	l.size = from + slots*l.Stride
	return l
}

func bytesOf(f field) int {
	kind, _ := typeOf(f.DType)
	n := kind.Size()
	for _, dim := range f.Shape {
		n *= dim
	}
	return n
}

func typeOf(name string) (nwt.DType, error) {
	for kind := nwt.Bool; kind <= nwt.Float64; kind++ {
		if strings.EqualFold(kind.String(), name) {
			return kind, nil
		}
	}
	return 0, fmt.Errorf("arrays of %s can't be in a batch: convert them (complex ones by torch.view_as_real), or give collate_fn", name)
}

func (c *child) layOut(l layout) error {
	text, err := json.Marshal(l)
	if err == nil {
		err = c.send(layOut, uint32(len(text)), text)
	}
	return err
}

func (d *Dataset) Len() int                         { return d.about.N }
func (d *Dataset) Fields() []nwt.Field              { return d.fields }
func (d *Dataset) WritesAll(asked nwt.Dataset) bool { return asked == nwt.Dataset(d) }

// LeavesRest is true for pickles. Their place has room for megabytes, and memory that isn't written isn't taken.
func (d *Dataset) LeavesRest(name string) bool {
	return slices.ContainsFunc(d.about.Fields, func(f field) bool { return f.Rest && f.Name == name })
}

// Path returns the file of a sample's input, or "".
func (d *Dataset) Path(index int) string {
	if in, ok := d.config.Input.(interface{ Path(index int) string }); ok {
		return in.Path(index)
	}
	return ""
}

// Fingerprint depends on the input and the function; without an input it isn't known.
func (d *Dataset) Fingerprint() string {
	in, ok := d.config.Input.(nwt.Fingerprinter)
	if !ok || in.Fingerprint() == "" {
		return ""
	}
	header := binary.LittleEndian.Uint64(d.config.Setup)
	return fmt.Sprintf("%s %x", in.Fingerprint(), sha256.Sum256(d.config.Setup[8+header:]))
}

// Tree says how the program's samples are divided into fields.
func (d *Dataset) Tree() string { return d.about.Tree }

var _ nwt.ProcessDataset = (*Dataset)(nil)

// Processes returns the processes that load for the dataset.
func (d *Dataset) Processes() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.template == nil {
		return nil
	}
	return d.template.pids()
}

// Close ends the processes. It must not be called while samples are loaded.
func (d *Dataset) Close() {
	d.mu.Lock()
	t := d.template
	d.template, d.closed = nil, true
	d.mu.Unlock()
	if t != nil {
		t.close()
	}
}

// child returns a new child, from a new template if the old one has ended.
func (d *Dataset) child(ctx context.Context) (*child, error) {
	for try := 1; ; try++ {
		t, err := d.running(ctx)
		if err != nil {
			return nil, err
		}
		c, err := newChild(ctx, t, d.layout.size)
		if err == nil {
			if err = c.layOut(d.layout); err == nil {
				return c, nil
			}
			c.close()
		}
		if ctx.Err() != nil || try == 3 {
			return nil, err
		}
	}
}

func (d *Dataset) running(ctx context.Context) (*template, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, errors.New("the dataset is closed")
	case d.template != nil && !d.template.isGone():
		return d.template, nil
	case d.template != nil:
		d.template.close()
		d.template = nil
	}
	t, err := startTemplate(ctx, &d.config)
	if err != nil {
		return nil, err
	}
	d.template = t
	return t, nil
}
