//go:build unix

package serve_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve"
	"github.com/nwt-go/nwt/vision"
)

// used returns the CPU time of this process, client and servers together.
func used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // of itself: can't fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkServers is the rate at which servers of 16 workers load samples that wait 10 ms.
func BenchmarkServers(b *testing.B) {
	waiting := nwt.NewDataset(12_800, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{1000}}}, func(ctx context.Context, _ int, _ *nwt.Sample) error {
		time.Sleep(10 * time.Millisecond)
		return nil
	})
	for _, servers := range []int{1, 2, 4} {
		b.Run(strconv.Itoa(servers), func(b *testing.B) {
			ds, err := serve.Open(b.Context(), start(b, waiting, servers, serve.WithLoader(nwt.WithBatchSize(16), nwt.WithWorkers(16))))
			require.NoError(b, err)
			defer ds.Close()
			l := loader(b, ds, nwt.WithBatchSize(16), nwt.WithWorkers(6*servers), nwt.WithPrefetch(6*servers))
			for b.Loop() {
				for _, err := range l.Epoch(b.Context(), 0) {
					require.NoError(b, err)
				}
			}
			b.ReportMetric(float64(b.N*waiting.Len())/b.Elapsed().Seconds(), "samples/s")
		})
	}
}

const pixels, batchSize, perEpoch = 150_528, 64, 100

// ready is a dataset whose samples take no time.
func ready() nwt.Dataset {
	return nwt.WritesAll(nwt.NewDataset(perEpoch*batchSize, []nwt.Field{{Name: "image", Type: nwt.Uint8, Shape: []int{pixels}}}, func(context.Context, int, *nwt.Sample) error { return nil }))
}

// plain is a server as arrow-go's documentation shows it, of batches that are ready.
type plain struct {
	flight.BaseFlightServer
	record arrow.RecordBatch
}

func (p *plain) DoGet(_ *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	w := flight.NewRecordWriter(stream, ipc.WithSchema(p.record.Schema()))
	defer w.Close()
	for range perEpoch {
		if err := w.Write(p.record); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkLoopback is batches of 64 × 150 528 bytes to one client, beside a plain writer and reader.
func BenchmarkLoopback(b *testing.B) {
	measure := func(b *testing.B, epoch func(b *testing.B)) {
		began := used()
		for b.Loop() {
			epoch(b)
		}
		gigabytes := float64(b.N*perEpoch*batchSize*pixels) / 1e9
		b.ReportMetric(gigabytes/b.Elapsed().Seconds(), "GB/s")
		b.ReportMetric((used()-began).Seconds()/gigabytes, "CPU-s/GB")
	}
	b.Run("nwt", func(b *testing.B) {
		ds, err := serve.Open(b.Context(), start(b, ready(), 1, serve.WithLoader(nwt.WithBatchSize(batchSize), nwt.WithWorkers(2))))
		require.NoError(b, err)
		defer ds.Close()
		l := loader(b, ds, nwt.WithBatchSize(batchSize), nwt.WithWorkers(2))
		measure(b, func(b *testing.B) {
			for _, err := range l.Epoch(b.Context(), 0) {
				require.NoError(b, err)
			}
		})
	})
	b.Run("arrow-go", func(b *testing.B) {
		values := array.NewData(arrow.FixedSizeListOfNonNullable(pixels, arrow.PrimitiveTypes.Uint8), batchSize, []*memory.Buffer{nil},
			[]arrow.ArrayData{array.NewData(arrow.PrimitiveTypes.Uint8, batchSize*pixels, []*memory.Buffer{nil, memory.NewBufferBytes(make([]byte, batchSize*pixels))}, nil, 0, 0)}, 0, 0)
		schema := arrow.NewSchema([]arrow.Field{{Name: "image", Type: values.DataType()}}, nil)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		g := grpc.NewServer(grpc.InitialWindowSize(16<<20), grpc.InitialConnWindowSize(32<<20))
		flight.RegisterFlightServiceServer(g, &plain{record: array.NewRecordBatch(schema, []arrow.Array{array.MakeFromData(values)}, batchSize)})
		go func() { _ = g.Serve(l) }() // until Stop
		defer g.Stop()
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(16<<20),
			grpc.WithInitialConnWindowSize(32<<20), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
		require.NoError(b, err)
		defer conn.Close()
		measure(b, func(b *testing.B) {
			stream, err := flight.NewFlightServiceClient(conn).DoGet(b.Context(), &flight.Ticket{})
			require.NoError(b, err)
			r, err := flight.NewRecordReader(stream)
			require.NoError(b, err)
			n := 0
			for ; err == nil; n++ {
				_, err = r.Read()
			}
			require.ErrorIs(b, err, io.EOF)
			require.Equal(b, fmt.Sprint(perEpoch), fmt.Sprint(n-1))
			r.Release()
		})
	})
}

// BenchmarkFolder is photographs without a server, for comparison with python/tests/rate.py.
func BenchmarkFolder(b *testing.B) {
	dir := os.Getenv("NWT_IMAGES")
	if dir == "" {
		b.Skip("NWT_IMAGES names no folder")
	}
	pipeline, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(224)}, vision.RandomHorizontalFlip{P: 0.5}}, vision.WithType(nwt.Uint8))
	require.NoError(b, err)
	folder, err := vision.OpenFolder(b.Context(), dir, pipeline)
	require.NoError(b, err)
	l := loader(b, folder, nwt.WithBatchSize(64), nwt.WithWorkers(2), nwt.WithShuffle(1))
	for b.Loop() {
		for _, err := range l.Epoch(b.Context(), 0) {
			require.NoError(b, err)
		}
	}
	b.ReportMetric(float64(b.N*folder.Len())/b.Elapsed().Seconds(), "samples/s")
}
