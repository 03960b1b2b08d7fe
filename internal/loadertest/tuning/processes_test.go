package tuning_test

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// helped is a dataset each of whose workers has a process that loads for it.
type helped struct {
	nwt.Dataset
	mu      sync.Mutex
	running map[*helper]int // to its process
}

type helper struct {
	of      *helped
	cmd     *exec.Cmd
	ask     io.WriteCloser
	answers io.Reader
}

const helps = "NWT_TEST_HELPS"

// help has 100 MB, and computes for each sample. It is what a helper does instead of tests.
func help() {
	memory, one := make([]byte, 100<<20), make([]byte, 1)
	for i := range memory {
		memory[i] = byte(i)
	}
	for {
		if _, err := os.Stdin.Read(one); err != nil {
			return
		}
		for range 16 {
			one[0] += byte(crc32.ChecksumIEEE(memory[:1<<20]))
		}
		if _, err := os.Stdout.Write(one); err != nil {
			return
		}
	}
}

func newHelped(t *testing.T) *helped {
	d := &helped{running: map[*helper]int{}}
	d.Dataset = nwt.NewDataset(100_000, kit.Scalar, func(_ context.Context, _ int, s *nwt.Sample) error {
		h, err := nwt.Scratch(s, d.start)
		if err == nil {
			err = h.load()
		}
		return err
	})
	t.Cleanup(func() { require.Empty(t, d.Processes()) })
	return d
}

func (d *helped) start() (*helper, error) {
	h := &helper{of: d, cmd: exec.Command(os.Args[0])}
	h.cmd.Env = append(os.Environ(), helps+"=1")
	var err error
	if h.ask, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if h.answers, err = h.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err = h.cmd.Start(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[h] = h.cmd.Process.Pid
	return h, nil
}

func (h *helper) load() error {
	_, err := h.ask.Write([]byte{1})
	if err == nil {
		_, err = h.answers.Read(make([]byte, 1))
	}
	return err
}

func (h *helper) Close() error {
	h.of.mu.Lock()
	delete(h.of.running, h)
	h.of.mu.Unlock()
	return errorOr(h.ask.Close(), h.cmd.Wait())
}

var _ nwt.ProcessDataset = (*helped)(nil)

func (d *helped) Processes() (ids []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range d.running {
		ids = append(ids, id)
	}
	return ids
}

func TestTheMemoryAndCPUTimeOfProcessesThatLoadAreInTheTableAndCountForTheLimit(t *testing.T) {
	alone := newHelped(t)
	h, err := alone.start()
	require.NoError(t, err)
	require.NoError(t, h.load())
	size := int64((&host.Processes{IDs: alone.Processes}).Memory(0))
	require.NoError(t, h.Close())
	debug.FreeOSMemory() // of what tests before this one left
	own, known := host.OwnMemory()
	if !known {
		own = host.Memory().RSS
	}
	limit := int64(own) + size*3/2 // one process fits
	measure := func(ds nwt.Dataset) (r *nwt.Result, one nwt.Trial) {
		r, err := nwt.Tune(t.Context(), ds, nwt.WithMemoryLimit(limit), nwt.WithBatchSize(4), nwt.WithMaxWorkers(2), nwt.WithTimeout(time.Minute), nwt.WithStrategy(nwt.Exhaustive), nwt.WithIterations(100), kit.Silent) // the CPU time of processes comes in ticks of 10 ms
		require.NoError(t, err)
		require.Equal(t, 1, r.Trials[0].Workers, "%v", r)
		return r, r.Trials[0]
	}
	part, err := nwt.Subset(newHelped(t), make([]int, 10_000))
	require.NoError(t, err)
	told, seen := measure(part)
	hidden, unseen := measure(struct{ nwt.Dataset }{newHelped(t)})
	require.Greater(t, max(seen.Memory, seen.PeakRSS), max(unseen.Memory, unseen.PeakRSS)+size/2, "%v", told) // the heap has grown meanwhile
	// The time per batch is the same beside other programs; the share isn't.
	perBatch := func(one nwt.Trial) float64 { return one.CPU * one.Mean.Seconds() }
	require.Greater(t, perBatch(seen), 2*perBatch(unseen), "%v, and without the process %v", told, hidden)

	out := func(r *nwt.Result) (codes []string) {
		for _, count := range r.RuledOut {
			codes = append(codes, fmt.Sprint(count.Workers, " ", count.Code))
		}
		return codes
	}
	require.Equal(t, []string{"0 timeout", "2 memory"}, out(told), "%v", told)
	require.Equal(t, []string{"0 timeout"}, out(hidden), "%v", hidden)
}

func TestStatsCountTheMemoryOfProcessesThatLoad(t *testing.T) {
	whole := newHelped(t)
	part := kit.Must(nwt.Subset(whole, []int{1, 2, 3, 4}))(t)
	ds := nwt.Map(kit.Must(nwt.Concat(part, part))(t), kit.Scalar, func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil })
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(1))
	require.Zero(t, l.Stats().DatasetBytes)
	require.NoError(t, l.Close())

	l = kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(1))
	for _, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		break
	}
	bytes := l.Stats().DatasetBytes
	require.Greater(t, bytes, int64(90<<20))
	require.InDelta(t, kit.NewLoader(t, whole).Stats().DatasetBytes, bytes, 40<<20, "both parts have the same processes")
	require.NoError(t, l.Close())
}
