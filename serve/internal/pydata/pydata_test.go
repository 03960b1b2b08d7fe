//go:build unix

package pydata_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

func TestASampleThatHangsIsBadAloneAndNoSampleIsMadeTwice(t *testing.T) {
	dir := t.TempDir()
	c := config(t, `
class Birds:
    def __len__(self): return 50
    def __getitem__(self, i):
        with open(`+"'"+dir+`/%d' % i, "a") as f: f.write("x")
        if i in (22, 46): raise ValueError("no such bird")
        if i == 23: time.sleep(1e6)
        if i == 47: os._exit(3)
        return i
made = {"dataset": Birds()}
`)
	c.Timeout = 300 * time.Millisecond
	d := open(t, c)
	require.NoError(t, os.Remove(filepath.Join(dir, "0"))) // the first sample was made for its fields
	l, err := nwt.NewLoader(d, nwt.WithBatchSize(50), nwt.WithWorkers(1), nwt.WithErrorBudget(5), nwt.WithRetry(0, 0))
	require.NoError(t, err)
	defer l.Close()
	n := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		n += b.Len()
	}
	require.Equal(t, 46, n)
	said := map[int]string{22: "no such bird", 23: "no sample within 300ms", 46: "no such bird", 47: "has ended, with status 3"}
	for _, bad := range l.BadSamples() {
		require.ErrorContains(t, bad, said[bad.Index])
	}
	require.Len(t, l.BadSamples(), len(said))
	for i := range 47 { // 47 may have died of something that passes
		text, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(i)))
		require.NoError(t, err)
		require.Equal(t, "x", string(text), i)
	}
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
		"class Birds:\n    def __len__(self): return 3\n    def __getitem__(self, i): return 1 / 0\nmade = {'dataset': Birds()}":                "sample 0: ",
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
        return {"x": [np.zeros(3), np.zeros(4), np.zeros(3, complex), "text", np.zeros(3), np.zeros(3, ">f4")][i], **({"y": 1} if i == 4 else {})}
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
	for _, want := range []string{"shape (4,), and in the first sample (3,)", `ragged={'x': 512}`, "is complex128, and in the first sample it is float64", "str 'text', and the first one has an array", "a dict of x"} {
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

// pictures is an input whose samples depend on their Rand.
func pictures(n int, bad ...int) nwt.Dataset {
	fields := []nwt.Field{{Name: "picture", Type: nwt.Uint8, Shape: []int{4, 5, 3}}, {Name: "label", Type: nwt.Int64}}
	return nwt.WritesAll(nwt.NewDataset(n, fields, func(_ context.Context, i int, s *nwt.Sample) error {
		for k := range s.Bytes(0) {
			s.Bytes(0)[k] = byte(s.Rand().Uint32())
		}
		nwt.Values[int64](s, 1)[0] = int64(i % 7)
		if slices.Contains(bad, i) {
			return errors.New("no such picture")
		}
		return nil
	}))
}

// changed returns what a function makes of pictures.
func changed(t *testing.T, in nwt.Dataset, function string) *pydata.Dataset {
	c := config(t, function+"\nmade = {'transform': change}\n")
	c.Input, c.Timeout = in, time.Second
	return open(t, c)
}

// loaded returns a field of each sample of an epoch, by its index, and which samples are bad.
func loaded(t *testing.T, d nwt.Dataset, field, workers int) (all [][]byte, bad []*nwt.LoadError) {
	t.Helper()
	l, err := nwt.NewLoader(d, nwt.WithBatchSize(150), nwt.WithShuffle(3), nwt.WithWorkers(workers), nwt.WithErrorBudget(50))
	require.NoError(t, err)
	defer l.Close()
	all = make([][]byte, d.Len())
	for b, err := range l.Epoch(t.Context(), 2) {
		require.NoError(t, err)
		size := len(b.Bytes(field)) / max(1, b.Len())
		for k, i := range b.Indices() {
			require.Nil(t, all[i])
			all[i] = bytes.Clone(b.Bytes(field)[k*size:][:size])
		}
	}
	return all, l.BadSamples()
}

func TestAFunctionGetsThePicturesThatAreLoadedWithoutIt(t *testing.T) {
	in := pictures(300)
	d := changed(t, in, "def change(image): return image")
	require.Equal(t, []string{"image", "label"}, []string{d.Fields()[0].Name, d.Fields()[1].Name})
	for field := range 2 {
		want, _ := loaded(t, in, field, 1)
		for _, workers := range []int{0, 1, 3} {
			got, _ := loaded(t, d, field, workers)
			require.Equal(t, want, got)
		}
	}
}

func TestWhatAFunctionDrawsIsTheSamplesOwnWhateverBecomesOfItsProcess(t *testing.T) {
	dir := t.TempDir()
	draw := "def change(image, rng): return image + rng.random(image.shape) + random.random() + np.random.random()"
	want, _ := loaded(t, changed(t, pictures(300), draw), 0, 2)
	require.NotEqual(t, want[0][:8], want[0][8:16])
	got, bad := loaded(t, changed(t, pictures(300), strings.Replace(draw, "return", `
    name, kind = "`+dir+`/%d" % image.tobytes().__hash__(), image[0, 0, 0] % 32
    if kind < 2 and not os.path.exists(name):
        open(name, "w").close()
        image[:] = 0
        if kind: raise ConnectionError
        os._exit(7)
    return`, 1)), 0, 2)
	require.Empty(t, bad)
	require.Equal(t, want, got)
	files, err := filepath.Glob(dir + "/*")
	require.NoError(t, err)
	require.Greater(t, len(files), 10)
}

func TestABadPictureAndABadCallOfTheFunctionAreNamedAndTheOthersAreChangedOnce(t *testing.T) {
	dir := t.TempDir()
	all, bad := loaded(t, changed(t, pictures(300, 11, 12, 200), `
def change(image, rng):
    if image[0, 0, 0] < 8: raise ValueError("too dark")
    if image[0, 0, 0] == 255: time.sleep(1e6)
    with open("`+dir+`/%d" % image.tobytes().__hash__(), "a") as f: f.write("x")
    return image if image[0, 0, 0] > 16 else image[1:]
`), 0, 2)
	said := map[string]int{}
	for _, one := range bad {
		require.Nil(t, all[one.Index])
		all[one.Index] = []byte{}
		for _, want := range []string{"no such picture", "in change\n", "ValueError: too dark", "no sample within 1s", `field 'image' has the shape (3, 5, 3), and in the first sample (4, 5, 3)`} {
			if strings.Contains(one.Error(), want) {
				said[want]++
			}
		}
	}
	require.NotContains(t, all, []byte(nil))
	require.Len(t, said, 5)
	require.Equal(t, 3, said["no such picture"])
	files, err := filepath.Glob(dir + "/*")
	require.NoError(t, err)
	require.Greater(t, len(files), 280)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, "x", string(text))
	}
}

