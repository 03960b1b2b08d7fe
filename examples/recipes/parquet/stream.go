package main

import (
	"context"
	"iter"

	"github.com/nwt-go/nwt"
)

// A rowStream is the table as a stream, for tables whose row groups are too large to keep several. Each
// row group is a shard, and is decoded by the goroutine that reads it ahead. The file says how many rows
// each group has, so an epoch can be resumed with any number of ranks.
type rowStream struct {
	nwt.Stream
	t *table
}

func (s rowStream) Records(group int) int { return s.t.starts[group+1] - s.t.starts[group] }

type rowOf struct {
	*group
	row int
}

func (t *table) stream() nwt.Stream {
	read := func(ctx context.Context, number int) iter.Seq2[rowOf, error] {
		return func(yield func(rowOf, error) bool) {
			g := t.newGroup(number)
			if err := t.decode(ctx, g); err != nil {
				yield(rowOf{}, err)
				return
			}
			for row := range t.starts[number+1] - t.starts[number] {
				if !yield(rowOf{g, row}, nil) {
					return
				}
			}
		}
	}
	load := func(_ context.Context, r rowOf, dst *nwt.Sample) error { return t.loadRow(r.group, r.row, dst) }
	return rowStream{nwt.NewStream(t.fields, len(t.starts)-1, read, load), t}
}
