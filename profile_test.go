package nwt_test

import (
	"bytes"
	"context"
	"maps"
	"regexp"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

var labelled = regexp.MustCompile(`# labels: (\{.*\})`)

// labels are those of the goroutines that are in a method of the loader, each once.
func labels(t *testing.T) []string {
	var b bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
	found := map[string]bool{}
	for stack := range strings.SplitSeq(b.String(), "\n\n") {
		if !strings.Contains(stack, "nwt.(*engine)") && !strings.Contains(stack, "nwt.(*worker)") && !strings.Contains(stack, "stage.(*Stage)") && !strings.Contains(stack, "watch.(*Watchdog)") {
			continue
		}
		if l := labelled.FindStringSubmatch(stack); l != nil {
			found[l[1]] = true
		} else {
			found["none"] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func TestAProfileTellsLoadingFromTheProgram(t *testing.T) {
	apart(func() { // these labels end with it
		pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("mine", "yes")))
		l := newLoader(t, numbersTo(t, 64), nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithDevice(nowhere{}), nwt.WithTimeout(time.Minute))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Index() > 0 {
				break
			}
			want := []string{`{"device":"null", "nwt":"transfer"}`, `{"mine":"yes"}`, `{"nwt":"load", "worker":"0"}`, `{"nwt":"load", "worker":"1"}`, `{"nwt":"load"}`}
			promptly(t, func() {
				for !slices.Equal(want, labels(t)) { // a goroutine may not have begun
					runtime.Gosched()
				}
			})
		}
	})
}

func TestATraceHasTheLoadersRegions(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("the tests are traced")
	}
	for _, workers := range []int{0, 2} {
		var b bytes.Buffer
		require.NoError(t, trace.Start(&b))
		ds := numbered(64, func(context.Context, int, *nwt.Sample) error { time.Sleep(time.Microsecond); return nil })
		l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithDevice(nowhere{}))
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		trace.Stop()
		for _, region := range []string{"nwt.load", "nwt.wait", "nwt.transfer"} {
			require.Contains(t, b.String(), region)
		}
	}
}
