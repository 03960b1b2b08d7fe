package serve

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

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
	name   string
	slots  slots
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
	workers := o.loader
	if o.tuned != nil {
		r, err := nwt.Tune(o.tuned, ds, o.loader...)
		if err != nil {
			return nil, err
		}
		s.result, workers = r, append(workers[:len(workers):len(workers)], nwt.WithWorkers(r.Workers))
	}
	var err error
	if s.base, err = nwt.NewLoader(ds, append(workers[:len(workers):len(workers)], nwt.WithRank(0, 1))...); err != nil {
		return nil, err
	}
	first, after, err := s.base.Places(nil, nwt.State{}, 0)
	if err != nil {
		return nil, errors.Join(err, s.base.Close())
	}
	s.fields, s.data, s.batch = s.base.Fields(), identityOf(ds, ds.Len()), s.base.NewPlacedBatch().Cap()
	s.order = hashOf(after.Order, s.batch, s.base.Len(), first) // first has the seed of what is drawn at random
	s.slots = newSlots(o.slots, func() *slot { return &slot{PlacedBatch: s.base.NewPlacedBatch()} })
	s.pool = newPool(s.base)
	return s, nil
}

// Result is what tuning found; nil without WithTuned.
func (s *Server) Result() *nwt.Result { return s.result }

// Workers is how many samples are loaded at a time.
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
	return Stats{s.batches.Load(), s.samples.Load(), s.bad.Load(), s.bytes.Load(), cap(s.slots.free) - len(s.slots.free)}
}

// Serve answers until ctx ends: it then finishes what it has begun and takes nothing new. It
// closes the listener. A server serves once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(maxTicket), grpc.WaitForHandlers(true),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(2 * window),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: ping / 2, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: ping, Timeout: ping}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			if err := s.mayAsk(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return h(srv, stream)
		}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if err := s.mayAsk(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return h(ctx, req)
		}),
	}
	if s.opts.tls != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(s.opts.tls)))
	}
	g := grpc.NewServer(opts...)
	flight.RegisterFlightServiceServer(g, s)
	alive := health.NewServer()
	grpc_health_v1.RegisterHealthServer(g, alive)
	stopped := make(chan struct{})
	unwatch := context.AfterFunc(ctx, func() {
		defer close(stopped)
		alive.Shutdown()
		g.GracefulStop()
	})
	err := g.Serve(l)
	if !unwatch() {
		<-stopped
	}
	g.Stop()
	s.pool.close()
	return errors.Join(err, s.base.Close())
}

