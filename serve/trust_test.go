package serve_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/serve"
)

func TestATokenThatLetsEverybodyInIsRefused(t *testing.T) {
	ds := drawing{n: 20, longest: 3, bad: -1}
	for _, token := range []string{"", " ", "\n", "secret\n", " secret", "sécret", "a\x00b", strings.Repeat("x", 1025)} {
		_, err := serve.New(t.Context(), ds, serve.WithToken(token))
		require.ErrorContains(t, err, "WithToken: the token must be 1 … 1024 printable characters", "%q", token)
		_, err = serve.Open(t.Context(), []string{"127.0.0.1:1"}, serve.WithToken(token))
		require.ErrorContains(t, err, "WithToken", "%q", token)
	}
}

func TestOptionsOutOfBoundsAreToldTogether(t *testing.T) {
	_, err := serve.New(t.Context(), drawing{n: 20, longest: 3, bad: -1}, serve.WithSlots(0), serve.WithTLS(nil),
		serve.WithAbout(map[string]any{"f": func() {}}))
	for _, option := range []string{"serve: WithSlots: 0", "serve: WithTLS", "serve: WithAbout"} {
		require.ErrorContains(t, err, option)
	}
	_, err = serve.Open(t.Context(), nil, serve.WithPatience(0))
	require.ErrorContains(t, err, "WithPatience: 0s")
	require.ErrorContains(t, err, "at least one address")
	for _, path := range []string{"", "@", "@name", strings.Repeat("x", 200)} {
		_, err = serve.New(t.Context(), drawing{n: 20, longest: 3, bad: -1}, serve.WithShared(path))
		require.ErrorContains(t, err, "WithShared", path)
	}
}

func TestAnAddressThatCannotBeUsedIsTold(t *testing.T) {
	for address, why := range map[string]string{
		"host1": "has no port: host:port, such as host1:7474", "host1:": "has no port", "unix:/x": "must be host:port",
		"http://host1:1": "must be host:port or dns:///name:port", "grpc://host1:1": "must be host:port", "dns:///host1": "has no port",
		"::1:7474": "must be in brackets: [host]:port",
	} {
		_, err := serve.Open(t.Context(), []string{address})
		require.ErrorContains(t, err, why, address)
	}
	_, err := serve.Open(t.Context(), []string{"host1:1", "dns:///host2:1"})
	require.ErrorContains(t, err, "must be the only address")
}

// In a bubble the clock is virtual, and clients reach a server through memory.
type bubble struct {
	t      *testing.T
	pipe   *bufconn.Listener
	server *serve.Server
	stop   context.CancelFunc
	ended  chan error
}

func inBubble(t *testing.T, ds nwt.Dataset, opts []serve.ServerOption, f func(b *bubble)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := serve.New(t.Context(), ds, opts...)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		b := &bubble{t, bufconn.Listen(1 << 16), s, cancel, make(chan error, 1)}
		go func() { b.ended <- s.Serve(ctx, b.pipe) }()
		f(b)
		cancel()
		require.NoError(t, <-b.ended)
	})
}

// client makes a connection that asks for what it is given by credit of 64 kB.
func (b *bubble) client() (flight.FlightServiceClient, *grpc.ClientConn) {
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(1<<16),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return b.pipe.DialContext(ctx) }))
	require.NoError(b.t, err)
	return flight.NewFlightServiceClient(conn), conn
}

func (b *bubble) get(client flight.FlightServiceClient, ctx context.Context) flight.FlightService_DoGetClient {
	stream, err := client.DoGet(ctx, &flight.Ticket{Ticket: []byte(`{}`)})
	require.NoError(b.t, err)
	return stream
}

func read(stream flight.FlightService_DoGetClient) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// large is a dataset of one batch of 4 MB, which a client takes in many parts.
func large(load func(ctx context.Context, index int, dst *nwt.Sample) error) (nwt.Dataset, serve.ServerOption) {
	return nwt.NewDataset(4, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{1 << 20}}}, load), serve.WithLoader(nwt.WithBatchSize(4))
}

