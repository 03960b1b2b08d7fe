package host

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

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

func (p fakeProcess) start(life func() uint64) *Peak { return machine{root: p.root}.startPeak(life) }

func TestThePeakIsTheMarkOfTheKernel(t *testing.T) {
	p := newProcess(t)
	p.write("clear_refs", "")
	p.setMark(900)
	peak := p.start(func() uint64 { return 5000 })
	reset, err := os.ReadFile(filepath.Join(p.root, "proc/self/clear_refs"))
	require.NoError(t, err)
	require.Equal(t, "5", string(reset))

	p.setMark(300)
	bytes, exact := peak.Stop()
	require.Equal(t, uint64(300<<10), bytes)
	require.True(t, exact)
}

func TestWithoutAMarkToResetThePeakIsThatOfTheWholeLifeOrOfTheEnd(t *testing.T) {
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
			life := uint64(5000)
			peak := p.start(func() uint64 { return life })
			bytes, exact := peak.Stop()
			require.NotEqual(t, uint64(5000), bytes, "it was reached before")
			require.Positive(t, bytes)
			require.False(t, exact)

			peak = p.start(func() uint64 { return life })
			life = 8000
			bytes, exact = peak.Stop()
			require.Equal(t, uint64(8000), bytes)
			require.True(t, exact)
		})
	}
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
	}
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
