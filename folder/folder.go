// Package folder makes a dataset from a folder of files, such as sound files, in which each subfolder is
// a class. For pictures, use package vision.
package folder

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/classfolder"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A Folder holds the names of files and their classes: files in dir/cat, or in folders below it, have
// class "cat".
type Folder struct{ files *classfolder.Files }

// An Option changes which files [Open] takes.
type Option func(*options)

type options struct{ classfolder.Options }

// WithEmptyClasses keeps a class whose folder has no file. Without this option an empty folder is an
// error, since leaving its class out would give all later classes other numbers.
func WithEmptyClasses() Option { return func(o *options) { o.KeepEmpty = true } }

// WithClasses gives classes their numbers: names[0] is class 0. For validation, pass the Classes of the
// training folder: otherwise, in a folder that lacks a class, all later classes have other numbers. It
// is an error if a folder has none of these names; a name without a folder or without files is fine.
func WithClasses(names []string) Option {
	return func(o *options) { o.Classes = append([]string{}, names...) }
}

// WithoutStrayFiles skips files that are in no class's folder, and broken links next to the folders of
// the classes. A log line counts them. Without this option both are errors: a broken link may have been
// the folder of a class.
func WithoutStrayFiles() Option { return func(o *options) { o.SkipStray = true } }

// WithContentFingerprint makes the dataset's fingerprint depend on the first and the last 4 kB of each
// file instead of on its time of modification, so that a copy of a folder has the same fingerprint. The
// first call of Fingerprint then opens and reads each file. If the middle of a file changes, but not the
// file's size, the fingerprint doesn't show it.
func WithContentFingerprint() Option { return func(o *options) { o.Content = true } }

// Open lists the files of a folder that have one of the extensions, such as ".wav", in lower or upper
// case. Without extensions it lists all files. It doesn't open the files. These are the same as in
// vision.OpenFolder: the order, the classes, the treatment of links, the names that are skipped, and the
// log line about files that are passed over. If ctx ends, so does the listing.
func Open(ctx context.Context, dir string, extensions []string, opts ...Option) (*Folder, error) {
	o := options{classfolder.Options{Package: "folder", Extensions: extensions}}
	for i, opt := range opts {
		if opt == nil {
			return nil, &nwt.ArgumentError{Name: fmt.Sprintf("folder.Open: options[%d]", i), Reason: "is nil"}
		}
		opt(&o)
	}
	if i := slices.Index(extensions, ""); i >= 0 {
		return nil, &nwt.ArgumentError{Name: fmt.Sprintf("folder.Open: extensions[%d]", i), Value: "", Reason: "must not be empty; nil extensions take every file"}
	}
	files, err := classfolder.List(ctx, dir, o.Options)
	if err != nil {
		return nil, fmt.Errorf("folder: %w", err)
	}
	return &Folder{files}, nil
}

// Len returns the number of files.
func (f *Folder) Len() int { return f.files.Len() }

// Classes returns the names of the classes, sorted or in the order of [WithClasses]. The slice must not be changed.
func (f *Folder) Classes() []string { return f.files.Classes }

// Class returns the class of a file, as an index in Classes.
func (f *Folder) Class(index int) int { return f.files.Class(index) }

// Path returns the path of a file.
func (f *Folder) Path(index int) string { return f.files.Path(index) }

// Lengths returns each file's length, which it gets by calling length, for 32 files at a time.
// [nwt.Sized] and some samplers need them. Lengths ends at the first error, which names the file.
func (f *Folder) Lengths(ctx context.Context, length func(ctx context.Context, path string) (int, error)) ([]int, error) {
	if length == nil {
		return nil, &nwt.ArgumentError{Name: "folder.Folder.Lengths", Reason: "length is nil"}
	}
	lengths := make([]int, f.Len())
	var mu sync.Mutex
	var first error // guarded by mu
	f.files.Each(func(i int) (goesOn bool) {
		return usercall.Call(func() (err error) {
			if err = context.Cause(ctx); err == nil {
				lengths[i], err = length(ctx, f.Path(i))
			}
			return err
		}, func(_ []byte, err error) {
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = fmt.Errorf("folder: %s: %w", f.Path(i), err)
			}
		})
	})
	if first != nil {
		return nil, first
	}
	return lengths, nil
}

// Dataset makes a dataset of the files. load fills the fields of a sample from a file, under the rules
// of [nwt.Dataset]; its errors needn't name the file. After these fields, each sample has a field
// "label" of type Int64, which [nwt.ColumnOf] can read. The dataset's fingerprint depends on the names,
// sizes, times and classes of the files; with [WithContentFingerprint] it depends on some of their bytes
// instead of the times.
func (f *Folder) Dataset(fields []nwt.Field, load func(ctx context.Context, path string, dst *nwt.Sample) error) nwt.Dataset {
	if load == nil {
		load = func(context.Context, string, *nwt.Sample) error {
			return &nwt.ArgumentError{Name: "folder.Folder.Dataset", Reason: "load is nil"}
		}
	}
	all := append(slices.Clone(fields), nwt.Field{Name: "label", Type: nwt.Int64})
	return &dataset{f, all, load}
}

type dataset struct {
	*Folder
	fields []nwt.Field
	load   func(ctx context.Context, path string, dst *nwt.Sample) error
}

func (d *dataset) Fields() []nwt.Field { return d.fields }
func (d *dataset) Fingerprint() string { return "folder.Folder: " + d.files.Tell() }

func (d *dataset) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	if err := d.load(ctx, d.Path(index), dst); err != nil {
		return fmt.Errorf("%s: %w", d.Path(index), err)
	}
	nwt.Values[int64](dst, len(d.fields)-1)[0] = int64(d.Class(index))
	return nil
}
