package serve

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	_ "google.golang.org/grpc/balancer/roundrobin" // named in serviceConfig
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/nwt-go/nwt"
)

const (
	window = 16 << 20        // of HTTP/2, as gRPC's own estimate stops at 4 MB
	ping   = 7 * time.Second // a server that is stopped is noticed after two of them

	serviceConfig = `{"loadBalancingConfig": [{"round_robin": {}}]}`
)

// A Dataset is the dataset of one or several servers, which load its samples. The loader's number of
// workers is the number of requests under way; nwt.Tune finds this number. If the servers' dataset is an
// nwt.SizedDataset, so is the Dataset.
type Dataset interface {
	nwt.BatchDataset
	nwt.Fingerprinter
	io.Closer // ends the connections
}

type remote struct {
	conn   *grpc.ClientConn
	client flight.FlightServiceClient
	opts   *options
	about  description
	most   int // samples of a request

	late atomic.Pointer[time.Time] // when patience last ended
}

// sized is a remote dataset that knows the sizes of its samples.
type sized struct {
	*remote
	lens []byte // 4 bytes for each ragged dimension of each sample
}

func (d *sized) Sizes(index int, sizes []int) {
	n := ragged(d.about.Fields)
	for dim := range n {
		sizes[dim] = int32At(d.lens, index*n+dim)
	}
}

// Open makes a dataset whose samples are loaded by servers. All servers must serve the same dataset. An
// address is host:port. A single address may also be dns:///name:port, which stands for all hosts with this
// name. The name is looked up again while training runs. If a server that answers later has another
// dataset, token or version, the epoch ends with an error, whatever WithErrorBudget allows.
func Open(ctx context.Context, addresses []string, opts ...ClientOption) (Dataset, error) {
	o := &options{patience: time.Minute}
	var err error
	for _, opt := range opts {
		err = errors.Join(err, opt.ofClient(o))
	}
	if len(addresses) == 0 {
		err = errors.Join(err, errors.New("serve: Open: must have at least one address"))
	}
	for _, a := range addresses {
		err = errors.Join(err, checkAddress(a, len(addresses)))
	}
	if err != nil {
		return nil, err
	}
	d := &sized{remote: &remote{opts: o}}
	creds := insecure.NewCredentials()
	if o.tls != nil {
		creds = credentials.NewTLS(o.tls)
	}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(2 * window), grpc.WithReadBufferSize(window / 16),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}, MinConnectTimeout: ping}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: ping, Timeout: ping, PermitWithoutStream: false}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<31 - 1)), grpc.WithNoProxy(),
	}
	target := addresses[0]
	if !strings.HasPrefix(target, "dns:///") {
		list, state := manual.NewBuilderWithScheme("nwt"), resolver.State{}
		for _, a := range addresses {
			name, _, _ := net.SplitHostPort(a) // it is checked
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a, ServerName: name}}})
		}
		list.InitialState(state)
		dial, target = append(dial, grpc.WithResolvers(list)), "nwt:///servers"
	}
	conn, err := grpc.NewClient(target, dial...)
	if err != nil {
		return nil, fmt.Errorf("serve: Open: %w", err)
	}
	d.conn, d.client = conn, flight.NewFlightServiceClient(conn)
	if err := d.patiently(ctx, d.ask); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// A request's batch is a part of a server's, and far from what a message may have.
	d.most = max(1, min(d.about.Batch, maxPlaces, 1<<30/max(1, bytesPerSample(d.about.Fields))))
	if !d.about.Sized {
		return d.remote, nil
	}
	return d, nil
}

// checkAddress returns an error unless a is the address of a server, one of n.
func checkAddress(a string, n int) error {
	name := strings.TrimPrefix(a, "dns:///")
	_, port, err := net.SplitHostPort(name)
	switch {
	case strings.Contains(name, "://") || strings.HasPrefix(name, "unix:"):
		return fmt.Errorf("serve: Open: %s: must be host:port or dns:///name:port", a)
	case name != a && n > 1:
		return fmt.Errorf("serve: Open: %s: must be the only address; there are %d", a, n)
	case strings.Count(name, ":") > 1 && name[0] != '[':
		return fmt.Errorf("serve: Open: %s: an IPv6 address must be in brackets: [host]:port, such as [::1]:7474", a)
	case err != nil || port == "":
		return fmt.Errorf("serve: Open: %s: has no port: host:port, such as %s:7474", a, name)
	}
	return nil
}

