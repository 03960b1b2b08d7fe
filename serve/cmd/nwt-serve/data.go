package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/vision"
)

const maxFile = 1 << 30 // bytes

// A sample is a file or a part of one, and its class.
type sample struct {
	path         string
	offset, size int64
	label        int
}

// A dataset is what is served: its fields are the data's, "label" if there are classes, and "index".
type dataset struct {
	n        int
	at       func(i int) sample
	fields   []nwt.Field
	fill     func(dst *nwt.Sample, data []byte) error
	labelled bool
	classes  []string
	files    bool  // a sample is a file
	sizes    []int // of ragged samples
	print    string
}

func (d *dataset) Len() int            { return d.n }
func (d *dataset) Fields() []nwt.Field { return d.fields }
func (d *dataset) Fingerprint() string { return d.print }

func (d *dataset) Load(_ context.Context, i int, dst *nwt.Sample) error {
	s := d.at(i)
	data, err := s.read(dst)
	if err == nil {
		err = d.fill(dst, data)
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
	kept, err := nwt.Scratch(dst, func() (*bytes.Buffer, error) { return new(bytes.Buffer), nil })
	if err != nil {
		return nil, err
	}
	file, err := os.Open(s.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if s.size < 0 {
		info, err := file.Stat()
		if err != nil {
			return nil, err
		}
		if s.size = info.Size(); !info.Mode().IsRegular() {
			return nil, errors.New("not a regular file")
		}
	}
	if s.size > maxFile {
		return nil, fmt.Errorf("%d bytes: must be at most %d", s.size, maxFile)
	}
	kept.Reset()
	kept.Grow(int(s.size))
	data := kept.AvailableBuffer()[:s.size]
	_, err = file.ReadAt(data, s.offset) // also io.EOF: the file has become shorter
	return data, err
}

// open finds the samples.
func (s *settings) open(ctx context.Context) (*dataset, error) {
	var kinds []string
	for _, kind := range []string{"images", "files", "shards", "tokens"} {
		if *s.data[kind] != "" {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) != 1 {
		return nil, errors.New("one of -images, -files, -shards and -tokens says what is served")
	}
	kind, ds := kinds[0], &dataset{}
	what := *s.data[kind]
	s.name = kind + " " + what
	var err error
	switch {
	case kind == "tokens":
		return ds, s.windows(ds, what)
	case kind == "shards":
		err = ds.shards(ctx, what)
	case strings.HasPrefix(what, "@"):
		var paths []string
		paths, err = list(what)
		ds.n, ds.at, ds.files, ds.print = len(paths), func(i int) sample { return sample{paths[i], 0, -1, -1} }, true, hash(paths)
	default:
		extensions := vision.Extensions
		if kind == "files" {
			extensions = strings.FieldsFunc(s.extensions, func(r rune) bool { return r == ',' })
		}
		err = s.folder(ctx, ds, what, extensions)
	}
	if err != nil {
		return nil, err
	}
	if kind == "files" {
		return ds, ds.bytes()
	}
	p, err := s.pipeline()
	if err != nil {
		return nil, err
	}
	ds.print = hash(ds.print, p.Fingerprint())
	ds.with(p.Field("image"), func(dst *nwt.Sample, data []byte) error { return p.Load(dst, 0, data) })
	return ds, nil
}

// with completes the fields.
func (d *dataset) with(data nwt.Field, fill func(dst *nwt.Sample, data []byte) error) {
	d.fields, d.fill = []nwt.Field{data}, fill
	if d.labelled {
		d.fields = append(d.fields, nwt.Field{Name: "label", Type: nwt.Int64})
	}
	d.fields = append(d.fields, nwt.Field{Name: "index", Type: nwt.Int64})
}

func (s *settings) folder(ctx context.Context, ds *dataset, dir string, extensions []string) error {
	f, err := folder.Open(ctx, dir, extensions)
	if err != nil {
		return err
	}
	ds.n, ds.files, ds.labelled, ds.classes = f.Len(), true, true, f.Classes()
	if s.classes != "" {
		if ds.classes, err = list("@" + s.classes); err != nil {
			return err
		}
	}
	var number []int
	for _, class := range f.Classes() {
		i := slices.Index(ds.classes, class)
		if i < 0 {
			return fmt.Errorf("%s has a class %q that isn't among the %d given", dir, class, len(ds.classes))
		}
		number = append(number, i)
	}
	ds.at = func(i int) sample { return sample{f.Path(i), 0, -1, number[f.Class(i)]} }
	ds.print = hash(f.Dataset(nil, nil).(nwt.Fingerprinter).Fingerprint(), ds.classes)
	return nil
}

func (s *settings) pipeline() (*vision.Pipeline, error) {
	size := vision.Size{Height: int(s.size[0]), Width: int(s.size[len(s.size)-1])}
	transforms := []vision.Transform{vision.Resize{Shorter: max(size.Height, size.Width) * 8 / 7}, vision.CenterCrop{Size: size}}
	if s.train {
		crop := vision.RandomResizedCrop{Size: size, Scale: [2]float64(s.scale), Ratio: [2]float64(s.ratio)}
		transforms = []vision.Transform{crop}
		if s.flip[0] > 0 { // 0 would be the default
			transforms = append(transforms, vision.RandomHorizontalFlip{P: s.flip[0]})
		}
		if j := s.jitter; slices.Max(j) > 0 {
			transforms = append(transforms, vision.ColorJitter{Brightness: j[0], Contrast: j[1], Saturation: j[2], Hue: j[3]})
		}
	}
	return vision.New(transforms, vision.WithType(nwt.Uint8))
}

// bytes serves the bytes of files, "data", in batches as long as their longest.
func (d *dataset) bytes() error {
	d.sizes = make([]int, d.n)
	g := new(errgroup.Group)
	g.SetLimit(32)
	for i := range d.n {
		g.Go(func() error {
			info, err := os.Stat(d.at(i).path)
			if err == nil && info.Size() > maxFile {
				err = fmt.Errorf("%s has %d bytes: must be at most %d", d.at(i).path, info.Size(), maxFile)
			}
			if err == nil {
				d.sizes[i] = int(info.Size())
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
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
func (d *dataset) shards(ctx context.Context, what string) error {
	names, err := list(what)
	if err != nil {
		return err
	}
	of := make([][]sample, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i, name := range names {
		g.Go(func() (err error) {
			if of[i], err = shard(ctx, name); err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	all := slices.Concat(of...)
	if len(all) == 0 {
		return fmt.Errorf("no picture in %d shards", len(names))
	}
	without := slices.IndexFunc(all, func(s sample) bool { return s.label < 0 })
	d.n, d.at, d.print, d.labelled = len(all), func(i int) sample { return all[i] }, hash(all), without < 0
	if without >= 0 && slices.ContainsFunc(all, func(s sample) bool { return s.label >= 0 }) {
		return fmt.Errorf("%s: sample %d has no class, and others have one", all[without].path, without)
	}
	return nil
}

// shard reads the headers of a tar file. Files that follow each other and have a key are a sample.
func shard(ctx context.Context, name string) (all []sample, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, key := tar.NewReader(file), ""
	for ctx.Err() == nil {
		h, err := r.Next()
		if err == io.EOF {
			return slices.DeleteFunc(all, func(s sample) bool { return s.size < 0 }), nil
		}
		if err != nil {
			return nil, err
		}
		first, ext, found := strings.Cut(path.Base(h.Name), ".")
		if h.Typeflag != tar.TypeReg || !found || first == "" || strings.HasPrefix(h.Name, "__") {
			continue
		}
		if is := path.Join(path.Dir(h.Name), first); is != key || len(all) == 0 {
			key, all = is, append(all, sample{name, 0, -1, -1})
		}
		s := &all[len(all)-1]
		switch ext = "." + strings.ToLower(ext); {
		case ext == ".cls":
			text, err := io.ReadAll(io.LimitReader(r, 20))
			if s.label, _ = strconv.Atoi(strings.TrimSpace(string(text))); err != nil || strconv.Itoa(s.label) != strings.TrimSpace(string(text)) || s.label < 0 {
				return nil, fmt.Errorf("%s: %.20q is no class's number", h.Name, text)
			}
		case slices.Contains(vision.Extensions, ext) && s.size < 0:
			if s.offset, err = file.Seek(0, io.SeekCurrent); err != nil {
				return nil, err
			}
			s.size = h.Size
		}
	}
	return nil, context.Cause(ctx)
}

// windows serves windows of files of tokens.
func (s *settings) windows(ds *dataset, what string) error {
	width := map[string]int{"uint8": 1, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8}[s.dtype]
	if width == 0 || s.length < 1 || s.length > 1<<24 {
		return fmt.Errorf("-dtype %s, -length %d: must be uint8, uint16, int32, uint32 or int64, and from 1 to %d", s.dtype, s.length, 1<<24)
	}
	files, err := list(what)
	if err != nil {
		return err
	}
	var ends []int
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		if info.Size()%int64(width) != 0 {
			return fmt.Errorf("%s has %d bytes: no whole number of tokens of type %s", file, info.Size(), s.dtype)
		}
		ds.n += max(0, int(info.Size())/width-1) / s.length
		ends = append(ends, ds.n)
	}
	if ds.n == 0 {
		return fmt.Errorf("no window of %d tokens in %d files", s.length+1, len(files))
	}
	ds.at = func(i int) sample {
		f, begin := 0, 0
		if f, _ = slices.BinarySearch(ends, i+1); f > 0 {
			begin = ends[f-1]
		}
		return sample{files[f], int64((i - begin) * s.length * width), int64((s.length + 1) * width), -1}
	}
	ds.print = hash(files, ends, s.length, s.dtype)
	unused := 64 - 8*width
	ds.with(nwt.Field{Name: "tokens", Type: nwt.Int64, Shape: []int{s.length + 1}}, func(dst *nwt.Sample, data []byte) error {
		for k, to := 0, nwt.Values[int64](dst, 0); k < len(to); k++ {
			token := int64(0)
			for i := width - 1; i >= 0; i-- {
				token = token<<8 | int64(data[k*width+i])
			}
			if s.dtype == "int32" {
				token = token << unused >> unused
			}
			to[k] = token
		}
		return nil
	})
	return nil
}

// list returns what is named: text itself, or the lines of the file @text. If that has zero bytes, these end its lines.
func list(text string) ([]string, error) {
	name, isFile := strings.CutPrefix(text, "@")
	if !isFile {
		return []string{text}, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	end := "\n"
	if bytes.IndexByte(data, 0) >= 0 {
		end = "\x00"
	}
	lines := strings.Split(strings.TrimSuffix(string(data), end), end)
	if i := slices.Index(lines, ""); i >= 0 {
		return nil, fmt.Errorf("%s: line %d is empty", name, i+1)
	}
	return lines, nil
}

func hash(of ...any) string { return fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, of...))) }
