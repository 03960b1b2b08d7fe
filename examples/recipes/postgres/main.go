// Postgres trains on a table of PostgreSQL. A batch is loaded by one query; rows have the numbers of their
// ids, which are read once. It is a module of its own because it needs pgx.
//
//	go run . postgres://user@host/database samples
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nwt-go/nwt"
)

const width = 4 // features of a row

var (
	schema   nwt.Schema
	features = nwt.AddField[float32](&schema, "features", width)
	label    = nwt.AddField[int64](&schema, "label")
)

// A table has the columns id bigint (the primary key), features real[] and label bigint.
type table struct {
	pool *pgxpool.Pool
	name string  // quoted
	ids  []int64 // of the rows that existed when the table was opened
	hash uint64  // of the ids
}

// openTable connects to a database. The pool may have fewer connections than the loader has workers: the
// others wait for one, until the call's context ends.
func openTable(ctx context.Context, url, name string, connections int32) (*table, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	t := &table{pool: pool, name: pgx.Identifier{name}.Sanitize()}
	rows, _ := pool.Query(ctx, "SELECT id FROM "+t.name+" ORDER BY id") // CollectRows returns the error
	if t.ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		pool.Close()
		return nil, err
	}
	sum := fnv.New64a()
	for _, id := range t.ids {
		sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(id)))
	}
	t.hash = sum.Sum64()
	return t, nil
}

func (t *table) Close()              { t.pool.Close() }
func (t *table) Len() int            { return len(t.ids) }
func (t *table) Fields() []nwt.Field { return schema.Fields() }

// Fingerprint makes resuming an error if the table has other rows than before. The loader asks once per
// epoch.
func (t *table) Fingerprint() string { return fmt.Sprintf("%s %d %x", t.name, len(t.ids), t.hash) }

func (t *table) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	return t.LoadMany(ctx, []int{index}, []*nwt.Sample{dst})
}

// LoadMany loads many rows by one query. An index may come twice. Errors of the connection, and those of a
// server that restarts, are temporary: WithRetry repeats the call.
func (t *table) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	err := t.load(ctx, indices, dst)
	if connect := (*pgconn.ConnectError)(nil); errors.As(err, &connect) && errors.Is(err, fs.ErrNotExist) {
		return nwt.Retryable(err) // while a server starts, its socket in the file system isn't there
	}
	return err
}

func (t *table) load(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	wanted := make([]int64, len(indices))
	for k, index := range indices {
		wanted[k] = t.ids[index]
	}
	rows, err := t.pool.Query(ctx, "SELECT place, features, label FROM unnest($1::bigint[]) WITH ORDINALITY AS wanted (id, place) JOIN "+t.name+" USING (id)", wanted)
	if err != nil {
		return err
	}
	var place, class int64
	var values []float32
	loaded := make([]bool, len(indices))
	_, err = pgx.ForEachRow(rows, []any{&place, &values, &class}, func() error {
		k := place - 1
		if len(values) != width {
			return fmt.Errorf("row %d has %d features, want %d", wanted[k], len(values), width)
		}
		features.Set(dst[k], values...)
		label.Set(dst[k], class)
		loaded[k] = true
		return nil
	})
	if err != nil {
		return err
	}
	for k, is := range loaded {
		if !is {
			return fmt.Errorf("row %d is no longer in the table", wanted[k])
		}
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "postgres:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: postgres URL TABLE")
	}
	t, err := openTable(ctx, args[0], args[1], 4)
	if err != nil {
		return err
	}
	defer t.Close()
	// A restart of the server takes seconds: 1, 2, 4 … of them are waited for.
	loader, err := nwt.NewLoader(t, nwt.WithBatchSize(64), nwt.WithShuffle(42), nwt.WithRetry(6, time.Second))
	if err != nil {
		return err
	}
	defer loader.Close()
	for epoch := range 2 {
		rows, sum := 0, int64(0)
		for batch, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			rows += batch.Len() // here a model is trained on features.Of(batch)
			for _, class := range label.Of(batch) {
				sum += class
			}
		}
		fmt.Fprintf(out, "epoch %d: %d rows, the labels' sum is %d\n", epoch, rows, sum)
	}
	return nil
}
