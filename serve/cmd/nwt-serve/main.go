// Nwt-serve serves pictures, bytes of files, tar shards or tokens as batches: to package serve's Open, to
// nwt for Python, or to any client of Arrow Flight.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve"
)

const version = "0.1.0"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "nwt-serve:", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	data                                 map[string]*string // by kind
	name                                 string             // of the data
	extensions, classes, dtype           string
	size, scale, ratio, flip, jitter     []float64
	batch, length, workers, parent       int
	shuffle, seed                        *uint64
	train, dropLast, tune, insecure      bool
	listen, shared, tokenFile, cert, key string
	aboutFile, metrics                   string
	version                              bool
}

func parse(args []string, stdout io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("nwt-serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error tells
	seed := func(name, usage string, to **uint64) {
		flags.Func(name, usage, func(text string) error {
			n, err := strconv.ParseUint(text, 10, 64)
			if *to = &n; err != nil {
				return errors.New("a seed is a number from 0 to 18446744073709551615")
			}
			return nil
		})
	}
	several := func(to *[]float64, n int, name, separator, usage string) {
		flags.Func(name, usage, func(text string) (err error) {
			*to = nil
			for one := range strings.SplitSeq(text, separator) {
				x, bad := strconv.ParseFloat(one, 64)
				*to, err = append(*to, x), errors.Join(err, bad)
			}
			if len(*to) > n || len(*to) < n && name != "size" {
				return fmt.Errorf("must be %d numbers", n)
			}
			return err
		})
	}
	s = settings{size: []float64{224}, scale: []float64{0.08, 1}, ratio: []float64{3. / 4, 4. / 3}, flip: []float64{0.5}, jitter: make([]float64, 4)}
	s.data = map[string]*string{
		"images": flags.String("images", "", "`folder` of pictures, one folder per class; or @FILE, with one path per line"),
		"files":  flags.String("files", "", "`folder` of files of any kind, one folder per class, or @FILE: their bytes are served"),
		"shards": flags.String("shards", "", "`shard` of pictures in WebDataset's format, a tar file that isn't compressed; or @FILE"),
		"tokens": flags.String("tokens", "", "`file` of tokens, or @FILE: windows of -length + 1 of them are served"),
	}
	flags.StringVar(&s.extensions, "extensions", "", "of -files, such as `.wav,.flac`; by default all")
	flags.StringVar(&s.classes, "classes", "", "`file` with one class per line, in the order of their numbers; by default the folders, sorted")
	flags.IntVar(&s.length, "length", 1024, "`tokens` from the beginning of a window to that of the next")
	flags.StringVar(&s.dtype, "dtype", "uint16", "`type` of a token: uint8, uint16, int32, uint32 or int64, little-endian")
	several(&s.size, 2, "size", "x", "`pixels` of height and width: 224x320, or one number for both; 224 by default")
	flags.BoolVar(&s.train, "train", false, "crop and flip at random, as for training; otherwise the middle")
	several(&s.scale, 2, "scale", ",", "with -train: `from,to`: the share of the picture's area that is cropped; 0.08,1 by default")
	several(&s.ratio, 2, "ratio", ",", "with -train: `from,to`: its width / height; 3/4 to 4/3 by default")
	several(&s.flip, 1, "flip", ",", "with -train: `share` of the pictures that are mirrored; 0.5 by default")
	several(&s.jitter, 4, "color-jitter", ",", "with -train: `brightness,contrast,saturation,hue`; by default colours stay")
	flags.IntVar(&s.batch, "batch", 64, "`samples` per batch")
	seed("shuffle", "`seed` of the order, another in each epoch, and of what is drawn at random; without it samples come in order", &s.shuffle)
	seed("seed", "`seed` of what is drawn at random; by default that of -shuffle, or 0", &s.seed)
	flags.BoolVar(&s.dropLast, "drop-last", false, "leave out what doesn't fill a last batch")
	flags.IntVar(&s.workers, "workers", 0, "`samples` loaded at a time; 0: as many as there are CPUs for this rank of the host")
	flags.BoolVar(&s.tune, "tune", false, "measure how many workers are worth it, and print the table; kept in the user's cache folder")
	flags.StringVar(&s.listen, "listen", "127.0.0.1:7474", "`address`: host:port or unix:PATH")
	flags.StringVar(&s.shared, "shared", "", "`path` of a Unix socket, or @NAME, for clients of this host that take batches in shared memory; Linux only")
	flags.StringVar(&s.tokenFile, "token-file", "", "`file` with the token that clients must know")
	flags.StringVar(&s.cert, "tls-cert", "", "`file` of the certificate")
	flags.StringVar(&s.key, "tls-key", "", "`file` of its key")
	flags.BoolVar(&s.insecure, "insecure", false, "let everybody in who reaches the address, without a token")
	flags.StringVar(&s.aboutFile, "about-file", "", "`file` to write a line of JSON to once the address can be asked: address, classes, workers, result; then the path of each sample, and a zero byte")
	flags.StringVar(&s.metrics, "metrics", "", "`address`, host:port, of metrics for Prometheus")
	flags.IntVar(&s.parent, "parent", 0, "end with this process, `PID`, which has started it")
	flags.BoolVar(&s.version, "version", false, "print the version, and end")
	if err = flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(stdout, "Nwt-serve serves batches of one of -images, -files, -shards and -tokens.\n\n")
		flags.SetOutput(stdout)
		flags.PrintDefaults()
	} else if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected %q", flags.Arg(0))
	}
	return s, err
}

