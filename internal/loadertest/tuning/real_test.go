//go:build !race

package tuning_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/stat"
	"github.com/nwt-go/nwt/vision"
)

var tunings = flag.Int("tunings", 0, "tune the real workloads of each cell so many times in turn, each at least once, and compare the choices with long runs: with 2 it takes a quarter of an hour of a machine that has nothing else to do")

const tolerated = 0.05 // share by which a right choice may be slower than the best count

const forbidden = 0.15 // share by which no choice may be

const unnoticed = float64(search.Unnoticed) // per batch: alpha is never below

const longRun = 400 * time.Millisecond // a run of the truth takes so long and has 20 batches, but ends after three times as long

const fewRuns = 5 // of a count, …

const manyRuns = 30 // … and more until it is known, three times as many if the spread is above tolerated:

const exactly = 0.025 // twice the standard error of the median is below this

// A realWorkload is one way to train, with batches of 32 samples.
type realWorkload struct {
	cell, name string
	ds         nwt.Dataset
	step       func(context.Context, *nwt.Batch) error // nil: none
	most       int                                     // no more workers are better
	computes   bool                                    // more than most are wrong: beside others they win only what they take away
	procs      int                                     // GOMAXPROCS; 0: as it is

	untold     func(context.Context, *nwt.Batch) error // the step of training, if Tune isn't given it
	goroutines int                                     // of the process that compute meanwhile; then it doesn't matter how many workers more than most are
}

func realWorkloads(t *testing.T, cpus int) []realWorkload {
	const ms = time.Millisecond
	load := func(f func()) nwt.Dataset {
		return nwt.NewDataset(1<<30, kit.Scalar, func(context.Context, int, *nwt.Sample) error { f(); return nil })
	}
	step := func(f func()) func(context.Context, *nwt.Batch) error {
		return func(context.Context, *nwt.Batch) error { f(); return nil }
	}
	sleep := func(d time.Duration) func() { return func() { time.Sleep(d) } }
	compute := func(d time.Duration) func() { n := turnsIn(d); return func() { turn(n) } }
	everywhere := func(f func()) func() {
		return func() {
			var all sync.WaitGroup
			for range cpus {
				all.Go(f)
			}
			all.Wait()
		}
	}
	connections := make(chan struct{}, 16)
	request := func() {
		connections <- struct{}{}
		time.Sleep(ms)
		<-connections
	}
	var lock sync.Mutex
	locked := func() {
		lock.Lock()
		defer lock.Unlock()
		time.Sleep(ms / 5)
	}
	from := make([]byte, 1<<20)
	memory := sync.Pool{New: func() any { return new([1 << 20]byte) }}
	each := turnsOf(ms/50, func() { copy(make([]byte, 1<<14), from) }) // of 16 kB
	copying := func() {
		to := memory.Get().(*[1 << 20]byte)
		for i := range each {
			copy(to[i<<14%len(to):][:1<<14], from)
		}
		memory.Put(to)
	}
	pictures := photographs(t)
	kinds := []realWorkload{
		{"sleeps-and-step", "sleeps 1 ms, step sleeps 100 ms", load(sleep(ms)), step(sleep(100 * ms)), 2, false, 0, nil, 0},
		{"sleeps-and-step", "sleeps 2 ms, step sleeps 5 ms", load(sleep(2 * ms)), step(sleep(5 * ms)), 32, false, 0, nil, 0},
		{"sleeps-and-step", "sleeps 4 ms, step sleeps 4 ms", load(sleep(4 * ms)), step(sleep(4 * ms)), 64, false, 0, nil, 0},
		{"sleeps", "sleeps 10 ms", load(sleep(10 * ms)), nil, 64, false, 0, nil, 0},
		{"sleeps", "sleeps 1 ms, 16 at a time", load(request), nil, 64, false, 0, nil, 0},
		{"computes", "computes 50 µs", load(compute(ms / 20)), nil, cpus, true, 0, nil, 0},
		{"computes", "computes 1 ms", load(compute(ms)), nil, cpus, true, 0, nil, 0},
		{"computes-and-step", "computes 0.7 ms, step 5 ms on each CPU", load(compute(7 * ms / 10)), step(everywhere(compute(5 * ms))), cpus, true, 0, nil, 0},
		{"computes-and-step", "computes 0.1 ms, step 5 ms on one CPU", load(compute(ms / 10)), step(compute(5 * ms)), cpus, true, 0, nil, 0},
		{"nothing", "does nothing", load(func() {}), nil, 4, false, 0, nil, 0},
		{"photographs", "a photograph", pictures, nil, cpus, true, 0, nil, 0},
		{"photographs", "a photograph, step sleeps 100 ms", pictures, step(sleep(100 * ms)), cpus, true, 0, nil, 0},
		{"sixteen-procs", "sleeps 1 ms, step sleeps 100 ms, GOMAXPROCS 16", load(sleep(ms)), step(sleep(100 * ms)), 2, false, 16, nil, 0},
		{"hides", "sleeps 0.2 ms with a lock, step sleeps 35 ms, unknown to `Tune`", load(locked), nil, 2, false, 0, step(sleep(35 * ms)), 0},
		{"hides", "computes 45 µs, step sleeps 47.55 ms", load(compute(ms * 45 / 1000)), step(sleep(ms * 4755 / 100)), cpus, true, 0, nil, 0},
		{"copies", "copies 20 µs", load(copying), nil, cpus, true, 0, nil, 0},
	}
	for _, n := range []int{1, 2} {
		for _, d := range []time.Duration{ms, 10 * ms} {
			name := fmt.Sprintf("sleeps %v, beside %d goroutines", d, n)
			kinds = append(kinds, realWorkload{"goroutines", name, load(sleep(d)), nil, 64, false, 0, nil, n},
				realWorkload{"goroutines-and-step", name + ", step sleeps 20 ms", load(sleep(d)), step(sleep(20 * ms)), 64, false, 0, nil, n})
		}
	}
	return kinds
}

