//go:build linux

package serve_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve"
)

func TestThePythonTransports(t *testing.T) {
	cmd := python(t, "-W", "error", "-m", "unittest", "discover", "-v", "-s", "../python/tests", "-p", "transports.py")
	dir := t.TempDir()
	both := func(name string, ds nwt.Dataset, opts ...serve.ServerOption) []string {
		shared := filepath.Join(dir, name)
		opts = append(opts, serve.WithShared(shared), serve.WithLoader(nwt.WithBatchSize(10)), serve.WithGrace(0))
		return []string{start(t, ds, 1, opts...)[0], "shared:" + shared}
	}
	plain := drawing{n: 101, longest: 6, bad: -1}
	failing := func(err error) nwt.Dataset {
		return nwt.NewDataset(20, []nwt.Field{{Name: "x", Type: nwt.Uint8}}, func(context.Context, int, *nwt.Sample) error { return err })
	}
	given := map[string]any{
		"plain": both("plain", plain), "bad": both("bad", drawing{n: 101, longest: 6, bad: 13}), "sized": both("sized", sizedDrawing{plain}),
		"hanging":       both("hanging", nwt.NewDataset(20, plain.Fields(), untilDone)),
		"hanging sized": both("hanging sized", nwt.Sized(nwt.NewDataset(20, plain.Fields(), untilDone), func(_ int, sizes []int) { clear(sizes) })),
		"long":          both("long", failing(errors.New(strings.Repeat("世", 9_000)))),
		"huge":          both("huge", nwt.NewDataset(20, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{1 << 28}}}, nothing)),
		"wide":          both("wide", nwt.NewDataset(20, wide(1000), nothing)),
		"about":         both("about", plain, serve.WithAbout(map[string]any{"classes": []string{"cat", "dog"}}), serve.WithToken("secret")),
		"failing":       both("failing", plain, serve.WithLoader(nwt.WithBatchTransform(func(context.Context, *nwt.Batch) error { return errors.New("the transform is broken") }))),
		"path":          both("50%20#?ü, a path", plain),
	}
	if os.Getuid() == 0 {
		at := filepath.Join(dir, "another user's")
		require.NoError(t, os.Mkdir(at, 0o777))
		require.NoError(t, os.Chmod(at, 0o777))
		require.NoError(t, os.Chmod(dir, 0o755))
		require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
		serve.As(1001, func() {
			l, err := net.Listen("unix", filepath.Join(at, "socket"))
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
				given["another user's"] = l.Addr().String()
			}
		})
		require.Contains(t, given, "another user's")
	}
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer proxy.Close()
	asked := make(chan bool, 100)
	go func() {
		for {
			c, err := proxy.Accept()
			if err != nil {
				return
			}
			asked <- true
			_ = c.Close()
		}
	}()
	about, err := json.Marshal(given)
	require.NoError(t, err)
	url := "http://" + proxy.Addr().String()
	cmd.Env = append(cmd.Env, "NWT_TEST="+string(about), "http_proxy="+url, "grpc_proxy="+url, "https_proxy="+url, "PYTHONPATH=../python:../python/tests:"+os.Getenv("PYTHONPATH"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, asked, "the proxy was asked")
}

func wide(n int) (fields []nwt.Field) {
	for i := range n {
		fields = append(fields, nwt.Field{Name: strings.Repeat("x", 100) + string(rune('a'+i%26)) + strings.Repeat("y", i), Type: nwt.Uint8})
	}
	return fields
}
