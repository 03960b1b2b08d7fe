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

// folder has one picture.
func folder(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "class"), 0o700))
	file, err := os.Create(filepath.Join(dir, "class", "1.png"))
	require.NoError(t, err)
	require.NoError(t, png.Encode(file, image.NewGray(image.Rect(0, 0, 40, 40))))
	require.NoError(t, file.Close())
	return dir
}

func TestMetricsCountWhatIsServed(t *testing.T) {
	dir := folder(t)
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
	dir := folder(t)
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