// photographs returns a folder of JPEG files as large as ImageNet's, gone over again and again.
func photographs(t *testing.T) nwt.Dataset {
	dir := t.TempDir()
	photo, err := os.ReadFile("../../../vision/testdata/photo.jpg")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "class"), 0o755))
	for i := range 300 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "class", fmt.Sprint(i, ".jpg")), photo, 0o644))
	}
	pipeline, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(224)}, vision.RandomHorizontalFlip{P: 0.5}, vision.ImageNetNormalize})
	require.NoError(t, err)
	folder, err := vision.OpenFolder(t.Context(), dir, pipeline)
	require.NoError(t, err)
	again, err := nwt.Concat(slices.Repeat([]nwt.Dataset{folder}, 50)...)
	require.NoError(t, err)
	return again
}

//go:noinline
func turn(n int) (x float64) {
	for i := range n {
		x += math.Sqrt(float64(i))
	}
	return x
}

// turnsIn returns how many turns take d of CPU time.
func turnsIn(d time.Duration) int { return (1 << 10) * turnsOf(d, func() { turn(1 << 10) }) }

// turnsOf returns how many calls of f take d.
func turnsOf(d time.Duration, f func()) int {
	const many = 1 << 10
	quickest := time.Hour
	for range 30 { // the CPU comes to speed
		began := time.Now()
		for range many {
			f()
		}
		quickest = min(quickest, time.Since(began))
	}
	return int(many * d / quickest)
}

// compute starts the goroutines that compute, until stop is called.
func (w realWorkload) compute() (stop func()) {
	var over atomic.Bool
	var all sync.WaitGroup
	for range w.goroutines {
		all.Go(func() {
			for !over.Load() {
				turn(1 << 16)
			}
		})
	}
	return func() { over.Store(true); all.Wait() }
}

const neighbour = "NWT_TEST_NEIGHBOUR"

// A neighbour is this program, started anew. It keeps a CPU busy as long as its parent is there.
func init() {
	if os.Getenv(neighbour) == "" {
		return
	}
	fmt.Print("busy")
	for parent := os.Getppid(); os.Getppid() == parent; {
		turn(1 << 20)
	}
	os.Exit(0)
}

// neighbours starts n of them, each bound to a CPU of its own if taskset is there: else the kernel may
// keep two on one CPU for seconds, and a run tells more of that than of its workers. leave ends them.
func neighbours(t *testing.T, n int) (leave func()) {
	self, err := os.Executable()
	require.NoError(t, err)
	_, unbound := exec.LookPath("taskset")
	ctx, end := context.WithCancel(context.Background())
	var busy []*exec.Cmd
	leave = sync.OnceFunc(func() {
		end()
		for _, c := range busy {
			_ = c.Wait()
		}
	})
	t.Cleanup(leave)
	for cpu := 0; len(busy) < n; cpu++ {
		require.Less(t, cpu, 1024, "no neighbour starts")
		c := exec.CommandContext(ctx, "taskset", "-c", fmt.Sprint(cpu), self)
		if unbound != nil {
			c = exec.CommandContext(ctx, self)
		}
		c.Env = append(os.Environ(), neighbour+"=1")
		says, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		if _, err = says.Read(make([]byte, 1)); err != nil {
			_ = c.Wait() // this process may not use that CPU
			continue
		}
		busy = append(busy, c)
	}
	return leave
}

