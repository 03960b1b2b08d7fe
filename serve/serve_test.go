package serve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/sampler"
	"github.com/nwt-go/nwt/serve"
)

// drawing is n samples that draw at random: what they hold depends on all that Load may depend on.
type drawing struct{ n, longest, bad int }

func (d drawing) Len() int { return d.n }

func (d drawing) Fields() []nwt.Field {
	return []nwt.Field{
		{Name: "draws", Type: nwt.Float32, Shape: []int{d.longest, 2}, RaggedDims: 1},
		{Name: "map", Type: nwt.Uint8, Shape: []int{4, 5, 3}, RaggedDims: 2},
		{Name: "where", Type: nwt.Int64, Shape: []int{3}},
		{Name: "even", Type: nwt.Bool},
	}
}

func (d drawing) Load(_ context.Context, index int, dst *nwt.Sample) error {
	if index == d.bad {
		return errors.New("the disk is on fire")
	}
	n := index % (d.longest + 1)
	dst.SetLen(0, n)
	for i := range 2 * n {
		nwt.Values[float32](dst, 0)[i] = dst.Rand().Float32()
	}
	rows, columns := index%5, index%3
	dst.SetShape(1, rows, columns)
	for r := range rows {
		for c := range 3 * columns {
			nwt.Values[uint8](dst, 1)[r*3*dst.Shape(1)[1]+c] = uint8(1 + index + r + c)
		}
	}
	copy(nwt.Values[int64](dst, 2), []int64{int64(index), int64(dst.Position()), int64(dst.Epoch())})
	nwt.Values[bool](dst, 3)[0] = index%2 == 0
	return nil
}

// sizedDrawing tells its sizes.
type sizedDrawing struct{ drawing }

func (d sizedDrawing) Sizes(index int, sizes []int) {
	copy(sizes, []int{index % (d.longest + 1), index % 5, index % 3})
}

// start starts servers of a dataset, and returns their addresses.
func start(t testing.TB, ds nwt.Dataset, n int, opts ...serve.ServerOption) (addresses []string) {
	for i := range n {
		addresses = append(addresses, startAt(t, "tcp", "127.0.0.1:0", ds, append([]serve.ServerOption{serve.WithName(fmt.Sprint("host", i))}, opts...)...))
	}
	return addresses
}

func startAt(t testing.TB, network, address string, ds nwt.Dataset, opts ...serve.ServerOption) string {
	s, err := serve.New(t.Context(), ds, opts...)
	require.NoError(t, err)
	l, err := net.Listen(network, address)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	return l.Addr().String()
}

func open(t testing.TB, addresses []string, opts ...serve.ClientOption) serve.Dataset {
	ds, err := serve.Open(t.Context(), addresses, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ds.Close()) })
	return ds
}

// held returns what batches hold, lengths and shapes included.
func held(t testing.TB, batches iter.Seq2[*nwt.Batch, error]) (all [][]byte) {
	t.Helper()
	for b, err := range batches {
		require.NoError(t, err)
		for f, field := range b.Fields() {
			all = append(all, bytes.Clone(b.Bytes(f)), fmt.Append(nil, b.Shape(f), b.Indices()))
			for dim := range field.RaggedDims {
				all = append(all, fmt.Append(nil, b.Lens(f, dim)))
			}
		}
	}
	return all
}

