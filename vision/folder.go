package vision

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/promise"
)

// Extensions are the extensions of the files that [OpenFolder] takes, in lower or
// upper case.
var Extensions = []string{".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"}

// A Folder is a dataset of the pictures in a folder, as torchvision's
// ImageFolder: what lies in dir/cat, or in folders below it, is of class "cat".
// Its fields are "image", as its pipeline makes it, and "class", an Int64: a place in
// Classes.
//
// It takes 12 bytes of memory for each file, and the bytes of the file's name with
// its folder: 45 MB for a million files named as ImageNet's, which are listed in some
// three seconds if the system has their names in memory.
type Folder struct {
	dir      string
	classes  []string
	pipeline *Pipeline
	fields   []nwt.Field

	// The names of all files, relative to dir and with slashes, one after the other:
	// name i is names[ends[i-1]:ends[i]].
	names []byte
	ends  []int
	class []int32

	tell func() string // what the files are; shared by all that With made
}

func init() { promise.ToOverwrite[*Folder]() }

// A FolderOption changes what [OpenFolder] takes.
type FolderOption func(*folderOptions)

type folderOptions struct {
	emptyClasses bool
	image, class string // the names of the fields
}

// WithFieldNames names the fields, by default "image" and "class". So two folders can be put side
// by side by [nwt.Zip]. Each draws by itself: for pictures that are to be cropped alike there is
// [Pipeline.Draw].
func WithFieldNames(image, class string) FolderOption {
	return func(o *folderOptions) { o.image, o.class = image, class }
}

// WithEmptyClasses keeps a class whose folder has no picture. Without it, such a folder
// is an error: if it were left out, all later classes would get other numbers.
func WithEmptyClasses() FolderOption { return func(o *folderOptions) { o.emptyClasses = true } }

// OpenFolder lists the pictures of a folder, without reading any. It follows
// symbolic links to folders, but lists each folder once per class.
//
// The order is torchvision's, and the same on each machine: classes by name; in each
// class its folders by path, and in each folder the files by name. Each folder directly
// in dir is a class and must have a picture, and dir itself must have none. Names that
// begin with a dot, and what operating systems and file servers leave behind (__MACOSX,
// @eaDir, Thumbs.db and the like), are neither classes nor pictures. ctx ends a listing
// that takes too long.
func OpenFolder(ctx context.Context, dir string, p *Pipeline, opts ...FolderOption) (*Folder, error) {
	if err := checkAlone("vision.OpenFolder", p); err != nil {
		return nil, err
	}
	o := folderOptions{image: "image", class: "class"}
	for i, opt := range opts {
		if opt == nil {
			return nil, optionError("FolderOption", i, "option number %d is nil", i)
		}
		opt(&o)
	}
	if o.image == "" || o.class == "" || o.image == o.class {
		return nil, optionError("WithFieldNames", []string{o.image, o.class}, "two different names are needed")
	}
	f := &Folder{dir: dir, pipeline: p, fields: []nwt.Field{p.Field(o.image), {Name: o.class, Type: nwt.Int64}}}
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	l := listing{ctx: ctx, dir: dir}
	if err := l.list("", 0, false); err != nil {
		return nil, err
	}
	if len(l.files) > 0 {
		slices.Sort(l.files)
		return nil, fmt.Errorf("vision: %s has pictures that are in no class's folder: %s", dir, some(l.files))
	}
	f.classes = l.folders
	slices.Sort(f.classes)
	var empty []string
	for i, class := range f.classes {
		l.files, l.seen = l.files[:0], map[string]bool{root: true}
		if err := l.enter(class, 0); err != nil {
			return nil, err
		}
		if len(l.files) == 0 {
			empty = append(empty, class)
		}
		f.add(i, l.files)
	}
	if len(f.ends) == 0 {
		return nil, fmt.Errorf("vision: %s: no %s file in a folder in it", dir, strings.Join(Extensions, ", "))
	}
	if len(empty) > 0 && !o.emptyClasses {
		return nil, fmt.Errorf("vision: %s: classes without a %s file (WithEmptyClasses keeps them): %s", dir, strings.Join(Extensions, ", "), some(empty))
	}
	f.names, f.ends, f.class = slices.Clip(f.names), slices.Clip(f.ends), slices.Clip(f.class)
	f.tell = sync.OnceValue(f.tellFiles)
	return f, nil
}

