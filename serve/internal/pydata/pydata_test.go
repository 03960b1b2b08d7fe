//go:build unix

package pydata_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve/internal/pydata"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// python returns an interpreter with NumPy, and the folder of nwt.
func python(t testing.TB) (program, folder string) {
	t.Helper()
	folder, err := filepath.Abs("../../../python")
	require.NoError(t, err)
	program = os.Getenv("NWT_PYTHON")
	if program == "" {
		program = "python3"
	}
	if err := exec.Command(program, "-c", "import numpy").Run(); err != nil {
		t.Skipf("%s has no NumPy", program)
	}
	return program, folder
}

// config describes a program whose variable "made" says what makes the samples.
func config(t testing.TB, program string) pydata.Config {
	t.Helper()
	interpreter, folder := python(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "program.py"), []byte("import os, random, sys, time\nimport numpy as np\n"+program), 0o600))
	cmd := exec.Command(interpreter, "-c", `
import sys
sys.path[:0] = sys.argv[1:3]
import program
from nwt import _children
sys.stdout.buffer.write(_children.setup(program.made))`, dir, folder)
	var said bytes.Buffer
	cmd.Stderr = &said
	setup, err := cmd.Output()
	require.NoError(t, err, "%s", &said)
	return pydata.Config{
		Command: []string{interpreter, "-c", "import sys; sys.path.insert(0, sys.argv.pop(1)); from nwt import _children; _children.run(*map(int, sys.argv[1:]))", folder},
		Setup:   setup, Stdout: os.Stdout, Stderr: os.Stderr,
	}
}

func open(t testing.TB, c pydata.Config) *pydata.Dataset {
	t.Helper()
	d, err := pydata.Open(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(d.Close)
	return d
}

const plain = `
class Birds:
    def __len__(self): return 1000
    def __getitem__(self, i):
        return np.full((2, 3), i, np.float32), i % 7, random.random(), np.random.random()
made = {"dataset": Birds()}
`

func TestSamplesAreThoseOfTheProgramAtAnyNumberOfWorkers(t *testing.T) {
	d := open(t, config(t, plain))
	require.Equal(t, 1000, d.Len())
	var want [][]byte
	for _, workers := range []int{1, 3, 0} {
		l, err := nwt.NewLoader(d, nwt.WithBatchSize(32), nwt.WithShuffle(7), nwt.WithWorkers(workers))
		require.NoError(t, err)
		n := 0
		for b, err := range l.Epoch(t.Context(), 1) {
			require.NoError(t, err)
			for k, i := range b.Indices() {
				require.Equal(t, float32(i), nwt.Values[float32](b, 0)[6*k+5])
				require.EqualValues(t, i%7, nwt.Values[int64](b, 1)[k])
				require.EqualValues(t, i, nwt.Values[int64](b, 4)[k])
			}
			drawn := append(bytes.Clone(b.Bytes(2)), b.Bytes(3)...)
			if workers == 1 {
				want = append(want, drawn)
			}
			require.Equal(t, want[n], drawn)
			n++
		}
		require.Equal(t, 32, n)
		require.NoError(t, l.Close())
	}
}

func TestABadSampleIsNamedAndNoSampleIsMadeTwice(t *testing.T) {
	dir := t.TempDir()
	d := open(t, config(t, `
class Birds:
    def __len__(self): return 512
    def __getitem__(self, i):
        with open(`+"'"+dir+`/%d' % i, "a") as f: f.write("x")
        if i == 437: raise ValueError("no such bird")
        return {"x": i}
made = {"dataset": Birds()}
`))
	require.NoError(t, os.Remove(filepath.Join(dir, "0"))) // the first sample was made for its fields
	l, err := nwt.NewLoader(d, nwt.WithBatchSize(512), nwt.WithWorkers(1), nwt.WithErrorBudget(5))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, 511, b.Len())
		require.NotContains(t, b.Indices(), 437)
		for k, i := range b.Indices() {
			require.EqualValues(t, i, nwt.Values[int64](b, 0)[k])
		}
	}
	require.Len(t, l.BadSamples(), 1)
	require.ErrorContains(t, l.BadSamples()[0], "no such bird")
	for i := range 512 {
		text, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(i)))
		require.NoError(t, err)
		require.Equal(t, "x", string(text), i)
	}
}

func TestASampleThatHangsIsBadAloneAndItsChildIsReplaced(t *testing.T) {
	c := config(t, `
class Birds:
    def __len__(self): return 100
    def __getitem__(self, i):
        if i == 41: time.sleep(1e6)
        return i
made = {"dataset": Birds()}
`)
	c.Timeout = 300 * time.Millisecond
	d := open(t, c)
	l, err := nwt.NewLoader(d, nwt.WithBatchSize(50), nwt.WithWorkers(2), nwt.WithErrorBudget(5))
	require.NoError(t, err)
	defer l.Close()
	n := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		n += b.Len()
	}
	require.Equal(t, 99, n)
	require.ErrorContains(t, l.BadSamples()[0], "no sample within 300ms")
	require.Equal(t, 41, l.BadSamples()[0].Index)
}

