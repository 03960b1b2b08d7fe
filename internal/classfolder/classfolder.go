// Package classfolder lists the files of a folder in which each subfolder is a class.
package classfolder

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/files"
)

// Files are the files of all classes: sorted by class, within a class by folder, and within a folder by
// name.
type Files struct {
	dir     string
	Classes []string // sorted, or those of Options

	// names holds the names of all files, relative to dir and with slashes, one after the other: name i
	// is names[ends[i-1]:ends[i]].
	names []byte
	ends  []int
	class []int32

	content bool          // Tell depends on the files' bytes
	tell    func() string // describes the files
}

// Options say which files to list.
type Options struct {
	Package    string   // that lists, for its log line
	Extensions []string // of files that are taken; none: all files
	Classes    []string // if not nil, the only classes there may be, by number
	KeepEmpty  bool     // classes without files
	SkipStray  bool     // files that are in no class's folder
	Content    bool     // Tell depends on the files' bytes, not on their times
}

// List lists files. It logs how many it passes over, and their extensions. Its errors don't name the
// calling package.
func List(ctx context.Context, dir string, o Options) (*Files, error) {
	f := &Files{dir: dir, content: o.Content}
	kind := "file"
	if len(o.Extensions) > 0 {
		kind = strings.Join(o.Extensions, ", ") + " file"
	}
	l := listing{ctx: ctx, dir: dir, extensions: o.Extensions, passed: map[string]int{}}
	if err := l.list("", false); err != nil {
		return nil, err
	}
	root, err := filepath.EvalSymlinks(dir) // after list, whose error names dir
	if err != nil {
		return nil, err
	}
	slices.Sort(l.files)
	stray := l.files
	switch {
	case len(stray) > 0 && len(l.folders) == 0:
		return nil, fmt.Errorf("%s has no folders of classes: put its files into DIR/CLASS/, or, for files without classes, write an nwt.NewDataset (in Python, give Images or Files a list of paths): %s", dir, some(stray))
	case len(stray) > 0 && !o.SkipStray:
		return nil, fmt.Errorf("%s has files that are in no class's folder (in Go, folder.WithoutStrayFiles skips them): %s", dir, some(stray))
	}
	for _, name := range stray {
		l.pass(name)
	}
	folders := l.folders
	slices.Sort(folders)
	if f.Classes = folders; o.Classes != nil {
		f.Classes = slices.Clone(o.Classes)
	}
	number := make(map[string]int, len(f.Classes))
	for i, class := range f.Classes {
		if _, twice := number[class]; twice {
			return nil, fmt.Errorf("the class %q comes twice among the classes given", class)
		}
		number[class] = i
	}
	if unknown := slices.DeleteFunc(slices.Clone(folders), func(class string) bool { _, known := number[class]; return known }); len(unknown) > 0 {
		for i, name := range unknown {
			unknown[i] = quoted(name)
		}
		return nil, fmt.Errorf("%s has classes that aren't among the classes given: %s", dir, some(unknown))
	}
	slices.SortFunc(folders, func(a, b string) int { return number[a] - number[b] })
	var empty []string
	for _, class := range folders {
		l.files, l.seen = l.files[:0], map[string]bool{root: true}
		if err := l.enter(class); err != nil {
			return nil, err
		}
		if len(l.files) == 0 {
			empty = append(empty, class)
		}
		f.add(number[class], l.files)
	}
	l.log(o.Package)
	if o.Classes == nil && len(folders) > 0 && !slices.ContainsFunc(folders, func(class string) bool { return !slices.Contains(splits, strings.ToLower(class)) }) {
		slog.WarnContext(ctx, o.Package+": the classes are called like splits: to load one of them, open its folder", "folder", dir, "classes", strings.Join(folders, ", "))
	}
	if len(f.ends) == 0 {
		return nil, fmt.Errorf("%s has no class folder with a %s (DIR/CLASS/FILE)", dir, kind)
	}
	if len(empty) > 0 && !o.KeepEmpty && o.Classes == nil {
		return nil, fmt.Errorf("%s has classes without a %s (to keep them, give folder.WithEmptyClasses or, in Python, the names of all classes): %s", dir, kind, some(empty))
	}
	f.names, f.ends, f.class = slices.Clip(f.names), slices.Clip(f.ends), slices.Clip(f.class)
	f.tell = sync.OnceValue(f.tellFiles)
	return f, nil
}

