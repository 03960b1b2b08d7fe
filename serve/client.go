package serve

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	_ "google.golang.org/grpc/balancer/roundrobin" // named in serviceConfig
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // the client's side of serviceConfig
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/nwt-go/nwt"
)

const (
	window = 16 << 20         // of HTTP/2, as gRPC's own estimate stops at 4 MB
	ping   = 10 * time.Second // a server that is stopped is noticed after two of them

	serviceConfig = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}`
)

// A Dataset is what one or several servers have. Its samples are loaded there. How many requests are
// under way follows from the loader's workers; nwt.Tune finds their number. It is an
// nwt.SizedDataset if the servers' is.
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
}

// sized is a remote dataset that knows the sizes of its samples.
type sized struct {
	*remote
	lens []byte // 4 bytes for each ragged dimension of each sample
}

func (d *sized) Sizes(index int, sizes []int) {
	n := ragged(d.about.Fields)
	for dim := range n {
		sizes[dim] = int(int32(binary.LittleEndian.Uint32(d.lens[4*(index*n+dim):])))
	}
}

// Open asks servers, all of which must serve the same dataset, for what they have. An address is
// host:port, unix:PATH, or dns:///name:port for all hosts of a name, which is asked again while
// training runs. A server that answers later with another dataset is an error that names both.
func Open(ctx context.Context, addresses []string, opts ...Option) (Dataset, error) {
	o := optionsOf(opts)
	if len(addresses) == 0 {
		return nil, errors.New("serve: Open needs at least one address")
	}
	creds := insecure.NewCredentials()
	if o.tls != nil {
		creds = credentials.NewTLS(o.tls)
	}
	target := addresses[0]
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(2 * window), grpc.WithReadBufferSize(window / 16),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}, MinConnectTimeout: ping}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: ping, Timeout: ping, PermitWithoutStream: false}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<31 - 1)),
	}
	if len(addresses) > 1 {
		list := manual.NewBuilderWithScheme("nwt")
		state := resolver.State{}
		for _, a := range addresses {
			if strings.Contains(a, "://") {
				return nil, fmt.Errorf("serve: Open: %s: of several addresses each must be host:port or unix:PATH", a)
			}
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: strings.TrimPrefix(a, "unix:")}}})
		}
		list.InitialState(state)
		dial, target = append(dial, grpc.WithResolvers(list)), "nwt:///servers"
	}
	conn, err := grpc.NewClient(target, dial...)
	if err != nil {
		return nil, fmt.Errorf("serve: Open: %w", err)
	}
	d := &sized{remote: &remote{conn: conn, client: flight.NewFlightServiceClient(conn), opts: o}}
	if err := d.patiently(ctx, d.ask); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if !d.about.Sized {
		return d.remote, nil
	}
	return d, nil
}

// ask asks what there is.
func (d *sized) ask(ctx context.Context) error {
	info, err := d.client.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"0", "1"}})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(info.GetAppMetadata(), &d.about); err != nil || d.about.Batch < 1 {
		return errors.Join(errors.New("the server doesn't say what it has"), err)
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
	sizes, err := stream.Recv()
	d.lens = sizes.GetBody()
	if want := 4 * ragged(d.about.Fields) * d.about.Samples; err == nil && len(d.lens) != want {
		err = fmt.Errorf("the sizes of %d samples are %d bytes, not %d", d.about.Samples, want, len(d.lens))
	}
	return err
}

// patiently calls f until it succeeds or fails for another reason than that no server answers.
func (d *remote) patiently(ctx context.Context, f func(ctx context.Context) error) error {
	if d.opts.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+d.opts.token)
	}
	began, wait := time.Now(), 10*time.Millisecond
	for {
		err := f(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case status.Code(err) == codes.DataLoss:
			return errors.New(status.Convert(err).Message())
		case status.Code(err) == codes.Aborted:
			return nwt.Retryable(errors.New(status.Convert(err).Message()))
		case status.Code(err) != codes.Unavailable:
			return fmt.Errorf("serve: %w", err)
		case time.Since(began) > d.opts.patient:
			return nwt.Retryable(fmt.Errorf("serve: no server has answered for %v: %w", d.opts.patient, err))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, time.Second)
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

// WritesAll implements what [nwt.Overwrites] describes: what comes fills each sample.
func (d *remote) WritesAll(asked nwt.Dataset) bool {
	if s, ok := asked.(*sized); ok {
		return s.remote == d
	}
	return asked == nwt.Dataset(d)
}

// Load loads one sample.
func (d *remote) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	return d.LoadBatch(ctx, []int{index}, []*nwt.Sample{dst})
}

// LoadBatch has servers load samples, as many at a time as they take.
func (d *remote) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for most := d.about.Batch; len(dst) > most; indices, dst = indices[most:], dst[most:] {
		if err := d.load(ctx, indices[:most], dst[:most]); err != nil {
			return err
		}
	}
	return d.load(ctx, indices, dst)
}

func (d *remote) load(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	places := make([]nwt.Place, len(dst))
	for i, s := range dst {
		places[i] = s.Place()
		places[i].Index = indices[i]
	}
	ticket := &flight.Ticket{Ticket: appendPlaces(make([]byte, 0, len(placesMagic)+32*len(places)), places)}
	return d.patiently(ctx, func(ctx context.Context) error { return d.get(ctx, ticket, dst) })
}

// get asks for a batch, and writes it to dst.
func (d *remote) get(ctx context.Context, t *flight.Ticket, dst []*nwt.Sample) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.client.DoGet(ctx, t, grpc.ForceCodecV2(codec{}))
	if err != nil {
		return err
	}
	in := incoming{}
	if err := stream.RecvMsg(&in); err != nil { // the schema, which is known
		return err
	}
	came := false
	in.body = func(meta []byte, r io.Reader, size int) error {
		var a answer
		if err := json.Unmarshal(meta, &a); err != nil {
			return err
		}
		came = true
		if err := d.fits(&a, len(dst)); err != nil {
			return err
		}
		return d.scatter(&a, r, dst)
	}
	if err := stream.RecvMsg(&in); err != nil {
		return err
	}
	if !came {
		return errors.New("serve: no batch has come")
	}
	if err := stream.RecvMsg(&incoming{}); err != io.EOF {
		return errors.Join(err, errors.New("serve: something follows the batch"))
	}
	return nil
}

// fits returns an error if the answer isn't of this dataset.
func (d *remote) fits(a *answer, n int) error {
	switch {
	case a.Data != d.about.Data:
		return fmt.Errorf("serve: server %s has the dataset %s, server %s has %s: all must serve the same", a.Server, a.Data, d.about.Server, d.about.Data)
	case a.Samples != n || len(a.Shapes) != len(d.about.Fields):
		return fmt.Errorf("serve: server %s answers %d samples of %d fields, not %d of %d", a.Server, a.Samples, len(a.Shapes), n, len(d.about.Fields))
	}
	for f, field := range d.about.Fields {
		fits := len(a.Shapes[f]) == len(field.Shape)
		for dim := 0; fits && dim < len(field.Shape); dim++ {
			n := a.Shapes[f][dim]
			fits = n == field.Shape[dim] || n > 0 && n < field.Shape[dim] && dim < raggedDims(field)
		}
		if !fits {
			return fmt.Errorf("serve: server %s answers the shape %v for %v of field %q", a.Server, a.Shapes[f], field.Shape, field.Name)
		}
	}
	return nil
}

// scatter reads the columns of a batch into its samples. A fixed column goes straight there; a
// ragged one waits for its lengths, which come last.
func (d *remote) scatter(a *answer, r io.Reader, dst []*nwt.Sample) (err error) {
	fill := func(b []byte) []byte {
		_, cut := io.ReadFull(r, b)
		err = cmp.Or(err, cut)
		return b
	}
	columns := make([][]byte, len(d.about.Fields))
	for f, field := range d.about.Fields {
		size := field.Type.Size() * a.Samples
		for _, n := range a.Shapes[f] {
			size *= n
		}
		if field.Ragged {
			columns[f] = fill(make([]byte, size))
		} else {
			for _, s := range dst {
				fill(s.Bytes(f))
			}
		}
		fill(make([]byte, -size&7)) // up to 8 bytes
	}
	for f, field := range d.about.Fields {
		var lens [][]byte
		for range raggedDims(field) {
			lens = append(lens, fill(make([]byte, 4*a.Samples)))
			fill(make([]byte, -4*a.Samples&7))
		}
		if err == nil && field.Ragged {
			err = spread(a, f, field, columns[f], lens, dst)
		}
	}
	return err
}

// spread copies a ragged column to its samples, whose places may be larger.
func spread(a *answer, f int, field nwt.Field, column []byte, lens [][]byte, dst []*nwt.Sample) error {
	shape := make([]int, len(lens))
	for i, s := range dst {
		for dim := range lens {
			n := int(int32(binary.LittleEndian.Uint32(lens[dim][4*i:])))
			if n < 0 || n > a.Shapes[f][dim] {
				return fmt.Errorf("serve: server %s answers the length %d for dimension %d of field %q, of %d", a.Server, n, dim, field.Name, a.Shapes[f][dim])
			}
			shape[dim] = n
		}
		s.SetShape(f, shape...)
		size := len(column) / len(dst)
		copyRuns(s.Bytes(f), s.Shape(f), column[i*size:(i+1)*size], a.Shapes[f], shape)
	}
	return nil
}

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