func nothing(context.Context, int, *nwt.Sample) error { return nil }

func untilDone(ctx context.Context, _ int, _ *nwt.Sample) error { <-ctx.Done(); return ctx.Err() }

func TestAClientThatReadsNothingHoldsASlotUntilOthersNeedIt(t *testing.T) {
	ds, opt := large(nothing)
	inBubble(t, ds, []serve.ServerOption{opt, serve.WithSlots(1)}, func(b *bubble) {
		idle, conn := b.client()
		defer conn.Close()
		b.get(idle, b.t.Context())
		synctest.Wait()
		require.Equal(t, 1, b.server.Loading())
		other, conn := b.client()
		defer conn.Close()
		began := time.Now()
		require.Equal(t, io.EOF, read(b.get(other, b.t.Context())))
		require.Equal(t, 3*time.Second, time.Since(began).Round(time.Second))
	})
	inBubble(t, ds, []serve.ServerOption{opt, serve.WithSlots(2)}, func(b *bubble) {
		idle, conn := b.client()
		defer conn.Close()
		b.get(idle, b.t.Context())
		time.Sleep(20 * time.Second)
		require.Equal(t, 1, b.server.Loading())
		time.Sleep(2 * time.Second)
		require.Zero(t, b.server.Loading())
	})
}

// … however much they ask for, and though they come again.
func TestClientsThatReadNothingLockNoOtherOut(t *testing.T) {
	ds, opt := large(nothing)
	inBubble(t, ds, []serve.ServerOption{opt}, func(b *bubble) {
		ctx, cancel := context.WithCancel(b.t.Context())
		for range 4 {
			idle, conn := b.client()
			defer conn.Close()
			for range 16 {
				go func() {
					for ctx.Err() == nil {
						if stream, err := idle.DoGet(ctx, &flight.Ticket{Ticket: []byte(`{}`)}, grpc.WaitForReady(true)); err == nil {
							<-stream.Context().Done()
						}
					}
				}()
			}
		}
		synctest.Wait()
		require.Equal(t, 16, b.server.Loading())
		other, conn := b.client()
		defer conn.Close()
		var reading sync.WaitGroup
		began := time.Now()
		for range 4 { // requests at a time
			reading.Go(func() {
				for range 10 {
					require.Equal(t, io.EOF, read(b.get(other, b.t.Context())))
				}
			})
		}
		reading.Wait()
		t.Log(time.Since(began))
		require.LessOrEqual(t, time.Since(began), time.Minute)
		cancel()
	})
}

func TestTheMemoryOfABatchThatItsClientDoesNotTakeIsFreed(t *testing.T) {
	ds, opt := large(nothing)
	inBubble(t, ds, []serve.ServerOption{opt}, func(b *bubble) {
		for range 30 {
			client, conn := b.client()
			b.get(client, b.t.Context())
			synctest.Wait()
			require.NoError(b.t, conn.Close())
			synctest.Wait()
		}
		var now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&now)
		require.Less(b.t, now.HeapAlloc, uint64(10*4<<20), "bytes")
	})
}

func TestAConnectionWithoutACallLastsAMinute(t *testing.T) {
	ds, opt := large(nothing)
	inBubble(t, ds, []serve.ServerOption{opt, serve.WithToken("secret")}, func(b *bubble) {
		client, conn := b.client()
		defer conn.Close()
		for range 60 { // refused calls are none
			require.Equal(t, codes.Unauthenticated, status.Code(read(b.get(client, b.t.Context()))))
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second) // a call in the moment of the end would connect anew
		synctest.Wait()
		require.Equal(t, connectivity.Idle, conn.GetState())
	})
}

