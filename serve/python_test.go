//go:build linux

package serve_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve"
	"github.com/nwt-go/nwt/vision"
)

func init() {
	if os.Getuid() == 0 {
		intrude = func(ctx context.Context, addresses []string) { serve.As(1001, func() { connectTo(ctx, addresses) }) }
	}
}

// connectTo connects to servers and their sockets, says what isn't a call, and keeps hundreds of connections.
func connectTo(ctx context.Context, addresses []string) {
	var kept []net.Conn
	for n := 0; ctx.Err() == nil; n++ {
		network, at := "tcp", addresses[n%len(addresses)]
		if n%2 == 1 {
			network, at = "unix", sharedAt(at)
		}
		if c, err := net.Dial(network, at); err == nil {
			_, _ = c.Write([]byte("\x10\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00{\"version\": 3}   "))
			kept = append(kept, c)
		}
		if len(kept) > 300 {
			_ = kept[0].Close()
			kept = kept[1:]
		}
		time.Sleep(time.Millisecond)
	}
	for _, c := range kept {
		_ = c.Close()
	}
}

// python returns a command of Python with what the client needs.
func python(t testing.TB, args ...string) *exec.Cmd {
	if testing.Short() {
		t.Skip("starts processes")
	}
	program, given := os.LookupEnv("NWT_PYTHON")
	if !given {
		program = "python3"
	}
	if out, err := exec.Command(program, "-c", "import numpy, pyarrow.flight").CombinedOutput(); err != nil {
		require.False(t, given, "NWT_PYTHON=%s: %v %s", program, err, out)
		t.Skipf("%s with numpy and pyarrow isn't here (NWT_PYTHON names another): %v %s", program, err, out)
	}
	cmd := exec.Command(program, args...)
	cmd.WaitDelay = time.Minute // for processes that it has started
	cmd.Env = append(os.Environ(), "PYTHONPATH=../python:"+os.Getenv("PYTHONPATH"), "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// digests returns what python/tests/digests.py prints.
func digests(t *testing.T, batches iter.Seq2[*nwt.Batch, error]) (all []string) {
	for b, err := range batches {
		require.NoError(t, err)
		whole := sha256.New()
		for f := range b.Fields() {
			whole.Write(b.Bytes(f))
		}
		for f, field := range b.Fields() {
			for dim := range field.RaggedDims {
				require.NoError(t, binary.Write(whole, binary.LittleEndian, b.Lens(f, dim)))
			}
		}
		all = append(all, fmt.Sprintf("%x", whole.Sum(nil)))
	}
	return all
}

// pictures returns a folder of some.
func pictures(t *testing.T) string {
	dir := t.TempDir()
	for i := range 10 {
		img := image.NewNRGBA(image.Rect(0, 0, 40+i, 50))
		for x := range 40 {
			for y := range 50 {
				img.Set(x, y, color.NRGBA{R: uint8(5 * x), G: uint8(5 * y), B: uint8(20 * i), A: 255})
			}
		}
		class := filepath.Join(dir, fmt.Sprint("class", i%2))
		require.NoError(t, os.MkdirAll(class, 0o700))
		var file bytes.Buffer
		require.NoError(t, png.Encode(&file, img))
		require.NoError(t, os.WriteFile(filepath.Join(class, fmt.Sprint(i, ".png")), file.Bytes(), 0o600))
	}
	return dir
}

func TestThePythonClient(t *testing.T) {
	cmd := python(t, "-X", "faulthandler", "-W", "error", "-m", "unittest", "discover", "-v", "-s", "../python/tests")
	given := map[string]any{}
	opts := []nwt.Option{nwt.WithBatchSize(10), nwt.WithShuffle(7), nwt.WithWorkers(2)}
	ds := drawing{n: 101, longest: 6, bad: -1}
	shared := filepath.Join(t.TempDir(), "shared")
	given["drawing"], given["shared"] = start(t, ds, 2, serve.WithLoader(opts...)), "shared:"+shared
	start(t, ds, 1, serve.WithLoader(opts...), serve.WithShared(shared))
	var epochs []any
	for world := 1; world <= 3; world++ {
		for rank := range world {
			l := loader(t, ds, append(opts, nwt.WithRank(rank, world))...)
			epochs = append(epochs, map[string]any{"rank": []int{rank, world}, "digests": digests(t, l.Epoch(t.Context(), 2))})
		}
	}
	given["epochs"] = epochs
	var state nwt.State
	for b, err := range loader(t, ds, opts...).Epoch(t.Context(), 3) {
		require.NoError(t, err)
		if state = b.State(); b.Number() == 4 {
			break
		}
	}
	given["rest"] = map[string]any{"state": state, "digests": digests(t, loader(t, ds, append(opts, nwt.WithRank(1, 2))...).Resume(t.Context(), state))}

	given["secret"] = start(t, ds, 1, serve.WithLoader(opts...), serve.WithToken("secret"))[0]
	pair, roots := certificate(t)
	given["tls"], given["roots"] = start(t, ds, 1, serve.WithLoader(opts...), serve.WithTLS(&tls.Config{Certificates: []tls.Certificate{pair}}))[0], roots
	given["bad"] = start(t, drawing{n: 20, longest: 6, bad: 13}, 1, serve.WithLoader(nwt.WithBatchSize(4)))[0]
	one, two := given["drawing"].([]string)[0], start(t, drawing{n: 102, longest: 6, bad: -1}, 1, serve.WithLoader(opts...))[0]
	others := [][]string{{one, two}}
	for _, other := range []nwt.Option{nwt.WithBatchSize(11), nwt.WithSeed(8), nwt.WithDropLast(), nwt.WithShuffle(8)} {
		others = append(others, []string{one, start(t, ds, 1, serve.WithName("host1"), serve.WithLoader(append(opts, other)...))[0]})
	}
	given["others"] = others
	hanging := nwt.NewDataset(20, ds.Fields(), func(ctx context.Context, _ int, _ *nwt.Sample) error {
		<-ctx.Done()
		return ctx.Err()
	})
	given["hanging"] = []string{start(t, hanging, 1, serve.WithLoader(nwt.WithBatchSize(4), nwt.WithTimeout(time.Second)), serve.WithShared(shared+"3"))[0], "shared:" + shared + "3"}

	program := filepath.Join(t.TempDir(), "nwt-serve")
	out, err := exec.Command("go", "build", "-o", program, "./cmd/nwt-serve").CombinedOutput()
	require.NoError(t, err, "%s", out)
	given["program"], given["images"] = program, pictures(t)
	pipeline, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(32)}, vision.RandomHorizontalFlip{P: 0.5}}, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	folder, err := vision.OpenFolder(t.Context(), given["images"].(string), pipeline)
	require.NoError(t, err)
	given["pictures"] = digests(t, loader(t, folder, nwt.WithBatchSize(4), nwt.WithShuffle(42)).Epoch(t.Context(), 1))

	about, err := json.Marshal(given)
	require.NoError(t, err)
	cmd.Env = append(cmd.Env, "NWT_TEST="+string(about))
	out, err = cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return !strings.Contains(string(maps), "memfd:nwt")
	}, time.Minute, 10*time.Millisecond, "memory of clients that have gone")
}

