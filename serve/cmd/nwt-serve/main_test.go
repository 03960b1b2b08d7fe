package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onePicture is a folder with one picture.
func onePicture(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "class"), 0o700))
	file, err := os.Create(filepath.Join(dir, "class", "1.png"))
	require.NoError(t, err)
	require.NoError(t, png.Encode(file, image.NewGray(image.Rect(0, 0, 40, 40))))
	require.NoError(t, file.Close())
	return dir
}

func TestTheRanksOfAHostShareItsCPUs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(6))
	var logged bytes.Buffer
	was := slog.Default()
	defer slog.SetDefault(was)
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	for ranks, want := range map[string]string{"1": "6", "3": "2"} {
		for name, value := range map[string]string{"RANK": "0", "WORLD_SIZE": ranks, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": ranks} {
			t.Setenv(name, value)
		}
		ctx, cancel := context.WithCancel(t.Context())
		said, out := io.Pipe()
		ended := make(chan error)
		go func() {
			ended <- run(ctx, []string{"-images", onePicture(t), "-size", "32", "-listen", "127.0.0.1:0"}, out)
		}()
		line := make([]byte, 200)
		n, err := said.Read(line)
		require.NoError(t, err)
		require.Contains(t, string(line[:n]), ", "+want+" workers")
		cancel()
		require.NoError(t, <-ended)
	}
	require.NotContains(t, logged.String(), "rank 0 of 3", "a server has no rank")
}

func TestTuningBesideAStepOfSomeTimeHasAResultOfItsOwn(t *testing.T) {
	cache := t.TempDir()
	for _, name := range []string{"XDG_CACHE_HOME", "HOME", "LocalAppData"} {
		t.Setenv(name, cache)
	}
	pictures := onePicture(t)
	tuned := func(step time.Duration) *nwt.Result {
		s, err := parse([]string{"-images", pictures, "-tune", "-step", step.String()}, io.Discard)
		require.NoError(t, err)
		ds, err := s.open(t.Context())
		require.NoError(t, err)
		opts, _ := s.options(ds.name, nil)
		r, err := nwt.Tune(t.Context(), ds, append(opts, nwt.WithIterations(3), nwt.WithMaxWorkers(1))...)
		require.NoError(t, err)
		return r
	}
	for _, step := range []time.Duration{0, 20 * time.Millisecond, 21 * time.Millisecond} {
		r := tuned(step)
		require.False(t, r.Cached, step)
		require.Equal(t, step > 0, r.Step, step)
		for _, one := range r.Trials {
			require.GreaterOrEqual(t, one.Step, step/2)
		}
	}
	for _, wrong := range [][]string{{"-step", "20ms"}, {"-tune", "-step", "-1ms"}, {"-tune", "-step", "61s"}} {
		require.ErrorContains(t, run(t.Context(), append(wrong, "-images", pictures, "-listen", "127.0.0.1:0"), io.Discard), "must be above 0, at most 1m, and beside -tune")
	}
}

func TestFilesOfAnyKindAreServedAsBytes(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a/1.txt": "one", "b/2.txt": "three", "b/3.wav": "left out"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	args := []string{"-files", dir, "-extensions", ".txt", "-workers", "1", "-listen", "127.0.0.1:0"}
	require.ErrorContains(t, run(t.Context(), append(args, "-images", dir), io.Discard), "one of -images, -files, -shards and -tokens")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	said, out := io.Pipe()
	go func() { ended <- run(ctx, args, out) }()
	ds, err := serve.Open(ctx, told(t, said))
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds)
	require.NoError(t, err)
	for b, err := range l.Epoch(ctx, 0) {
		require.NoError(t, err)
		require.Equal(t, []any{"one\x00\x00three", []int32{3, 5}, []int64{0, 1}, []int64{0, 1}}, []any{string(b.Bytes(0)), b.Lens(0, 0), nwt.Values[int64](b, 1), nwt.Values[int64](b, 2)})
	}
	require.NoError(t, l.Close())
	require.NoError(t, ds.Close())
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, out.Close())
}

func TestWithoutATokenItListensOnThisHostOnly(t *testing.T) {
	dir := onePicture(t)
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0", "example.org:0", "nothing"} {
		require.ErrorContains(t, run(t.Context(), []string{"-images", dir, "-workers", "1", "-listen", address}, io.Discard), "without -token-file", address)
	}
	for _, address := range []string{"localhost:1", "127.0.0.1:1", "[::1]:1"} {
		s := &settings{listen: address}
		_, err := s.doors()
		require.NoError(t, err, address)
	}
}

func TestATokenFileHasAToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for _, text := range []string{"", " \n"} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.ErrorContains(t, run(t.Context(), []string{"-images", onePicture(t), "-token-file", file, "-listen", "127.0.0.1:0"}, io.Discard), "there is no token in it")
	}
	var said bytes.Buffer
	was := slog.Default()
	defer slog.SetDefault(was)
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	for mode, warns := range map[os.FileMode]bool{0o600: false, 0o640: true, 0o604: true} {
		said.Reset()
		require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
		require.NoError(t, os.Chmod(file, mode))
		_, err := (&settings{listen: ":7474", tokenFile: file}).doors()
		require.NoError(t, err)
		require.Equal(t, warns, strings.Contains(said.String(), "other users of this host may read the token"), mode)
	}
}