// some returns the first few of the names.
func some(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// With returns the same files, loaded by another pipeline: for validation, say, by
// one without random transforms.
func (f *Folder) With(p *Pipeline) (*Folder, error) {
	if err := checkAlone("Folder.With", p); err != nil {
		return nil, err
	}
	other := *f
	other.pipeline, other.fields = p, []nwt.Field{p.Field(f.fields[0].Name), f.fields[1]}
	return &other, nil
}

// checkAlone checks the pipeline of a dataset whose samples have one picture.
func checkAlone(name string, p *Pipeline) error {
	if p == nil {
		return optionError(name, nil, "its pipeline must not be nil")
	}
	if p.root != nil {
		return optionError(name, "a pipeline beside another", "%v", errBeside)
	}
	return nil
}

// add notes the files of a class.
func (f *Folder) add(class int, files []string) {
	slices.SortFunc(files, func(a, b string) int {
		i, k := strings.LastIndexByte(a, '/'), strings.LastIndexByte(b, '/')
		return cmp.Or(strings.Compare(a[:i], b[:k]), strings.Compare(a[i:], b[k:]))
	})
	for _, name := range files {
		f.names = append(f.names, name...)
		f.ends = append(f.ends, len(f.names))
		f.class = append(f.class, int32(class))
	}
}

// A listing collects names.
type listing struct {
	ctx            context.Context
	dir            string
	files, folders []string        // relative to dir
	seen           map[string]bool // the folders of the class, as they are called without links
}

// maxDepth bounds how deep folders lie in each other.
const maxDepth = 64

// enter lists a folder and all below it, unless they were listed for this class
// already.
func (l *listing) enter(name string, depth int) error {
	real, err := filepath.EvalSymlinks(filepath.Join(l.dir, name))
	if err != nil {
		return fmt.Errorf("vision: %w", err)
	}
	if l.seen[real] {
		return nil
	}
	l.seen[real] = true
	if depth > maxDepth {
		return fmt.Errorf("vision: %s: folders lie more than %d deep", filepath.Join(l.dir, name), maxDepth)
	}
	return l.list(name, depth, true)
}

// list collects the files of a folder. If down is set it then lists the folders in
// it; else it collects their names.
func (l *listing) list(folder string, depth int, down bool) error {
	d, err := os.Open(filepath.Join(l.dir, folder))
	if err != nil {
		return fmt.Errorf("vision: %w", err)
	}
	defer d.Close()
	var below []string
	for {
		entries, err := d.ReadDir(1024)
		for _, e := range entries {
			if isLeftover(e.Name()) {
				continue
			}
			name := path.Join(folder, e.Name()) // sorts alike on all systems
			switch kind := e.Type(); {
			case kind.IsDir():
				below = append(below, name)
			case kind&fs.ModeSymlink != 0 && (!down || !isPicture(e.Name())) && isFolder(filepath.Join(l.dir, name)):
				below = append(below, name)
			case isPicture(e.Name()) && (kind.IsRegular() || kind&fs.ModeSymlink != 0):
				l.files = append(l.files, name)
			}
		}
		if stopped := context.Cause(l.ctx); stopped != nil {
			return fmt.Errorf("vision: listing %s ended after %d files: %w", l.dir, len(l.files), stopped)
		}
		if err != nil {
			if len(entries) == 0 && errors.Is(err, io.EOF) {
				break
			}
			return fmt.Errorf("vision: %w", err)
		}
	}
	if !down {
		l.folders = below
		return nil
	}
	slices.Sort(below) // of several ways to a folder, the same is taken everywhere
	for _, name := range below {
		if err := l.enter(name, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// leftovers are the names of folders, in lower case, that macOS, file servers, Windows and
// file systems leave among a user's.
var leftovers = []string{"__macosx", "@eadir", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "lost+found"}

// isLeftover reports whether nobody made a file or folder of this name on purpose. Files such
// as Thumbs.db have no picture's extension.
func isLeftover(name string) bool {
	return name[0] == '.' || slices.Contains(leftovers, strings.ToLower(name))
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func isPicture(name string) bool {
	return slices.ContainsFunc(Extensions, func(e string) bool {
		return len(name) >= len(e) && strings.EqualFold(name[len(name)-len(e):], e)
	})
}

// Classes returns the names of the classes, sorted. It must not be changed.
func (f *Folder) Classes() []string { return f.classes }

// Class returns the class of a file, a place in Classes.
func (f *Folder) Class(index int) int { return int(f.class[index]) }

// Path returns the path of a file.
func (f *Folder) Path(index int) string { return filepath.Join(f.dir, string(f.name(index))) }

func (f *Folder) name(index int) []byte {
	from := 0
	if index > 0 {
		from = f.ends[index-1]
	}
	return f.names[from:f.ends[index]]
}

// Len returns the number of files.
func (f *Folder) Len() int { return len(f.ends) }

// Fields returns "image", of the pipeline's type, and "class", of int64, or as [WithFieldNames] has named
// them: see [nwt.ColumnOf].
func (f *Folder) Fields() []nwt.Field { return f.fields }

// Fingerprint tells what the samples depend on: the names, sizes, times and classes of the
// files, wherever the folder is, and the pipeline. The first call looks at all files, 32 side by
// side, in about the time that listing them took. Later calls return what it found.
func (f *Folder) Fingerprint() string { return f.tell() + " " + f.pipeline.Fingerprint() }

// tellFiles returns the number of the files and a hash of what they are.
func (f *Folder) tellFiles() string {
	type file struct{ size, time int64 }
	files := make([]file, f.Len())
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(32, len(files)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(files); i = int(next.Add(1)) - 1 {
				if info, err := os.Stat(f.Path(i)); err == nil { // else Load tells what is wrong
					files[i] = file{info.Size(), info.ModTime().UnixNano()}
				}
			}
		})
	}
	all.Wait()
	h, line := sha256.New(), []byte(nil)
	fmt.Fprintf(h, "%q", f.classes)
	for i, file := range files {
		line = fmt.Appendf(line[:0], "%d %d %d %q ", f.class[i], file.size, file.time, f.name(i))
		h.Write(line)
	}
	return fmt.Sprintf("vision.Folder: %d files %x;", len(files), h.Sum(nil)[:16])
}

// Load loads a picture. Its errors name the file.
func (f *Folder) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	r, err := nwt.Scratch(dst, newFileReader)
	if err != nil {
		return err
	}
	data, err := r.read(ctx, f.dir, f.name(index))
	if err != nil {
		return err // it names the file
	}
	if err := f.pipeline.load(ctx, dst, 0, data); err != nil {
		return fmt.Errorf("%s: %w", f.Path(index), err)
	}
	nwt.Values[int64](dst, 1)[0] = int64(f.class[index])
	return nil
}

// maxFile bounds the bytes of a picture's file, and maxRead those that are read between
// two looks at the context.
const (
	maxFile = 1 << 30
	maxRead = 1 << 24
)

// checkFile checks a file before it is read.
func checkFile(path string, regular bool, size int64) error {
	if !regular {
		return fmt.Errorf("vision: %s is not a regular file", path)
	}
	if size > maxFile {
		return fmt.Errorf("vision: %s has %d bytes: must be at most %d", path, size, maxFile)
	}
	return nil
}
