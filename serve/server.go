package serve

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nwt-go/nwt"
)

// A Server answers which batch holds what, and loads it. It keeps nothing of its clients.
type Server struct {
	flight.BaseFlightServer
	ds     nwt.Dataset
	opts   *options
	base   *nwt.Loader // loads; its order is rank 0's of 1
	result *nwt.Result // of WithTuned
	fields []nwt.Field
	data   string // the dataset's identity
	order  string // the order's
	batch  int    // samples of the largest batch
	most   int    // bytes of the largest batch, with its lengths
	name   string
	free   chan *slot // bounds how many batches are loaded or sent at a time
	pool   *pool

	batches, samples, bad, bytes atomic.Int64 // of Stats

	mu    sync.Mutex
	plans map[[2]int]*nwt.Loader // by rank and world; guarded by mu
}

// New makes a server of a dataset. The errors are those of nwt.NewLoader, of nwt.Tune with
// WithTuned, and one for a stream: a stream has no sample by index. Precompute it, or index it.
func New(ds nwt.Dataset, opts ...Option) (*Server, error) {
	o := optionsOf(opts)
	s := &Server{ds: ds, opts: o, name: o.name, plans: make(map[[2]int]*nwt.Loader)}
	if s.name == "" {
		host, _ := os.Hostname()
		s.name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	var err error
	if o.tuned != nil {
		if s.result, err = nwt.Tune(o.tuned, ds, o.loader...); err != nil {
			return nil, err
		}
		o.loader = append(o.loader, nwt.WithWorkers(s.result.Workers))
	}
	o.loader = slices.Clip(o.loader) // appending makes another one
	if s.base, err = nwt.NewLoader(ds, append(o.loader, nwt.WithRank(0, 1))...); err != nil {
		return nil, err
	}
	first, after, err := s.base.Places(nil, nwt.State{}, 0)
	if err != nil {
		return nil, errors.Join(err, s.base.Close())
	}
	s.fields, s.data, s.batch = s.base.Fields(), identityOf(ds, ds.Len()), s.base.NewPlacedBatch().Cap()
	s.order = hashOf(after.Order, s.batch, s.base.Len(), first) // first has the seed of what is drawn at random
	for _, f := range s.fields {
		bytes := f.Type.Size()
		for _, n := range f.Shape {
			bytes *= n
		}
		s.most += (bytes+4*raggedDims(f))*s.batch + 4096 // with what aligns it
	}
	s.free = make(chan *slot, o.slots)
	for range o.slots {
		s.free <- &slot{PlacedBatch: s.base.NewPlacedBatch()}
	}
	s.pool = newPool(s.base)
	return s, nil
}

// Result returns what tuning found; nil without WithTuned.
func (s *Server) Result() *nwt.Result { return s.result }

// Workers returns how many samples are loaded at a time.
func (s *Server) Workers() int { return s.pool.workers }

// Stats is what a server has done since it was made.
type Stats struct {
	Batches int64 // answers; a client's request is a batch, or a part of one
	Samples int64 // loaded, the bad ones among them
	Bad     int64 // samples that could not be loaded
	Bytes   int64 // of the batches
	Loading int   // batches that are being loaded or sent
}

// Stats returns what the server has done.
func (s *Server) Stats() Stats {
	return Stats{s.batches.Load(), s.samples.Load(), s.bad.Load(), s.bytes.Load(), cap(s.free) - len(s.free)}
}

// Listen listens at host:port or unix:PATH. The socket of a server that was killed is replaced.
func Listen(address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return net.Listen("tcp", address)
	}
	removeDead("unix", path)
	return net.Listen("unix", path)
}

// removeDead removes a socket at which nobody listens.
func removeDead(network, path string) {
	if about, err := os.Lstat(path); err != nil || about.Mode()&os.ModeSocket == 0 {
		return
	}
	if c, err := net.Dial(network, path); err == nil {
		_ = c.Close()
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // or listening says why not
	}
}