func loader(t testing.TB, ds nwt.Dataset, opts ...nwt.Option) *nwt.Loader {
	l, err := nwt.NewLoader(ds, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func TestBatchesOverServersAreTheLocalLoaders(t *testing.T) {
	weights := make([]float64, 100)
	for i := range weights {
		weights[i] = float64(1 + i%4)
	}
	weighted, err := sampler.Weighted(weights, 90, 3)
	require.NoError(t, err)
	bucketed, err := sampler.Bucketed(100, func(i int) int { return i % 7 }, sampler.Buckets{BatchSize: 10}, 5)
	require.NoError(t, err)
	orders := map[string][]nwt.Option{
		"in order": nil, "shuffled": {nwt.WithShuffle(7), nwt.WithSeed(9)},
		"weighted": {nwt.WithSampler(weighted)}, "bucketed": {nwt.WithSampler(bucketed)},
	}
	plain := drawing{n: 100, longest: 6, bad: -1}
	for _, ds := range []nwt.Dataset{plain, sizedDrawing{plain}} {
		for servers := 1; servers <= 3; servers++ {
			remote := open(t, start(t, ds, servers, serve.WithLoader(nwt.WithBatchSize(10), nwt.WithWorkers(2))))
			for name, order := range orders {
				for _, workers := range []int{0, 3} {
					t.Run(fmt.Sprintf("%s, %T, %d servers, %d workers", name, ds, servers, workers), func(t *testing.T) {
						opts := append([]nwt.Option{nwt.WithBatchSize(10)}, order...)
						here := loader(t, ds, append(opts, nwt.WithWorkers(1))...)
						there := loader(t, remote, append(opts, nwt.WithWorkers(workers))...)
						require.Equal(t, held(t, here.Epoch(t.Context(), 2)), held(t, there.Epoch(t.Context(), 2)))
						s := nwt.State{Epoch: 1, Samples: 30}
						require.Equal(t, held(t, here.Resume(t.Context(), s)), held(t, there.Resume(t.Context(), s)))
					})
				}
			}
		}
	}
}

// A server takes fewer samples at a time than the client's batches have.
func TestABatchMayBeLargerThanTheServers(t *testing.T) {
	ds := drawing{n: 60, longest: 6, bad: -1}
	remote := open(t, start(t, ds, 2, serve.WithLoader(nwt.WithBatchSize(7))))
	said := &strings.Builder{}
	opts := []nwt.Option{nwt.WithBatchSize(40), nwt.WithWorkers(0), nwt.WithShuffle(1), nwt.WithLogger(slog.New(slog.NewTextHandler(said, nil)))}
	require.Equal(t, held(t, loader(t, ds, opts...).Epoch(t.Context(), 0)), held(t, loader(t, remote, opts...).Epoch(t.Context(), 0)))
	require.NotContains(t, said.String(), "(LoadMany) failed")
}

func TestABatchMayHaveAnyNumberOfSamples(t *testing.T) {
	const n = 100_000
	ds := nwt.NewDataset(n, []nwt.Field{{Name: "x", Type: nwt.Int32}}, func(_ context.Context, index int, dst *nwt.Sample) error {
		nwt.Values[int32](dst, 0)[0] = int32(index)
		return nil
	})
	opts := []nwt.Option{nwt.WithBatchSize(n), nwt.WithShuffle(1), nwt.WithWorkers(1), nwt.WithRetry(0, 0)}
	remote := open(t, start(t, ds, 1, serve.WithLoader(opts...)))
	require.Equal(t, held(t, loader(t, ds, opts...).Epoch(t.Context(), 0)), held(t, loader(t, remote, opts...).Epoch(t.Context(), 0)))
}

func TestABadSampleComesBackWithItsErrorAndTheServersName(t *testing.T) {
	ds := drawing{n: 20, longest: 3, bad: 13}
	remote := open(t, start(t, ds, 1, serve.WithLoader(nwt.WithBatchSize(20))))
	quiet := nwt.WithLogger(slog.New(slog.DiscardHandler))
	l := loader(t, remote, nwt.WithBatchSize(5), nwt.WithWorkers(2), quiet)
	var last error
	n := 0
	for _, err := range l.Epoch(t.Context(), 0) {
		if last = err; err == nil {
			n++
		}
	}
	require.Equal(t, 2, n)
	var bad *nwt.LoadError
	require.ErrorAs(t, last, &bad)
	require.Equal(t, 13, bad.Index)
	require.ErrorContains(t, last, "on server host0: the disk is on fire")

	l = loader(t, remote, nwt.WithBatchSize(5), nwt.WithErrorBudget(1), quiet)
	samples := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		samples += b.Len()
	}
	require.Equal(t, 19, samples)
}

func TestServersOfOtherDatasetsAreAnErrorThatNamesBoth(t *testing.T) {
	one := start(t, drawing{n: 20, longest: 3, bad: -1}, 1, serve.WithLoader(nwt.WithBatchSize(4)))
	two := start(t, drawing{n: 21, longest: 3, bad: -1}, 1, serve.WithLoader(nwt.WithBatchSize(4)))
	remote := open(t, append(one, two...))
	l := loader(t, remote, nwt.WithBatchSize(4), nwt.WithLogger(slog.New(slog.DiscardHandler)))
	var last error
	for _, err := range l.Epochs(t.Context(), 0, 100_000) { // until both are asked
		last = err
	}
	require.ErrorContains(t, last, "all must serve the same")
	require.ErrorContains(t, last, "(21 samples, draws Float32 [3 2], ", "what differs")
	require.ErrorContains(t, last, "(20 samples, draws Float32 [3 2], ")
}

func TestTheErrorOfTwoServersSaysWhatDiffersInTheirFolders(t *testing.T) {
	write := func(dir, name, data string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "a"), 0o755))
		at := filepath.Join(dir, "a", name)
		require.NoError(t, os.WriteFile(at, []byte(data), 0o644))
		require.NoError(t, os.Chtimes(at, time.Time{}, time.Unix(1e9, 0)))
	}
	one := t.TempDir()
	write(one, "1.wav", "one")
	for differs, change := range map[string]func(dir string){
		"names": func(dir string) { write(dir, "2.wav", "one") },
		"sizes": func(dir string) { write(dir, "1.wav", "longer") },
		"times": func(dir string) {
			write(dir, "1.wav", "one")
			require.NoError(t, os.Chtimes(filepath.Join(dir, "a", "1.wav"), time.Time{}, time.Unix(2e9, 0)))
		},
		"ends": func(dir string) { write(dir, "1.wav", "two") },
	} {
		t.Run(differs, func(t *testing.T) {
			var addresses []string
			two := t.TempDir()
			change(two)
			for i, dir := range []string{one, two} {
				var opts []folder.Option
				if differs == "ends" {
					opts = append(opts, folder.WithContentFingerprint())
				}
				ds, err := folder.Open(t.Context(), dir, nil, nil, nil, opts...)
				require.NoError(t, err)
				addresses = append(addresses, startAt(t, "tcp", "127.0.0.1:0", ds, serve.WithName(fmt.Sprint("host", i))))
			}
			var last error
			for _, err := range loader(t, open(t, addresses), nwt.WithBatchSize(1), nwt.WithLogger(slog.New(slog.DiscardHandler))).Epochs(t.Context(), 0, 100_000) {
				last = err
			}
			for _, part := range []string{"names", "sizes", "times", "ends"} {
				said := regexp.MustCompile(part+" ([0-9a-f]+)").FindAllStringSubmatch(last.Error(), -1)
				if len(said) > 0 {
					require.Len(t, said, 2, last)
					require.Equal(t, part == differs, said[0][1] != said[1][1], last)
				} else {
					require.NotEqual(t, differs, part, last)
				}
			}
		})
	}
}

