package host

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeProcess is a /proc/self whose figures the test sets.
type fakeProcess struct {
	t    *testing.T
	root string
}

func newProcess(t *testing.T) fakeProcess {
	p := fakeProcess{t: t, root: t.TempDir()}
	require.NoError(t, os.MkdirAll(filepath.Join(p.root, "proc/self"), 0o755))
	return p
}

func (p fakeProcess) write(name, content string) {
	require.NoError(p.t, os.WriteFile(filepath.Join(p.root, "proc/self", name), []byte(content), 0o644))
}

func (p fakeProcess) setMark(kB int) {
	p.write("status", fmt.Sprintf("Name:\tx\nVmPeak:\t%8d kB\nVmHWM:\t%8d kB\nVmRSS:\t%8d kB\n", kB*9, kB, kB/2))
}

func (p fakeProcess) marks(rss func() (uint64, string)) *marks {
	return &marks{machine: machine{root: p.root}, rss: rss, life: func() uint64 { return 5000 }, every: 10 * time.Millisecond}
}

func TestThePeakIsTheMarkOfTheKernel(t *testing.T) {
	p := newProcess(t)
	p.write("clear_refs", "")
	p.setMark(900)
	ms := p.marks(nil)

	peak := ms.start()
	reset, err := os.ReadFile(filepath.Join(p.root, "proc/self/clear_refs"))
	require.NoError(t, err)
	require.Equal(t, "5", string(reset))

	p.setMark(300)
	for range 2 {
		bytes, exact := peak.Stop()
		require.Equal(t, uint64(300<<10), bytes)
		require.True(t, exact)
		require.Empty(t, peak.Note())
		p.setMark(700)
	}
}

func TestOverlappingIntervalsKeepTheirOwnPeaks(t *testing.T) {
	p := newProcess(t)
	p.write("clear_refs", "")
	p.setMark(100)
	ms := p.marks(nil)

	outer := ms.start()
	p.setMark(500)
	inner := ms.start()
	p.setMark(200)

	bytes, _ := inner.Stop()
	require.Equal(t, uint64(200<<10), bytes)
	bytes, exact := outer.Stop()
	require.Equal(t, uint64(500<<10), bytes)
	require.True(t, exact)
}

func TestWithoutAMarkToResetThePeakIsSampled(t *testing.T) {
	for name, status := range map[string]string{
		"no /proc":              "",
		"unwritable clear_refs": "VmHWM:\t9000 kB\n",
		"no mark":               "VmRSS:\t100 kB\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(t)
			if status != "" {
				p.write("status", status)
			}
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				peak := p.marks(func() (uint64, string) {
					if d := time.Since(began); 20*time.Millisecond < d && d < 40*time.Millisecond {
						return 7000, ""
					}
					return 1000, ""
				}).start()
				time.Sleep(105 * time.Millisecond)
				for range 2 {
					bytes, exact := peak.Stop()
					require.Equal(t, uint64(7000), bytes)
					require.False(t, exact)
					require.Contains(t, peak.Note(), "peak memory is sampled every 10ms: ")
				}
			}) // fails if the goroutine is still there
		})
	}
}

func TestASlowLookIsTakenLessOften(t *testing.T) {
	p := newProcess(t)
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		peak := p.marks(func() (uint64, string) {
			time.Sleep(3 * time.Millisecond)
			looks++
			return 1000, ""
		}).start()
		time.Sleep(time.Second)
		peak.Stop()
		require.Equal(t, 5, looks, "at start, three times in a second, at stop")
		require.Contains(t, peak.Note(), "every 300ms")
	})
}

func TestAPeakOfTheWholeLifeIsExactWithoutAReset(t *testing.T) {
	ms := newProcess(t).marks(func() (uint64, string) { return 1000, "" })
	peak := ms.start()
	ms.life = func() uint64 { return 8000 }
	bytes, exact := peak.Stop()
	require.Equal(t, uint64(8000), bytes)
	require.True(t, exact)
	require.Empty(t, peak.Note())
}

func TestASampleThatIsNoResidentSetIsNoted(t *testing.T) {
	peak := newProcess(t).marks(func() (uint64, string) { return 700, "only half of it counted" }).start()
	bytes, exact := peak.Stop()
	require.Equal(t, uint64(700), bytes)
	require.False(t, exact)
	require.Contains(t, peak.Note(), "; only half of it counted")
}

func TestWithoutLinuxsFilesNoPeakCallsItselfExact(t *testing.T) {
	if runtime.GOOS == "linux" {
		t.Skip("Linux has them")
	}
	p := StartPeak()
	bytes, exact := p.Stop()
	require.Positive(t, bytes)
	if exact { // the peak of the whole life fell into the interval
		require.NotZero(t, lifePeak())
		return
	}
	require.Contains(t, p.Note(), "no /proc")
}

func FuzzStatus(f *testing.F) {
	f.Add("Name:\thead\nVmHWM:\t    1732 kB\n")
	f.Add("VmHWM:\t18446744073709551615 kB\n")
	f.Add("VmHWM:1 kB")
	f.Fuzz(func(t *testing.T, data string) {
		bytes, ok := parseStatus([]byte(data), "VmHWM")
		if ok {
			require.Contains(t, data, "VmHWM:")
			require.Zero(t, bytes%1024)
		}
	})
}
