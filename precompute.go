package nwt

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/samplefile"
	"github.com/nwt-go/nwt/internal/usercall"
)

// Precompute keeps the samples of ds in a file at path. The first run loads the samples and writes the file.
// Later runs map the file into memory. Precompute writes the file anew if it is cut short, or if the fields,
// the length, the version or the fingerprint (see [Fingerprinter]) has changed. If samples depend on anything
// else, change the version with it.
//
// If the file exists, Precompute compares two of its samples with what [LoadSample] returns, and returns an
// error if they differ. If ds can't load them, or loads them differently each time, Precompute only logs
// that. Another program's file at path is an error.
//
// Precompute tries all samples, even if some are bad. If more are bad than [WithErrorBudget] allows, or if
// the run is interrupted, the loaded samples stay in path.partial, and the next call loads the rest. If a
// sample is damaged in the file or was left out, it is loaded from ds.
//
// The samples are always the same, so augment them in a [Map] over the result. Only loading options and
// [WithProgress] take effect. If several processes call Precompute, one writes and the others wait.
func Precompute(ctx context.Context, ds Dataset, path, version string, opts ...Option) (*Precomputed, error) {
	o, err := newOptions(opts)
	n, l, dsErr := checkIndexed(ds)
	if path == "" {
		err = errors.Join(err, optionError("Precompute", path, "the path must not be empty"))
	}
	if err := errors.Join(err, dsErr); err != nil {
		return nil, err
	}
	(&setup{opts: o}).logIgnored("Precompute", inPrecompute|ofProgress)
	made := precomputedFor{Version: version, ByteOrder: nativeOrder(), Samples: n, Fields: l.fields}
	if usercall.Call(func() error { made.Fingerprint = fingerprintOf("", ds); return nil }, func(_ []byte, cause error) { err = within("Dataset.Fingerprint", cause) }); err != nil {
		return nil, err
	}
	description, err := made.describe()
	if err != nil {
		return nil, err
	}
	p := &Precomputed{ds: ds, path: path, n: n, layout: l, drawn: warnOfDraws("Precompute")}
	spec := samplefile.Spec{Description: description, Difference: made.difference, Samples: n, Longest: l.Packed(), Shortest: l.Shortest()}
	anew := false
	p.file, err = samplefile.Open(ctx, path, spec, o.log, func(w *samplefile.Writer) error {
		anew = w.Done == 0
		return p.fill(ctx, w, o, opts)
	})
	if err == nil && !anew {
		err = p.file.Compare(ctx, func(index int) (packed []byte, err error) {
			s, err := LoadSample(ctx, ds, index)
			if err == nil {
				packed = make([]byte, s.common.mem.PackedSize(0))
				s.common.mem.Pack(0, packed)
			}
			return packed, err
		})
	}
	if err != nil {
		return nil, p.within(err)
	}
	return p, nil
}

// Precomputed is a dataset whose samples are in a file: see [Precompute].
type Precomputed struct {
	ds     Dataset
	path   string
	n      int
	layout *fieldSet
	file   *samplefile.File
	drawn  func(*slog.Logger)
}

func (p *Precomputed) Len() int            { return p.n }
func (p *Precomputed) Fields() []Field     { return p.layout.fields }
func (p *Precomputed) Fingerprint() string { return fingerprint(p.ds) }
func (p *Precomputed) parts() []Dataset    { return []Dataset{p.ds} }

// WritesAll tells loaders that Load writes every element: see [WritesAll].
func (p *Precomputed) WritesAll(asked Dataset) bool { return asked == Dataset(p) }

// Load copies a sample from the file. After Close it returns [os.ErrClosed].
func (p *Precomputed) Load(ctx context.Context, index int, dst *Sample) error {
	there, err := p.file.Read(dst.common.worker, index, func(packed []byte) (sum uint32, err error) {
		if rest, err := dst.unpack(packed); err != nil || len(rest) > 0 {
			return 0, cmp.Or(err, layout.ErrNotPacked)
		}
		return dst.common.mem.Sum(dst.place, samplefile.Sum), nil
	})
	switch {
	case err != nil:
		return p.within(err)
	case there:
		return nil
	}
	return dst.loadAlone(ctx, p.ds, index, p.drawn)
}

