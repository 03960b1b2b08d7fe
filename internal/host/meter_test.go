package host

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v3/cpu"
	"github.com/stretchr/testify/require"
)

func TestSharesAreOfTheCPUsThatThisProcessMayUse(t *testing.T) {
	for _, tt := range []struct {
		name        string
		cpus, quota int // that it may run on, and of them at a time
		own, busy   time.Duration
		wantOwn     float64
		wantOthers  float64
	}{
		{"idle", 4, 4, 0, 0, 0, 0},
		{"alone on half of the machine", 4, 4, 2 * time.Second, 2 * time.Second, 0.5, 0},
		{"others take a quarter", 4, 4, 2 * time.Second, 3 * time.Second, 0.5, 0.25},
		{"others within what a quota leaves them", 64, 4, 4 * time.Second, 60 * time.Second, 1, 0},
		{"others beyond it", 64, 4, 2 * time.Second, 64 * time.Second, 0.5, 0.5},
		{"ticks that lag behind", 4, 4, 4100 * time.Millisecond, 3900 * time.Millisecond, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := time.Now()
			own, others := shares(
				reading{at: at, own: time.Minute, busy: time.Hour},
				reading{at: at.Add(time.Second), own: time.Minute + tt.own, busy: time.Hour + tt.busy},
				cpuSet{ids: make([]int, tt.cpus), usable: tt.quota})
			require.InDelta(t, tt.wantOwn, own, 1e-9)
			require.InDelta(t, tt.wantOthers, others, 1e-9)
		})
	}
}

func TestAShortIntervalTellsOnlyItsOwnShare(t *testing.T) {
	at := time.Now()
	m := &CPUMeter{
		start: reading{at: at},
		end:   reading{at: at.Add(20 * time.Millisecond), own: 10 * time.Millisecond, busy: 40 * time.Millisecond},
	}
	own, others := shares(m.start, m.end, cpuSet{ids: []int{0, 1}, usable: 2})
	require.InDelta(t, 0.25, own, 1e-9)
	require.Zero(t, others)
	require.Contains(t, m.Note(), "20 ms is too short")
}

func TestAClockThatFailsIsNoted(t *testing.T) {
	at := time.Now()
	m := &CPUMeter{
		start: reading{at: at, busyErr: errors.New("not implemented")},
		end:   reading{at: at.Add(time.Second), own: time.Second, busyErr: errors.New("not implemented")},
	}
	own, others := shares(m.start, m.end, cpuSet{ids: []int{0, 1}, usable: 2})
	require.InDelta(t, 0.5, own, 1e-9)
	require.Zero(t, others)
	require.Contains(t, m.Note(), "other processes unknown: not implemented")
}

func TestOnlyTheCPUsOfThisProcessCount(t *testing.T) {
	times := []cpu.TimesStat{
		{CPU: "cpu0", User: 1, Idle: 100, Iowait: 50},
		{CPU: "cpu1", Nice: 2, Idle: 100},
		{CPU: "cpu2", System: 4, Irq: 8, Softirq: 16},
		{CPU: "cpu3", Steal: 32},
	}
	require.Equal(t, 29*time.Second, sumBusy(times, []int{0, 2}))
	require.Equal(t, 63*time.Second, sumBusy(times, []int{0, 1, 2, 3}))
	require.Equal(t, 63*time.Second, sumBusy(times, []int{4, 5, 6, 7}), "numbered anew in a container")
}

func TestABusyLoopShowsInTheOwnShare(t *testing.T) {
	m := StartCPU()
	for began, _ := cpuTime(); ; {
		if now, err := cpuTime(); err != nil || now-began > 50*time.Millisecond {
			require.NoError(t, err)
			break
		}
	}
	used := m.Used()
	require.Greater(t, used.Own, 0.0)
	require.LessOrEqual(t, used.Own, float64(CPUs().Usable()))
	require.LessOrEqual(t, used.Others, 1.0)
}

func TestThreadsThatBeganOrEndedInBetweenHaveNotWaitedBefore(t *testing.T) {
	const ms = time.Millisecond
	start := map[int]time.Duration{1: 100 * ms, 2: 50 * ms, 3: 7 * ms}
	end := map[int]time.Duration{1: 130 * ms, 3: 2 * ms, 4: 5 * ms} // 2 has ended, and so has 3: another has its number
	require.Equal(t, 37*ms, waited(start, end))
	require.Zero(t, waited(start, nil), "not known")
}

// More threads spin than there are CPUs.
func TestThreadsThatWaitForACPUAreSeen(t *testing.T) {
	if len(queued()) == 0 {
		t.Skip("this kernel doesn't tell how long threads wait")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3 * runtime.NumCPU()))
	m := StartCPU()
	var ended atomic.Bool
	var spinning sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		spinning.Go(func() {
			for !ended.Load() {
			}
		})
	}
	require.Eventually(t, func() bool { return m.Used().Waiting > 0 }, time.Minute, 10*time.Millisecond)
	ended.Store(true)
	spinning.Wait()
}