// check tells what is wrong with the addresses, before anything is read.
func (s *settings) check() error {
	if s.tokenFile == "" && !s.insecure && !local(s.listen) {
		return fmt.Errorf("-listen %s: without -token-file it must be a loopback address or unix:PATH, unless -insecure", s.listen)
	}
	if s.shared != "" && runtime.GOOS != "linux" {
		return fmt.Errorf("-shared %s: shared memory is for Linux only", s.shared)
	}
	for _, try := range []struct {
		flag, address string
		listen        func(address string) (net.Listener, error)
	}{
		{"-shared", s.shared, func(path string) (net.Listener, error) {
			if strings.HasPrefix(path, "@") {
				return net.Listen("unix", path)
			}
			return serve.Listen("unix:" + path)
		}},
		{"-listen", s.listen, serve.Listen},
	} {
		if try.address == "" {
			continue
		}
		l, err := try.listen(try.address)
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", try.flag, try.address, err)
		}
	}
	return nil
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	s, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return fmt.Errorf("%w (-h tells the flags)", err)
	case s.version:
		_, err := fmt.Fprintln(stdout, version)
		return err
	}
	if s.parent != 0 {
		go endWith(s.parent)
	}
	if err := s.check(); err != nil {
		return err
	}
	opts := []nwt.Option{nwt.WithBatchSize(s.batch)}
	if s.shuffle != nil {
		opts = append(opts, nwt.WithShuffle(*s.shuffle))
	}
	if s.seed != nil {
		opts = append(opts, nwt.WithSeed(*s.seed))
	}
	if s.dropLast {
		opts = append(opts, nwt.WithDropLast())
	}
	var with []serve.ServerOption
	if s.shared != "" {
		with = append(with, serve.WithShared(s.shared))
		giveWay()
	}
	if s.tokenFile != "" {
		token, err := os.ReadFile(s.tokenFile)
		if err != nil {
			return err
		}
		with = append(with, serve.WithToken(strings.TrimSpace(string(token))))
	}
	if s.cert != "" || s.key != "" {
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return err
		}
		with = append(with, serve.WithTLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	}
	ds, err := s.open(ctx)
	if err != nil {
		return err
	}
	if s.tune {
		if dir, err := os.UserCacheDir(); err == nil && os.MkdirAll(filepath.Join(dir, "nwt"), 0o700) == nil {
			opts = append(opts, nwt.WithResultCache(filepath.Join(dir, "nwt", "workers.json"), s.name))
		}
		with = append(with, serve.WithTuning())
	} else {
		opts = append(opts, nwt.WithWorkers(cmp.Or(s.workers, cpus())))
	}
	served := nwt.WritesAll(ds)
	if ds.sizes != nil {
		served = nwt.Sized(served, func(i int, sizes []int) { sizes[0] = ds.sizes[i] })
	}
	about := map[string]any{"drop_last": s.dropLast}
	if len(strings.Join(ds.classes, `","`)) < 1<<19 { // more wouldn't be told
		about["classes"] = ds.classes
	}
	server, err := serve.New(ctx, served, append(with, serve.WithLoader(opts...), serve.WithAbout(about))...)
	if err != nil {
		return err
	}
	if r := server.Result(); r != nil {
		about["result"] = r.String()
		fmt.Fprintln(stdout, r)
	}
	l, err := serve.Listen(s.listen)
	if err != nil {
		return err
	}
	about["address"], about["classes"] = l.Addr().String(), ds.classes
	if s.metrics != "" {
		at, err := net.Listen("tcp", s.metrics)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		h := &http.Server{Handler: exported(server), ReadHeaderTimeout: 10 * time.Second}
		go func() { _ = h.Serve(at) }() // until Close
		defer h.Close()
		fmt.Fprintf(stdout, "metrics at http://%s\n", at.Addr())
	}
	if s.aboutFile != "" {
		if err := tell(s.aboutFile, about, ds); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	fmt.Fprintf(stdout, "%d samples at %s, %d workers\n", ds.Len(), l.Addr(), server.Workers())
	return server.Serve(ctx, l)
}