func TestALoadEndsWithTheClientThatAskedForIt(t *testing.T) {
	var ended atomic.Int32
	ds, opt := large(func(ctx context.Context, _ int, _ *nwt.Sample) error { <-ctx.Done(); ended.Add(1); return ctx.Err() })
	inBubble(t, ds, []serve.ServerOption{opt}, func(b *bubble) {
		client, conn := b.client()
		defer conn.Close()
		ctx, cancel := context.WithCancel(b.t.Context())
		b.get(client, ctx)
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.EqualValues(t, 4, ended.Load())
	})
}

func TestAClientThatReadsSlowlyKeepsItsSlot(t *testing.T) {
	ds, opt := large(nothing)
	inBubble(t, ds, []serve.ServerOption{opt, serve.WithSlots(1)}, func(b *bubble) {
		slow, conn := b.client()
		defer conn.Close()
		stream := b.get(slow, b.t.Context())
		_, err := stream.Recv() // the schema
		require.NoError(t, err)
		// A message is read as a whole: the connection is what is slow.
		time.Sleep(15 * time.Second)
		_, err = stream.Recv()
		require.NoError(t, err)
		require.Equal(t, io.EOF, read(stream))
	})
}

func TestAServerEndsWithinItsGraceWhateverClientsDo(t *testing.T) {
	for name, load := range map[string]func(context.Context, int, *nwt.Sample) error{"reads nothing": nothing, "a load waits for its context": untilDone} {
		t.Run(name, func(t *testing.T) {
			ds, opt := large(load)
			inBubble(t, ds, []serve.ServerOption{opt, serve.WithGrace(3 * time.Second)}, func(b *bubble) {
				client, conn := b.client()
				defer conn.Close()
				b.get(client, context.Background())
				silent, err := b.pipe.Dial()
				require.NoError(t, err)
				defer silent.Close()
				synctest.Wait()
				began := time.Now()
				b.stop()
				b.ended <- <-b.ended
				require.LessOrEqual(t, time.Since(began), 4*time.Second)
			})
		})
	}
}

// … such as by SIGTERM while it tunes.
func TestAServerThatIsStoppedBeforeItServesEndsInOrder(t *testing.T) {
	ds, opt := large(nothing)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		s, err := serve.New(t.Context(), ds, opt)
		require.NoError(t, err)
		require.NoError(t, s.Serve(ctx, bufconn.Listen(1)))
	}
}

func TestWhatIsBegunIsFinishedWithinTheGrace(t *testing.T) {
	ds, opt := large(func(context.Context, int, *nwt.Sample) error { time.Sleep(time.Second); return nil })
	inBubble(t, ds, []serve.ServerOption{opt}, func(b *bubble) {
		client, conn := b.client()
		defer conn.Close()
		stream := b.get(client, b.t.Context())
		synctest.Wait()
		b.stop()
		require.Equal(t, io.EOF, read(stream))
	})
}