// Close unmaps the file.
func (p *Precomputed) Close() error { return p.file.Close() }

func (p *Precomputed) within(err error) error {
	return fmt.Errorf("nwt: precomputed samples in %s: %w", p.path, usercall.Cause(err))
}

// fill loads the samples that the file doesn't have and writes them.
func (p *Precomputed) fill(ctx context.Context, w *samplefile.Writer, o *options, opts []Option) error {
	if w.Len() == 0 {
		return nil
	}
	howToLoad := func(o *options) error { o.only = inPrecompute; return nil }
	tryAll := func(o *options) error { o.only, o.drawn, o.maxBad = everywhere, p.drawn, p.n; return nil }
	l, err := NewLoader(p.ds, slices.Concat([]Option{howToLoad}, opts, []Option{tryAll, WithSampler(w)})...)
	if err != nil {
		return err
	}
	defer l.Close()
	began, before := time.Now(), w.Done
	told := began
	for b, err := range l.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		mem := &b.of.slot.places
		for place, i := range b.Indices() {
			if err := w.Write(i, mem.PackedSize(place), func(dst []byte) { mem.Pack(place, dst) }); err != nil {
				return err
			}
		}
		took := time.Since(began)
		left := time.Duration(float64(took) / float64(max(1, w.Done-before)) * float64(p.n-w.Done))
		if o.progress != nil {
			o.progress(Progress{Phase: "precomputing", Workers: l.Workers(), Done: float64(w.Done) / float64(p.n), Elapsed: took, Left: left})
		} else if time.Since(told) >= tellEvery {
			told = time.Now()
			o.log.Info("nwt: precomputing samples", "path", p.path, "done", w.Done, "of", p.n, "elapsed", human.Duration(took), "left", human.Duration(left))
		}
	}
	if bad := l.Stats().Bad; bad > o.maxBad {
		return fmt.Errorf("%d samples can't be loaded, WithErrorBudget allows %d; the first: %w", bad, o.maxBad, usercall.Cause(l.BadSamples()[0]))
	}
	if o.progress != nil {
		o.progress(Progress{Phase: "done", Done: 1, Elapsed: time.Since(began)})
	}
	return nil
}

// precomputedFor holds what the samples of a file depend on. Its JSON describes the file.
type precomputedFor struct {
	Version   string
	ByteOrder string // nativeOrder
	Samples   int
	Fields    []Field

	Fingerprint string `json:",omitempty"` // a hash of the dataset's fingerprint
}

// nativeOrder names this machine's byte order.
func nativeOrder() string {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return "little-endian"
	}
	return "big-endian"
}

func (h *precomputedFor) describe() ([]byte, error) {
	if !utf8.ValidString(h.Version) {
		return nil, optionError("Precompute", h.Version, "the version must be valid UTF-8")
	}
	description, err := json.Marshal(h)
	if err == nil && len(description) > samplefile.MaxDescription {
		err = optionError("Precompute", h.Version[:min(len(h.Version), 40)], "version and fields take %d bytes to describe: must be at most %d", len(description), samplefile.MaxDescription)
	}
	return description, err
}

// difference returns the first difference between what a file's description says and what is wanted.
func (h *precomputedFor) difference(description []byte) string {
	var there precomputedFor
	switch err := json.Unmarshal(description, &there); {
	case err != nil:
		return err.Error()
	case there.Version != h.Version:
		return fmt.Sprintf("version %q, not %q", there.Version, h.Version)
	case there.Samples != h.Samples:
		return fmt.Sprintf("%d samples, not %d", there.Samples, h.Samples)
	case there.ByteOrder != h.ByteOrder:
		return fmt.Sprintf("the byte order %s, not %s", there.ByteOrder, h.ByteOrder)
	}
	return cmp.Or(difference(h.Fields, there.Fields), "the dataset tells another Fingerprint")
}
