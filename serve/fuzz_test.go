package serve

import (
	"context"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/batchserver"
)

func served(f testing.TB, opts ...ServerOption) *Server {
	ds, err := nwt.FromSlices(nwt.SliceOf("x", make([]int32, 40)), nwt.SliceOf("y", make([]uint8, 120), 3))
	require.NoError(f, err)
	s, err := New(context.Background(), ds, append(opts, WithLoader(nwt.WithBatchSize(8), nwt.WithShuffle(1)))...)
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, s.source.Close()) })
	return s
}

// Whatever a ticket says, it is a batch, an argument that can't be used, or a sample that isn't there.
func FuzzTickets(f *testing.F) {
	s := served(f)
	f.Add([]byte(`{"epoch": 3, "batch": 1, "rank": 0, "world": 2}`))
	f.Add([]byte(`{"epoch": -1, "batch": 1e9, "samples": 7, "order": "18446744073709551615"}`))
	f.Add(appendPlaces(nil, s.about.Data, []batchserver.Place{{Index: 1}, {Index: -1, Position: 1 << 62}}))
	f.Fuzz(func(t *testing.T, ticket []byte) {
		stream := &sink{ctx: t.Context()}
		if err := (&flights{s: s}).DoGet(&flight.Ticket{Ticket: ticket}, stream); err != nil {
			require.Contains(t, []codes.Code{codes.InvalidArgument, codes.DataLoss, codes.FailedPrecondition}, status.Code(err), "%v", err)
		}
		require.Empty(t, s.loading, "a slot is lost")
	})
}

func FuzzDescriptors(f *testing.F) {
	s := served(f)
	f.Add("0", "1")
	f.Add("1, \"world\": 2", "}")
	f.Fuzz(func(t *testing.T, rank, world string) {
		_, err := (&flights{s: s}).GetFlightInfo(t.Context(), &flight.FlightDescriptor{Path: []string{rank, world}})
		if err != nil {
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
		}
	})
}

// A client must not trust what claims to be a server.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{0x12, 1, 7, 0xc2, 0x3e, 0})
	f.Fuzz(func(t *testing.T, message []byte) {
		in := incoming{}
		_ = codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, &in)
	})
}

// A sink is a stream to a client that takes everything.
type sink struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *sink) Context() context.Context      { return s.ctx }
func (s *sink) Send(*flight.FlightData) error { return nil }
func (s *sink) SendMsg(m any) error {
	slices, err := codec{}.Marshal(m)
	slices.Free()
	return err
}
