// Package wds reads and writes shards in the format of WebDataset. A shard is a tar file in which the files
// of a sample follow each other and have the same key.
//
//	cat/0001.jpg   key "cat/0001", extension "jpg"
//	cat/0001.cls
//	cat/0002.jpg
//	cat/0002.cls
//
// A key is the path up to the first dot of its last element. The part after that dot is the extension, in
// lower case. Files without a key or an extension are ignored, and so are files named __…__ at the top
// level. Files that systems leave behind are ignored too: files and folders whose names begin with a dot,
// __MACOSX, @eaDir, Thumbs.db and the like. Shards may be compressed by gzip or Zstandard.
//
// Shards are checked for damage. A shard must have tar's end marker, with nothing but zeros after it. A
// compressed shard must also be complete, with the right checksum; Zstandard may have written none. If a shard
// was truncated or damaged, reading it ends with an error. The last sample of such a shard may lack files, so
// it isn't delivered. The checksum of a compressed shard is at its end. So if the checksum is wrong, samples
// that were delivered before may be wrong too. Tar has no checksum for the content of files.
//
// If a key occurs again later in a shard, its files make another sample. When this first happens, a warning
// is logged to [slog.Default]. Only the first 100 000 keys of a shard are compared.
//
// Format: https://github.com/webdataset/webdataset
package wds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/usercall"
)

