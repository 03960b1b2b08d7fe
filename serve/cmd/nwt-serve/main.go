// Nwt-serve serves pictures, bytes of files, tar shards or tokens as batches: to package serve's Open, to
// nwt for Python, or to any client of Arrow Flight.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
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
	own := len(os.Args) == 2 && os.Args[1] == "-"
	if own {
		logToProgram()
	}
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if own {
			reportEnd(err)
			os.Exit(1)
		}
		fmt.Fprintln(os.Stderr, "nwt-serve:", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	data                             map[string]*[]string // by kind
	classes                          []string
	extensions, dtype                string
	size, scale, ratio, jitter       []float64
	normalize                        []float64
	flip                             float64
	batch, length, workers           int
	seed                             uint64
	shuffle, train, dropLast, tune   bool
	insecure, version                bool
	listen, shared, tokenFile, token string
	cert, key, metrics               string
}

func parse(args []string, stdout io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("nwt-serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error tells
	numbers := func(to *[]float64, least, most int, name, separator, usage string) {
		flags.Func(name, usage, func(text string) (err error) {
			*to = nil
			for one := range strings.SplitSeq(text, separator) {
				x, bad := strconv.ParseFloat(one, 64)
				*to, err = append(*to, x), errors.Join(err, bad)
			}
			if len(*to) < least || len(*to) > most {
				return fmt.Errorf("must be %d numbers", most)
			}
			return err
		})
	}
	names := func(name, usage string) *[]string {
		to := new([]string)
		flags.Func(name, usage, func(text string) error {
			more, err := list(text)
			*to = append(*to, more...)
			return err
		})
		return to
	}
	s = settings{size: []float64{224}, scale: []float64{0.08, 1}, ratio: []float64{3. / 4, 4. / 3}, jitter: make([]float64, 4)}
	s.data = map[string]*[]string{
		"images": names("images", "`folder` of pictures, one folder per class; or a picture, or @FILE, with one path per line, or several of these flags"),
		"files":  names("files", "the same of `files` of any kind: their bytes are served"),
		"shards": names("shards", "`shard` of pictures in WebDataset's format, a tar file that isn't compressed; or @FILE, or several"),
		"tokens": names("tokens", "`file` of tokens, or @FILE, or several: windows of -length + 1 of them are served"),
	}
	classes := names("class", "`name` of class 0, then those of the next ones, or @FILE; by default the folders, sorted")
	flags.StringVar(&s.extensions, "extensions", "", "of -files, such as `.wav,.flac`; by default all")
	flags.IntVar(&s.length, "length", 1024, "`tokens` from the beginning of a window to that of the next")
	flags.StringVar(&s.dtype, "dtype", "", "`type` of a token: uint8, uint16 (by default), int32, uint32 or int64, little-endian; or of pixels: uint8 (by default), float32, float16 or bfloat16")
	numbers(&s.normalize, 6, 6, "normalize", ",", "`means and deviations` of the three channels, 0 … 1, for pixels of a floating-point type; by default they stay 0 … 1")
	numbers(&s.size, 1, 2, "size", "x", "`pixels` of height and width: 224x320, or one number for both; 224 by default")
	flags.BoolVar(&s.train, "train", false, "crop and flip at random, as for training; otherwise the middle")
	numbers(&s.scale, 2, 2, "scale", ",", "with -train: `from,to`: the share of the picture's area that is cropped; 0.08,1 by default")
	numbers(&s.ratio, 2, 2, "ratio", ",", "with -train: `from,to`: its width / height; 3/4 to 4/3 by default")
	flags.Float64Var(&s.flip, "flip", 0.5, "with -train: `share` of the pictures that are mirrored")
	numbers(&s.jitter, 4, 4, "color-jitter", ",", "with -train: `brightness,contrast,saturation,hue`; by default colours stay")
	flags.IntVar(&s.batch, "batch", 64, "`samples` per batch")
	flags.BoolVar(&s.shuffle, "shuffle", false, "another order in each epoch")
	flags.Uint64Var(&s.seed, "seed", 0, "`number` that decides the order, and what is drawn at random")
	flags.BoolVar(&s.dropLast, "drop-last", false, "leave out what doesn't fill a last batch")
	flags.IntVar(&s.workers, "workers", 0, "`samples` loaded at a time; 0: as many as there are CPUs for this rank of the host")
	flags.BoolVar(&s.tune, "tune", false, "measure how many workers are worth it, and print the table; kept in the user's cache folder")
	flags.StringVar(&s.listen, "listen", "127.0.0.1:7474", "`address`: host:port or unix:PATH")
	flags.StringVar(&s.shared, "shared", "", "`path` of a Unix socket, or @NAME, for clients of this host that take batches in shared memory; Linux only")
	flags.StringVar(&s.tokenFile, "token-file", "", "`file` with the token that clients must know")
	flags.StringVar(&s.token, "token", "", "the `token`, if these flags come by stdin: others can read the command line")
	flags.StringVar(&s.cert, "tls-cert", "", "`file` of the certificate")
	flags.StringVar(&s.key, "tls-key", "", "`file` of its key")
	flags.BoolVar(&s.insecure, "insecure", false, "let everybody in who reaches the address, without a token")
	flags.StringVar(&s.metrics, "metrics", "", "`address`, host:port, of metrics for Prometheus")
	flags.BoolVar(&s.version, "version", false, "print the version, and end")
	if err = flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(stdout, "Nwt-serve serves batches of one of -images, -files, -shards and -tokens.\n\n")
		flags.SetOutput(stdout)
		flags.PrintDefaults()
	} else if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected %q", flags.Arg(0))
	}
	s.classes = *classes
	return s, err
}

