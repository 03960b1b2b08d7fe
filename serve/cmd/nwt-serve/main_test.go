package main

import (
	"context"
	"image"
	"image/png"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

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

func TestMetricsCountWhatIsServed(t *testing.T) {
	dir := onePicture(t)
	ctx, cancel := context.WithCancel(t.Context())
	said, out := io.Pipe()
	ended := make(chan error)
	socket := filepath.Join(t.TempDir(), "socket")
	go func() {
		ended <- run(ctx, []string{"-images", dir, "-size", "32", "-workers", "1", "-listen", "unix:" + socket, "-metrics", "127.0.0.1:0"}, out)
	}()
	line := make([]byte, 200)
	n, err := said.Read(line)
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, said) }()
	url := regexp.MustCompile(`http://\S+`).FindString(string(line[:n]))
	ds, err := serve.Open(ctx, []string{"unix:" + socket})
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds)
	require.NoError(t, err)
	for _, err := range l.Epoch(ctx, 0) {
		require.NoError(t, err)
	}
	require.NoError(t, l.Close())
	require.NoError(t, ds.Close())
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	page, err := client.Get(url)
	require.NoError(t, err)
	text, err := io.ReadAll(page.Body)
	require.NoError(t, err)
	require.NoError(t, page.Body.Close())
	require.Contains(t, string(text), "\nnwt_serve_batches_total 1\n")
	require.Contains(t, string(text), "\nnwt_serve_samples_total 1\n")
	require.Contains(t, string(text), "\nnwt_serve_workers 1\n")
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, out.Close())
}

func TestFilesOfAnyKindAreServedAsBytes(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a/1.txt": "one", "b/2.txt": "three", "b/3.wav": "left out"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	args := []string{"-files", dir, "-extensions", ".txt", "-workers", "1", "-listen"}
	require.ErrorContains(t, run(t.Context(), append(args, "unix:/x", "-images", dir), io.Discard), "-images or -files")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	socket := "unix:" + filepath.Join(t.TempDir(), "socket")
	go func() { ended <- run(ctx, append(args, socket), io.Discard) }()
	ds, err := serve.Open(ctx, []string{socket})
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds)
	require.NoError(t, err)
	for b, err := range l.Epoch(ctx, 0) {
		require.NoError(t, err)
		require.Equal(t, []any{"one\x00\x00three", []int32{3, 5}, []int64{0, 1}}, []any{string(b.Bytes(0)), b.Lens(0), nwt.Values[int64](b, 1)})
	}
	require.NoError(t, l.Close())
	require.NoError(t, ds.Close())
	cancel()
	require.NoError(t, <-ended)
}

func TestASocketThatAKilledServerLeftDoesNotStopTheNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	listen := func() *net.UnixListener {
		l, err := serve.Listen("unix:" + path)
		require.NoError(t, err)
		return l.(*net.UnixListener)
	}
	l := listen()
	l.SetUnlinkOnClose(false)
	_, err := serve.Listen("unix:" + path)
	require.Error(t, err, "a server listens there")
	require.NoError(t, l.Close())
	require.NoError(t, listen().Close())
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = serve.Listen("unix:" + path)
	require.Error(t, err, "it is a file")
}

func TestWithoutATokenItListensOnThisHostOnly(t *testing.T) {
	dir := onePicture(t)
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0", "example.org:0", "nothing"} {
		require.ErrorContains(t, run(t.Context(), []string{"-images", dir, "-workers", "1", "-listen", address}, io.Discard), "without -token-file", address)
	}
	for _, address := range []string{"localhost:1", "127.0.0.1:1", "[::1]:1", "unix:/run/x"} {
		require.True(t, local(address), address)
	}
	for _, address := range []string{"", net.JoinHostPort("", "1")} {
		require.False(t, local(address), address)
	}
}