// Serve answers until ctx ends: it then finishes what it has begun and takes nothing new. It
// closes the listener. A server serves once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(maxTicket), grpc.WaitForHandlers(true),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(2 * window), grpc.WriteBufferSize(window / 16),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: ping / 2, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: ping, Timeout: ping}),
		grpc.InTapHandle(func(ctx context.Context, call *tap.Info) (context.Context, error) {
			// Whether a server is alive everybody may ask.
			if strings.HasPrefix(call.FullMethodName, "/grpc.health.") || s.knows(strings.TrimPrefix(strings.Join(call.Header.Get("authorization"), ""), "Bearer ")) {
				return ctx, nil
			}
			return nil, errToken
		}),
	}
	if s.opts.tls != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(s.opts.tls)))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait := func() {}
	if s.opts.shared != "" {
		var err error
		if wait, err = s.share(ctx, s.opts.shared); err != nil {
			s.pool.close()
			return errors.Join(err, l.Close(), s.base.Close())
		}
	}
	g := grpc.NewServer(opts...)
	flight.RegisterFlightServiceServer(g, s)
	alive := health.NewServer()
	grpc_health_v1.RegisterHealthServer(g, alive)
	context.AfterFunc(ctx, func() {
		alive.Shutdown()
		g.GracefulStop()
	})
	err := g.Serve(l) // returns once all has stopped, or if the listener fails
	g.Stop()
	cancel()
	wait()
	s.pool.close()
	return errors.Join(err, s.base.Close())
}

var errToken = status.Error(codes.Unauthenticated, "the token is missing or wrong")

func (s *Server) knows(token string) bool {
	return s.opts.token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(s.opts.token)) == 1
}

// plan returns the order of the rank that a ticket names.
func (s *Server) plan(ticket []byte) (t Ticket, l *nwt.Loader, err error) {
	if t, err = parseTicket(ticket); err != nil {
		return t, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := [2]int{t.Rank, t.World}
	if l = s.plans[key]; l != nil {
		return t, l, nil
	}
	if l, err = nwt.NewLoader(s.ds, append(s.opts.loader, nwt.WithRank(t.Rank, t.World), nwt.WithWorkers(0))...); err != nil {
		return t, nil, err
	}
	if len(s.plans) == maxPlans {
		clear(s.plans) // a loader that has loaded nothing needs no Close
	}
	s.plans[key] = l
	return t, l, nil
}

// describe tells what the rank of a ticket gets.
func (s *Server) describe(ticket []byte) (t Ticket, about description, err error) {
	t, l, err := s.plan(ticket)
	if err != nil {
		return t, about, err
	}
	_, sized := s.ds.(nwt.SizedDataset)
	return t, description{
		Server: s.name, Data: s.data, Order: s.order, Samples: s.ds.Len(), Batches: l.Len(), Batch: s.batch, Fields: s.fields, Sized: sized,
	}, nil
}

// GetFlightInfo tells the schema, how many batches a rank has, and the tickets of epoch 0, as far
// as there are not too many.
func (s *Server) GetFlightInfo(_ context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	path := d.GetPath()
	if len(path) != 2 {
		return nil, status.Errorf(codes.InvalidArgument, "the path must be [rank, world], not %q", path)
	}
	t, described, err := s.describe(fmt.Appendf(nil, `{"rank": %s, "world": %s}`, path[0], path[1]))
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the path must be [rank, world], not %q: %v", path, err)
	}
	about, _ := json.Marshal(described) // of strings, integers and fields
	schema := schemaOf(s.fields, func(f int) []int { return s.fields[f].Shape })
	info := &flight.FlightInfo{
		Schema: flight.SerializeSchema(schema, memory.DefaultAllocator), FlightDescriptor: d,
		TotalRecords: int64(described.Batches), TotalBytes: -1, Ordered: true, AppMetadata: about,
	}
	for t.Batch = range min(described.Batches, maxTickets) {
		ticket, _ := json.Marshal(t) // of integers
		info.Endpoint = append(info.Endpoint, &flight.FlightEndpoint{Ticket: &flight.Ticket{Ticket: ticket}})
	}
	return info, nil
}

