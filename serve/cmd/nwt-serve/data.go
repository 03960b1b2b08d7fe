package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/vision"
	"github.com/nwt-go/nwt/wds"
)

const maxFile = 1 << 30 // bytes

// A sample is a file or a part of one, and its class.
type sample struct {
	path         string
	key          string // in a shard
	offset, size int64  // a whole file has the size maxFile
	label        int
	bad          error // why it can't be loaded
}

// A dataset is what is served: its fields are the data's, "label" if there are classes, and "index".
type dataset struct {
	name     string
	print    string        // what samples depend on, but for the files' sizes and times …
	marks    func() string // … and these, computed once
	beside   bool          // the marks aren't part of the fingerprint, but told: a state needs them, and opening doesn't
	n        int
	at       func(i int) sample
	fields   []nwt.Field
	fill     func(dst *nwt.Sample, data []byte) error
	labelled bool
	classes  []string
	files    bool  // a sample is a file
	sizes    []int // of ragged samples
}

func (d *dataset) Len() int            { return d.n }
func (d *dataset) Fields() []nwt.Field { return d.fields }
func (d *dataset) Path(i int) string   { return d.at(i).path }

func (d *dataset) WritesAll(asked nwt.Dataset) bool { return asked == nwt.Dataset(d) }

func (d *dataset) Fingerprint() string {
	if d.beside {
		return d.print
	}
	return d.print + " " + d.marks()
}