// ask asks what there is.
func (d *sized) ask(ctx context.Context) error {
	info, err := d.client.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"0", "1", strconv.Itoa(version)}})
	if err != nil {
		return err
	}
	d.about = description{}
	if err := json.Unmarshal(info.GetAppMetadata(), &d.about); err != nil || d.about.Data == "" {
		return errors.Join(errors.New("this isn't an nwt server"), err)
	}
	if d.about.Batch < 1 || d.about.Samples < 0 || d.about.Samples > 1<<40 {
		return fmt.Errorf("server %s tells %d samples in batches of %d", d.about.Server, d.about.Samples, d.about.Batch)
	}
	if !d.about.Sized {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.client.DoAction(ctx, &flight.Action{Type: "sizes"})
	if err != nil {
		return err
	}
	d.lens = nil
	for want := 4 * ragged(d.about.Fields) * d.about.Samples; ; {
		portion, err := stream.Recv()
		if d.lens = append(d.lens, portion.GetBody()...); err == io.EOF && len(d.lens) == want {
			return nil
		}
		if err == io.EOF || len(d.lens) > want {
			return fmt.Errorf("server %s: the sizes of %d samples take %d bytes, not %d", d.about.Server, d.about.Samples, want, len(d.lens))
		}
		if status.Code(err) == codes.InvalidArgument {
			return fmt.Errorf("server %s tells sizes, another doesn't: all must serve the same: %w", d.about.Server, err)
		}
		if err != nil {
			return err
		}
	}
}

// A serverError is no sample's: no error budget leaves it out.
type serverError struct {
	error
	temporary bool
}

func (e serverError) Unwrap() error   { return e.error }
func (e serverError) Temporary() bool { return e.temporary }

// EndsEpoch reports that the error is of the source of all samples.
func (e serverError) EndsEpoch() bool { return true }

// within returns a context that ends after d, in ticks of at most a second. Each counts as at most two: this
// process may have been suspended.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		tick := min(d/4, time.Second)
		for last := time.Now(); d > 0; {
			select {
			case <-time.After(min(d, tick)):
			case <-ctx.Done():
				return
			}
			now := time.Now()
			d -= min(now.Sub(last), 2*tick)
			last = now
		}
		cancel()
	}()
	return ctx, cancel
}

// patiently calls f until it succeeds, fails for another reason than that a server doesn't answer, or
// patience ends.
func (d *remote) patiently(ctx context.Context, f func(ctx context.Context) error) error {
	patience := d.opts.patience
	if late := d.late.Load(); late != nil && time.Since(*late) < time.Second {
		patience = min(patience, time.Second) // or a batch's samples, each asked for alone, would take as many times as long
	}
	within, cancel := within(ctx, patience)
	defer cancel()
	if d.opts.token != "" {
		within = metadata.AppendToOutgoingContext(within, "authorization", "Bearer "+d.opts.token)
	}
	var last error
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := f(within)
		code := status.Code(err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case d.about.Server == "" && (strings.Contains(err.Error(), "failed to verify certificate") || strings.Contains(err.Error(), "look like a TLS handshake")): // later other servers may answer
			return serverError{fmt.Errorf("serve: Open: %w", err), false}
		case within.Err() != nil:
			d.late.Store(new(time.Now()))
			return serverError{fmt.Errorf("serve: no server has answered for %v: %w", patience, cmp.Or(last, err)), true}
		case code == codes.DataLoss:
			return errors.New(status.Convert(err).Message())
		case code == codes.Aborted:
			return nwt.Retryable(errors.New(status.Convert(err).Message()))
		case code == codes.FailedPrecondition && d.about.Server != "":
			return serverError{fmt.Errorf("serve: %s; server %s has %s: all must serve the same", status.Convert(err).Message(), d.about.Server, d.about.dataset()), false}
		case code != codes.Unavailable && code != codes.Canceled && code != codes.DeadlineExceeded:
			return serverError{fmt.Errorf("serve: %w", err), false}
		}
		last = err
		select {
		case <-time.After(wait):
		case <-within.Done():
		}
	}
}

// Len returns the number of samples.
func (d *remote) Len() int { return d.about.Samples }

// Fields returns the layout of a sample.
func (d *remote) Fields() []nwt.Field { return d.about.Fields }

// Fingerprint tells this dataset from others.
func (d *remote) Fingerprint() string { return d.about.Data }

// Close ends the connections.
func (d *remote) Close() error { return d.conn.Close() }

// WritesAll implements what [nwt.WritesAll] describes: what comes fills each sample.
func (d *remote) WritesAll(asked nwt.Dataset) bool {
	if s, ok := asked.(*sized); ok {
		return s.remote == d
	}
	return asked == nwt.Dataset(d)
}

// Load loads one sample.
func (d *remote) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	return d.LoadMany(ctx, []int{index}, []*nwt.Sample{dst})
}

// LoadMany has servers load samples, as many at a time as they take.
func (d *remote) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for most := d.most; len(dst) > most; indices, dst = indices[most:], dst[most:] {
		if err := d.load(ctx, indices[:most], dst[:most]); err != nil {
			return err
		}
	}
	return d.load(ctx, indices, dst)
}

