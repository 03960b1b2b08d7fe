package serve

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
)

const (
	stall      = 20              // seconds after which a client that takes nothing is hung up on …
	busy       = 2               // … if others wait
	handshake  = 4 * time.Second // for what a client says first, and for a message; also how long a silent one keeps a server from ending
	maxStreams = 128             // calls of a connection at a time
)

// A Server tells which samples a batch holds, and loads the batch. It keeps no state about its clients.
type Server struct {
	ds     nwt.Dataset
	opts   *options
	source driver.Source
	result *nwt.Result // of WithTuning
	about  description // of rank 0 of 1
	most   int         // bytes of the largest batch, with what aligns it
	work   int         // samples loaded at a time

	loading chan struct{} // has one for each batch that is being loaded or sent
	waiting atomic.Int32  // clients that wait for that
	held    chan struct{} // has one for each batch that a client on this host has, but not for those it waited for

	spare sync.Pool // of *[]byte: memory for batches that are sent
}

// New makes a server of a dataset. ctx ends only the tuning of [WithTuning]. The errors are those of
// nwt.NewLoader and, with WithTuning, of nwt.Tune. An *nwt.ArgumentError names an option out of bounds. New
// returns an error for a stream, because its samples can't be loaded by number. A field of more than 2³¹−1
// elements is an error too, because Arrow can't describe it.
func New(ctx context.Context, ds nwt.Dataset, opts ...ServerOption) (*Server, error) {
	host, _ := os.Hostname()
	o := &options{slots: 16, grace: 10 * time.Second, name: fmt.Sprintf("%s:%d", host, os.Getpid())}
	var err error
	for _, opt := range opts {
		err = errors.Join(err, opt.ofServer(o))
	}
	if err != nil {
		return nil, err
	}
	s := &Server{ds: ds, opts: o, loading: make(chan struct{}, o.slots), held: make(chan struct{}, o.slots)}
	var l *nwt.Loader
	if whole := slices.Concat(o.loader, []nwt.Option{nwt.WithRank(0, 1)}); o.tune {
		l, err = nwt.NewTunedLoader(ctx, ds, whole...)
	} else {
		l, err = nwt.NewLoader(ds, whole...)
	}
	if err != nil {
		return nil, err
	}
	s.result = l.Result()
	if s.source, err = l.Serving(); err != nil {
		return nil, err
	}
	s.work = max(1, l.Workers())
	first, after, left, err := s.source.Places(nil, 0, 1, driver.State{}, 0)
	if err != nil {
		return nil, errors.Join(err, s.source.Close())
	}
	if err := fitsArrow(l.Fields()); err != nil {
		return nil, errors.Join(err, s.source.Close())
	}
	size, fields, fingerprint := s.source.BatchSize(), l.Fields(), ""
	if f, ok := ds.(nwt.Fingerprinter); ok {
		fingerprint = f.Fingerprint()
	}
	_, sized := ds.(nwt.SizedDataset) // tells datasets apart too: batches are padded otherwise
	s.about = description{
		Server: o.name, Samples: ds.Len(), Batches: left + 1, Batch: size, Fields: fields, Sized: sized, About: o.about, Fingerprint: fmt.Sprintf("%.1024s", fingerprint),
		Data:  hashOf(ds.Len(), string(jsonOf(fields)), fingerprint, sized),
		Order: hashOf(after.Order, size, left, first), // first has the seed of what is drawn at random
	}
	total := bytesPerSample(fields) * size
	s.most = total + 4096*(1+len(fields)+ragged(fields))
	if !sized {
		s.about.Bytes = total
	}
	s.about.Workers = s.work
	if s.result != nil {
		s.about.Result, s.about.Figures = s.result.String(), s.result
	}
	return s, nil
}

// Result returns the result of tuning, or nil without WithTuning.
func (s *Server) Result() *nwt.Result { return s.result }

// Workers returns how many samples are loaded at the same time.
func (s *Server) Workers() int { return s.work }

// Serve answers requests until ctx ends. Then it accepts no new requests, waits at most 10 s for the
// requests under way, and closes its connections and the listener. If all clients use WithShared, the
// listener may be nil. Call Serve only once.
//
// Without a token, everybody who can reach the address gets batches. On loopback, these are all users of
// this host.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	doors, ctx := errgroup.WithContext(ctx)
	if s.opts.shared != "" {
		doors.Go(func() error { return s.serveShared(ctx, s.opts.shared) })
	}
	if l != nil {
		doors.Go(func() error { return s.serveFlight(ctx, l) })
	}
	return errors.Join(doors.Wait(), s.source.Close())
}

func (s *Server) serveFlight(ctx context.Context, l net.Listener) error {
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(maxTicket), grpc.WaitForHandlers(true),
		grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(handshake),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(2 * window), grpc.WriteBufferSize(window / 16),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: ping / 2, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: ping, Timeout: ping, MaxConnectionIdle: idle}),
		grpc.InTapHandle(func(ctx context.Context, call *tap.Info) (context.Context, error) {
			switch {
			case call.FullMethodName == grpc_health_v1.Health_Check_FullMethodName: // everybody may ask whether a server is alive
			case s.knows(strings.TrimPrefix(strings.Join(call.Header.Get("authorization"), ""), "Bearer ")):
				caller(ctx).prove()
			default:
				return nil, errToken
			}
			return ctx, nil
		}),
	}
	if s.opts.tls != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(s.opts.tls)))
	}
	if s.opts.token == "" && l.Addr().Network() == "tcp" {
		slog.Warn("serve: there is no token: whoever reaches the address gets batches, on loopback every user of this host", "address", l.Addr().String())
	}
	g := grpc.NewServer(opts...)
	flight.RegisterFlightServiceServer(g, &flights{s: s})
	grpc_health_v1.RegisterHealthServer(g, health.NewServer())
	context.AfterFunc(ctx, func() {
		stop := time.AfterFunc(s.opts.grace, g.Stop)
		g.GracefulStop()
		stop.Stop()
	})
	err := g.Serve(&listener{Listener: l}) // returns once all has stopped, or if the listener fails
	if g.Stop(); errors.Is(err, grpc.ErrServerStopped) {
		err = nil // ctx had ended before
	}
	return err
}

