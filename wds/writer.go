package wds

import (
	"archive/tar"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Writer writes a shard. The same samples give the same bytes. To read samples that are larger than the
// default [Limits], use [WithLimits].
type Writer struct {
	tar     *tar.Writer
	out     *counter
	samples int
	last    string // key that was written last
}

// NewWriter makes a Writer that writes to w.
func NewWriter(w io.Writer) *Writer {
	out := &counter{w: w}
	return &Writer{tar: tar.NewWriter(out), out: out}
}

// A File is one file of a sample.
type File struct {
	Ext  string // without the dot before it, such as "jpg" or "seg.png"
	Data []byte
}

// Write appends a sample. Its key must differ from the key of the previous sample.
func (w *Writer) Write(key string, files ...File) error {
	if got, _, ok := split(key + ".x"); !ok || got != key {
		return fmt.Errorf("wds: key %q: its last element must not be empty nor have a dot", short(key))
	}
	if key == w.last {
		return fmt.Errorf("wds: key %q: is that of the sample before, too", short(key))
	}
	if len(files) == 0 {
		return fmt.Errorf("wds: key %q: a sample needs at least one file", short(key))
	}
	for i, f := range files {
		if got, ext, ok := split(key + "." + f.Ext); !ok || got != key || ext != f.Ext || strings.HasPrefix(ext, ".") {
			return fmt.Errorf("wds: key %q: extension %q must be in lower case, without a slash or a dot before it, and not empty", short(key), short(f.Ext))
		}
		if name := key + "." + f.Ext; isMeta(name) || isLeftover(name) {
			return fmt.Errorf("wds: %s: would be passed over as a leftover: see the package's documentation", short(name))
		}
		if slices.ContainsFunc(files[:i], func(g File) bool { return g.Ext == f.Ext }) {
			return fmt.Errorf("wds: key %q: two files %s", short(key), short(f.Ext))
		}
	}
	// An impossible header must be found before any part of the sample is written.
	headers := make([]*tar.Header, len(files))
	for i, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: key + "." + f.Ext, Mode: 0o644, Size: int64(len(f.Data))}
		if err := tar.NewWriter(io.Discard).WriteHeader(h); err != nil {
			return fmt.Errorf("wds: %s: %w", strings.ToValidUTF8(short(h.Name), "?"), err)
		}
		headers[i] = h
	}
	for i, f := range files {
		h := headers[i]
		if err := w.tar.WriteHeader(h); err != nil {
			return fmt.Errorf("wds: %s: %w", short(h.Name), err)
		}
		if _, err := w.tar.Write(f.Data); err != nil {
			return fmt.Errorf("wds: %s: %w", short(h.Name), err)
		}
	}
	w.last = key
	w.samples++
	return nil
}

// Close ends the shard. It doesn't close the io.Writer that the Writer writes to.
func (w *Writer) Close() error { return w.tar.Close() }
