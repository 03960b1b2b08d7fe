package wds

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/retry"
)

// A Shard is an index's entry for a shard.
type Shard struct {
	Name    string `json:"url"` // relative to the folder of the index
	Samples int    `json:"nsamples"`
	Bytes   int64  `json:"filesize"` // size of the file; of a compressed file, its compressed size
}

type index struct {
	Version int     `json:"wids_version"`
	Shards  []Shard `json:"shardlist"`
}

// maxIndex keeps a file that is not an index from taking all memory.
const maxIndex = 1 << 30

// WriteIndex writes an index in the format of webdataset's wids. [Writer.Shard] and [Index] return the
// entries.
func WriteIndex(w io.Writer, shards []Shard) error {
	data, err := json.MarshalIndent(index{1, shards}, "", " ")
	if err == nil {
		_, err = w.Write(append(data, '\n'))
	}
	return err
}

// WithIndex sets the name of the index of the shards, which is a file in fsys. With an index, the stream is
// an nwt.CountedStream, so it can be resumed with any number of ranks. The index must have the number of
// samples of each shard. If a shard's size differs from the size in the index, the index belongs to another
// version of the shard, and opening the shard is an error.
func WithIndex(name string) Option { return func(s *stream) { s.index = name } }

// readIndex finds the stream's shards in its index.
func (s *stream) readIndex() error {
	if s.index == "" || s.fsys == nil {
		return nil
	}
	ctx := retry.With(context.Background(), retry.Default)
	var src *source
	err := repeated(ctx, func() (err error) {
		src, err = openSource(ctx, s.fsys, s.index, &s.bufs)
		return err
	})
	if err != nil {
		return err
	}
	defer src.Close()
	data, err := io.ReadAll(io.LimitReader(src, maxIndex+1))
	if err != nil {
		return err
	}
	if len(data) > maxIndex {
		return fmt.Errorf("an index of more than %d bytes", maxIndex)
	}
	var in struct {
		Shards []struct {
			Shard
			Samples *int `json:"nsamples"`
		} `json:"shardlist"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("no index: %w", err)
	}
	of := make(map[string]Shard, len(in.Shards))
	for _, shard := range in.Shards {
		name := path.Join(path.Dir(s.index), shard.Name)
		if shard.Shard.Samples = -1; shard.Samples != nil {
			shard.Shard.Samples = *shard.Samples
		}
		if before, again := of[name]; again && before != shard.Shard {
			return fmt.Errorf("shard %s is in it twice, with different entries", short(name))
		}
		of[name] = shard.Shard
	}
	for _, name := range s.shards {
		shard, ok := of[name]
		if !ok {
			return fmt.Errorf("shard %s isn't in it, with %d others", short(name), len(of))
		}
		if shard.Samples < 0 {
			return fmt.Errorf("shard %s: its number of samples (nsamples) is missing or below 0: make the index anew (wds.Index)", short(name))
		}
		s.counts = append(s.counts, shard)
	}
	return nil
}

// repeated calls f where no loader repeats it.
func repeated(ctx context.Context, f func() error) error { return retry.Default.Do(ctx, f(), f) }

// openAgain opens a shard, again after temporary errors.
func (s *stream) openAgain(ctx context.Context, shard int) (r nwt.ShardReader, err error) {
	err = repeated(ctx, func() (err error) {
		r, err = s.Open(ctx, shard)
		return err
	})
	return r, err
}

// Records returns the number in the index, or −1 if there is no index.
func (s *stream) Records(shard int) int {
	if s.counts == nil {
		return -1
	}
	return s.counts[shard].Samples
}

// Fingerprint depends on the names of the shards, and on their entries in the index.
func (s *stream) Fingerprint() string {
	return fmt.Sprintf("wds: %x", sha256.Sum256(fmt.Appendf(nil, "%q %v", s.shards, s.counts)))
}

// fresh returns an error if the shard isn't the one that the index describes.
func (s *stream) fresh(shard int, file fs.File) error {
	if s.counts == nil || s.counts[shard].Bytes == 0 { // not every index has sizes
		return nil
	}
	info, err := file.Stat()
	if want := s.counts[shard].Bytes; err == nil && info.Size() != want {
		err = fmt.Errorf("%s: it has %d bytes, in the index %s it has %d: make the index anew (wds.Index)", s.shards[shard], info.Size(), s.index, want)
	}
	return err
}

// Index reads shards and returns their entries for [WriteIndex]. The names of shards are as in [New]. To
// use the index with [WithIndex], write it to the root of fsys.
func Index(ctx context.Context, fsys fs.FS, shards []string, opts ...Option) (all []Shard, err error) {
	made, err := New(fsys, shards, nil, func(context.Context, *Record, *nwt.Sample) error { return nil }, append(opts, WithIndex(""))...)
	if err != nil {
		return nil, err
	}
	s := made.(*stream)
	ctx = retry.With(ctx, retry.Default)
	for i, name := range s.shards {
		shard := Shard{Name: name}
		r, err := s.openAgain(ctx, i)
		if err != nil {
			return nil, err
		}
		info, err := r.(*shardReader).source.file.Stat()
		if err == nil {
			shard.Bytes = info.Size()
			for n := 1; n > 0 && err == nil; shard.Samples += n {
				n, err = r.(nwt.Skipper).Skip(ctx, 1<<20)
			}
		}
		if err == io.EOF {
			err = nil
		}
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
		all = append(all, shard)
	}
	return all, nil
}

// Shard returns the shard's entry in an index. Call it after Close. If the Writer's output is compressed,
// set Bytes to the size of the compressed file. If Bytes is 0, [WithIndex] doesn't check the size.
func (w *Writer) Shard(name string) Shard { return Shard{name, w.samples, w.out.n} }

// A counter counts the bytes that are written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
