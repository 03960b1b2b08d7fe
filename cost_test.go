package nwt_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

// What doc.go says of a batch's cost.
func TestABatchCostsNoAllocationWhateverMakesIt(t *testing.T) {
	const n = 1 << 16
	must := func(ds nwt.Dataset, err error) nwt.Dataset {
		require.NoError(t, err)
		return ds
	}
	by := func(s nwt.Sampler, err error) []nwt.Option {
		require.NoError(t, err)
		return []nwt.Option{nwt.WithSampler(s)}
	}
	again := make([]int, n)
	for i := range again {
		again[i] = i % 64
	}
	var schema nwt.Schema
	picture, tokens := nwt.AddField[uint8](&schema, "picture", 8, 8), nwt.AddRagged[int32](&schema, "tokens", 1, 9)
	pixels, words := make([]uint8, 64), make([]int32, 5)
	numbers := kit.Numbers(0, n)
	file, err := nwt.Precompute(t.Context(), kit.Numbers(0, 64), t.TempDir()+"/samples", "1", kit.Silent)
	require.NoError(t, err)
	defer file.Close()
	mix := nwt.Mix{Phases: []nwt.Phase{{Samples: 777, Weights: []float64{1, 3}}, {Weights: []float64{1, 1}}}}
	mixed, err := nwt.MixedStreams(mix, 7, kit.NewShelves(n), kit.NewShelves(n))
	require.NoError(t, err)
	mix.Parts = []int{n / 4, n - n/4}
	parts, err := nwt.Split(numbers, 1, 0.5, 0.5)
	require.NoError(t, err)
	stream := &kit.Tallies{Lengths: slices.Repeat([]int{n / 16}, 16)}
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		opts []nwt.Option
	}{
		"Map": {nwt.Map(numbers, numbers.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
			nwt.Values[int64](dst, 0)[0] = nwt.Values[int64](src, 0)[0]
			return nil
		}), nil},
		"Set": {nwt.NewDataset(n, schema.Fields(), func(_ context.Context, _ int, dst *nwt.Sample) error {
			picture.Set(dst, pixels...)
			tokens.Set(dst, words...)
			return nil
		}), nil},
		"Scratch and LoadPart": {nwt.NewDataset(n, numbers.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
			sum, err := nwt.Scratch(dst, func() (*int64, error) { return new(int64), nil })
			if err != nil {
				return err
			}
			part, err := nwt.LoadPart(ctx, numbers, i, dst)
			if err == nil {
				*sum += nwt.Values[int64](part, 0)[0]
			}
			return err
		}), nil},
		"Zip":             {must(nwt.Zip(numbers, kit.Drawn(n))), nil},
		"Cached":          {must(nwt.Subset(nwt.Cached(kit.Numbers(0, 64), 1<<20), again)), nil},
		"Precompute":      {must(nwt.Subset(file, again)), nil},
		"sizes":           {kit.Words{N: n}, nil},
		"Subset":          {must(nwt.Subset(numbers, kit.IndicesUpTo(n))), nil},
		"Concat":          {must(nwt.Concat(numbers, numbers)), nil},
		"Split":           {parts[0], nil},
		"shuffled":        {numbers, []nwt.Option{nwt.WithShuffle(1)}},
		"ranks":           {numbers, []nwt.Option{nwt.WithShuffle(1), nwt.WithRank(1, 3)}},
		"Computed":        {numbers, by(sampler.Computed(n, func(int) []int { return make([]int, n) }))},
		"LocallyShuffled": {numbers, by(sampler.LocallyShuffled(slices.Repeat([]int{1 << 8}, 1<<8), 3, 1))},
		"Mixed":           {numbers, by(sampler.Mixed(n, mix, 1))},
		"TokenBatches":    {numbers, by(sampler.TokenBatches(n, func(i int) int { return i % 99 }, sampler.Tokens{Max: 1000, MaxSamples: 32}, 1))},
		"transformed": {numbers, []nwt.Option{nwt.WithBatchTransform(func(_ context.Context, b *nwt.Batch) error {
			nwt.Values[int64](b, 0)[0] = b.Rand().Int64()
			return nil
		})}},
		"mixed streams":           {mixed, []nwt.Option{nwt.WithEpochSamples(n)}},
		"mixed streams, shuffled": {mixed, []nwt.Option{nwt.WithEpochSamples(n), nwt.WithShuffle(1), nwt.WithShuffleWindow(50)}},
		"without order":           {numbers, []nwt.Option{nwt.WithUnordered()}},
		"a timeout":               {numbers, []nwt.Option{nwt.WithTimeout(time.Hour)}},
		"random":                  {kit.Augmented(n), nil},
		"a stream":                {nwt.Streamed(stream), nil},
		"a stream, mixed":         {nwt.Streamed(stream), []nwt.Option{nwt.WithShuffle(1), nwt.WithShuffleWindow(64)}},
		"in one call": {kit.InOneCall{Dataset: numbers, Call: func(indices []int, dst []*nwt.Sample) error {
			for k, i := range indices {
				nwt.Values[int64](dst[k], 0)[0] = int64(i)
			}
			return nil
		}}, nil},
	} {
		for _, workers := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s/workers=%d", name, workers), func(t *testing.T) {
				// A depth that follows need asks once how much memory there is, and adds slots. A
				// stream that has memory for it adds records.
				l := kit.NewLoader(t, c.ds, append(c.opts, nwt.WithWorkers(workers), nwt.WithPrefetch(8), kit.WithReadAhead(1000))...)
				next, stop := iter.Pull2(l.Epoch(t.Context(), 0))
				defer stop()
				for range 100 {
					next()
				}
				require.Zero(t, testing.AllocsPerRun(300, func() { next() }))
			})
		}
	}
}

