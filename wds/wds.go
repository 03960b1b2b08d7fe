// Package wds reads and writes shards in the format of WebDataset: tar files in
// which the files of a sample follow each other and have the same key.
//
//	cat/0001.jpg   key "cat/0001", extension "jpg"
//	cat/0001.cls
//	cat/0002.jpg
//	cat/0002.cls
//
// A key is the path up to the first dot of its last element; what comes after
// that dot is the extension, in lower case. Files without a key or an extension,
// and those named __…__, belong to no sample. Shards may be compressed by gzip.
//
// Format: https://github.com/webdataset/webdataset
package wds

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/nwt-go/nwt"
)

// New is a stream of samples from shards in fsys, such as a folder
// (os.DirFS) or a bucket (a gocloud.dev/blob.Bucket is an fs.FS). nwt.Streamed
// makes a dataset of it.
//
// Load makes a sample of a record, which is valid during the call, under the
// rules of nwt.Dataset's Load. Its errors get the names of shard and key.
func New(fsys fs.FS, shards []string, fields []nwt.Field, load func(ctx context.Context, r *Record, dst *nwt.Sample) error) (nwt.Stream, error) {
	var errs []error
	for _, a := range []struct {
		name    string
		missing bool
	}{{"fsys", fsys == nil}, {"shards", len(shards) == 0}, {"load", load == nil}} {
		if a.missing {
			errs = append(errs, &nwt.OptionError{Option: "wds.New", Value: a.name, Reason: "must not be nil or empty"})
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &stream{fsys: fsys, shards: slices.Clone(shards), fields: slices.Clone(fields), load: load}, nil
}

type stream struct {
	fsys   fs.FS
	shards []string
	fields []nwt.Field
	load   func(ctx context.Context, r *Record, dst *nwt.Sample) error
	bufs   sync.Pool // of *bufio.Reader: one for each shard that is open
}

func (s *stream) Fields() []nwt.Field { return s.fields }

func (s *stream) Shards() int { return len(s.shards) }

func (s *stream) Open(_ context.Context, shard int) (nwt.ShardReader, error) {
	name := s.shards[shard]
	f, err := s.fsys.Open(name)
	if err != nil {
		return nil, err
	}
	buf, ok := s.bufs.Get().(*bufio.Reader)
	if !ok {
		buf = bufio.NewReaderSize(nil, 256<<10)
	}
	buf.Reset(f)
	r := &shardReader{s: s, file: f, buf: buf}
	if r.grouper, err = newGrouper(name, buf); err != nil {
		r.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

func (s *stream) Load(ctx context.Context, nr *nwt.Record, dst *nwt.Sample) error {
	r := nr.Value.(*Record)
	err := r.err
	if err == nil {
		err = s.load(ctx, r, dst)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", r.Shard, r.Key, err)
	}
	return nil
}

type shardReader struct {
	grouper
	s    *stream
	file fs.File
	buf  *bufio.Reader
}

func (r *shardReader) Next(_ context.Context, nr *nwt.Record) error {
	rec, ok := nr.Value.(*Record)
	if !ok {
		rec = &Record{}
		nr.Value = rec
	}
	return r.next(rec)
}

func (r *shardReader) Close() error {
	r.buf.Reset(nil)
	r.s.bufs.Put(r.buf)
	return r.file.Close()
}

// A Record is the files of a sample.
type Record struct {
	Shard string
	Key   string

	files []file
	data  []byte // of all files, one after the other
	err   error  // why there is no sample in it
}

type file struct {
	ext string
	end int // in data
}

// File is the content of the record's file that has the first of these
// extensions that any has. Where none does, the error says which there are.
func (r *Record) File(exts ...string) ([]byte, error) {
	for _, ext := range exts {
		from := 0
		for _, f := range r.files {
			if f.ext == ext {
				return r.data[from:f.end:f.end], nil
			}
			from = f.end
		}
	}
	var have []string
	for _, f := range r.files {
		have = append(have, f.ext)
	}
	return nil, fmt.Errorf("no file %s: it has %s", strings.Join(exts, " or "), strings.Join(have, ", "))
}

// maxRecord bounds a record, so that a header that lies doesn't take all memory.
const maxRecord = 1 << 30

// A grouper reads the records of a tar file.
type grouper struct {
	shard string
	tar   *tar.Reader
	limit int64 // bytes of a record
	// ahead is a file whose content is still to be read: the first of the next
	// record. Its key and extension are beside it.
	ahead    *tar.Header
	key, ext string
}

func newGrouper(shard string, r *bufio.Reader) (grouper, error) {
	g := grouper{shard: shard, limit: maxRecord}
	var plain io.Reader = r
	if magic, _ := r.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		var err error
		if plain, err = gzip.NewReader(r); err != nil {
			return g, err
		}
	}
	g.tar = tar.NewReader(plain)
	return g, nil
}

// next reads the next record into r, whose memory it uses again; io.EOF after
// the last. Where the files are readable but make no record, r says so.
func (g *grouper) next(r *Record) error {
	r.Shard, r.Key, r.files, r.data, r.err = g.shard, "", r.files[:0], r.data[:0], nil
	for {
		switch err := g.advance(); {
		case err == io.EOF && r.Key != "":
			return nil
		case err == io.EOF:
			return io.EOF
		case err != nil && g.key != "":
			return fmt.Errorf("%s: after %s.%s: %w", g.shard, g.key, g.ext, err)
		case err != nil:
			return fmt.Errorf("%s: %w", g.shard, err)
		}
		if r.Key == "" {
			r.Key = g.key
		} else if r.Key != g.key {
			return nil
		}
		size := g.ahead.Size
		g.ahead = nil
		switch {
		case r.err != nil: // the rest is skipped
		case slices.ContainsFunc(r.files, func(f file) bool { return f.ext == g.ext }):
			r.err = fmt.Errorf("two files %s", g.ext)
		case size > g.limit-int64(len(r.data)):
			r.err = fmt.Errorf("%d bytes up to its file %s: must be at most %d", int64(len(r.data))+size, g.ext, g.limit)
		default:
			var err error
			if r.data, err = appendFrom(r.data, g.tar, int(size)); err != nil {
				return fmt.Errorf("%s: %s.%s: %w", g.shard, g.key, g.ext, err)
			}
			r.files = append(r.files, file{g.ext, len(r.data)})
		}
	}
}

// advance makes sure that ahead is a file of a sample.
func (g *grouper) advance() error {
	for g.ahead == nil {
		h, err := g.tar.Next()
		if err != nil {
			return err
		}
		if key, ext, ok := split(h.Name); ok && h.Typeflag == tar.TypeReg {
			g.ahead, g.key, g.ext = h, key, ext
		}
	}
	return nil
}

// split splits a name into key and extension, and reports whether it has both.
func split(name string) (key, ext string, ok bool) {
	base := strings.LastIndexByte(name, '/') + 1
	if base == 0 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") {
		return "", "", false
	}
	dot := strings.IndexByte(name[base:], '.')
	if dot < 1 || base+dot+1 == len(name) {
		return "", "", false
	}
	return name[:base+dot], strings.ToLower(name[base+dot+1:]), true
}

// appendFrom appends n bytes of r. Memory is taken as they come, not on the word
// of a header.
func appendFrom(data []byte, r io.Reader, n int) ([]byte, error) {
	for n > 0 {
		part := min(n, max(cap(data)-len(data), 1<<20))
		data = slices.Grow(data, part)
		got, err := io.ReadFull(r, data[len(data):len(data)+part])
		if err != nil {
			return data, err
		}
		data = data[:len(data)+got]
		n -= got
	}
	return data, nil
}