// DoAction answers "sizes": the sizes of samples, as nwt.SizedDataset tells them, 4 bytes each.
func (s *Server) DoAction(a *flight.Action, stream flight.FlightService_DoActionServer) error {
	ds, sized := s.ds.(nwt.SizedDataset)
	if a.GetType() != "sizes" || !sized {
		return status.Errorf(codes.InvalidArgument, "the action %q isn't known: a dataset that tells sizes has \"sizes\"", a.GetType())
	}
	sizes, all := make([]int, ragged(s.fields)), []byte(nil)
	for index := range ds.Len() {
		clear(sizes)
		ds.Sizes(index, sizes)
		for _, size := range sizes {
			all = binary.LittleEndian.AppendUint32(all, uint32(size))
		}
	}
	return stream.Send(&flight.Result{Body: all})
}

// DoGet answers a batch.
func (s *Server) DoGet(t *flight.Ticket, stream flight.FlightService_DoGetServer) (err error) {
	var one *slot
	select {
	case one = <-s.free:
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
	kept := false
	defer func() {
		if !kept {
			s.free <- one
		}
	}()
	a, lens, err := s.lay(one, t.GetTicket())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	var columns [][]byte
	for f := range s.fields {
		from, to, _ := one.Field(f)
		columns = append(columns, one.mem[from:to])
	}
	schema := schemaOf(s.fields, func(f int) []int { return a.Shapes[f] })
	head, meta, body, err := encode(schema, a.Samples, append(columns, lens...))
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := stream.SendMsg(&outgoing{header: head}); err != nil { // before loading: some clients' call returns only then
		return err
	}
	if err := s.load(stream.Context(), one, a.After != nil); err != nil {
		return err
	}
	about, _ := json.Marshal(a) // of strings, integers and what is made of them
	out := &outgoing{header: meta, meta: about, body: body, sent: func() { s.free <- one }}
	err = stream.SendMsg(out)
	kept = out.taken
	return err
}

// lay readies a slot for the batch that a ticket asks for, and returns what to tell of it, and the
// samples' lengths.
func (s *Server) lay(one *slot, ticket []byte) (a answer, lens [][]byte, err error) {
	a = answer{Server: s.name, Data: s.data}
	var isPlaces bool
	if one.places, isPlaces, err = parsePlaces(one.places[:0], ticket); !isPlaces {
		t, l, err := s.plan(ticket)
		if err != nil {
			return a, nil, err
		}
		a.Order, a.After = s.order, new(nwt.State)
		state := nwt.State{Epoch: t.Epoch, Samples: t.Samples, Order: t.Order}
		if one.places, *a.After, err = l.Places(one.places, state, t.Batch); err != nil {
			return a, nil, err
		}
		if a.Left, err = l.BatchesFrom(*a.After); err != nil {
			return a, nil, err
		}
	}
	if err == nil {
		err = one.set()
	}
	if err != nil {
		return a, nil, err
	}
	a.Samples = len(one.places)
	for f, field := range s.fields {
		_, _, shape := one.Field(f)
		a.Shapes = append(a.Shapes, shape[1:])
		for dim := range raggedDims(field) {
			lens = append(lens, bytesOf(one.LensOf(f, dim)))
		}
	}
	return a, lens, nil
}

// load loads what a slot has been set for. If it is named, an error says of which sample it is: who
// asks for places knows that.
func (s *Server) load(ctx context.Context, one *slot, named bool) (err error) {
	if err := s.pool.load(ctx, one.PlacedBatch, len(one.places)); err != nil {
		return status.Errorf(codes.Unavailable, "%s: %v", s.name, err)
	}
	s.batches.Add(1)
	s.samples.Add(int64(len(one.places)))
	s.bytes.Add(int64(len(one.mem)))
	for i := range one.places {
		if bad := one.Err(i); bad != nil {
			s.bad.Add(1)
			err = cmp.Or(err, bad)
		}
	}
	if err == nil {
		return nil
	}
	code := codes.DataLoss
	if temporary, _ := nwt.Temporary(err); temporary {
		code = codes.Aborted
	}
	if load, ok := errors.AsType[*nwt.LoadError](err); ok && !named {
		err = load.Err
	}
	return status.Errorf(code, "on server %s: %v", s.name, err)
}