func TestTheFingerprintCoversTheFunctionAndItsInput(t *testing.T) {
	known, err := nwt.Subset(pictures(30), []int{1, 2})
	require.NoError(t, err)
	other, err := nwt.Subset(pictures(30), []int{2, 1})
	require.NoError(t, err)
	first := changed(t, known, "def change(image): return image").Fingerprint()
	require.Equal(t, first, changed(t, known, "def change(image): return image").Fingerprint())
	require.NotEqual(t, first, changed(t, other, "def change(image): return image").Fingerprint())
	require.NotEqual(t, first, changed(t, known, "import functools\ndef f(by, image): return image\nchange = functools.partial(f, 2)").Fingerprint())
	require.Empty(t, changed(t, pictures(30), "def change(image): return image").Fingerprint())
}

func TestAFunctionMustReturnArrays(t *testing.T) {
	for function, want := range map[string]string{
		"def change(image): return 'text'":                "transform returned no array as 'image': it must return an array",
		"def change(image): return {'label': image}":      "label",
		"def change(image): raise ValueError('no image')": "ValueError: no image",
	} {
		c := config(t, function+"\nmade = {'transform': change}\n")
		c.Input = pictures(3)
		_, err := pydata.Open(t.Context(), c)
		require.ErrorContains(t, err, want)
	}
}