func TestAChildThatIsKilledLosesNoSample(t *testing.T) {
	dir := t.TempDir()
	d := open(t, config(t, `
import signal
class Birds:
    def __len__(self): return 300
    def __getitem__(self, i):
        if i % 50 == 3:
            try: os.close(os.open("`+dir+`/%d" % i, os.O_CREAT | os.O_EXCL))
            except FileExistsError: return i
            os.kill(os.getppid() if i == 103 else os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return i
made = {"dataset": Birds()}
`))
	l, err := nwt.NewLoader(d, nwt.WithBatchSize(50), nwt.WithWorkers(2))
	require.NoError(t, err)
	defer l.Close()
	seen := map[int64]bool{}
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		for _, v := range nwt.Values[int64](b, 0) {
			seen[v] = true
		}
	}
	require.Len(t, seen, 300)
}

func TestAProgramWithThreadsGetsInterpretersInsteadOfForks(t *testing.T) {
	d := open(t, config(t, `
import threading
def make():
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
    return Birds()
class Birds:
    def __len__(self): return 100
    def __getitem__(self, i): return {"i": i, "threads": threading.active_count(), "pid": os.getpid()}
    def __reduce__(self): return make, ()
made = {"dataset": Birds()}
`))
	l, err := nwt.NewLoader(d, nwt.WithBatchSize(50), nwt.WithWorkers(2))
	require.NoError(t, err)
	defer l.Close()
	n := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		for k, i := range b.Indices() {
			require.EqualValues(t, i, nwt.Values[int64](b, 0)[k])
			require.EqualValues(t, 2, nwt.Values[int64](b, 1)[k])
		}
		n += b.Len()
	}
	require.Equal(t, 100, n)
}

func TestADatasetThatCannotBeReadIsAnErrorWithItsReason(t *testing.T) {
	for program, want := range map[string]string{
		"def make(): raise RuntimeError('no birds here')\nclass Birds:\n    def __reduce__(self): return make, ()\nmade = {'dataset': Birds()}": "no birds here",
		"class Birds:\n    def __len__(self): return 3\n    def __getitem__(self, i): return 1 / i\nmade = {'dataset': Birds()}":                "sample 0: ",
		"class Birds:\n    def __len__(self): return 3\n    def __getitem__(self, i): return np.zeros((0, 3))\nmade = {'dataset': Birds()}":     "without elements",
		"class Birds:\n    def __len__(self): return 3\n    def __getitem__(self, i): os._exit(7)\nmade = {'dataset': Birds()}":                 "has ended",
	} {
		_, err := pydata.Open(t.Context(), config(t, program))
		require.ErrorContains(t, err, want)
	}
}

func TestSamplesThatDifferFromTheFirstSayWhatToWrite(t *testing.T) {
	d := open(t, config(t, `
class Birds:
    def __len__(self): return 6
    def __getitem__(self, i):
        return {"x": [np.zeros(3), np.zeros(4), np.zeros(3, np.float32), "text", np.zeros(3), np.zeros(3)][i], **({"y": 1} if i == 4 else {})}
made = {"dataset": Birds()}
`))
	l, err := nwt.NewLoader(d, nwt.WithWorkers(1), nwt.WithErrorBudget(10))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, []int{0, 5}, b.Indices())
	}
	var said strings.Builder
	for _, bad := range l.BadSamples() {
		said.WriteString(bad.Error() + "\n")
	}
	for _, want := range []string{"shape (4,), and in sample 0 (3,)", `ragged={'x': 512}`, "is float32, and in sample 0 it is float64", "str 'text', and sample 0 has an array", "a dict of x"} {
		require.Contains(t, said.String(), want)
	}
}

func TestRaggedArraysAndObjectsArriveWhole(t *testing.T) {
	d := open(t, config(t, `
class Birds:
    def __len__(self): return 9
    def __getitem__(self, i): return {"text": np.arange(i, dtype=np.int32), "name": "bird %d" % i, "box": [np.ones(i)]}
made = {"dataset": Birds(), "ragged": {"text": 8, "box.0": 8}}
`))
	l, err := nwt.NewLoader(d, nwt.WithWorkers(2))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, 9, b.Len())
		for k, i := range b.Indices() {
			require.EqualValues(t, i, b.Lens(0, 0)[k])
			require.EqualValues(t, i, b.Lens(1, 0)[k])
			require.Contains(t, string(b.Bytes(2)[k*4<<20:][:b.Lens(2, 0)[k]]), "bird")
		}
	}
}
