package serve

import (
	"context"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nwt-go/nwt"
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
	f.Add(jsonOf(ticket{Data: s.about.Data, Places: [][2]int{{1, 0}, {-1, 1 << 62}}}))
	f.Fuzz(func(t *testing.T, ticket []byte) {
		stream := &sink{ctx: peer.NewContext(t.Context(), &peer.Peer{Addr: peerAddr{conn: &conn{queue: newQueue()}}})}
		if err := (&flights{s: s}).DoGet(&flight.Ticket{Ticket: ticket}, stream); err != nil {
			require.Contains(t, []codes.Code{codes.InvalidArgument, codes.DataLoss, codes.FailedPrecondition}, status.Code(err), "%v", err)
		}
		require.Zero(t, s.Loading(), "a slot is lost")
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
	fields := []nwt.Field{{Name: "x", Type: nwt.Int32}, {Name: "map", Type: nwt.Uint8, Shape: []int{4, 5, 3}, RaggedDims: 2}}
	sample, err := nwt.LoadSample(context.Background(), nwt.NewDataset(1, fields, func(_ context.Context, _ int, dst *nwt.Sample) error { dst.SetShape(1, 1, 1); return nil }), 0)
	require.NoError(f, err)
	d := &remote{about: description{Data: "x", Fields: fields}}
	meta := jsonOf(answer{Data: "x", Samples: 1, Shapes: [][]int{nil, {2, 2, 3}}, At: []int{0, 4, 16, 20}})
	body := append(make([]byte, 16), 2, 0, 0, 0, 1, 0, 0, 0)
	message, err := codec{}.Marshal(&outgoing{meta: meta, body: [][]byte{body}, left: func(int) {}})
	require.NoError(f, err)
	read := func(message []byte) error {
		return codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, &incoming{read: func(meta []byte, r *mem.Reader, size int) error {
			return d.scatter(meta, r, size, []*nwt.Sample{sample})
		}})
	}
	require.NoError(f, read(message.Materialize()))
	f.Add(message.Materialize())
	f.Fuzz(func(_ *testing.T, message []byte) { _ = read(message) })
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
