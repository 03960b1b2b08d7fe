//go:build unix

package serve_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve"
)

var (
	histories = flag.Int("histories", 4, "random histories of servers that are killed, stopped, slowed and added")
	stopped   = flag.Duration("stopped", 0, "how long servers are stopped in every fifth history, such as 30s: long enough to be noticed")
)

const serverAddress, socketFolder = "NWT_TEST_SERVER", "NWT_TEST_SOCKETS"

// TestMain runs a server if the test has started itself as one.
func TestMain(m *testing.M) {
	address := os.Getenv(serverAddress)
	if address == "" {
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	opts := []serve.ServerOption{serve.WithLoader(append(slowOpts, nwt.WithWorkers(4))...)}
	if runtime.GOOS == "linux" {
		opts = append(opts, serve.WithShared(sharedAt(address)))
	}
	s, err := serve.New(ctx, slow, opts...)
	if err != nil {
		panic(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		panic(err)
	}
	go func() { // ends with the test, whatever ends that
		for parent := os.Getppid(); os.Getppid() == parent; {
			time.Sleep(100 * time.Millisecond)
		}
		os.Exit(1)
	}()
	if err := s.Serve(ctx, l); err != nil {
		panic(err)
	}
}

// sharedAt is the path of the socket of a server at an address.
func sharedAt(address string) string { return filepath.Join(os.Getenv(socketFolder), address) }

// slow is a dataset of which a request takes a few milliseconds.
var slow = nwt.NewDataset(600, drawing{longest: 6}.Fields(), func(ctx context.Context, index int, dst *nwt.Sample) error {
	time.Sleep(500 * time.Microsecond)
	return drawing{n: 600, longest: 6, bad: -1}.Load(ctx, index, dst)
})

var slowOpts = []nwt.Option{nwt.WithBatchSize(16), nwt.WithShuffle(3)}

// A host is a process that serves at an address.
type host struct {
	address string
	cmd     *exec.Cmd
}

func (h *host) start(t *testing.T) {
	h.cmd = exec.Command(os.Args[0])
	h.cmd.Env = append(os.Environ(), serverAddress+"="+h.address)
	h.cmd.Stderr = os.Stderr
	require.NoError(t, h.cmd.Start())
}

func (h *host) kill() {
	_ = h.cmd.Process.Signal(syscall.SIGCONT)
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait() // it was killed
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// trouble starts some servers of slow, and others later; it kills, stops and slows them at random
// until end is called.
func trouble(t *testing.T, rng *rand.Rand) (addresses []string, end func()) {
	t.Setenv(socketFolder, t.TempDir())
	hosts := make([]*host, 2+rng.IntN(2))
	for i := range hosts {
		hosts[i] = &host{address: freeAddress(t)}
		addresses = append(addresses, hosts[i].address)
		if i == 0 || rng.IntN(3) > 0 {
			hosts[i].start(t)
		}
	}
	troubled := hosts
	if *stopped > 0 && rng.IntN(5) == 0 {
		first := hosts[0].cmd.Process
		_ = first.Signal(syscall.SIGSTOP)
		time.AfterFunc(*stopped, func() { _ = first.Signal(syscall.SIGCONT) })
		troubled = hosts[1:]
	}
	ctx, cancel := context.WithCancel(t.Context())
	var killed, paused, slowed, came int
	stop := func(h *host, most int) {
		_ = h.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(rng.IntN(most)) * time.Millisecond)
		_ = h.cmd.Process.Signal(syscall.SIGCONT)
	}
	var trouble sync.WaitGroup
	trouble.Go(func() {
		for ctx.Err() == nil {
			h := troubled[rng.IntN(len(troubled))]
			switch what := rng.IntN(5); {
			case h.cmd == nil: // it joins, or comes back
				h.start(t)
				came++
			case what == 0:
				h.kill()
				h.cmd = nil
				killed++
			case what == 1:
				stop(h, 50)
				paused++
			case what == 2:
				for range 10 {
					stop(h, 8)
					time.Sleep(time.Millisecond)
				}
				slowed++
			}
			time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
		}
	})
	return addresses, func() {
		cancel()
		trouble.Wait()
		t.Logf("servers: %d killed, %d stopped, %d slowed, %d came", killed, paused, slowed, came)
		for _, h := range hosts {
			if h.cmd != nil {
				h.kill()
			}
		}
	}
}

func TestEachSampleComesOnceWhateverHappensToTheServers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	opts := append(slowOpts, nwt.WithLogger(slog.New(slog.DiscardHandler)))
	want := held(t, loader(t, slow, append(opts, nwt.WithWorkers(8))...).Epochs(t.Context(), 1, 4))
	for seed := range *histories {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			addresses, end := trouble(t, rand.New(rand.NewPCG(uint64(seed), 1)))
			defer end()
			workers := 1 + seed%8
			require.Equal(t, want, held(t, loader(t, open(t, addresses), append(opts, nwt.WithWorkers(workers))...).Epochs(t.Context(), 1, 4)))
		})
	}
}
