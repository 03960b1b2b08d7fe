package nwt_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strconv"

	"github.com/nwt-go/nwt"
)

// logs is a stream: each shard is a log of temperatures, a line each.
type logs [][]string

func (s logs) Fields() []nwt.Field { return []nwt.Field{{Name: "celsius", Type: nwt.Float64}} }

func (s logs) Shards() int { return len(s) }

func (s logs) Open(_ context.Context, shard int) (nwt.ShardReader, error) {
	return &logReader{s[shard]}, nil // or a file, an object, a query
}

// Load is for the work: it runs in as many workers as there are.
func (s logs) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) (err error) {
	nwt.Values[float64](dst, 0)[0], err = strconv.ParseFloat(string(r.Data), 64)
	return err
}

type logReader struct{ lines []string }

// Next only reads: a shard is read by one goroutine at a time.
func (l *logReader) Next(_ context.Context, r *nwt.Record) error {
	if len(l.lines) == 0 {
		return io.EOF
	}
	r.Data = append(r.Data[:0], l.lines[0]...)
	l.lines = l.lines[1:]
	return nil
}

func (l *logReader) Close() error { return nil }

// Every record of the two shards comes once, one of each shard in turn.
func ExampleStreamed() {
	stream := logs{{"11.5", "12", "12.5"}, {"-3", "-2"}}
	loader, err := nwt.NewLoader(nwt.Streamed(stream), nwt.WithBatchSize(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(nwt.Values[float64](batch, 0))
	}
	// Output:
	// [11.5 -3]
	// [12 -2]
	// [12.5]
}

// tornLogs is logs whose shard 1 breaks off.
type tornLogs struct{ logs }

func (s tornLogs) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.logs.Open(ctx, shard)
	if shard == 1 {
		r = tornReader{r.(*logReader)}
	}
	return r, err
}

type tornReader struct{ *logReader }

func (r tornReader) Next(ctx context.Context, rec *nwt.Record) error {
	if err := r.logReader.Next(ctx, rec); err != io.EOF {
		return err
	}
	return io.ErrUnexpectedEOF
}

// Which shards has an epoch lost, and from where on?
func ExampleShardError() {
	stream := tornLogs{logs{{"11.5", "12", "12.5"}, {"-3", "-2"}}}
	loader, err := nwt.NewLoader(nwt.Streamed(stream), nwt.WithErrorBudget(1), quietLog)
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(nwt.Values[float64](batch, 0))
	}
	for _, bad := range loader.BadSamples() {
		if lost := new(nwt.ShardError); errors.As(bad, &lost) {
			fmt.Printf("shard %d ends before record %d: %v\n", lost.Shard, lost.Record, lost.Err)
		}
	}
	// Output:
	// [11.5 -3 12 -2 12.5]
	// shard 1 ends before record 2: unexpected EOF
}

// The shards of two ranks differ in length. Each rank still gets half of the epoch: one
// leaves out the rest of its shard, the other reads its own again.
func ExampleWithEpochSamples() {
	stream := logs{{"11.5", "12", "12.5", "13"}, {"-3", "-2"}}
	for rank := range 2 {
		loader, err := nwt.NewLoader(nwt.Streamed(stream), nwt.WithRank(rank, 2), nwt.WithEpochSamples(6), nwt.WithBatchSize(2))
		if err != nil {
			log.Fatal(err)
		}
		defer loader.Close()
		fmt.Println("rank", rank, "of 2, batches:", loader.Len())
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(nwt.Values[float64](batch, 0))
		}
	}
	// Output:
	// rank 0 of 2, batches: 2
	// [11.5 12]
	// [12.5]
	// rank 1 of 2, batches: 2
	// [-3 -2]
	// [-3]
}
