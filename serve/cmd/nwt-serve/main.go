// Nwt-serve serves the pictures, or the bytes of other files, of a folder with one folder per class, as
// batches: to package serve's Open, or to any client of Arrow Flight.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/serve"
	"github.com/nwt-go/nwt/vision"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "nwt-serve:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("nwt-serve", flag.ContinueOnError)
	images := flags.String("images", "", "`folder` of pictures, one folder per class")
	files := flags.String("files", "", "`folder` of files of any other kind, one folder per class: their bytes are served")
	extensions := flags.String("extensions", "", "of these files, such as `.wav,.flac`; by default all")
	size := flags.Int("size", 224, "width and height in `pixels`")
	train := flags.Bool("train", false, "crop and flip at random, as for training; otherwise the middle")
	batch := flags.Int("batch", 64, "`samples` per batch")
	shuffle := flags.Int64("shuffle", -1, "`seed` of the order; −1: in order")
	listen := flags.String("listen", "127.0.0.1:7474", "`address`: host:port or unix:PATH")
	shared := flags.String("shared", "", "`path` of a Unix socket, or @NAME, for clients of this host that take batches in shared memory")
	tokenFile := flags.String("token-file", "", "`file` with the token that clients must know")
	cert := flags.String("tls-cert", "", "`file` of the certificate")
	key := flags.String("tls-key", "", "`file` of its key")
	open := flags.Bool("insecure", false, "let everybody in who reaches the address, without a token")
	workers := flags.Int("workers", 0, "samples loaded at a `time`; 0: tune")
	told := flags.String("address-file", "", "`file` to write the address to once it can be asked, such as a port chosen for host:0")
	metrics := flags.String("metrics", "", "`address`, host:port, of metrics for Prometheus")
	parent := flags.Int("parent", 0, "end with this process, `PID`, which has started it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *parent != 0 {
		go func() { // until the program ends
			for os.Getppid() == *parent {
				time.Sleep(200 * time.Millisecond)
			}
			os.Exit(1)
		}()
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected %q", flags.Arg(0))
	case (*images == "") == (*files == ""):
		return errors.New("-images or -files names the folder")
	}
	opts := []nwt.Option{nwt.WithBatchSize(*batch)}
	if *shuffle >= 0 {
		opts = append(opts, nwt.WithShuffle(uint64(*shuffle)))
	}
	var with []serve.ServerOption
	if *shared != "" {
		with = append(with, serve.WithShared(*shared))
		giveWay()
	}
	if *tokenFile != "" {
		token, err := os.ReadFile(*tokenFile)
		if err != nil {
			return err
		}
		with = append(with, serve.WithToken(strings.TrimSpace(string(token))))
	} else if !*open && !local(*listen) {
		return fmt.Errorf("-listen %s: without -token-file it must be a loopback address or unix:PATH, unless -insecure", *listen)
	}
	if *cert != "" || *key != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			return err
		}
		with = append(with, serve.WithTLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	}
	var ds nwt.Dataset
	var err error
	if *files != "" {
		ds, err = bytesOf(ctx, *files, *extensions)
	} else {
		ds, err = picturesOf(ctx, *images, *size, *train)
	}
	if err != nil {
		return err
	}
	if *workers > 0 {
		opts = append(opts, nwt.WithWorkers(*workers))
	} else {
		with = append(with, serve.WithTuning())
	}
	s, err := serve.New(ctx, ds, append(with, serve.WithLoader(opts...))...)
	if err != nil {
		return err
	}
	if r := s.Result(); r != nil {
		fmt.Fprintln(stdout, r)
	}
	l, err := serve.Listen(*listen)
	if err != nil {
		return err
	}
	if *metrics != "" {
		at, err := net.Listen("tcp", *metrics)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		h := &http.Server{Handler: exported(s), ReadHeaderTimeout: 10 * time.Second}
		go func() { _ = h.Serve(at) }() // until Close
		defer h.Close()
		fmt.Fprintf(stdout, "metrics at http://%s\n", at.Addr())
	}
	if *told != "" {
		err := os.WriteFile(*told+".new", []byte(l.Addr().String()), 0o600)
		if err = errors.Join(err, os.Rename(*told+".new", *told)); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	fmt.Fprintf(stdout, "%d samples at %s, %d workers\n", ds.Len(), l.Addr(), s.Workers())
	return s.Serve(ctx, l)
}

func picturesOf(ctx context.Context, dir string, size int, train bool) (nwt.Dataset, error) {
	transforms := []vision.Transform{vision.Resize{Shorter: size * 8 / 7}, vision.CenterCrop{Size: vision.Square(size)}}
	if train {
		transforms = []vision.Transform{vision.RandomResizedCrop{Size: vision.Square(size)}, vision.RandomHorizontalFlip{}}
	}
	pipeline, err := vision.New(transforms, vision.WithType(nwt.Uint8))
	if err != nil {
		return nil, err
	}
	return vision.OpenFolder(ctx, dir, pipeline)
}

// bytesOf returns the bytes of files, "data", as a dataset whose batches are as long as their longest.
func bytesOf(ctx context.Context, dir, extensions string) (nwt.Dataset, error) {
	f, err := folder.Open(ctx, dir, strings.FieldsFunc(extensions, func(r rune) bool { return r == ',' }))
	if err != nil {
		return nil, err
	}
	lengths, err := f.Lengths(ctx, func(_ context.Context, path string) (int, error) {
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		return int(info.Size()), nil
	})
	if err != nil {
		return nil, err
	}
	fields := []nwt.Field{{Name: "data", Type: nwt.Uint8, Shape: []int{max(1, slices.Max(lengths))}, Ragged: true}}
	ds := f.Dataset(fields, func(_ context.Context, path string, dst *nwt.Sample) error {
		data, err := os.ReadFile(path)
		if err == nil {
			dst.SetLen(0, len(data))
			copy(dst.Bytes(0), data)
		}
		return err
	})
	return nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = lengths[i] }), nil
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