// tell writes a file that is whole as soon as it is there.
func tell(path string, about map[string]any, ds *dataset) error {
	line, err := json.Marshal(about)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if ds.files {
		for i := range ds.Len() {
			line = append(append(line, ds.at(i).path...), 0)
		}
	}
	return errors.Join(os.WriteFile(path+".new", line, 0o600), os.Rename(path+".new", path))
}

// cpus returns how many CPUs this process has, if the ranks of the host share them.
func cpus() int {
	n := runtime.GOMAXPROCS(0)
	if rank, err := nwt.RankFromEnv(nil); err == nil {
		n = max(1, n/rank.LocalWorld)
	}
	return n
}

// endWith ends this process once its parent has ended.
func endWith(parent int) {
	if p, err := os.FindProcess(parent); runtime.GOOS == "windows" && err == nil {
		_, _ = p.Wait() // there for any process
		os.Exit(1)
	}
	for os.Getppid() == parent {
		time.Sleep(200 * time.Millisecond)
	}
	os.Exit(1)
}

// exported returns what Prometheus is told, on any path.
func exported(s *serve.Server) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counter := func(name, help string, value func(serve.Stats) int64) {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value(s.Stats())) }))
	}
	counter("nwt_serve_batches_total", "Batches answered.", func(s serve.Stats) int64 { return s.Batches })
	counter("nwt_serve_samples_total", "Samples loaded, the bad ones among them.", func(s serve.Stats) int64 { return s.Samples })
	counter("nwt_serve_samples_bad_total", "Samples that could not be loaded.", func(s serve.Stats) int64 { return s.Bad })
	counter("nwt_serve_bytes_total", "Bytes of the batches answered.", func(s serve.Stats) int64 { return s.Bytes })
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "nwt_serve_batches_loading", Help: "Batches that are being loaded or sent."}, func() float64 { return float64(s.Stats().Loading) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "nwt_serve_workers", Help: "Samples loaded at a time."}, func() float64 { return float64(s.Workers()) }))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// local reports whether only this host reaches an address.
func local(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}