// splits are the names, in lower case, that people give to the parts of a dataset.
var splits = []string{"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation"}

// Difference returns the first class to which two folders give different numbers, as far as both have
// classes; "" if there is none.
func Difference(got, want []string) string {
	for k := range min(len(got), len(want)) {
		if a, b := got[k], want[k]; a != b {
			return fmt.Sprintf("class %d is %s, not %s: open both folders WithClasses, so that a class has one number", k, quoted(a), quoted(b))
		}
	}
	return ""
}

// quoted returns a name in quotes and, if it isn't ASCII, its characters by number too: two names may look
// the same.
func quoted(name string) string {
	q, numbers := strconv.Quote(name), strconv.QuoteToASCII(name)
	if q == numbers {
		return q
	}
	return q + " (" + numbers + ")"
}

// pass counts a file that is passed over.
func (l *listing) pass(name string) {
	extension := strings.ToLower(path.Ext(name))
	if _, known := l.passed[extension]; extension == "" || !known && len(l.passed) >= 20 {
		extension = "others"
	}
	l.passed[extension]++
}

// log says which files were passed over.
func (l *listing) log(name string) {
	total, kinds := 0, slices.Sorted(maps.Keys(l.passed))
	for i, kind := range kinds {
		total += l.passed[kind]
		kinds[i] = fmt.Sprintf("%s: %d", kind, l.passed[kind])
	}
	if total > 0 {
		slog.WarnContext(l.ctx, name+": files were passed over", "folder", l.dir, "files", total, "extensions", strings.Join(kinds, ", "))
	}
}