// New makes a stream of samples from shards in fsys, such as a folder (os.DirFS) or a bucket (objects.FS,
// another package of nwt). The names of shards are paths in fsys, as [Glob] returns them. They may have
// brace lists as in a shell, such as "train-{000..127}.tar" or "{a,b}/{0..9}.tar". nwt.Streamed makes a
// dataset of the stream.
//
// The function load turns a record into a sample, under the rules of nwt.Dataset's Load. The record is valid
// only during the call. New adds the shard's name and the key to the errors of load.
//
// When the loader's context ends, opening and reading end, even if a call of fsys hasn't returned by then.
// If reading fails with a temporary error, the file is opened again, and reading continues at the same
// place: see nwt.WithRetry.
func New(fsys fs.FS, shards []string, fields []nwt.Field, load func(ctx context.Context, r *Record, dst *nwt.Sample) error, opts ...Option) (nwt.Stream, error) {
	s := &stream{fsys: fsys, fields: slices.Clone(fields), load: load, seed: maphash.MakeSeed()}
	WithLimits(Limits{})(s)
	var errs []error
	var err error
	if s.shards, err = expandAll(shards, maxShards); err != nil {
		errs = append(errs, &nwt.ArgumentError{Name: "wds.New", Value: shards, Reason: err.Error()})
	}
	if i := slices.IndexFunc(s.shards, func(name string) bool { return !fs.ValidPath(name) }); i >= 0 {
		errs = append(errs, &nwt.ArgumentError{Name: "wds.New", Value: s.shards[i], Reason: "the name of a shard must be " + validPath})
	}
	for i, option := range opts {
		if option == nil {
			errs = append(errs, &nwt.ArgumentError{Name: fmt.Sprintf("wds.New: options[%d]", i), Reason: "is nil"})
			continue
		}
		option(s)
	}
	for _, a := range []struct {
		name    string
		missing bool
	}{{"fsys", fsys == nil}, {"shards", len(shards) == 0}, {"load", load == nil}} {
		if a.missing {
			errs = append(errs, &nwt.ArgumentError{Name: "wds.New: " + a.name, Reason: "is nil or empty"})
		}
	}
	if l := s.limits; l.Bytes < 1 || l.Bytes > math.MaxInt || l.Files < 1 || l.Name < 1 {
		errs = append(errs, &nwt.ArgumentError{Name: "wds.WithLimits", Value: l, Reason: "must not be negative"})
	}
	if s.index != "" && !fs.ValidPath(s.index) {
		errs = append(errs, &nwt.ArgumentError{Name: "wds.WithIndex", Value: s.index, Reason: "must be " + validPath})
	}
	if len(errs) == 0 {
		if err := s.readIndex(); err != nil {
			errs = append(errs, &nwt.ArgumentError{Name: "wds.WithIndex", Value: s.index, Reason: err.Error()})
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return s, nil
}

const validPath = "a path in fsys: relative, with / between its elements, without . and .. (fs.ValidPath)"

// An Option changes how shards are read. If an option is repeated, the last one wins.
type Option func(*stream)

// Limits bound the size of a record. 0 means the default. A record beyond a limit is a bad sample, and its
// content is skipped.
type Limits struct {
	Bytes int64 // of all its files together; default: 1 GiB
	Files int   // default: 1000
	Name  int   // bytes of a file's name with its path; default: 4096, as many as file systems allow
}

// WithLimits replaces the default [Limits] of a record. Limits prevent a damaged shard, or a file that
// isn't a shard, from taking all memory.
func WithLimits(l Limits) Option {
	return func(s *stream) {
		s.limits = Limits{cmp.Or(l.Bytes, 1<<30), cmp.Or(l.Files, 1000), cmp.Or(l.Name, 4096)}
	}
}

type stream struct {
	fsys   fs.FS
	shards []string
	fields []nwt.Field
	load   func(ctx context.Context, r *Record, dst *nwt.Sample) error
	limits Limits
	bufs   sync.Pool // of *[bufferSize]byte: one for each shard that is open
	seed   maphash.Seed
	index  string
	counts []Shard   // the index's entry for each shard; nil without an index
	torn   sync.Once // for the warning about a repeated key
}

func (s *stream) Fields() []nwt.Field { return s.fields }

func (s *stream) Shards() int { return len(s.shards) }

func (s *stream) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	name := s.shards[shard]
	src, err := openSource(ctx, s.fsys, name, &s.bufs)
	if err != nil {
		if path := (*fs.PathError)(nil); !errors.As(err, &path) {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if errors.Is(err, fs.ErrInvalid) { // Windows refuses valid paths with \ or : in them
			err = fmt.Errorf("%w (the name of a shard must be %s)", err, validPath)
		}
		return nil, noEnd(err)
	}
	if err := s.fresh(shard, src.file); err != nil {
		src.Close()
		return nil, err
	}
	return &shardReader{stream: s, name: name, source: src}, nil
}

func (s *stream) Load(ctx context.Context, nr *nwt.Record, dst *nwt.Sample) error {
	r := nr.Value.(*Record)
	named := func() string { return r.Shard + ": " + short(r.Key) }
	defer usercall.Naming(named)
	err := r.err
	if err == nil {
		err = s.load(ctx, r, dst)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", named(), err)
	}
	return nil
}

type shardReader struct {
	stream *stream
	name   string
	source *source

	*grouper       // nil until a record is read or passed over
	wrong    error // why the file can't be unpacked
}

// begin finds out how the file is packed. Open doesn't do that: the file can be opened, even if what it
// begins with is damaged.
func (r *shardReader) begin() error {
	if r.grouper == nil {
		var err error
		if r.grouper, err = r.stream.newGrouper(r.name, r.source); err != nil {
			r.wrong = fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return r.wrong
}

func (r *shardReader) Next(ctx context.Context, nr *nwt.Record) error {
	rec, ok := nr.Value.(*Record)
	if !ok {
		rec = &Record{}
		nr.Value = rec
	}
	r.source.ctx = ctx
	err := r.begin()
	if err == nil {
		rec.data = nr.Data
		err = r.next(rec)
		nr.Data = rec.data // tells the loader how much it has read ahead
	}
	return r.source.judged(err)
}

// Skip passes over records without keeping the contents of their files. It seeks over large files of a
// local tar file.
func (r *shardReader) Skip(ctx context.Context, n int) (skipped int, err error) {
	r.source.ctx = ctx
	if err := r.begin(); err != nil {
		return 0, r.source.judged(err)
	}
	r.source.skipping(true)
	defer r.source.skipping(false)
	for skipped < n {
		if err := r.skip(); err != nil {
			return skipped, r.source.judged(err)
		}
		skipped++
	}
	return skipped, nil
}

func (r *shardReader) Close() (err error) {
	if r.grouper != nil {
		err = r.in.Close()
	}
	return errors.Join(err, r.source.Close())
}

// A Record holds the files of a sample.
type Record struct {
	Shard string
	Key   string

	files []file
	data  []byte // of all files, one after the other; it is the nwt.Record's Data
	err   error  // why it contains no sample
}

func (r *Record) reset(shard string) {
	if cap(r.data) > maxKept {
		r.data = nil // so that one huge record doesn't keep its memory for ever
	}
	clear(r.files) // so that their names can be collected
	r.Shard, r.Key, r.files, r.data, r.err = shard, "", r.files[:0], r.data[:0], nil
}

// maxKept is how much memory a record may keep for the next one.
const maxKept = 64 << 20

type file struct {
	ext      string
	end      int   // its end in data
	left     bool  // its content wasn't read
	at, size int64 // in the shard, for Locate
}

// File tries the extensions in turn, and returns the content of the first file that it finds. If the record
// has none of them, the error lists the extensions that it has.
func (r *Record) File(exts ...string) ([]byte, error) {
	f, from, err := r.find(exts)
	switch {
	case err != nil:
		return nil, err
	case f.left:
		return nil, fmt.Errorf("the content of %s wasn't asked for", short(f.ext))
	}
	return r.data[from:f.end:f.end], nil
}

// find looks for these extensions in turn, and returns the first file that it finds, and its beginning in data.
func (r *Record) find(exts []string) (_ file, from int, _ error) {
	for _, ext := range exts {
		from := 0
		for _, f := range r.files {
			if f.ext == ext {
				return f, from, nil
			}
			from = f.end
		}
	}
	const named = 10
	var have []string
	for _, f := range r.files[:min(len(r.files), named)] {
		have = append(have, short(f.ext))
	}
	more := ""
	if n := len(r.files) - named; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return file{}, 0, fmt.Errorf("no file %s: it has %s%s", strings.Join(exts, " or "), strings.Join(have, ", "), more)
}
