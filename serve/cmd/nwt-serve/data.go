package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
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
	offset, size int64 // a whole file has the size maxFile
	label        int
}

// A dataset is what is served: its fields are the data's, "label" if there are classes, and "index".
type dataset struct {
	name, print string
	n           int
	at          func(i int) sample
	fields      []nwt.Field
	fill        func(dst *nwt.Sample, data []byte) error
	labelled    bool
	classes     []string
	files       bool  // a sample is a file
	sizes       []int // of ragged samples
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
	kept.Reset()
	n, err := kept.ReadFrom(io.NewSectionReader(file, s.offset, s.size))
	if err == nil && s.size < maxFile && n < s.size {
		err = io.ErrUnexpectedEOF
	}
	return kept.Bytes(), err
}

// tell writes a line of JSON to stdout, and the path of each sample, with a zero byte. It blocks until they are read.
func (d *dataset) tell(about map[string]any) {
	out := bufio.NewWriter(os.Stdout)
	_ = json.NewEncoder(out).Encode(about)
	_ = out.Flush()
	for i := 0; d.files && i < d.n; i++ {
		_, _ = out.WriteString(d.at(i).path + "\x00")
	}
	_ = out.Flush()
	_ = os.Stdout.Close()
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
		return d, s.windows(d, paths)
	case kind == "shards":
		err = d.shards(ctx, paths)
	case len(paths) == 1 && (about == nil || !about.Mode().IsRegular()):
		err = s.folder(ctx, d, filepath.Clean(paths[0]), kind)
	default:
		d.n, d.at, d.files, d.print = len(paths), func(i int) sample { return sample{paths[i], 0, maxFile, -1} }, true, hash(paths)
	}
	if err != nil {
		return nil, err
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
	extensions := vision.Extensions
	if kind == "files" {
		extensions = strings.FieldsFunc(s.extensions, func(r rune) bool { return r == ',' })
	}
	var opts []folder.Option
	if len(s.classes) > 0 {
		opts = append(opts, folder.WithClasses(s.classes))
	}
	f, err := folder.Open(ctx, dir, extensions, opts...)
	if err != nil {
		return err
	}
	d.n, d.files, d.labelled, d.classes = f.Len(), true, true, f.Classes()
	d.at = func(i int) sample { return sample{f.Path(i), 0, maxFile, f.Class(i)} }
	d.print = hash(f.Dataset(nil, nil).(nwt.Fingerprinter).Fingerprint(), d.classes)
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
	return vision.New(transforms, vision.WithType(nwt.Uint8))
}

// each calls f for 0 … n−1, some at a time.
func each(n int, f func(i int) error) error {
	g := new(errgroup.Group)
	g.SetLimit(32)
	for i := range n {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
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
	of := make([][]sample, len(names))
	err := each(len(names), func(i int) (err error) {
		if of[i], err = shard(ctx, names[i]); err != nil {
			err = fmt.Errorf("%s: %w", names[i], err)
		}
		return err
	})
	if err != nil {
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
		if errors.Is(err, tar.ErrHeader) {
			return nil, errors.New("must be a tar file that isn't compressed")
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
				return nil, fmt.Errorf("%s: %.20q: must be the number of a class, 0 or more", h.Name, text)
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
func (s *settings) windows(d *dataset, files []string) error {
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
		if !info.Mode().IsRegular() || strings.HasSuffix(file, ".npy") {
			return fmt.Errorf("%s: must be a file of nothing but tokens, as NumPy's tofile writes it", file)
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
		return sample{files[f], int64((i - begin) * s.length * width), int64((s.length + 1) * width), -1}
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