// some returns the first few of the names.
func some(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// add adds the files of a class.
func (f *Files) add(class int, files []string) {
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
	extensions     []string        // none: all files are taken
	files, folders []string        // relative to dir
	seen           map[string]bool // the folders of the class, by their paths without links
	passed         map[string]int  // files that are passed over, by their extensions
}

// enter lists a folder and everything below it, unless this class has it already.
func (l *listing) enter(name string) error {
	real, err := filepath.EvalSymlinks(filepath.Join(l.dir, name))
	if err != nil {
		return err
	}
	if l.seen[real] {
		return nil
	}
	l.seen[real] = true
	return l.list(name, true)
}

// list collects the files of a folder. If down is set, it then lists the folders in it; otherwise it
// collects their names.
func (l *listing) list(folder string, down bool) error {
	d, err := os.Open(filepath.Join(l.dir, folder))
	if err != nil {
		return err
	}
	defer d.Close()
	var below []string
	for {
		entries, err := d.ReadDir(1024)
		for _, e := range entries {
			if files.IsLeftover(e.Name()) {
				if down && len(l.extensions) > 0 && e.Name()[0] == '.' && !strings.HasPrefix(e.Name(), "._") && !e.IsDir() && l.takes(e.Name()) {
					l.passed["hidden"]++
				}
				continue
			}
			name := path.Join(folder, e.Name()) // sorts alike on all systems
			kind, leads := e.Type(), error(nil)
			isFolder := kind.IsDir()
			if kind&fs.ModeSymlink != 0 && (!down || len(l.extensions) == 0 || !l.takes(e.Name())) {
				var info fs.FileInfo
				if info, leads = os.Stat(filepath.Join(l.dir, name)); leads == nil {
					isFolder = info.IsDir()
				} else if !errors.Is(leads, fs.ErrNotExist) {
					return leads
				}
			}
			switch {
			case isFolder:
				below = append(below, name)
			case !down && leads != nil: // it may be a class on a disk that isn't there
				l.files = append(l.files, name)
			case l.takes(e.Name()) && (kind.IsRegular() || kind&fs.ModeSymlink != 0):
				l.files = append(l.files, name)
			default:
				l.pass(name)
			}
		}
		if stopped := context.Cause(l.ctx); stopped != nil {
			return fmt.Errorf("listing %s ended after %d files: %w", l.dir, len(l.files), stopped)
		}
		if err != nil {
			if len(entries) == 0 && errors.Is(err, io.EOF) {
				break
			}
			return err
		}
	}
	if !down {
		l.folders = below
		return nil
	}
	slices.Sort(below) // if there are several paths to a folder, every system takes the same one
	for _, name := range below {
		if err := l.enter(name); err != nil {
			return err
		}
	}
	return nil
}

func (l *listing) takes(name string) bool {
	return len(l.extensions) == 0 || slices.ContainsFunc(l.extensions, func(e string) bool {
		return len(name) >= len(e) && strings.EqualFold(name[len(name)-len(e):], e)
	})
}

// Class returns the class of a file.
func (f *Files) Class(index int) int { return int(f.class[index]) }

// Path returns the path of a file.
func (f *Files) Path(index int) string { return filepath.Join(f.dir, string(f.name(index))) }

// name returns a file's name with its folders, relative to dir.
func (f *Files) name(index int) []byte {
	from := 0
	if index > 0 {
		from = f.ends[index-1]
	}
	return f.names[from:f.ends[index]]
}

// Len returns the number of files.
func (f *Files) Len() int { return len(f.ends) }

// Tell returns the number of the files, and hashes of their names with their classes, of their sizes, and
// of their times or bytes: each apart, so that who compares sees what differs. Only the first call looks at
// the files.
func (f *Files) Tell() string { return f.tell() }

// tellFiles computes what Tell returns.
func (f *Files) tellFiles() string {
	type file struct{ size, mark int64 }
	files := make([]file, f.Len())
	f.Each(func(i int) bool {
		info, err := os.Stat(f.Path(i))
		switch {
		case err != nil: // Load reports what is wrong
		case f.content && info.Mode().IsRegular():
			files[i] = file{info.Size(), ends(f.Path(i), info.Size())}
		case f.content:
			files[i].size = info.Size()
		default:
			files[i] = file{info.Size(), info.ModTime().UnixNano()}
		}
		return true
	})
	mark := "times"
	if f.content {
		mark = "ends"
	}
	names, sizes, marks := sha256.New(), sha256.New(), sha256.New()
	fmt.Fprintf(names, "%q", f.Classes)
	for i, file := range files {
		fmt.Fprintf(names, "%d %q ", f.class[i], f.name(i))
		fmt.Fprintf(sizes, "%d ", file.size)
		fmt.Fprintf(marks, "%d ", file.mark)
	}
	return fmt.Sprintf("%d files, names %x, sizes %x, %s %x;", len(files), names.Sum(nil)[:12], sizes.Sum(nil)[:12], mark, marks.Sum(nil)[:12])
}

// ends returns a hash of a file's first and last 4 kB, or 0 if it can't be read.
func ends(path string, size int64) int64 {
	const most = 1 << 12
	d, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer d.Close()
	var b [2 * most]byte
	n, err := d.ReadAt(b[:min(most, size)], 0)
	if err == nil && size > most {
		var k int
		k, err = d.ReadAt(b[n:][:min(most, size-most)], max(most, size-most))
		n += k
	}
	if err != nil {
		return 0
	}
	sum := sha256.Sum256(b[:n])
	return int64(binary.LittleEndian.Uint64(sum[:]))
}

// Each calls look for each file, 32 at a time, until one of the calls returns false.
func (f *Files) Each(look func(index int) bool) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(32, f.Len()) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < f.Len(); i = int(next.Add(1)) - 1 {
				if !look(i) {
					next.Store(int64(f.Len()))
				}
			}
		})
	}
	all.Wait()
}