func TestEachSampleComesOnceInPythonWhateverHappensToTheServers(t *testing.T) {
	want := strings.Join(digests(t, loader(t, slow, append(slowOpts, nwt.WithWorkers(8), nwt.WithLogger(slog.New(slog.DiscardHandler)))...).Epochs(t.Context(), 1, 4)), "\n") + "\n"
	for seed := range *histories {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cmd := python(t, "../python/tests/digests.py", "1", "4")
			var said bytes.Buffer
			cmd.Stderr = &said
			addresses, end := trouble(t, rand.New(rand.NewPCG(uint64(seed), 2)))
			defer end()
			if seed%2 == 1 {
				addresses = []string{"shared:" + sharedAt(addresses[0])}
			}
			cmd.Args = append(cmd.Args, addresses...)
			got, err := cmd.Output()
			require.NoError(t, err, "%s", &said)
			require.Equal(t, want, string(got))
		})
	}
}

// BenchmarkNext is next() in Python of batches of 9.6 MB that are ready.
func BenchmarkNext(b *testing.B) {
	shared := filepath.Join(b.TempDir(), "shared")
	address := start(b, ready(), 1, serve.WithLoader(nwt.WithBatchSize(batchSize), nwt.WithWorkers(2)), serve.WithShared(shared))[0]
	for name, address := range map[string]string{"shared": "shared:" + shared, "gRPC": address} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				out, err := python(b, "../python/tests/next.py", address).CombinedOutput()
				require.NoError(b, err, "%s", out)
				b.Logf("%s", out)
			}
		})
	}
}