// tune tunes. So many neighbours leave 1.5 s after it has begun.
func (w realWorkload) tune(t *testing.T, leaving int) *nwt.Result {
	leave := neighbours(t, leaving)
	defer leave()
	defer time.AfterFunc(1500*time.Millisecond, leave).Stop()
	defer w.compute()()
	opts := []nwt.Option{kit.Silent, nwt.WithShuffle(1)}
	if w.step != nil {
		opts = append(opts, nwt.WithStep(w.step))
	}
	r, err := nwt.Tune(t.Context(), w.ds, opts...)
	require.NoError(t, err)
	return r
}

// run trains, and returns the nanoseconds per batch after the first ones.
func (w realWorkload) run(t *testing.T, workers int) float64 {
	l, err := nwt.NewLoader(w.ds, kit.Silent, nwt.WithShuffle(1), nwt.WithWorkers(workers))
	require.NoError(t, err)
	defer l.Close()
	defer w.compute()()
	step := w.step
	if w.untold != nil {
		step = w.untold
	}
	began, n, first := time.Now(), 0, true
	for b, err := range l.Epochs(t.Context(), 0, 1<<30) {
		require.NoError(t, err)
		if step != nil {
			require.NoError(t, step(t.Context(), b))
		}
		n++
		switch took := time.Since(began); {
		case first && n >= 2 && took >= longRun/4:
			began, n, first = time.Now(), 0, false
		case !first && (took >= longRun && n >= 20 || took >= 3*longRun && n >= 3):
			return float64(took) / float64(n)
		}
	}
	panic("the epochs ended")
}

// A truth is what long runs take. The counts take turns, up and down, and each is compared with the
// run at realWorkload.most in the same round: what the machine does meanwhile meets all of them.
type truth struct {
	realWorkload
	took   []float64         // nanoseconds per batch at most
	ratios map[int][]float64 // to that
}

// at returns the median of a count's ratios, and twice its standard error.
func (tr *truth) at(workers int) (ratio, spread float64) {
	ratio = stat.Median(tr.ratios[workers])
	var off []float64
	for _, r := range tr.ratios[workers] {
		off = append(off, math.Abs(r-ratio))
	}
	return ratio, 2 * 1.25 * 1.48 * stat.Median(off) / math.Sqrt(float64(len(off)))
}

// known reports whether a count needs no more runs: it is no match for most, or known exactly enough.
func (tr *truth) known(workers int) bool {
	n := len(tr.ratios[workers])
	if n == 0 {
		return false
	}
	least := slices.Min(tr.ratios[workers])
	_, spread := tr.at(workers)
	enough := n >= fewRuns && spread < max(exactly, unnoticed/2/stat.Median(tr.took)) || n >= manyRuns && spread <= tolerated || n >= 3*manyRuns
	return least > 2 || n >= 3 && least > 1.3 || enough
}

// measure runs each count that may be the best, and those chosen, until it is known.
func (tr *truth) measure(t *testing.T, chosen []int) {
	for _, n := range slices.Concat(chosen, []int{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}) {
		if n <= tr.most || !tr.computes && slices.Contains(chosen, n) {
			if _, there := tr.ratios[n]; !there {
				tr.ratios[n] = nil
			}
		}
	}
	for up := true; ; up = !up {
		round := slices.DeleteFunc(slices.Sorted(maps.Keys(tr.ratios)), func(n int) bool { return n == tr.most || tr.known(n) })
		if len(round) == 0 {
			return
		}
		round = append(round, tr.most)
		if !up {
			slices.Reverse(round)
		}
		took := map[int]float64{}
		for _, n := range round {
			took[n] = tr.run(t, n)
		}
		for n, s := range took {
			tr.ratios[n] = append(tr.ratios[n], s/took[tr.most])
		}
		tr.took = append(tr.took, took[tr.most])
	}
}

// A verdict is what the truth says of tunings.
type verdict struct {
	tuned, wrong    int
	slowest, spread float64 // the slowest choice, and the truth's spread at the counts near the best
	rows, mistakes  string
}

