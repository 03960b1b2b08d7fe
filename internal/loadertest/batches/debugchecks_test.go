package batches_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// indexed has one field, whose element is the sample's index.
func indexed(n int) (nwt.Dataset, nwt.Column[int64]) {
	var schema nwt.Schema
	x := nwt.AddField[int64](&schema, "x")
	return nwt.NewDataset(n, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		x.Of(dst)[0] = int64(i)
		return nil
	}), x
}

// endOf runs mistake in a process of its own, with NWT_DEBUG=1, and returns what it wrote.
func endOf(t *testing.T, mistake func()) string {
	const variable = "NWT_TEST_MISTAKE"
	if os.Getenv(variable) == t.Name() {
		mistake()
		os.Exit(0)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(self, "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	child.Env = append(os.Environ(), variable+"="+t.Name(), "NWT_DEBUG=1")
	said, err := child.CombinedOutput()
	if errors.Is(err, syscall.ENOEXEC) {
		t.Skip("emulated: the system doesn't start programs of this kind:", err)
	}
	return string(said)
}

func TestMemoryThatIsUsedAfterItsIterationStopsTheProgramWithABatchsName(t *testing.T) {
	if runtime.GOOS == "plan9" || runtime.GOARCH == "wasm" {
		t.Skip("memory can't be made unreadable")
	}
	ds, x := indexed(12)
	loop := func(opts []nwt.Option, f func(b *nwt.Batch)) {
		l, err := nwt.NewLoader(ds, append(opts, nwt.WithBatchSize(4))...)
		if err != nil {
			panic(err)
		}
		defer l.Close()
		for b, err := range l.Epoch(context.Background(), 0) {
			if err != nil {
				panic(err)
			}
			f(b)
		}
	}
	const named = "nwt: memory of batch 0 of epoch 0 was used after the batch had gone back to the loader: call Retain"
	for name, opts := range map[string][]nwt.Option{
		"workers": nil, "no worker": {nwt.WithWorkers(0)}, "page-locked": {nwt.WithPinned()},
	} {
		t.Run(name, func(t *testing.T) {
			said := endOf(t, func() {
				var kept []int64
				loop(opts, func(b *nwt.Batch) {
					if b.Number() == 0 {
						kept = x.Of(b)
					}
					println("sum", kept[0])
				})
			})
			require.Contains(t, said, "sum 0\n")
			require.NotContains(t, said, "sum 0\nsum")
			require.Contains(t, said, named)
			require.Contains(t, said, "debugchecks_test.go", "where it was touched")
		})
	}
	t.Run("a batch instead of its slice, by another goroutine", func(t *testing.T) {
		said := endOf(t, func() {
			var kept *nwt.Batch
			loop(nil, func(b *nwt.Batch) {
				if kept == nil {
					kept = b
				}
			})
			done := make(chan int64)
			go func() { done <- x.Of(kept)[0] }()
			<-done
		})
		require.Contains(t, said, "nwt: batch 0 of epoch 0 was used after the batch had gone back to the loader: call Retain")
	})
	t.Run("after the loop", func(t *testing.T) {
		said := endOf(t, func() {
			slog.SetLogLoggerLevel(slog.LevelDebug)
			var kept []int64
			loop(nil, func(b *nwt.Batch) {
				if b.Number() == 1 {
					kept = x.Of(b)
				}
			})
			println(kept[0])
		})
		_, after, _ := strings.Cut(said, "nwt: batch 1 of epoch 0 has gone back memory=")
		require.NotEmpty(t, after, said)
		require.Contains(t, said, "unexpected fault address "+strings.Fields(after)[0])
		require.Contains(t, said, "debugchecks_test.go", "where it was touched")
	})
}

func TestAPanicOfALoopWithChecksStaysWhatItWas(t *testing.T) {
	ds, _ := indexed(10)
	l := kit.NewLoader(t, ds, nwt.WithChecks())
	mine := errors.New("mine")
	require.PanicsWithValue(t, mine, func() {
		for range l.Epoch(t.Context(), 0) {
			panic(mine)
		}
	})
	require.Panics(t, func() {
		var none []int
		for b := range l.Epoch(t.Context(), 0) {
			_ = none[b.Len()]
		}
	})
}

func TestAnEpochsErrorThatALoopIgnoresIsTold(t *testing.T) {
	var log bytes.Buffer
	torn := errors.New("torn")
	ds := nwt.NewDataset(4, []nwt.Field{{Name: "x", Type: nwt.Int64}}, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 3 {
			return torn
		}
		return nil
	})
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(2), nwt.WithChecks(), nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	for range l.Epoch(t.Context(), 0) {
	}
	require.Contains(t, log.String(), "the epoch ended with an error")
	require.Contains(t, log.String(), "torn")
	for _, use := range []func(*nwt.Batch){func(b *nwt.Batch) { b.Indices() }, func(b *nwt.Batch) { b.Bytes(0) }} {
		func() {
			defer func() {
				err, ok := recover().(error)
				require.True(t, ok)
				require.ErrorIs(t, err, torn)
				require.ErrorContains(t, err, "check the error first: ")
			}()
			for b := range l.Epoch(t.Context(), 0) {
				use(b)
			}
		}()
	}
	var none *nwt.Batch // what a loop without these checks gets
	for _, use := range []func(){
		func() { none.Bytes(0) }, func() { none.Len() }, func() { none.Indices() }, func() { none.Shape(0) }, func() { none.State() }, func() { none.Rand() }, none.Retain,
	} {
		require.PanicsWithValue(t, "nwt: the batch is nil, because the epoch ended with an error: check the error first", use)
	}
}
