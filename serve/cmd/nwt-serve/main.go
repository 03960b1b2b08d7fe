// Nwt-serve serves batches of pictures (from folders or tar shards), of other files or of tokens. A client
// is a Go program that calls serve.Open, a Python program with nwt, or any client of Arrow Flight.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve"
)

const version = "0.1.0"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	own := len(os.Args) == 2 && os.Args[1] == "-"
	if own {
		slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil))) // which that program reads
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
	flags                          *flag.FlagSet
	data                           map[string]*[]string // by kind
	classes                        *[]string
	extensions, dtype              string
	size, scale, ratio, jitter     []float64
	normalize                      []float64
	flip                           float64
	batch, length, workers         int
	seed                           uint64
	shuffle, train, dropLast, tune bool
	step                           time.Duration // of training; 0: not known
	insecure, version              bool
	listen, shared, tokenFile      string
	cert, key                      string
	program                        *program // what makes the samples, instead of files
	transform                      *program // what changes pictures
}

func parse(args []string, stdout io.Writer) (s *settings, err error) {
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
	s = &settings{flags: flags, size: []float64{224}, scale: []float64{0.08, 1}, ratio: []float64{3. / 4, 4. / 3}, jitter: make([]float64, 4)}
	s.data = map[string]*[]string{
		"images": names("images", "`folder` of pictures, with one folder per class; or a picture; or @FILE, with one path per line. May be repeated"),
		"files":  names("files", "`folder` of files of any kind, whose bytes are served; or a file; or @FILE. May be repeated"),
		"shards": names("shards", "`shard` of pictures in WebDataset's format, as an uncompressed tar file; or @FILE. May be repeated"),
		"tokens": names("tokens", "`file` of tokens; or @FILE. A sample is a window of -length + 1 tokens. May be repeated"),
	}
	s.classes = names("class", "`name` of class 0, then of class 1, and so on; or @FILE. By default, the folders' names, sorted")
	flags.StringVar(&s.extensions, "extensions", "", "take only -files with these extensions, such as `.wav,.flac`; by default all files")
	flags.IntVar(&s.length, "length", 1024, "`tokens` from the beginning of a window to the beginning of the next window")
	flags.StringVar(&s.dtype, "dtype", "", "`type` of a token: uint8, uint16 (by default), int32, uint32 or int64, little-endian; or of pixels: uint8 (by default), float32, float16 or bfloat16")
	numbers(&s.normalize, 6, 6, "normalize", ",", "`means and deviations` of the three channels, 0 … 1, for pixels of a floating-point type; by default they stay 0 … 1")
	numbers(&s.size, 1, 2, "size", "x", "`pixels` of height and width: 224x320, or one number for both; 224 by default")
	flags.BoolVar(&s.train, "train", false, "crop and flip at random, as for training; otherwise take the middle of a picture")
	numbers(&s.scale, 2, 2, "scale", ",", "with -train: `from,to`: share of the picture's area that a crop takes; 0.08,1 by default")
	numbers(&s.ratio, 2, 2, "ratio", ",", "with -train: `from,to`: width / height of a crop; 3/4 to 4/3 by default")
	flags.Float64Var(&s.flip, "flip", 0.5, "with -train: `share` of the pictures that are mirrored")
	numbers(&s.jitter, 4, 4, "color-jitter", ",", "with -train: `brightness,contrast,saturation,hue`; by default, colours don't change")
	flags.IntVar(&s.batch, "batch", 32, "`samples` per batch")
	flags.BoolVar(&s.shuffle, "shuffle", false, "shuffle the samples, in another order in each epoch")
	flags.Uint64Var(&s.seed, "seed", 0, "`number` that determines the order and all random choices")
	flags.BoolVar(&s.dropLast, "drop-last", false, "leave out what doesn't fill a last batch")
	flags.IntVar(&s.workers, "workers", 0, "`samples` loaded at a time; 0: as many as there are CPUs for this rank of the host")
	flags.BoolVar(&s.tune, "tune", false, "measure how many workers are best, and print the table; the result is kept in the user's cache folder")
	flags.DurationVar(&s.step, "step", 0, "with -tune: the `time` of a training step that leaves the CPUs free, such as 120ms; the fewest workers are chosen at which it doesn't wait")
	flags.StringVar(&s.listen, "listen", "", "`host:port` for clients of Arrow Flight; by default 127.0.0.1:7474; with -shared, there is no default")
	flags.StringVar(&s.shared, "shared", "", "`path` of a Unix socket for this user's clients on this host, which take batches in shared memory; Linux only")
	flags.StringVar(&s.tokenFile, "token-file", "", "`file` with the token that clients must know")
	flags.StringVar(&s.cert, "tls-cert", "", "`file` of the certificate")
	flags.StringVar(&s.key, "tls-key", "", "`file` of the certificate's key")
	flags.BoolVar(&s.insecure, "insecure", false, "without a token, accept everybody who can reach the address")
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

// document sets flags from JSON: {"data": {"images": [PATH, …], "size": "224x224"}, "batch": 64}. The strings
// of a list are bytes, each a character of its number, since a path needn't be UTF-8.
func (s *settings) document(members map[string]any) (err error) {
	programs := map[string]**program{"python": &s.program, "transform": &s.transform}
	for name, value := range members {
		switch value := value.(type) {
		case map[string]any:
			if programs[name] == nil {
				err = errors.Join(err, s.document(value))
				continue
			}
			text, _ := json.Marshal(value)
			err = errors.Join(err, json.Unmarshal(text, programs[name]))
		case []any:
			list := s.data[name]
			if name == "class" {
				list = s.classes
			}
			if list == nil {
				return fmt.Errorf("%s: no list has this name", name)
			}
			for _, one := range value {
				var raw []byte
				for _, char := range fmt.Sprint(one) {
					raw = append(raw, byte(char))
				}
				*list = append(*list, string(raw))
			}
		default:
			if bad := s.flags.Set(name, fmt.Sprint(value)); bad != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", name, bad))
			}
		}
	}
	return err
}