// Flags can't be smuggled in: each member of a document is one flag, and lists are lists of paths.
func TestADocumentSetsWhatItNames(t *testing.T) {
	s, err := parse(nil, io.Discard)
	require.NoError(t, err)
	require.NoError(t, s.document(map[string]any{"data": map[string]any{"images": []any{"@a", "b\u00ff"}, "class": []any{"a\x00-listen=0.0.0.0:1"}, "size": "32x40", "train": true}, "batch": json.Number("7")}))
	require.Equal(t, []any{[]string{"@a", "b\xff"}, []string{"a\x00-listen=0.0.0.0:1"}, []float64{32, 40}, true, 7, ""}, []any{*s.data["images"], *s.classes, s.size, s.train, s.batch, s.listen})
	for _, wrong := range []map[string]any{{"batches": json.Number("1")}, {"batch": "x"}, {"listen": []any{"x"}}} {
		require.Error(t, s.document(wrong), wrong)
	}
}

func TestClassesThatCannotBeToldApartAreNamed(t *testing.T) {
	dir := t.TempDir()
	for _, class := range []string{"\xe4", "\xf6"} {
		if err := os.Mkdir(filepath.Join(dir, class), 0o700); err != nil {
			t.Skip(err) // of a file system whose names are UTF-8
		}
		require.NoError(t, os.CopyFS(filepath.Join(dir, class), os.DirFS(filepath.Join(onePicture(t), "class"))))
	}
	require.ErrorContains(t, run(t.Context(), []string{"-images", dir, "-listen", "127.0.0.1:0"}, io.Discard), `the classes "\xe4" and "\xf6" can't be told apart`)
}

// told returns the addresses that the program says, the last of which is where it serves, and reads on.
func told(t *testing.T, said io.Reader) (addresses []string) {
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		addresses = append(addresses, regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(lines.Text(), -1)...)
		if strings.Contains(lines.Text(), " samples at ") {
			break
		}
	}
	require.NoError(t, lines.Err())
	go func() { _, _ = io.Copy(io.Discard, said) }() // until the test closes it
	return addresses
}

func TestASeedIsANumberFrom0To2To64Minus1(t *testing.T) {
	for _, wrong := range []string{"-5", "-1", "18446744073709551616", "x", ""} {
		require.ErrorContains(t, run(t.Context(), []string{"-seed", wrong}, io.Discard), fmt.Sprintf("invalid value %q for flag -seed", wrong))
	}
	s, err := parse([]string{"-shuffle", "-seed", "18446744073709551615"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, uint64(math.MaxUint64), s.seed)
}

func TestHelpSaysWhatEachFlagMeans(t *testing.T) {
	var said strings.Builder
	require.NoError(t, run(t.Context(), []string{"-h"}, &said))
	require.Contains(t, said.String(), "leave out what doesn't fill a last batch")
	said.Reset()
	require.NoError(t, run(t.Context(), []string{"-version"}, &said))
	require.Equal(t, version+"\n", said.String())
}

func TestAnAddressThatCannotBeUsedIsToldBeforeAnythingIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, run(t.Context(), []string{"-images", "/nothing", "-shared", "/nowhere/socket"}, io.Discard), "-shared /nowhere/socket: must be in a folder")
	for _, path := range []string{file, "/" + strings.Repeat("x", 200)} {
		require.ErrorContains(t, run(t.Context(), []string{"-images", onePicture(t), "-shared", path}, io.Discard), "WithShared: "+path[:5])
	}
	require.ErrorContains(t, run(t.Context(), []string{"-images", "/nothing", "-listen", "127.0.0.1:99999"}, io.Discard), "99999")
}

func TestWhatIsWrongWithTheDataIsSaid(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	packed := func(name string, files ...string) string {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for i := 0; i < len(files); i += 2 {
			require.NoError(t, w.WriteHeader(&tar.Header{Name: files[i], Size: int64(len(files[i+1])), Mode: 0o600}))
			_, err := w.Write([]byte(files[i+1]))
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		return write(name, out.String())
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-images", "@" + write("list", "a.jpg\n\nb.jpg\n")}, "line 2 is empty"},
		{[]string{"-images", onePicture(t), "-class", "@" + write("classes", "cat\ndog\n")}, `classes that aren't among the classes given: "class"`},
		{[]string{"-images", onePicture(t), "-size", "10x20x30"}, "must be 2 numbers"},
		{[]string{"-images", onePicture(t), "-train", "-scale", "0.5"}, "must be 2 numbers"},
		{[]string{"-shards", packed("class.tar", "1.jpg", "x", "1.cls", "cat")}, `1.cls: "cat": must be the number of a class`},
		{[]string{"-shards", packed("none.tar", "1.txt", "x")}, "no picture in 1 shards"},
		{[]string{"-shards", write("cut.tar", "x")}, "cut.tar: it isn't a tar file, or its first header is damaged"},
		{[]string{"-shards", write("packed.tar.gz", strings.Repeat("\x1f\x8b", 512))}, "packed.tar.gz: gzip: invalid header"},
		{[]string{"-tokens", dir}, dir + ": must be a file of nothing but tokens"},
		{[]string{"-tokens", write("saved.npy", "\x93NUMPY")}, "as NumPy's tofile writes it"},
		{[]string{"-tokens", write("odd", "abc")}, "must be a whole number of tokens of type uint16"},
		{[]string{"-tokens", write("short", "ab"), "-length", "1"}, "no window of 2 tokens (-length + 1) in 1 files"},
		{[]string{"-tokens", "x", "-dtype", "float32"}, "-dtype float32"},
		{[]string{"-tokens", "x", "-length", "0"}, "-length 0"},
	} {
		require.ErrorContains(t, run(t.Context(), append(test.args, "-listen", "127.0.0.1:0"), io.Discard), test.want, test.args)
	}
}