// told returns the arguments that another program writes to stdin, each with a zero byte, and an empty one after
// the last. Once that program ends, so does stdin, and this process.
func told() (args []string, err error) {
	in := bufio.NewReader(os.Stdin)
	for {
		arg, err := in.ReadString(0)
		if err != nil {
			return nil, fmt.Errorf("stdin: %w", err)
		}
		if arg == "\x00" {
			go func() { _, _ = io.Copy(io.Discard, in); os.Exit(1) }()
			go func() { // a fork of that program has its end of stdin too
				for parent := os.Getppid(); os.Getppid() == parent; time.Sleep(200 * time.Millisecond) {
				}
				os.Exit(1)
			}()
			return args, nil
		}
		args = append(args, arg[:len(arg)-1])
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	beside := len(args) == 1 && args[0] == "-"
	if beside {
		if args, err = told(); err != nil {
			return err
		}
	}
	s, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return fmt.Errorf("%w (-h lists the flags)", err)
	case s.version:
		_, err := fmt.Fprintln(stdout, version)
		return err
	}
	with, err := s.server()
	if err != nil {
		return err
	}
	ds, err := s.open(ctx)
	if err != nil {
		return err
	}
	ds.beside = beside
	opts := []nwt.Option{nwt.WithBatchSize(s.batch), nwt.WithSeed(s.seed)}
	if rank, err := nwt.RankFromEnv(nil); err == nil && rank.LocalWorld > 1 {
		opts = append(opts, nwt.WithRankFromEnv()) // the ranks of a host share its CPUs
	}
	if s.shuffle {
		opts = append(opts, nwt.WithShuffle(s.seed))
	}
	if s.dropLast {
		opts = append(opts, nwt.WithDropLast())
	}
	if s.tune {
		if dir, err := os.UserCacheDir(); err == nil && os.MkdirAll(filepath.Join(dir, "nwt"), 0o700) == nil {
			opts = append(opts, nwt.WithResultCache(filepath.Join(dir, "nwt", "workers.json"), ds.name))
		}
		opts = append(opts, nwt.WithErrorBudget(math.MaxInt32)) // clients judge bad samples
		with = append(with, serve.WithTuning())
	} else if s.workers > 0 {
		opts = append(opts, nwt.WithWorkers(s.workers))
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
	result := ""
	if r := server.Result(); r != nil {
		result = r.String()
	}
	l, err := serve.Listen(s.listen)
	if err != nil {
		return err
	}
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
	if beside {
		go ds.tell(map[string]any{"address": l.Addr().String(), "classes": ds.classes, "result": result, "workers": server.Workers()})
	} else {
		fmt.Fprintf(stdout, "%s\n%d samples at %s, %d workers\n", result, ds.Len(), l.Addr(), server.Workers())
	}
	return server.Serve(ctx, l)
}

// server returns a server's options. What is wrong with its addresses is told before anything is read.
func (s *settings) server() (with []serve.ServerOption, err error) {
	if s.tokenFile != "" {
		token, err := os.ReadFile(s.tokenFile)
		if err != nil {
			return nil, err
		}
		s.token = strings.TrimSpace(string(token))
	}
	if s.token != "" {
		with = append(with, serve.WithToken(s.token))
	} else if !s.insecure && !local(s.listen) {
		return nil, fmt.Errorf("-listen %s: without -token-file it must be a loopback address or unix:PATH, unless -insecure", s.listen)
	}
	if s.cert != "" || s.key != "" {
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return nil, err
		}
		with = append(with, serve.WithTLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	}
	try := func(name, address string) {
		l, bad := serve.Listen(address)
		if bad == nil {
			bad = l.Close()
		}
		if bad != nil && err == nil {
			err = fmt.Errorf("%s: %w", name, bad)
		}
	}
	if s.shared != "" {
		if with = append(with, serve.WithShared(s.shared)); s.shared[0] != '@' {
			try("-shared "+s.shared, "unix:"+s.shared)
		}
	}
	try("-listen "+s.listen, s.listen)
	return with, err
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
