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
	for _, f := range s.fields {
		bytes := f.Type.Size()
		for _, n := range f.Shape {
			bytes *= n
		}
		s.most += (bytes+4*raggedDims(f))*s.batch + 4096 // with what aligns it
	}
	s.slots = newSlots(o.slots, func() *slot { return &slot{PlacedBatch: s.base.NewPlacedBatch()} })
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
	return Stats{s.batches.Load(), s.samples.Load(), s.bad.Load(), s.bytes.Load(), cap(s.slots.free) - len(s.slots.free)}
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
	cancel()
	wait()
	s.pool.close()
	s.forget()
	return errors.Join(err, s.base.Close())
}

var errToken = status.Error(codes.Unauthenticated, "the token is missing or wrong")

func (s *Server) knows(token string) bool {
	return s.opts.token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(s.opts.token)) == 1
}

// plan returns the order of a rank.
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
		s.forget()
	}
	s.plans[key] = l
	return l, nil
}

// forget closes the plans. They have no goroutine, and go on telling places. It needs mu, or that
// nobody asks any more.
func (s *Server) forget() {
	for key, l := range s.plans {
		_ = l.Close() // nothing was loaded
		delete(s.plans, key)
	}
}

// describe tells what the rank of a ticket gets.
func (s *Server) describe(ticket []byte) (t Ticket, about description, err error) {
	if t, err = parseTicket(ticket); err != nil {
		return t, about, err
	}
	l, err := s.plan(t.Rank, t.World)
	if err != nil {
		return t, about, err
	}
	_, sized := s.ds.(nwt.SizedDataset)
	return t, description{
		Server: s.name, Data: s.data, Order: s.order, Samples: s.ds.Len(), Batches: l.Len(), Batch: s.batch, Workers: s.Workers(), Fields: s.fields, Sized: sized,
	}, nil
}

// GetFlightInfo tells the schema, how many batches a rank has, and the tickets of epoch 0, as far
// as there are not too many.
func (s *Server) GetFlightInfo(_ context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	path := d.GetPath()
	if len(path) == 0 {
		path = []string{"0", "1"}
	}
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
	lens := s.lay(one, &a)
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
	if err := s.load(ctx, one, &a, isPlaces); err != nil {
		return err
	}
	about, _ := json.Marshal(a) // of strings, integers and what is made of them
	out := &outgoing{header: meta, meta: about, body: body, sent: func() { s.slots.put(one) }}
	err = stream.SendMsg(out)
	kept = out.taken
	return err
}

// lay tells what samples a slot has, and returns their lengths.
func (s *Server) lay(one *slot, a *answer) (lens [][]byte) {
	a.Samples = len(one.places)
	for f, field := range s.fields {
		_, _, shape := one.Field(f)
		a.Shapes = append(a.Shapes, shape[1:])
		for dim := range raggedDims(field) {
			lens = append(lens, bytesOf(one.LensOf(f, dim)))
		}
	}
	return lens
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
	return err
}
