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

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
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

// GetFlightInfo tells the schema and how many batches a rank has.
func (f *flights) GetFlightInfo(_ context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	var err error
	numbers := []int{0, 0, version}
	path := d.GetPath()
	if len(path) != 2 && len(path) != 3 {
		err = fmt.Errorf("it has %d parts", len(path))
	}
	for i := 0; err == nil && i < len(path); i++ {
		numbers[i], err = strconv.Atoi(path[i])
	}
	if wrong := differs("server "+f.s.opts.name, version, numbers[2]); err == nil && wrong != nil {
		return nil, status.Error(codes.FailedPrecondition, wrong.Error())
	}
	var described description
	if err == nil {
		described, err = f.s.describe(numbers[0], numbers[1])
	}
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the path must be [rank, world], not %.200q: %v", path, err)
	}
	schema := schemaOf(described.Fields, func(i int) []int { return described.Fields[i].Shape })
	return &flight.FlightInfo{
		Schema: flight.SerializeSchema(schema, memory.DefaultAllocator), FlightDescriptor: d,
		TotalRecords: int64(described.Batches), TotalBytes: -1, Ordered: true, AppMetadata: jsonOf(described),
	}, nil
}

// DoAction answers "indices", whose body is a ticket: the samples of that batch, which isn't loaded. It also
// answers "sizes": the sizes of samples, as nwt.SizedDataset tells them, 4 bytes each, in portions. −1 stands
// for those that can't be told: the sample is bad, as in a loader.
func (f *flights) DoAction(a *flight.Action, stream flight.FlightService_DoActionServer) error {
	if a.GetType() == "indices" {
		text, err := f.s.indices(a.GetBody())
		if err == nil {
			err = stream.Send(&flight.Result{Body: text})
		}
		return err
	}
	ds, sized := f.s.ds.(nwt.SizedDataset)
	if a.GetType() != "sizes" || !sized {
		return status.Errorf(codes.InvalidArgument, "the action %.200q isn't known: there are \"indices\" and, of a dataset that tells sizes, \"sizes\"", a.GetType())
	}
	from := caller(stream.Context())
	leave, err := f.s.enter(stream.Context(), from.queue)
	if err != nil {
		return err
	}
	defer leave()
	took, end := f.s.watch(from)
	defer end()
	sizes, portion, logged := make([]int, ragged(f.s.about.Fields)), []byte(nil), false
	for index := range f.s.about.Samples {
		if p := askSizes(ds, index, sizes); p != nil && !logged {
			logged = true
			slog.Error("serve: Sizes panics for a sample, which clients take for a bad one; later ones aren't logged", "index", index, "panic", p)
		}
		for _, size := range sizes {
			if size < 0 || size > math.MaxInt32 {
				size = -1
			}
			portion = binary.LittleEndian.AppendUint32(portion, uint32(size))
		}
		if len(portion) >= 1<<18 || index == f.s.about.Samples-1 {
			if err := stream.Send(&flight.Result{Body: portion}); err != nil {
				return err
			}
			took()
			portion = nil
		}
	}
	return nil
}

// askSizes returns why Sizes panics: otherwise it would end the server.
func askSizes(ds nwt.SizedDataset, index int, sizes []int) (panicked any) {
	for dim := range sizes {
		sizes[dim] = -1
	}
	defer func() {
		if panicked = recover(); panicked != nil {
			sizes[0] = -1
		}
	}()
	ds.Sizes(index, sizes)
	return nil
}

// watch hangs up on a client that takes nothing for long, until end is called. Each part that the client takes
// is told by took.
func (s *Server) watch(c *conn) (took, end func()) {
	var seconds atomic.Int32 // since it took something
	tick, ended := time.NewTicker(time.Second), make(chan struct{})
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				if n := seconds.Add(1); n > stall || n > busy && s.waiting.Load() > 0 {
					_ = c.Close()
				}
			}
		}
	}()
	return func() { seconds.Store(0) }, func() { tick.Stop(); close(ended) }
}

// caller returns the connection of a call.
func caller(ctx context.Context) *conn {
	p, _ := peer.FromContext(ctx)
	return p.Addr.(peerAddr).conn
}

// DoGet answers a batch.
func (f *flights) DoGet(t *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	s, ctx := f.s, stream.Context()
	from := caller(ctx)
	leave, err := s.enter(ctx, from.queue)
	if err != nil {
		return err
	}
	defer leave()
	begin := func(shape func(field int) []int) (*arrow.Schema, error) {
		schema := schemaOf(s.about.Fields, shape)
		first := ipc.GetSchemaPayload(schema, memory.DefaultAllocator)
		return schema, stream.SendMsg(&outgoing{header: first.Meta().Bytes()})
	}
	var schema *arrow.Schema
	if !s.about.Sized { // then the shapes are known: a client can cancel its call from now on
		if schema, err = begin(func(i int) []int { return s.about.Fields[i].Shape }); err != nil {
			return err
		}
	}
	var lost atomic.Bool // gRPC may still read the memory
	b, a, err := s.load(ctx, t.GetTicket(), s.alloc, func(mem []byte) error {
		if lost.Load() {
			return nil
		}
		return s.recycle(mem)
	})
	if err != nil {
		return err
	}
	defer b.Release()
	if schema == nil {
		if schema, err = begin(func(i int) []int { return a.Shapes[i] }); err != nil {
			return err
		}
	}
	out := &outgoing{}
	if out.header, out.body, a.At, err = encode(schema, a.Samples, s.columns(b)); err != nil {
		return status.Error(codes.InvalidArgument, said(err, maxSaid))
	}
	out.meta = jsonOf(a)
	sent := make(chan struct{})
	took, end := s.watch(from)
	defer end()
	out.left = func(parts int) {
		if took(); parts == 0 {
			close(sent)
		}
	}
	if err = stream.SendMsg(out); err == nil {
		select {
		case <-sent:
			return nil
		case <-ctx.Done(): // gRPC doesn't tell then
		}
	}
	lost.Store(true)
	return err
}
