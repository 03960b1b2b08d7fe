package serve

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nwt-go/nwt"
)

// flights answers Flight's calls for a server.
type flights struct {
	flight.BaseFlightServer
	s *Server
}

// GetFlightInfo tells the schema, how many batches a rank has, and the tickets of epoch 0, at most
// maxTickets. A client that says its version makes tickets itself.
func (f *flights) GetFlightInfo(_ context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	refuse := func(why any) (*flight.FlightInfo, error) {
		return nil, status.Errorf(codes.InvalidArgument, "the path must be [rank, world], not %.200q: %v", d.GetPath(), why)
	}
	var numbers [3]int // the last is the client's version
	if n := len(d.GetPath()); n != 2 && n != 3 {
		return refuse(fmt.Sprintf("it has %d parts", n))
	}
	for i, text := range d.GetPath() {
		var err error
		if numbers[i], err = strconv.Atoi(text); err != nil {
			return refuse(err)
		}
	}
	known := len(d.GetPath()) == 3
	if known {
		if err := differs("the client", numbers[2]); err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
	}
	t := Ticket{Rank: numbers[0], World: numbers[1]}
	t, err := parseTicket(jsonOf(t))
	if err != nil {
		return refuse(err)
	}
	described, err := f.s.describe(t.Rank, t.World)
	if err != nil {
		return refuse(err)
	}
	schema := schemaOf(described.Fields, func(i int) []int { return described.Fields[i].Shape })
	info := &flight.FlightInfo{
		Schema: flight.SerializeSchema(schema, memory.DefaultAllocator), FlightDescriptor: d,
		TotalRecords: int64(described.Batches), TotalBytes: -1, Ordered: true, AppMetadata: jsonOf(described),
	}
	for t.Batch = 0; !known && t.Batch < min(described.Batches, maxTickets); t.Batch++ {
		info.Endpoint = append(info.Endpoint, &flight.FlightEndpoint{Ticket: &flight.Ticket{Ticket: jsonOf(t)}})
	}
	return info, nil
}

// slot waits for a place in loading.
func (f *flights) slot(ctx context.Context) error {
	select {
	case f.s.loading <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// DoAction answers "sizes": the sizes of samples, as nwt.SizedDataset tells them, 4 bytes each, in
// portions.
func (f *flights) DoAction(a *flight.Action, stream flight.FlightService_DoActionServer) error {
	ds, sized := f.s.ds.(nwt.SizedDataset)
	if a.GetType() != "sizes" || !sized {
		return status.Errorf(codes.InvalidArgument, "the action %.200q isn't known: a dataset that tells sizes has \"sizes\"", a.GetType())
	}
	if err := f.slot(stream.Context()); err != nil {
		return err
	}
	defer func() { <-f.s.loading }()
	watch := watchOver(stream.Context())
	defer watch.end()
	sizes, portion := make([]int, ragged(f.s.about.Fields)), []byte(nil)
	for index := range f.s.about.Samples {
		if err := askSizes(ds, index, sizes); err != nil {
			f.s.unsized.Do(func() {
				slog.Error("nwt/serve: Sizes fails for a sample, which clients take for a bad one; this is logged once", "error", err)
			})
			sizes[0] = noSize
		}
		for _, size := range sizes {
			portion = binary.LittleEndian.AppendUint32(portion, uint32(int32(size)))
		}
		if len(portion) >= 1<<18 || index == f.s.about.Samples-1 {
			if err := stream.Send(&flight.Result{Body: portion}); err != nil {
				return err
			}
			watch.Reset(stall)
			portion = nil
		}
	}
	return nil
}

// noSize stands for sizes that the dataset can't tell, or that 4 bytes can't hold.
const noSize = math.MinInt32

func askSizes(ds nwt.SizedDataset, index int, sizes []int) (err error) {
	returned := false
	defer func() {
		if !returned { // or the panic would end the server
			err = fmt.Errorf("Sizes(%d): panic: %v", index, recover())
		}
	}()
	for dim := range sizes {
		sizes[dim] = -1 // if it isn't told, the sample is bad, as in a loader
	}
	ds.Sizes(index, sizes)
	returned = true
	for dim, size := range sizes {
		if size <= noSize || size > math.MaxInt32 {
			err = fmt.Errorf("Sizes(%d) tells %d for dimension %d: must be 0 … %d", index, size, dim, math.MaxInt32)
			sizes[dim] = noSize
		}
	}
	return err
}

// A watch hangs up on the client of a call that takes nothing for long. Each part that the client takes
// resets it.
type watch struct {
	*time.Timer
	over atomic.Bool
}

func watchOver(ctx context.Context) *watch {
	w := &watch{}
	w.Timer = time.AfterFunc(stall, func() {
		if p, ok := peer.FromContext(ctx); ok && !w.over.Load() {
			if a, ok := p.Addr.(peerAddr); ok {
				_ = a.conn.Close()
			}
		}
	})
	return w
}

func (w *watch) end() {
	w.over.Store(true)
	w.Stop()
}

// DoGet answers a batch.
func (f *flights) DoGet(t *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	s, ctx := f.s, stream.Context()
	if err := f.slot(ctx); err != nil {
		return err
	}
	defer func() { <-s.loading }()
	early := !s.about.Sized
	if early { // then the shapes are known: a client can cancel its call from now on
		schema := schemaOf(s.about.Fields, func(i int) []int { return s.about.Fields[i].Shape })
		if err := stream.SendMsg(&outgoing{header: headOf(schema)}); err != nil {
			return err
		}
	}
	var lost atomic.Bool // gRPC may still read the memory
	b, a, err := s.load(ctx, t.GetTicket(), s.alloc, func(mem []byte) error {
		if !lost.Load() {
			s.free(mem)
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer b.Release()
	schema, size := schemaOf(s.about.Fields, func(i int) []int { return a.Shapes[i] }), 0
	columns, lens := s.columns(b)
	sent, watch := make(chan struct{}), watchOver(ctx)
	defer watch.end()
	out := &outgoing{part: func() { watch.Reset(stall) }, sent: func() { close(sent) }}
	if out.header, out.body, a.At, size, err = encode(schema, a.Samples, append(columns, lens...)); err == nil && size > maxBody {
		err = fmt.Errorf("a batch of %d bytes is too large for gRPC, which takes %d: make batches smaller, or take them in shared memory", size, maxBody)
	}
	if err != nil {
		return status.Error(codes.InvalidArgument, said(err, maxSaid))
	}
	if !early {
		if err := stream.SendMsg(&outgoing{header: headOf(schema)}); err != nil {
			return err
		}
	}
	out.meta = jsonOf(a)
	if err := stream.SendMsg(out); err != nil {
		lost.Store(out.taken)
		return err
	}
	select {
	case <-sent:
	case <-ctx.Done(): // gRPC doesn't tell then
		lost.Store(true)
	}
	return nil
}