func (d *dataset) Load(_ context.Context, i int, dst *nwt.Sample) error {
	s := d.at(i)
	data, err := s.read(dst)
	if err == nil {
		err = d.fill(dst, data)
	}
	if err != nil && s.key != "" {
		err = fmt.Errorf("%s: %w", s.key, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	if d.labelled {
		nwt.Values[int64](dst, 1)[0] = int64(s.label)
	}
	nwt.Values[int64](dst, len(d.fields)-1)[0] = int64(i)
	return nil
}

// read reads a sample into memory that its worker keeps.
func (s sample) read(dst *nwt.Sample) ([]byte, error) {
	if s.bad != nil {
		return nil, s.bad
	}
	kept, err := nwt.Scratch(dst, func() (*bytes.Buffer, error) { return new(bytes.Buffer), nil })
	if err != nil {
		return nil, err
	}
	file, err := os.Open(s.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	kept.Reset()
	n, err := kept.ReadFrom(io.NewSectionReader(file, s.offset, s.size))
	if err == nil && s.size < maxFile && n < s.size {
		err = io.ErrUnexpectedEOF
	}
	return kept.Bytes(), err
}

// paths returns the path of each sample that is a file, each with a zero byte.
func (d *dataset) paths() (text []byte) {
	for i := 0; d.files && i < d.n; i++ {
		text = append(append(text, d.at(i).path...), 0)
	}
	return text
}

// open finds the samples.
func (s *settings) open(ctx context.Context) (*dataset, error) {
	var given []string
	for name, paths := range s.data {
		if len(*paths) > 0 {
			given = append(given, name)
		}
	}
	if len(given) != 1 {
		return nil, errors.New("must have exactly one of -images, -files, -shards and -tokens")
	}
	kind := given[0]
	paths := *s.data[kind]
	d := &dataset{name: fmt.Sprintf("%s %s %d", kind, paths[0], len(paths))}
	var err error
	switch about, _ := os.Stat(paths[0]); {
	case kind == "tokens":
		d.marked(len(paths), func(i int) string { return paths[i] })
		return d, s.windows(d, paths)
	case kind == "shards":
		err = d.shards(ctx, paths)
	case len(paths) == 1 && (about == nil || !about.Mode().IsRegular()):
		err = s.folder(ctx, d, filepath.Clean(paths[0]), kind)
	default:
		d.n, d.at, d.files, d.print = len(paths), func(i int) sample { return sample{path: paths[i], size: maxFile, label: -1} }, true, hash(paths)
	}
	if err != nil {
		return nil, err
	}
	if d.marks == nil {
		d.marked(d.n, func(i int) string { return d.at(i).path })
	}
	if kind == "files" {
		return d, d.bytes()
	}
	p, err := s.pipeline()
	if err != nil {
		return nil, err
	}
	d.print = hash(d.print, p.Fingerprint())
	d.with(p.Field("image"), func(dst *nwt.Sample, data []byte) error { return p.Load(dst, 0, data) })
	return d, nil
}

// with completes the fields.
func (d *dataset) with(data nwt.Field, fill func(dst *nwt.Sample, data []byte) error) {
	d.fields, d.fill = []nwt.Field{data}, fill
	if d.labelled {
		d.fields = append(d.fields, nwt.Field{Name: "label", Type: nwt.Int64})
	}
	d.fields = append(d.fields, nwt.Field{Name: "index", Type: nwt.Int64})
}

func (s *settings) folder(ctx context.Context, d *dataset, dir, kind string) error {
	extensions := vision.Extensions()
	if kind == "files" {
		extensions = strings.FieldsFunc(s.extensions, func(r rune) bool { return r == ',' })
	}
	opts := []folder.Option{folder.WithoutStrayFiles()}
	if len(*s.classes) > 0 {
		opts = append(opts, folder.WithClasses(*s.classes))
	}
	f, err := folder.Open(ctx, dir, extensions, nil, nil, opts...)
	if err != nil {
		return err
	}
	d.n, d.files, d.labelled, d.classes = f.Len(), true, true, f.Classes()
	d.at = func(i int) sample { return sample{path: f.Path(i), size: maxFile, label: f.Class(i)} }
	names := sha256.New()
	for i := range f.Len() { // wherever the folder is
		_, _ = fmt.Fprintf(names, "%s\x00%d ", strings.TrimPrefix(f.Path(i), dir), f.Class(i))
	}
	d.print = hash(names.Sum(nil), d.classes)
	return nil
}

func (s *settings) pipeline() (*vision.Pipeline, error) {
	size := vision.Size{Height: int(s.size[0]), Width: int(s.size[len(s.size)-1])}
	transforms := []vision.Transform{vision.Resize{Shorter: max(size.Height, size.Width) * 8 / 7}, vision.CenterCrop{Size: size}}
	if s.train {
		transforms = []vision.Transform{vision.RandomResizedCrop{Size: size, Scale: [2]float64(s.scale), Ratio: [2]float64(s.ratio)}}
		if s.flip != 0 {
			transforms = append(transforms, vision.RandomHorizontalFlip{P: s.flip})
		}
		if j := s.jitter; slices.Max(j) > 0 {
			transforms = append(transforms, vision.ColorJitter{Brightness: j[0], Contrast: j[1], Saturation: j[2], Hue: j[3]})
		}
	}
	kind, known := map[string]nwt.DType{"": nwt.Uint8, "uint8": nwt.Uint8, "float32": nwt.Float32, "float16": nwt.Float16, "bfloat16": nwt.BFloat16}[s.dtype]
	if !known {
		return nil, fmt.Errorf("-dtype %s: must be uint8, float32, float16 or bfloat16", s.dtype)
	}
	if n := s.normalize; n != nil {
		transforms = append(transforms, vision.Normalize{Mean: [3]float64(n), Std: [3]float64(n[3:])})
	}
	layout := vision.CHW
	if s.transform != nil {
		layout = vision.HWC
	}
	return vision.New(transforms, vision.WithType(kind), vision.WithLayout(layout))
}

// marked sets the files whose sizes and times the samples depend on.
func (d *dataset) marked(n int, path func(i int) string) {
	d.marks = sync.OnceValue(func() string {
		marks := make([][2]int64, n)
		_ = each(n, func(i int) error {
			if info, err := os.Stat(path(i)); err == nil { // else loading says what is wrong
				marks[i] = [2]int64{info.Size(), info.ModTime().UnixNano()}
			}
			return nil
		})
		return hash(marks)
	})
}

// each calls f for 0 … n−1, some at a time, and returns the first error.
func each(n int, f func(i int) error) error {
	var all errgroup.Group
	all.SetLimit(16)
	for i := range n {
		all.Go(func() error { return f(i) })
	}
	return all.Wait()
}

// bytes serves the bytes of files, "data", in batches as long as their longest.
func (d *dataset) bytes() error {
	d.sizes = make([]int, d.n)
	err := each(d.n, func(i int) error {
		info, err := os.Stat(d.at(i).path)
		if err == nil && (!info.Mode().IsRegular() || info.Size() > maxFile) {
			err = fmt.Errorf("%s: must be a file of at most %d bytes", d.at(i).path, maxFile)
		}
		if err == nil {
			d.sizes[i] = int(info.Size())
		}
		return err
	})
	if err != nil {
		return err
	}
	d.with(nwt.Field{Name: "data", Type: nwt.Uint8, Shape: []int{max(1, slices.Max(d.sizes))}, RaggedDims: 1}, func(dst *nwt.Sample, data []byte) error {
		dst.SetLen(0, len(data))
		copy(dst.Bytes(0), data)
		return nil
	})
	return nil
}

// shards finds the pictures of tar files.
func (d *dataset) shards(ctx context.Context, names []string) error {
	dir, within, err := inOneFolder(names)
	if err != nil {
		return err
	}
	extensions := vision.Extensions()
	for i, extension := range extensions {
		extensions[i] = extension[1:]
	}
	labels, pictures := false, 0
	var none error // why a sample has no picture
	all, err := wds.Locate(ctx, os.DirFS(dir), within, []string{"cls"}, func(r *wds.Record) (s sample, err error) {
		s = sample{path: filepath.Join(dir, filepath.FromSlash(r.Shard)), key: r.Key}
		if s.offset, s.size, s.bad = r.Range(extensions...); s.bad == nil && s.size > maxFile {
			s.bad = fmt.Errorf("a picture of %d bytes: must be at most %d", s.size, maxFile)
		}
		text, missing := r.File("cls")
		if missing != nil {
			s.label = -1
			return s, nil
		}
		class := strings.TrimSpace(string(text))
		if s.label, err = strconv.Atoi(class); err != nil || strconv.Itoa(s.label) != class || s.label < 0 {
			return s, fmt.Errorf("%s: %s.cls: %.20q: must be the number of a class, 0 or more", s.path, r.Key, text)
		}
		return s, nil
	})
	if of, ok := errors.AsType[*fs.PathError](err); ok && !filepath.IsAbs(of.Path) {
		of.Path = filepath.Join(dir, of.Path)
	}
	if err != nil {
		return err
	}
	parts, files := sha256.New(), []string(nil)
	for i, s := range all {
		_, _ = fmt.Fprint(parts, strings.TrimPrefix(s.path, dir), s.offset, s.size, s.label, " ")
		labels = labels || s.label >= 0
		if i == 0 || s.path != all[i-1].path {
			files = append(files, s.path)
		}
		if s.bad == nil {
			pictures++
		} else if none == nil {
			none = fmt.Errorf("%s: %s: %w", s.path, s.key, all[i].bad)
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("no sample in %d shards", len(names))
	}
	if pictures == 0 {
		return fmt.Errorf("no picture in %d shards: %w", len(names), none)
	}
	for i := range all {
		if s := &all[i]; labels && s.label < 0 && s.bad == nil {
			s.bad = errors.New("no file cls with its class, which other samples have")
		}
	}
	d.n, d.at, d.print, d.labelled = len(all), func(i int) sample { return all[i] }, hash(parts.Sum(nil)), labels
	d.marked(len(files), func(i int) string { return files[i] })
	return nil
}

// inOneFolder returns a folder that contains all of the paths, and their names in it.
func inOneFolder(paths []string) (dir string, within []string, err error) {
	if dir, err = filepath.Abs(paths[0]); err != nil {
		return "", nil, err
	}
	for len(within) < len(paths) {
		up := filepath.Dir(dir)
		if up == dir {
			return "", nil, errors.New("shards must be on one disk")
		}
		dir, within = up, nil
		for _, one := range paths {
			whole, _ := filepath.Abs(one) // as the first
			name, err := filepath.Rel(dir, whole)
			if err != nil || !filepath.IsLocal(name) || strings.Contains(dir, "{") {
				break
			}
			within = append(within, filepath.ToSlash(name))
		}
	}
	return dir, within, nil
}

// windows serves windows of files of tokens.
func (s *settings) windows(d *dataset, files []string) error {
	s.dtype = cmp.Or(s.dtype, "uint16")
	width := map[string]int{"uint8": 1, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8}[s.dtype]
	if width == 0 || s.length < 1 || s.length > 1<<24 {
		return fmt.Errorf("-dtype %s, -length %d: must be uint8, uint16, int32, uint32 or int64, and from 1 to %d", s.dtype, s.length, 1<<24)
	}
	var ends []int // of the files, in windows
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || begins(file, "\x93NUMPY") {
			return fmt.Errorf("%s: must be a file of nothing but tokens, as NumPy's tofile writes it (save writes a header)", file)
		}
		if info.Size()%int64(width) != 0 {
			return fmt.Errorf("%s has %d bytes: must be a whole number of tokens of type %s", file, info.Size(), s.dtype)
		}
		d.n += max(0, int(info.Size())/width-1) / s.length
		ends = append(ends, d.n)
	}
	if d.n == 0 {
		return fmt.Errorf("no window of %d tokens (-length + 1) in %d files", s.length+1, len(files))
	}
	d.at = func(i int) sample {
		f, begin := 0, 0
		if f, _ = slices.BinarySearch(ends, i+1); f > 0 {
			begin = ends[f-1]
		}
		return sample{path: files[f], offset: int64((i - begin) * s.length * width), size: int64((s.length + 1) * width), label: -1}
	}
	d.print = hash(files, ends, s.length, s.dtype)
	d.with(nwt.Field{Name: "tokens", Type: nwt.Int64, Shape: []int{s.length + 1}}, func(dst *nwt.Sample, data []byte) error {
		for k, to := 0, nwt.Values[int64](dst, 0); k < len(to); k++ {
			to[k] = 0
			for i := width - 1; i >= 0; i-- {
				to[k] = to[k]<<8 | int64(data[k*width+i])
			}
			if s.dtype == "int32" {
				to[k] = int64(int32(to[k]))
			}
		}
		return nil
	})
	return nil
}

// begins reports whether a file begins with text.
func begins(path, text string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false // reading it says what is wrong
	}
	defer file.Close()
	head := make([]byte, len(text))
	_, err = io.ReadFull(file, head)
	return err == nil && string(head) == text
}

// list returns a name, or the lines of the file @name. A name that begins with @ is written @@.
func list(text string) ([]string, error) {
	name, isFile := strings.CutPrefix(text, "@")
	if !isFile || strings.HasPrefix(name, "@") {
		return []string{name}, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if i := slices.Index(lines, ""); i >= 0 {
		return nil, fmt.Errorf("%s: line %d is empty", name, i+1)
	}
	return lines, nil
}

func hash(of ...any) string { return fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, of...))) }