func (v *verdict) judge(t *testing.T, beside string, leaving int, tr *truth, results []*nwt.Result) {
	var chosen []int
	var elapsed time.Duration
	for _, r := range results {
		chosen, elapsed = append(chosen, r.Workers), elapsed+r.Elapsed
	}
	tr.measure(t, chosen)
	counts, best, spread := slices.Sorted(maps.Keys(tr.ratios)), 0, 0.0
	at, times := map[int]float64{}, ""
	for _, n := range counts {
		ratio, s := tr.at(n)
		at[n] = ratio * stat.Median(tr.took)
		times += fmt.Sprintf("%d: %.4g ms ± %.1f %%, ", n, at[n]/1e6, 100*s)
		if at[n] < at[best] && (n <= tr.most || tr.goroutines == 0) {
			best = n
		}
	}
	enough := fewest(at, best)
	for _, n := range counts {
		if _, s := tr.at(n); at[n] <= at[best]*(1+forbidden) && s*at[best] > unnoticed/2 {
			spread = max(spread, s)
		}
	}
	var choices, slower []string
	for i, n := range chosen {
		right, more := false, "?" // not measured: it computes, and has more workers than CPUs
		if at[n] > 0 {
			share := at[n]/at[best] - 1
			if at[n] <= at[best]+unnoticed {
				share = 0
			}
			if n > tr.most && tr.goroutines > 0 {
				enough = max(enough, n)
			}
			right, more = share <= tolerated && n <= 2*max(enough, 1), fmt.Sprintf("%.1f", 100*share)
			if share > forbidden { // what disturbs may last as long as a tuning, but hardly as long as two
				again := tr.tune(t, leaving).Workers
				tr.measure(t, []int{again})
				if len(tr.ratios[again]) > 0 {
					ratio, _ := tr.at(again)
					share = min(share, ratio*stat.Median(tr.took)/at[best]-1)
				}
				more += fmt.Sprintf(" (then %d: %.1f)", again, 100*share)
			}
			v.slowest = max(v.slowest, share)
		}
		choices, slower = append(choices, fmt.Sprint(n)), append(slower, more)
		if !right {
			choices[i] = "**" + choices[i] + "**"
			v.wrong++
			v.mistakes += fmt.Sprintf("\n%s, %s: %v", beside, tr.name, results[i])
		}
	}
	row := fmt.Sprintf("| %s | %s | %d | %d | %s | %s | %.1f | %.1f |\n", beside, tr.name, best, enough, strings.Join(choices, ", "), strings.Join(slower, ", "), 100*spread, elapsed.Seconds()/float64(len(results)))
	t.Log(row, times)
	v.rows, v.tuned, v.spread = v.rows+row, v.tuned+len(results), max(v.spread, spread)
}

func TestRealTunings(t *testing.T) {
	if *tunings == 0 {
		t.Skip("takes a quarter of an hour of a quiet machine: -tunings 2")
	}
	cpus := runtime.GOMAXPROCS(0)
	workloads, truths, v := realWorkloads(t, cpus), map[string]*truth{}, verdict{}
	for _, beside := range []string{"quiet", "busy", "leaving"} {
		for _, cell := range []string{"sleeps-and-step", "sleeps", "computes", "computes-and-step", "nothing", "photographs", "sixteen-procs", "hides", "copies", "goroutines", "goroutines-and-step"} {
			if cell == "sixteen-procs" && beside != "busy" || strings.HasPrefix(cell, "goroutines") && beside != "quiet" {
				continue
			}
			t.Run(beside+"/"+cell, func(t *testing.T) {
				number := map[string]int{beside: cpus}
				defer neighbours(t, number["busy"])()
				mine := slices.DeleteFunc(slices.Clone(workloads), func(w realWorkload) bool { return w.cell != cell })
				if procs := mine[0].procs; procs > 0 {
					defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				}
				results := make([][]*nwt.Result, len(mine))
				for i := range max(*tunings, len(mine)) {
					k := i % len(mine)
					results[k] = append(results[k], mine[k].tune(t, number["leaving"]))
				}
				for k, w := range mine {
					// Training goes on for hours after neighbours have left: what is right then is right.
					key := fmt.Sprint(w.name, beside == "busy")
					if truths[key] == nil {
						truths[key] = &truth{w, nil, map[int][]float64{w.most: nil}}
					}
					v.judge(t, beside, number["leaving"], truths[key], results[k])
				}
			})
		}
	}
	t.Logf("right: %d of %d; the slowest choice: %.1f %%\n| beside | each sample | best | fewest within alpha | chosen | slower than the best, %% | truth, ± %% | time per tuning, s |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n%s%s",
		v.tuned-v.wrong, v.tuned, 100*v.slowest, v.rows, v.mistakes)
	require.LessOrEqual(t, 18*v.wrong, v.tuned, "5 of 90 tunings may be wrong, and %d of %d are", v.wrong, v.tuned)
	require.LessOrEqual(t, v.slowest, forbidden, "a choice is slower than the best count")
	require.LessOrEqual(t, v.spread, tolerated, "the truth isn't known")
}