// mayAsk refuses who doesn't know the token. Whether a server is alive everybody may ask.
func (s *Server) mayAsk(ctx context.Context, method string) error {
	if s.opts.token == "" || strings.HasPrefix(method, "/grpc.health.") {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	for _, v := range md.Get("authorization") {
		if subtle.ConstantTimeCompare([]byte(v), []byte("Bearer "+s.opts.token)) == 1 {
			return nil
		}
	}
	return status.Error(codes.Unauthenticated, "the token is missing or wrong")
}

// plan is the order of a rank.
func (s *Server) plan(rank, world int) (*nwt.Loader, error) {
	if rank == 0 && world == 1 {
		return s.base, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := [2]int{rank, world}
	if l := s.plans[key]; l != nil {
		return l, nil
	}
	l, err := nwt.NewLoader(s.ds, append(s.opts.loader[:len(s.opts.loader):len(s.opts.loader)], nwt.WithRank(rank, world), nwt.WithWorkers(0))...)
	if err != nil {
		return nil, err
	}
	if len(s.plans) == maxPlans {
		clear(s.plans) // they hold no memory and no goroutine
	}
	s.plans[key] = l
	return l, nil
}

// GetFlightInfo tells the schema, how many batches a rank has, and the tickets of epoch 0, as far
// as there are not too many.
func (s *Server) GetFlightInfo(_ context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	t := Ticket{World: 1}
	if path := d.GetPath(); len(path) > 0 {
		if len(path) != 2 {
			return nil, status.Errorf(codes.InvalidArgument, "the path must be [rank, world], not %q", path)
		}
		parsed, err := parseTicket(fmt.Appendf(nil, `{"rank": %s, "world": %s}`, path[0], path[1]))
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "the path must be [rank, world], not %q: %v", path, err)
		}
		t = parsed
	}
	l, err := s.plan(t.Rank, t.World)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	_, sized := s.ds.(nwt.SizedDataset)
	about, err := json.Marshal(description{
		Server: s.name, Data: s.data, Order: s.order, Samples: s.ds.Len(), Batches: l.Len(), Batch: s.batch, Workers: s.Workers(), Fields: s.fields, Sized: sized,
	})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	schema := schemaOf(s.fields, func(f int) []int { return s.fields[f].Shape })
	info := &flight.FlightInfo{
		Schema: flight.SerializeSchema(schema, memory.DefaultAllocator), FlightDescriptor: d,
		TotalRecords: int64(l.Len()), TotalBytes: -1, Ordered: true, AppMetadata: about,
	}
	for t.Batch = range min(l.Len(), maxTickets) {
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
	return sendSizes(ds, s.fields, stream)
}

// DoGet answers a batch.
func (s *Server) DoGet(t *flight.Ticket, stream flight.FlightService_DoGetServer) (err error) {
	ctx := stream.Context()
	one, err := s.slots.take(ctx)
	if err != nil {
		return status.FromContextError(err).Err()
	}
	kept := false
	defer func() {
		if !kept {
			s.slots.put(one)
		}
	}()
	a := answer{Server: s.name, Data: s.data}
	var isPlaces bool
	if one.places, isPlaces, err = parsePlaces(one.places[:0], t.GetTicket()); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if !isPlaces {
		if err := s.place(one, t.GetTicket(), &a); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
	}
	if err := one.set(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	var columns [][]byte
	for f := range s.fields {
		from, to, shape := one.Field(f)
		columns, a.Shapes = append(columns, one.mem[from:to]), append(a.Shapes, shape[1:])
	}
	a.Samples = len(one.places)
	for f, field := range s.fields {
		for dim := range raggedDims(field) {
			columns = append(columns, bytesOf(one.LensOf(f, dim)))
		}
	}
	schema := schemaOf(s.fields, func(f int) []int { return a.Shapes[f] })
	head, meta, body, err := encode(schema, a.Samples, columns)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := stream.SendMsg(&outgoing{header: head}); err != nil { // before loading: some clients' call returns only then
		return err
	}
	if err := s.load(ctx, one, &a, isPlaces); err != nil {
		return err
	}
	about, err := json.Marshal(a)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	out := &outgoing{header: meta, meta: about, body: body, sent: func() { s.slots.put(one) }}
	err = stream.SendMsg(out)
	kept = out.taken
	return err
}

// load loads what a slot has been set for. Of places each sample has its own error.
func (s *Server) load(ctx context.Context, one *slot, a *answer, isPlaces bool) error {
	if err := s.pool.load(ctx, one.PlacedBatch, a.Samples); err != nil {
		return status.Errorf(codes.Unavailable, "%s: %v", s.name, err)
	}
	s.batches.Add(1)
	s.samples.Add(int64(a.Samples))
	s.bytes.Add(int64(len(one.mem)))
	var first error
	for i := range one.places {
		if err := one.Err(i); err != nil {
			s.bad.Add(1)
			if first == nil && !isPlaces {
				first = status.Errorf(codes.DataLoss, "%s: %v", s.name, err)
			}
			a.fail(i, err)
		}
	}
	return first
}

// place finds which samples a ticket asks for.
func (s *Server) place(one *slot, ticket []byte, a *answer) error {
	t, err := parseTicket(ticket)
	if err != nil {
		return err
	}
	l, err := s.plan(t.Rank, t.World)
	if err != nil {
		return err
	}
	var after nwt.State
	if one.places, after, err = l.Places(one.places, t.state(), t.Batch); err != nil {
		return err
	}
	left, err := l.BatchesFrom(after)
	a.Order, a.Epoch, a.After, a.Left = s.order, t.Epoch, &after, left
	for _, p := range one.places {
		a.Indices = append(a.Indices, p.Index)
	}
	return err
}
