package vision

import (
	"context"
	"fmt"
	"slices"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/internal/classfolder"
)

// Extensions returns the file extensions that [OpenFolder] accepts, in lower case. OpenFolder also accepts
// them in upper case.
func Extensions() []string { return slices.Clone(extensions) }

var extensions = []string{".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"}

// A Folder is a dataset of the pictures in a folder, like torchvision's ImageFolder. Files in dir/cat, or
// in folders below it, have class "cat". A Folder has two fields. The pipeline makes the field "image". The
// field "label" is an Int64, an index in Classes.
//
// A Folder takes 12 bytes of memory for each file, plus the bytes of the file's name with its folder. For a
// million files with names like those of ImageNet, that is 45 MB. Listing a million files takes about three
// seconds if the system has their names in memory.
type Folder struct {
	files    *classfolder.Files
	pipeline *Pipeline
	fields   []nwt.Field
}

// OpenFolder lists the pictures of a folder without opening them. It follows symbolic links to folders, but
// lists each folder once per class. The options are those of package [folder]. If ctx ends, the listing
// ends.
//
// Each folder directly in dir is a class and must have a picture, and dir itself must have none. The files
// have the same order as in torchvision, on each machine. Classes are sorted by name. Within a class, its
// folders are sorted by path, and within a folder, its files by name.
//
// OpenFolder ignores names that begin with a dot, and files that operating systems and file servers leave
// behind, such as __MACOSX, @eaDir and Thumbs.db. If it skips other files or hidden pictures (.a.jpg),
// slog's default logger gets one line with their numbers by extension.
func OpenFolder(ctx context.Context, dir string, p *Pipeline, opts ...folder.Option) (*Folder, error) {
	if err := checkAlone("OpenFolder", p); err != nil {
		return nil, err
	}
	o := classfolder.Options{Package: "vision", Extensions: extensions}
	for i, opt := range opts {
		if opt == nil {
			return nil, optionError(fmt.Sprintf("OpenFolder: options[%d]", i), nil, "is nil")
		}
		opt(&o)
	}
	files, err := classfolder.List(ctx, dir, o)
	if err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	return &Folder{files, p, []nwt.Field{p.Field("image"), {Name: "label", Type: nwt.Int64}}}, nil
}

// With returns a dataset that loads the same files by another pipeline, for example by one without random
// transforms for validation.
func (f *Folder) With(p *Pipeline) (*Folder, error) {
	if err := checkAlone("Folder.With", p); err != nil {
		return nil, err
	}
	other := *f
	other.pipeline, other.fields = p, []nwt.Field{p.Field("image"), f.fields[1]}
	return &other, nil
}

// checkAlone checks the pipeline of a dataset whose samples have one picture.
func checkAlone(name string, p *Pipeline) error {
	if p == nil {
		return optionError(name, nil, "the pipeline is nil")
	}
	if p.root != nil {
		return optionError(name, nil, "the pipeline is a Companion or Masks: a folder needs one made by New")
	}
	return nil
}

// Classes returns the names of the classes, sorted or in the order of [folder.WithClasses]. The slice must
// not be changed.
func (f *Folder) Classes() []string { return f.files.Classes }

// Class returns the class of a file, as an index in Classes.
func (f *Folder) Class(index int) int { return f.files.Class(index) }

// WritesAll tells loaders that Load writes every element: see [nwt.WritesAll].
func (f *Folder) WritesAll(asked nwt.Dataset) bool { return asked == nwt.Dataset(f) }

// Path returns the path of a file.
func (f *Folder) Path(index int) string { return f.files.Path(index) }

// Len returns the number of files.
func (f *Folder) Len() int { return f.files.Len() }

// Fields returns two fields: "image", with the pipeline's type, and "label", an Int64. See [nwt.ColumnOf].
func (f *Folder) Fields() []nwt.Field { return f.fields }

// Fingerprint depends on the pipeline, and on the names, sizes, times and classes of the files. It doesn't
// depend on where the folder is. But a copy of a folder has other times: see
// [folder.WithContentFingerprint]. The first call looks at all files, 32 at a time, and takes about as long
// as the listing. Later calls return the same result.
func (f *Folder) Fingerprint() string {
	return "vision.Folder: " + f.files.Tell() + " " + f.pipeline.Fingerprint()
}

// Remembers returns how many bytes of memory the folder's pipeline takes to remember where rows begin in
// JPEG files. All folders of that pipeline have the same owner. [nwt.Stats] counts these bytes in DatasetBytes.
func (f *Folder) Remembers() (owner any, bytes int64) {
	return f.pipeline.drawer(), f.pipeline.rows.size()
}

// Load loads a picture. Its errors name the file.
func (f *Folder) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	r, err := nwt.Scratch(dst, newFileReader)
	if err != nil {
		return err
	}
	data, err := r.read(ctx, f.Path(index))
	if err != nil {
		return err // it already names the file
	}
	if err := f.pipeline.load(ctx, dst, 0, data); err != nil {
		return fmt.Errorf("%s: %w", f.Path(index), err)
	}
	nwt.Values[int64](dst, 1)[0] = int64(f.Class(index))
	return nil
}