func TestCallsOfAConnectionAreBoundedAndNobodyWatches(t *testing.T) {
	ds, opt := large(untilDone)
	inBubble(t, ds, []serve.ServerOption{opt, serve.WithSlots(1), serve.WithToken("secret")}, func(b *bubble) {
		client, conn := b.client()
		defer conn.Close()
		alive := grpc_health_v1.NewHealthClient(conn)
		_, err := alive.Check(b.t.Context(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		watch, err := alive.Watch(b.t.Context(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		_, err = watch.Recv()
		require.Equal(t, codes.Unauthenticated, status.Code(err))
		_, err = client.GetFlightInfo(b.t.Context(), &flight.FlightDescriptor{Path: []string{"0", "1"}})
		require.Equal(t, codes.Unauthenticated, status.Code(err))
	})
	inBubble(t, ds, []serve.ServerOption{opt, serve.WithSlots(1), serve.WithGrace(0)}, func(b *bubble) {
		client, conn := b.client()
		defer conn.Close()
		for range 128 {
			b.get(client, b.t.Context())
		}
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
		defer cancel()
		_, err := client.DoGet(ctx, &flight.Ticket{})
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	})
}

func TestSizesComeInPortionsWithinTheSlots(t *testing.T) {
	const n = 200_000
	ds := nwt.Sized(nwt.NewDataset(n, drawing{longest: 9}.Fields(), nothing), func(index int, sizes []int) { sizes[0] = index % 7 })
	inBubble(t, ds, []serve.ServerOption{serve.WithSlots(1)}, func(b *bubble) {
		client, conn := b.client()
		defer conn.Close()
		stream, err := client.DoAction(b.t.Context(), &flight.Action{Type: "sizes"})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, b.server.Loading())
		total := 0
		for {
			portion, err := stream.Recv()
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			require.LessOrEqual(t, len(portion.GetBody()), 1<<18+12)
			total += len(portion.GetBody())
		}
		require.Equal(t, n*3*4, total)
	})
}

// serveOn serves at a listener until the test ends.
func serveOn(t testing.TB, l net.Listener, ds nwt.Dataset, opts ...serve.ServerOption) (stop func()) {
	s, err := serve.New(t.Context(), ds, opts...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	stop = func() { cancel(); err := <-ended; ended <- err; require.NoError(t, err) }
	t.Cleanup(stop)
	return stop
}

func TestAClientHasABoundOfItsOwn(t *testing.T) {
	hanging := nwt.NewDataset(8, []nwt.Field{{Name: "x", Type: nwt.Uint8}}, untilDone) // the schema comes, and nothing else
	for _, ds := range []nwt.Dataset{hanging, nwt.Sized(nwt.NewDataset(8, drawing{longest: 9}.Fields(), untilDone), func(_ int, sizes []int) { clear(sizes) })} {
		remote := open(t, start(t, ds, 1, serve.WithLoader(nwt.WithBatchSize(4)), serve.WithGrace(0)), serve.WithPatience(300*time.Millisecond))
		l := loader(t, remote, nwt.WithBatchSize(4), nwt.WithWorkers(1), nwt.WithRetry(0, 0), nwt.WithLogger(slog.New(slog.DiscardHandler)))
		for _, err := range l.Epoch(t.Context(), 0) {
			require.ErrorContains(t, err, "no server has answered for ")
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "batches have come")
			temporary, _ := driver.Temporary(err)
			require.True(t, temporary)
		}
	}
}

// As locally: two samples that hang cost two samples, not the server.
func TestSamplesThatHangCostTheServerOnlyThemselves(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	ds := nwt.NewDataset(160, []nwt.Field{{Name: "x", Type: nwt.Uint8}}, func(_ context.Context, index int, _ *nwt.Sample) error {
		if index == 50 || index == 90 {
			<-release // whatever its context says
		}
		return nil
	})
	quiet := nwt.WithLogger(slog.New(slog.DiscardHandler))
	remote := open(t, start(t, ds, 1, serve.WithLoader(nwt.WithBatchSize(16), nwt.WithWorkers(2), nwt.WithTimeout(100*time.Millisecond), nwt.WithRetry(0, 0), quiet)))
	l := loader(t, remote, nwt.WithBatchSize(16), nwt.WithErrorBudget(10), nwt.WithRetry(0, 0), quiet)
	for epoch := range 3 {
		samples := 0
		for b, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			samples += b.Len()
		}
		require.Equal(t, 158, samples)
	}
}

func TestAServersFaultsAreNoBadSamples(t *testing.T) {
	ds := drawing{n: 640, longest: 3, bad: -1}
	for name, other := range map[string]func() (nwt.Dataset, []serve.ServerOption){
		"dataset": func() (nwt.Dataset, []serve.ServerOption) { return drawing{n: 641, longest: 3, bad: -1}, nil },
		"token": func() (nwt.Dataset, []serve.ServerOption) {
			return ds, []serve.ServerOption{serve.WithToken("another")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			size := serve.WithLoader(nwt.WithBatchSize(10))
			stop := serveOn(t, l, ds, size, serve.WithToken("secret"))
			remote := open(t, []string{l.Addr().String()}, serve.WithToken("secret"))
			opts := []nwt.Option{nwt.WithBatchSize(10), nwt.WithErrorBudget(1000), nwt.WithWorkers(1), nwt.WithPrefetch(1), nwt.WithLogger(slog.New(slog.DiscardHandler))}
			var last error
			for b, err := range loader(t, remote, opts...).Epoch(t.Context(), 0) {
				if last = err; err == nil && b.Number() == 50 {
					stop()
					l, err := net.Listen("tcp", l.Addr().String())
					require.NoError(t, err)
					ds, opts := other()
					serveOn(t, l, ds, append([]serve.ServerOption{size, serve.WithToken("secret")}, opts...)...)
				}
			}
			require.Error(t, last)
		})
	}
}

func TestAnErrorIsCutAndItsStackStaysAtTheServer(t *testing.T) {
	for name, long := range map[string]error{"text": errors.New(strings.Repeat("x", 100_000)), "characters": errors.New(strings.Repeat("世", 9_000))} {
		ds := nwt.NewDataset(4, []nwt.Field{{Name: "x", Type: nwt.Uint8}}, func(context.Context, int, *nwt.Sample) error { return long })
		remote := open(t, start(t, ds, 1))
		for _, err := range loader(t, remote, nwt.WithLogger(slog.New(slog.DiscardHandler))).Epoch(t.Context(), 0) {
			require.ErrorContains(t, err, "on server host0", name)
			require.Less(t, len(err.Error()), 4300)
			require.NotContains(t, err.Error(), "goroutine")
		}
	}
}

// A liar is a server that says what a test wants.
type liar struct {
	flight.BaseFlightServer
	about string
}

func (l *liar) GetFlightInfo(context.Context, *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return &flight.FlightInfo{AppMetadata: []byte(l.about)}, nil
}

func TestAServerTellsAClientOfAnotherVersion(t *testing.T) {
	for about, why := range map[string]string{
		`{"server": "host1", "data": "x"}`: "tells 0 samples in batches of 0",
		`{}`:                               "this isn't an nwt server",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		g := grpc.NewServer()
		flight.RegisterFlightServiceServer(g, &liar{about: about})
		go func() { _ = g.Serve(l) }() // until Stop
		_, err = serve.Open(t.Context(), []string{l.Addr().String()})
		g.Stop()
		require.ErrorContains(t, err, why)
	}
	client, err := grpc.NewClient(start(t, drawing{n: 20, longest: 3, bad: -1}, 1)[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer client.Close()
	_, err = flight.NewFlightServiceClient(client).GetFlightInfo(t.Context(), &flight.FlightDescriptor{Path: []string{"0", "1", "4"}})
	require.ErrorContains(t, err, "the client speaks version 4, server host0 version 3: update server host0")
	stream, err := flight.NewFlightServiceClient(client).DoGet(t.Context(), &flight.Ticket{Ticket: []byte(`{"version": 1}`)})
	require.NoError(t, err)
	require.ErrorContains(t, read(stream), "the client speaks version 1, server host0 version 3: update nwt where the client runs")
}

func TestServersThatPadDifferentlyAreNotEqual(t *testing.T) {
	plain := drawing{n: 20, longest: 3, bad: -1}
	remote, last := serve.Open(t.Context(), append(start(t, plain, 1), start(t, sizedDrawing{plain}, 1)...))
	if last != nil { // it asked the one for its sizes, and the other for the rest
		require.ErrorContains(t, last, "all must serve the same")
		return
	}
	t.Cleanup(func() { require.NoError(t, remote.Close()) })
	for _, err := range loader(t, remote, nwt.WithBatchSize(1), nwt.WithLogger(slog.New(slog.DiscardHandler))).Epochs(t.Context(), 0, 100_000) {
		last = err
	}
	require.ErrorContains(t, last, "all must serve the same")
}