var labelled = regexp.MustCompile(`# labels: (\{.*\})`)

// labels are those of the goroutines that are in a method of the loader, each once.
func labels(t *testing.T) []string {
	var b bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
	found := map[string]bool{}
	for stack := range strings.SplitSeq(b.String(), "\n\n") {
		if !strings.Contains(stack, "nwt.(*engine)") && !strings.Contains(stack, "nwt.(*worker)") && !strings.Contains(stack, "devicecopy.(*Stage)") && !strings.Contains(stack, "watch.(*Watchdog)") {
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
	kit.Apart(func() { // these labels end with it
		pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("mine", "yes")))
		l := kit.NewLoader(t, kit.Numbers(0, 64), nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithDevice(kit.Nowhere{}), nwt.WithTimeout(time.Minute))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Number() > 0 {
				break
			}
			want := []string{`{"device":"null", "nwt":"transfer"}`, `{"mine":"yes"}`, `{"nwt":"load", "worker":"0"}`, `{"nwt":"load", "worker":"1"}`, `{"nwt":"load"}`}
			kit.Promptly(t, func() {
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
		ds := kit.Numbered(64, func(context.Context, int, *nwt.Sample) error { time.Sleep(time.Microsecond); return nil })
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithDevice(kit.Nowhere{}))
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		trace.Stop()
		for _, region := range []string{"nwt.load", "nwt.wait", "nwt.transfer"} {
			require.Contains(t, b.String(), region)
		}
	}
}

var soak = flag.Bool("soak", false, "run ten million batches instead of 100 000, and require flat throughput")

func TestMillionsOfBatchesTakeNoMoreMemoryAndTimeThanTheFirst(t *testing.T) {
	batches := 100_000
	if *soak {
		batches = 10_000_000
	}
	// The runtime's own memory grows for a while, on more CPUs by more.
	const warmup, parts = 5, 10
	type part struct {
		rss, objects uint64
		took         time.Duration
	}
	var all [warmup + parts]part
	l := kit.NewLoader(t, kit.EmptyDataset(1<<20), nwt.WithBatchSize(8), nwt.WithShuffle(1), nwt.WithWorkers(2))
	began, n := time.Now(), 0
	var kept *nwt.Batch
	for b, err := range l.Epochs(t.Context(), 0, 1<<30) {
		require.NoError(t, err)
		if n%1000 == 0 { // what a program does now and then
			if kept != nil {
				kept.Release()
			}
			b.Retain()
			kept = b
			require.NoError(t, l.SetWorkers(1+n/1000%3))
		}
		if n++; n%(batches/parts) != 0 {
			continue
		}
		p := &all[n/(batches/parts)-1]
		p.took = time.Since(began)
		debug.FreeOSMemory()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		p.rss = kit.ResidentMemory()
		p.objects = mem.HeapObjects
		began = time.Now()
		if n/(batches/parts) == len(all) {
			break
		}
	}
	kept.Release()
	require.Zero(t, l.Stats().Retained)
	first, last := all[warmup], all[len(all)-1]
	t.Logf("resident %d → %d bytes, heap objects %d → %d, %v → %v a batch", first.rss, last.rss, first.objects, last.objects,
		first.took/time.Duration(batches/parts), last.took/time.Duration(batches/parts))
	// The runtime keeps a little for each goroutine there ever was at once.
	require.LessOrEqual(t, last.objects, first.objects+500)
	if !kit.RaceDetector { // its own memory comes and goes by megabytes
		require.LessOrEqual(t, last.rss, first.rss+max(first.rss/100, 1<<20))
	}
	if *soak {
		require.Less(t, last.took, 2*first.took)
	}
}
