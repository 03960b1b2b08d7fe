//go:build unix

// Package pydata is a dataset whose samples Python makes. One template, a process of the program's own Python,
// reads the program's dataset; each worker of a loader has a child of it, which makes the worker's samples in
// memory that both share. What a child is asked for, and how, is in nwt/_children.py.
package pydata

import (
	"context"
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
}

// A Dataset is the program's dataset.
type Dataset struct {
	config Config
	about  about
	fields []nwt.Field
	index  int // the field "index", or −1 if the program has one of that name
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
	Offset int    `json:"offset"`         // of the first sample's, in the memory
	Lens   int    `json:"lens,omitempty"` // of its length
}

// layout says where what is in the memory: a status for each sample, and the samples.
type layout struct {
	Slots  int     `json:"slots"`
	Stride int     `json:"stride"` // bytes of a sample
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
	c, err := newChild(ctx, d.template, align) // it writes no sample, but memory may not be empty
	if err != nil {
		return err
	}
	defer c.close()
	if d.about, err = c.describe(ctx); err != nil {
		return err
	}
	d.index = -1
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
	if !slices.ContainsFunc(d.fields, func(f nwt.Field) bool { return f.Name == "index" }) {
		d.index = len(d.fields)
		d.fields = append(d.fields, nwt.Field{Name: "index", Type: nwt.Int64})
	}
	d.slots = min(mostSlots, max(1, slotBytes/max(1, dense)))
	d.layout = layoutOf(d.slots, d.about.Fields, d.about.Tree)
	return nil
}

// layoutOf finds the place of each thing.
func layoutOf(slots int, fields []field, tree string) (l layout) {
	up := func(n int) int { return (n + align - 1) / align * align }
	l = layout{Slots: slots, Tree: tree}
	at := up(slots)
	from := at
	for _, f := range fields {
		if f.Ragged {
			f.Lens = at
			at += align
		}
		f.Offset = at
		at += up(bytesOf(f))
		l.Fields = append(l.Fields, f)
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
	return 0, fmt.Errorf("arrays of %s can't be in a batch", name)
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

// Tree says how the program's samples are divided into fields.
func (d *Dataset) Tree() string { return d.about.Tree }

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
