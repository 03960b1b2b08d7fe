// Package folder makes a dataset from a folder of files, such as sound files. Each subfolder is a class. For
// pictures, use package vision.
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

// A Folder is a dataset of files. Files in dir/cat, or in folders below it, have class "cat". The fields are
// those that [Open] was given, and then "label" of type Int64. The label is an index in Classes.
// [nwt.ColumnOf] returns the column of "label".
type Folder struct {
	files  *classfolder.Files
	fields []nwt.Field
	load   func(ctx context.Context, path string, dst *nwt.Sample) error
}

// An Option changes which files [Open] and vision.OpenFolder take.
type Option func(*options)

type options = classfolder.Options

// WithEmptyClasses keeps a class whose folder has no file. Without this option, an empty folder is an error:
// if its class were left out, all later classes would have other numbers.
func WithEmptyClasses() Option { return func(o *options) { o.KeepEmpty = true } }

// WithClasses gives classes their numbers: names[0] is class 0. For validation, pass the Classes of the
// training folder. Otherwise, if the validation folder lacks a class, all later classes have other numbers.
// Each class's folder must have one of these names. A name may have no folder, or a folder without files.
func WithClasses(names []string) Option {
	return func(o *options) { o.Classes = append([]string{}, names...) }
}

// WithoutStrayFiles skips files that are in no class's folder, and broken links next to the folders of the
// classes. A log line counts them. Without this option, both are errors, because a broken link may have been
// the folder of a class.
func WithoutStrayFiles() Option { return func(o *options) { o.SkipStray = true } }

// WithContentFingerprint makes a folder's Fingerprint depend on the first and the last 4 kB of each file, not
// on the file's time of modification. So a copy of a folder has the same fingerprint. The first call of
// Fingerprint then opens and reads each file. If only the middle of a file changes and its size stays, the
// fingerprint stays too.
func WithContentFingerprint() Option { return func(o *options) { o.Content = true } }

// Open lists the files of a folder that have one of the extensions, such as ".wav", in lower or upper case.
// Without extensions, Open lists all files. It doesn't open the files. If ctx ends, the listing ends too. The
// order, the classes, links and the names that are skipped are as in vision.OpenFolder.
//
// The function load fills the fields of a sample from a file, under the rules of [nwt.Dataset]. Its errors
// needn't name the file. If fields and load are nil, a sample is its label alone. Pass nil for both if you
// need the names of the files first, and call With later.
func Open(ctx context.Context, dir string, extensions []string, fields []nwt.Field, load func(ctx context.Context, path string, dst *nwt.Sample) error, opts ...Option) (*Folder, error) {
	o := classfolder.Options{Package: "folder", Extensions: extensions}
	for i, opt := range opts {
		if opt == nil {
			return nil, &nwt.ArgumentError{Name: fmt.Sprintf("folder.Open: options[%d]", i), Reason: "is nil"}
		}
		opt(&o)
	}
	if i := slices.Index(extensions, ""); i >= 0 {
		return nil, &nwt.ArgumentError{Name: fmt.Sprintf("folder.Open: extensions[%d]", i), Value: "", Reason: "must not be empty; nil extensions take every file"}
	}
	if load == nil && len(fields) > 0 {
		return nil, &nwt.ArgumentError{Name: "folder.Open", Reason: "load is nil, but there are fields"}
	}
	files, err := classfolder.List(ctx, dir, o)
	if err != nil {
		return nil, fmt.Errorf("folder: %w", err)
	}
	return with(files, fields, load), nil
}

func with(files *classfolder.Files, fields []nwt.Field, load func(ctx context.Context, path string, dst *nwt.Sample) error) *Folder {
	return &Folder{files, append(slices.Clone(fields), nwt.Field{Name: "label", Type: nwt.Int64}), load}
}

// With returns a dataset that has the same files, but loads other fields by another function. For
// validation, pass a load that makes no random changes. To make the fields as long as the longest file, ask Lengths.
func (f *Folder) With(fields []nwt.Field, load func(ctx context.Context, path string, dst *nwt.Sample) error) (*Folder, error) {
	if load == nil {
		return nil, &nwt.ArgumentError{Name: "folder.Folder.With", Reason: "load is nil"}
	}
	return with(f.files, fields, load), nil
}

// Len returns the number of files.
func (f *Folder) Len() int { return f.files.Len() }

// Classes returns the names of the classes, sorted or in the order of [WithClasses]. Don't change the slice.
func (f *Folder) Classes() []string { return f.files.Classes }

// Class returns the class of a file, as an index in Classes.
func (f *Folder) Class(index int) int { return f.files.Class(index) }

// Path returns the path of a file.
func (f *Folder) Path(index int) string { return f.files.Path(index) }

// Lengths returns the length of each file, which [nwt.Sized] and some samplers need. It calls the function
// length for 32 files at a time. Lengths ends at the first error, which names the file.
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

// Fields returns the fields that [Open] was given, and then "label".
func (f *Folder) Fields() []nwt.Field { return f.fields }

// Fingerprint depends on the names, sizes, times and classes of the files. With [WithContentFingerprint], it
// depends on some of the files' bytes instead of the files' times.
func (f *Folder) Fingerprint() string { return "folder.Folder: " + f.files.Tell() }

// Load loads the sample of a file. Its errors name the file.
func (f *Folder) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	if f.load != nil {
		if err := f.load(ctx, f.Path(index), dst); err != nil {
			return fmt.Errorf("%s: %w", f.Path(index), err)
		}
	}
	nwt.Values[int64](dst, len(f.fields)-1)[0] = int64(f.Class(index))
	return nil
}