var errToken = status.Error(codes.Unauthenticated, "the token is missing or wrong")

func (s *Server) knows(token string) bool {
	return s.opts.token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(s.opts.token)) == 1
}

// describe tells what a rank gets.
func (s *Server) describe(rank, world int) (description, error) {
	d := s.about
	_, _, left, err := s.source.Places(nil, rank, world, driver.State{}, 0)
	d.Batches = left + 1
	return d, err
}

// places returns the samples of the batch that a ticket asks for, and what is to be told of it. The error is
// a status.
func (s *Server) places(asked []byte) (t ticket, places []driver.Place, a answer, err error) {
	a = answer{Server: s.opts.name, Data: s.about.Data}
	t, err = parseTicket(asked)
	if err == nil && t.Version != 0 {
		err = differs("server "+s.opts.name, version, t.Version)
	}
	switch {
	case err != nil:
	case t.Data == "":
		a.Order = s.about.Order
		var after driver.State
		places, after, a.Left, err = s.source.Places(nil, t.Rank, t.World, driver.State{Epoch: t.Epoch, Samples: t.Samples, Order: t.Order}, t.Batch)
		a.After = (*nwt.State)(&after)
	case t.Data != s.about.Data:
		return t, nil, a, status.Error(codes.FailedPrecondition, said(fmt.Errorf("server %s has %s, not %s", s.opts.name, s.about.dataset(), t.Data), maxSaid))
	default:
		for _, p := range t.Places {
			places = append(places, driver.Place{Index: p[0], Position: p[1], Epoch: t.Epoch, Key: t.Key})
		}
	}
	if err != nil {
		err = status.Error(codes.InvalidArgument, said(err, maxSaid))
	}
	return t, places, a, err
}

// indices returns the samples of the batch that a ticket asks for, bad ones too, as JSON. It loads nothing.
func (s *Server) indices(asked []byte) ([]byte, error) {
	_, places, _, err := s.places(asked)
	indices := make([]int, len(places))
	for i, p := range places {
		indices[i] = p.Index
	}
	return jsonOf(indices), err
}

// load loads the batch that a ticket asks for, and returns what is to be told of it. The caller has
// entered. The error is a status.
func (s *Server) load(ctx context.Context, asked []byte, alloc func(int) ([]byte, error), free func([]byte) error) (b driver.Batch, a answer, err error) {
	t, places, a, err := s.places(asked)
	if err != nil {
		return nil, a, err
	}
	b, bad, err := s.source.Load(ctx, places, alloc, free)
	if _, wrong := errors.AsType[*nwt.ArgumentError](err); wrong {
		return nil, a, status.Error(codes.InvalidArgument, said(err, maxSaid))
	}
	if err != nil {
		return nil, a, status.Error(codes.Unavailable, said(fmt.Errorf("%s: %w", s.opts.name, err), maxSaid))
	}
	if err := s.tell(&a, bad, &t); err != nil {
		b.Release()
		return nil, a, err
	}
	a.Samples = b.Len()
	for f := range s.about.Fields {
		a.Shapes = append(a.Shapes, b.Shape(f)[1:])
	}
	return b, a, nil
}

// tell tells of bad samples, in an answer if it may lack them, otherwise by an error. Who asks for
// places knows which sample it is.
func (s *Server) tell(a *answer, bad []error, t *ticket) error {
	most := max(256, maxSaid*16/max(1, len(bad)))
	var first error
	for _, err := range bad {
		of, ok := errors.AsType[*nwt.LoadError](err)
		if !ok {
			of = &nwt.LoadError{Index: -1, Position: -1, Err: err}
		}
		if of.Stack != nil { // it stays here
			slog.Error("serve: a sample's load panicked", "error", err, "stack", string(of.Stack))
		}
		if t.Data != "" {
			err = of.Err
		}
		first = cmp.Or(first, err)
		a.Bad = append(a.Bad, badSample{of.Index, of.Position, said(err, min(most, maxSaid))})
	}
	if t.Partial || first == nil {
		return nil
	}
	code := codes.DataLoss
	if temporary, _ := driver.Temporary(first); temporary {
		code = codes.Aborted
	}
	return status.Error(code, said(fmt.Errorf("on server %s: %w", s.opts.name, first), maxSaid))
}

// alloc returns memory for a batch.
func (s *Server) alloc(size int) ([]byte, error) {
	if mem, _ := s.spare.Get().(*[]byte); mem != nil && cap(*mem) >= size {
		return (*mem)[:size], nil
	}
	return memory.DefaultAllocator.Allocate(size), nil // aligned to 64 bytes
}

func (s *Server) recycle(mem []byte) error {
	s.spare.Put(&mem)
	return nil
}

// columns returns the columns of a batch: the fields', then those of lengths.
func (s *Server) columns(b driver.Batch) (columns [][]byte) {
	for f := range s.about.Fields {
		columns = append(columns, b.Bytes(f))
	}
	for f, field := range s.about.Fields {
		for dim := range field.RaggedDims {
			lens := b.Lens(f, dim)
			columns = append(columns, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(lens))), 4*len(lens)))
		}
	}
	return columns
}

func jsonOf(v any) []byte {
	b, _ := json.Marshal(v) // of strings, integers and what is made of them
	return b
}