func (d *remote) load(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	first := dst[0].Place()
	t := ticket{Version: version, Data: d.about.Data, Epoch: first.Epoch, Key: first.Key}
	for i, s := range dst {
		t.Places = append(t.Places, [2]int{indices[i], s.Place().Position})
	}
	asked := &flight.Ticket{Ticket: jsonOf(t)}
	return d.patiently(ctx, func(ctx context.Context) error { return d.get(ctx, asked, dst) })
}

// get asks for a batch, and writes it to dst.
func (d *remote) get(ctx context.Context, t *flight.Ticket, dst []*nwt.Sample) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.client.DoGet(ctx, t, grpc.ForceCodecV2(codec{}))
	if err != nil {
		return err
	}
	batches := 0
	in := &incoming{read: func(meta []byte, r *mem.Reader, size int) error {
		if meta == nil { // it is the schema, which is known
			return nil
		}
		batches++
		return d.scatter(meta, r, size, dst)
	}}
	for err == nil && batches < 2 {
		err = stream.RecvMsg(in)
	}
	switch {
	case err == io.EOF && batches == 1:
		return nil
	case err == nil || err == io.EOF:
		return fmt.Errorf("serve: %d batches have come, not 1", batches)
	}
	return err
}

// scatter reads a batch, a body of size bytes, into its samples.
func (d *remote) scatter(meta []byte, r *mem.Reader, size int, dst []*nwt.Sample) error {
	var a answer
	if err := json.Unmarshal(meta, &a); err != nil {
		return err
	}
	fields, n := d.about.Fields, len(dst)
	if a.Data != d.about.Data || a.Samples != n || len(a.Shapes) != len(fields) || len(a.At) != len(fields)+ragged(fields) {
		return fmt.Errorf("serve: server %s answers %d samples of the dataset %s, %d fields in %d columns, not %d of %s, %d", a.Server, a.Samples, a.Data, len(a.Shapes), len(a.At), n, d.about.Data, len(fields))
	}
	at := 0 // in the body
	take := func(column int, places ...[]byte) (err error) {
		from, end := a.At[column], a.At[column]
		for _, place := range places {
			end += len(place)
		}
		if from < at || end < from || end > size {
			return fmt.Errorf("serve: server %s answers column %d in the bytes %d … %d of %d, after byte %d", a.Server, column, from, end, size, at)
		}
		_, err = r.Discard(from - at)
		for _, place := range places {
			if err == nil {
				_, err = io.ReadFull(r, place)
			}
		}
		at = end
		return err
	}
	values := make([][]byte, len(fields)) // of ragged fields, whose lengths come last
	for f, field := range fields {
		shape := a.Shapes[f]
		fits := len(shape) == len(field.Shape)
		for dim := 0; fits && dim < len(shape); dim++ {
			fits = shape[dim] == field.Shape[dim] || dim < field.RaggedDims && shape[dim] > 0 && shape[dim] < field.Shape[dim]
		}
		if !fits {
			return fmt.Errorf("serve: server %s answers the shape %v for %v of field %q", a.Server, shape, field.Shape, field.Name)
		}
		var places [][]byte
		if field.RaggedDims > 0 {
			values[f] = make([]byte, n*elements(shape)*field.Type.Size())
			places = append(places, values[f])
		} else {
			for _, s := range dst {
				places = append(places, s.Bytes(f))
			}
		}
		if err := take(f, places...); err != nil {
			return err
		}
	}
	column := len(fields)
	for f, field := range fields {
		lens, shape := make([][]byte, field.RaggedDims), make([]int, field.RaggedDims)
		for dim := range lens {
			lens[dim] = make([]byte, 4*n)
			if err := take(column, lens[dim]); err != nil {
				return err
			}
			column++
		}
		for i := 0; i < n && len(lens) > 0; i++ {
			for dim := range lens {
				if shape[dim] = int32At(lens[dim], i); shape[dim] < 0 || shape[dim] > a.Shapes[f][dim] {
					return fmt.Errorf("serve: server %s answers the length %d for dimension %d of field %q, of %d", a.Server, shape[dim], dim, field.Name, a.Shapes[f][dim])
				}
			}
			each := len(values[f]) / n
			dst[i].SetShape(f, shape...)
			copyRuns(dst[i].Bytes(f), dst[i].Shape(f), values[f][i*each:(i+1)*each], a.Shapes[f], shape)
		}
	}
	return nil
}

func int32At(b []byte, i int) int { return int(int32(binary.LittleEndian.Uint32(b[4*i:]))) }

// copyRuns copies the part of a tensor that has the given shape in its first dimensions.
func copyRuns(dst []byte, dstShape []int, src []byte, srcShape, shape []int) {
	if len(dst) == 0 || len(src) == 0 {
		return
	}
	to, from := len(dst)/dstShape[0], len(src)/srcShape[0]
	if len(shape) == 1 {
		copy(dst, src[:shape[0]*from])
		return
	}
	for i := range shape[0] {
		copyRuns(dst[i*to:(i+1)*to], dstShape[1:], src[i*from:(i+1)*from], srcShape[1:], shape[1:])
	}
}
