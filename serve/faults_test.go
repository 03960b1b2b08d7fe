//go:build unix

package serve_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
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

const serverAddress, socketFolder, clientOf = "NWT_TEST_SERVER", "NWT_TEST_SOCKETS", "NWT_TEST_CLIENT"

// TestMain runs a server, or a client, if the test has started itself as one.
func TestMain(m *testing.M) {
	address := os.Getenv(serverAddress)
	if at := os.Getenv(clientOf); at != "" {
		takeAll(at)
		return
	}
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

// intrude is what another user of this host does to servers, where a test can be another user.
var intrude func(ctx context.Context, addresses []string)

// trouble starts some servers of slow, and others later; it kills, stops and slows them at random
// until end is called, while another user intrudes.
func trouble(t *testing.T, rng *rand.Rand) (addresses []string, end func()) {
	sockets, err := os.MkdirTemp("", "nwt") // t.TempDir has the test's name in it: a socket's path has at most 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(sockets)) })
	t.Setenv(socketFolder, sockets)
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
	if intrude != nil {
		trouble.Go(func() { intrude(ctx, addresses) })
	}
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

// takeAll is a client with a patience of a second.
func takeAll(address string) {
	ds, err := serve.Open(context.Background(), []string{address}, serve.WithPatience(time.Second))
	if err != nil {
		panic(err)
	}
	l, err := nwt.NewLoader(ds, append(slowOpts, nwt.WithWorkers(2), nwt.WithRetry(0, 0))...)
	if err != nil {
		panic(err)
	}
	for b, err := range l.Epochs(context.Background(), 0, 4) {
		if err != nil {
			panic(err)
		}
		fmt.Println(b.Len())
	}
}

func TestAClientThatIsSuspendedForLongerThanItsPatienceGoesOn(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds")
	}
	address := start(t, slow, 1, serve.WithLoader(append(slowOpts, nwt.WithWorkers(1))...))[0]
	client := exec.Command(os.Args[0])
	client.Env = append(os.Environ(), clientOf+"="+address)
	client.Stderr = os.Stderr
	said, err := client.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, client.Start())
	_, err = said.Read(make([]byte, 3))
	require.NoError(t, err)
	require.NoError(t, client.Process.Signal(syscall.SIGSTOP))
	time.Sleep(3 * time.Second)
	require.NoError(t, client.Process.Signal(syscall.SIGCONT))
	rest, err := io.ReadAll(said)
	require.NoError(t, err)
	require.NoError(t, client.Wait())
	require.Equal(t, 4*38-1, strings.Count(string(rest), "\n"))
}

func TestRetriesHoldWhileAServerIsAwayForLongerThanPatience(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds")
	}
	listen := func(address string) net.Listener {
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		return l
	}
	l := listen("127.0.0.1:0")
	address := l.Addr().String()
	stop := serveOn(t, l, slow, serve.WithLoader(slowOpts...))
	remote := open(t, []string{address}, serve.WithPatience(time.Second))
	quiet := nwt.WithLogger(slog.New(slog.DiscardHandler))
	batches := 0
	for b, err := range loader(t, remote, append(slowOpts, nwt.WithWorkers(2), nwt.WithRetry(10, 500*time.Millisecond), quiet)...).Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if batches++; b.Number() == 3 {
			stop()
			time.AfterFunc(3*time.Second, func() { serveOn(t, listen(address), slow, serve.WithLoader(slowOpts...)) })
		}
	}
	require.Equal(t, 38, batches)
}

// certificate makes one for 127.0.0.1, and returns the file of its root.
func certificate(t *testing.T, ends ...time.Time) (tls.Certificate, string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: append(ends, time.Now().Add(time.Hour))[0], IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(crand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	require.NoError(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

func TestAWrongCertificateIsToldAtOnce(t *testing.T) {
	pair, _ := certificate(t)
	expired, its := certificate(t, time.Now().Add(-time.Hour))
	for name, c := range map[string]struct {
		served tls.Certificate
		roots  string
		why    string
	}{"another root": {pair, its, "certificate signed by unknown authority"}, "expired": {expired, its, "expired"}, "none": {roots: its, why: "look like a TLS handshake"}} {
		t.Run(name, func(t *testing.T) {
			trusted := x509.NewCertPool()
			text, err := os.ReadFile(c.roots)
			require.NoError(t, err)
			require.True(t, trusted.AppendCertsFromPEM(text))
			var opts []serve.ServerOption
			if c.served.Certificate != nil {
				opts = append(opts, serve.WithTLS(&tls.Config{Certificates: []tls.Certificate{c.served}}))
			}
			address := start(t, slow, 1, opts...)
			_, err = serve.Open(t.Context(), address, serve.WithTLS(&tls.Config{RootCAs: trusted}), serve.WithPatience(time.Hour))
			require.ErrorContains(t, err, c.why)
		})
	}
}