// pipes are stdin and stdout, where stdin is no socket.
type pipes struct {
	io.Reader
	io.Writer
}

func (pipes) Close() error { return os.Stdin.Close() }

// own serves the program that has started this one, which is connected with stdin, until either ends.
func own(ctx context.Context) error {
	go func() { // a fork of that program has its end of stdin too
		for parent := os.Getppid(); os.Getppid() == parent; time.Sleep(200 * time.Millisecond) {
		}
		os.Exit(1)
	}()
	var c io.ReadWriteCloser = pipes{os.Stdin, os.Stdout}
	if about, err := os.Stdin.Stat(); err == nil && about.Mode()&os.ModeSocket != 0 {
		if c, err = net.FileConn(os.Stdin); err != nil {
			return err
		}
	}
	return serve.Own(ctx, c, func(ctx context.Context, document []byte) (*serve.Server, error) {
		context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, func() { os.Exit(1) }) }) // whatever a file system does
		var members map[string]any
		d := json.NewDecoder(bytes.NewReader(document))
		d.UseNumber()
		err := d.Decode(&members)
		for _, own := range []string{"version", "rank", "world"} { // package serve has read them
			delete(members, own)
		}
		s, _ := parse(nil, io.Discard)
		if err = errors.Join(err, s.document(members)); err != nil {
			return nil, err
		}
		server, ds, err := s.server(ctx, true)
		if err == nil {
			go ds.marks() // ready once they are asked for
		}
		return server, err
	})
}

// parentsRank tells nwt for Python the rank that a launcher has set for the program that has started this one.
func parentsRank(stdout io.Writer) error {
	r, err := nwt.RankFromEnv(func(name string) (string, bool) {
		value, ok := os.LookupEnv(name)
		if name == "SLURM_TASK_PID" && value == strconv.Itoa(os.Getppid()) {
			value = strconv.Itoa(os.Getpid()) // what it is compared with
		}
		return value, ok
	})
	if err != nil {
		return err
	}
	found := map[string]any{"rank": r.Rank, "world": r.World, "local_world": r.LocalWorld}
	if r.Vars != "" {
		found["text"] = r.String()
	}
	return json.NewEncoder(stdout).Encode(found)
}

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	switch {
	case len(args) == 1 && args[0] == "-":
		return own(ctx)
	case len(args) == 1 && args[0] == "-rank":
		return parentsRank(stdout)
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
	with, err := s.doors()
	if err != nil {
		return err
	}
	where := s.shared
	var l net.Listener // what is wrong with its address is told before anything is read
	if s.listen != "" {
		if l, err = net.Listen("tcp", s.listen); err != nil {
			return err
		}
		defer l.Close()
		where = strings.TrimSpace(l.Addr().String() + " " + where)
	}
	server, ds, err := s.server(ctx, false, with...)
	if err != nil {
		return err
	}
	if r := server.Result(); r != nil {
		fmt.Fprint(stdout, r)
	}
	fmt.Fprintf(stdout, "\n%d samples at %s, %d workers\n", ds.Len(), where, server.Workers())
	return server.Serve(ctx, l)
}

