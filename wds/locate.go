package wds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/retry"
)

// Locate reads the headers of shards, so that samples can be loaded by number later. It calls f for each
// sample and returns the results, in the order of the shards. Usually f notes where files lie: see
// [Record.Range]. In the record passed to f, files have their content only if their extension is in the
// argument read. The names of shards are as in [New], and the shards must not be compressed. Several
// goroutines read shards and call f. If f returns an error, Locate ends.
func Locate[T any](ctx context.Context, fsys fs.FS, shards, read []string, f func(r *Record) (T, error)) ([]T, error) {
	made, err := New(fsys, shards, nil, func(context.Context, *Record, *nwt.Sample) error { return nil })
	if err != nil {
		return nil, err
	}
	s := made.(*stream)
	all := make([][]T, len(s.shards))
	g, ctx := errgroup.WithContext(retry.With(ctx, retry.Default))
	g.SetLimit(32)
	for i := range all {
		g.Go(func() error {
			opened, err := s.openAgain(ctx, i)
			if err != nil {
				return err
			}
			r := opened.(*shardReader)
			r.source.ctx = ctx
			if err = r.begin(); err == nil && r.in.packed != nil {
				err = fmt.Errorf("%s: is compressed: its samples can't be loaded by number", s.shards[i])
			}
			if err != nil {
				return errors.Join(err, r.Close())
			}
			r.source.skipping(true)
			r.located = func(ext string) bool { return !slices.Contains(read, ext) }
			for record := new(Record); err == nil; {
				if err = r.next(record); err == nil {
					var one T
					one, err = f(record)
					all[i] = append(all[i], one)
				}
			}
			if err == io.EOF {
				err = nil
			}
			return errors.Join(err, r.Close())
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(all...), nil
}

// Range returns where the content of a file lies in the shard, for a record of [Locate]. It chooses the
// file as [Record.File] does. The error says why the record isn't a sample, or lists the extensions that
// the record has.
func (r *Record) Range(exts ...string) (offset, size int64, err error) {
	if r.err != nil {
		return 0, 0, r.err
	}
	f, _, err := r.find(exts)
	return f.at, f.size, err
}