func TestWhoDoesNotKnowTheTokenGetsNothing(t *testing.T) {
	addresses := start(t, drawing{n: 20, longest: 3, bad: -1}, 1, serve.WithLoader(nwt.WithBatchSize(4)), serve.WithToken("secret"))
	for _, opts := range [][]serve.ClientOption{nil, {serve.WithToken("guess")}} {
		_, err := serve.Open(t.Context(), addresses, opts...)
		require.ErrorContains(t, err, "the token is missing or wrong")
	}
	open(t, addresses, serve.WithToken("secret"))
}

func TestTheSamplesOfABatchAreToldWithoutLoadingOne(t *testing.T) {
	ds := nwt.NewDataset(100, []nwt.Field{{Name: "x", Type: nwt.Uint8}}, func(context.Context, int, *nwt.Sample) error { panic("it is loaded") })
	opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithShuffle(7)}
	conn, err := grpc.NewClient(start(t, ds, 1, serve.WithLoader(opts...))[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	indices := func(ticket string) (told []int, err error) {
		stream, err := flight.NewFlightServiceClient(conn).DoAction(t.Context(), &flight.Action{Type: "indices", Body: []byte(ticket)})
		require.NoError(t, err)
		answer, err := stream.Recv()
		if err == nil {
			require.NoError(t, json.Unmarshal(answer.GetBody(), &told))
		}
		return told, err
	}
	for rank := range 2 {
		here := loader(t, ds, append(opts, nwt.WithRank(rank, 2))...)
		for number := range here.Len() {
			want, err := here.Indices(3, number)
			require.NoError(t, err)
			told, err := indices(fmt.Sprintf(`{"epoch": 3, "batch": %d, "rank": %d, "world": 2}`, number, rank))
			require.NoError(t, err)
			require.Equal(t, want, told)
		}
	}
	_, err = indices(`{"batch": 1000}`)
	require.Equal(t, codes.InvalidArgument, status.Code(err), err)
}

// A server remembers the order of some ranks, not of as many as clients name.
func TestAnyNumberOfRanksIsAnswered(t *testing.T) {
	const ranks = 200
	address := start(t, drawing{n: 400, longest: 3, bad: -1}, 1, serve.WithLoader(nwt.WithBatchSize(2)))[0]
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	var asking errgroup.Group
	for rank := range ranks {
		asking.Go(func() error {
			stream, err := flight.NewFlightServiceClient(conn).DoGet(t.Context(), &flight.Ticket{Ticket: fmt.Appendf(nil, `{"rank": %d, "world": %d}`, rank, ranks)})
			for err == nil {
				_, err = stream.Recv()
			}
			if err != io.EOF {
				return err
			}
			return nil
		})
	}
	require.NoError(t, asking.Wait())
}