// server makes a server of the data.
func (s *settings) server(ctx context.Context, own bool, with ...serve.ServerOption) (*serve.Server, *dataset, error) {
	if s.step < 0 || s.step > time.Minute || s.step > 0 && !s.tune {
		return nil, nil, fmt.Errorf("-step %v: must be above 0, at most 1m, and beside -tune", s.step)
	}
	if s.program != nil {
		return s.program.server(ctx, s, with...)
	}
	ds, err := s.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	ds.beside = own
	shown := make(map[string]string)
	for _, class := range ds.classes {
		utf8 := strings.ToValidUTF8(class, "�")
		if other, is := shown[utf8]; is {
			return nil, nil, fmt.Errorf("the classes %q and %q can't be told apart: rename the folders, in UTF-8", other, class)
		}
		shown[utf8] = class
	}
	served, name := nwt.Dataset(ds), ds.name
	if ds.sizes != nil {
		served = nwt.Sized(served, func(i int, sizes []int) { sizes[0] = ds.sizes[i] })
	}
	if s.transform != nil {
		if served, name, err = s.transform.changed(ctx, served); err != nil {
			return nil, nil, err
		}
	}
	opts, with := s.options(name, with)
	if s.shuffle {
		opts = append(opts, nwt.WithShuffle(s.seed))
	}
	with = append(with, serve.WithLoader(opts...), serve.WithAbout(map[string]any{"drop_last": s.dropLast, "classes": ds.classes}),
		serve.WithMore("files", ds.paths), serve.WithMore("marks", func() []byte { return []byte(ds.marks()) }))
	server, err := serve.New(ctx, served, with...)
	return server, ds, err
}

// options returns the options of a loader, apart from its order, and adds those of its server.
func (s *settings) options(name string, with []serve.ServerOption) ([]nwt.Option, []serve.ServerOption) {
	opts := []nwt.Option{nwt.WithBatchSize(s.batch), nwt.WithSeed(s.seed)}
	if rank, err := nwt.RankFromEnv(nil); err == nil && rank.LocalWorld > 1 {
		opts = append(opts, nwt.WithRankFromEnv()) // the ranks of a host share its CPUs
	}
	if s.dropLast {
		opts = append(opts, nwt.WithDropLast())
	}
	if s.tune {
		if s.step > 0 {
			name += " step " + s.step.String() // each has a result of its own
			opts = append(opts, nwt.WithStep(s.sleep))
		}
		if dir, err := os.UserCacheDir(); err == nil && os.MkdirAll(filepath.Join(dir, "nwt"), 0o700) == nil {
			opts = append(opts, nwt.WithResultCache(filepath.Join(dir, "nwt", "workers.json"), name))
		}
		opts = append(opts, nwt.WithErrorBudget(math.MaxInt32)) // clients judge bad samples
		with = append(with, serve.WithTuning())
	} else if s.workers > 0 {
		opts = append(opts, nwt.WithWorkers(s.workers))
	}
	return opts, with
}

// sleep stands for a training step.
func (s *settings) sleep(ctx context.Context, _ *nwt.Batch) error {
	select {
	case <-time.After(s.step):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// doors returns the options that say who is let in.
func (s *settings) doors() (with []serve.ServerOption, err error) {
	if s.shared != "" { // what else is wrong with it, serve says
		if _, err := os.Stat(filepath.Dir(s.shared) + "/."); err != nil {
			return nil, fmt.Errorf("-shared %s: must be in a folder: %w", s.shared, err)
		}
		with = append(with, serve.WithShared(s.shared))
	} else if s.listen == "" {
		s.listen = "127.0.0.1:7474"
	}
	if s.tokenFile != "" {
		token, err := os.ReadFile(s.tokenFile)
		if err != nil {
			return nil, err
		}
		if about, err := os.Stat(s.tokenFile); err == nil && about.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
			slog.Warn("other users of this host may read the token: chmod 600", "file", s.tokenFile)
		}
		text := strings.TrimSpace(string(token))
		if text == "" {
			return nil, fmt.Errorf("-token-file %s: there is no token in it", s.tokenFile)
		}
		with = append(with, serve.WithToken(text))
	} else if host, _, err := net.SplitHostPort(s.listen); s.listen != "" && !s.insecure && (err != nil || host != "localhost" && !net.ParseIP(host).IsLoopback()) {
		return nil, fmt.Errorf("-listen %s: without -token-file it must be a loopback address, unless -insecure", s.listen)
	}
	if s.cert != "" || s.key != "" {
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return nil, err
		}
		with = append(with, serve.WithTLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	}
	return with, nil
}
