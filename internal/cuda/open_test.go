package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

func TestOpenDescribesTheGPU(t *testing.T) {
	driver := cudatest.Load(t)
	driver.GPUs(2)

	d, err := cuda.Open(1)
	require.NoError(t, err)
	require.Equal(t, "Fake GPU 1", d.Name())
	require.Empty(t, driver.Left(), "an open device holds nothing")
}

func TestOpenSaysWhyThereIsNoGPU(t *testing.T) {
	driver := cudatest.Load(t)
	for _, c := range []struct {
		name    string
		gpus    int
		ordinal int
		says    string
	}{
		{"none", 0, 0, "sees no GPU: cuInit: CUDA_ERROR_NO_DEVICE (100)"},
		{"past the last", 2, 2, "GPU 2 asked for, and the driver has GPUs 0 to 1"},
		{"before the first", 1, -1, "GPU -1 asked for, and the driver has GPUs 0 to 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			driver.GPUs(c.gpus)
			_, err := cuda.Open(c.ordinal)
			require.ErrorIs(t, err, cuda.ErrNoDevice)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestOpenSaysThatGPUsAreHidden(t *testing.T) {
	driver := cudatest.Load(t)
	driver.GPUs(0)
	t.Setenv("CUDA_VISIBLE_DEVICES", "-1")
	_, err := cuda.Open(0)
	require.ErrorContains(t, err, `with CUDA_VISIBLE_DEVICES="-1"`)
}

func TestOpenSaysThatThereIsNoDriver(t *testing.T) {
	if cuda.Backend != "purego" {
		t.Skipf("backend %q has its driver from the linker", cuda.Backend)
	}
	before := cuda.Library
	defer func() { cuda.Library = before }()
	cuda.Library = "libnone.so.1"

	_, err := cuda.Open(0)
	require.ErrorIs(t, err, cuda.ErrNoDevice)
	require.ErrorContains(t, err, "driver library can't be loaded: libnone.so.1: cannot open shared object file")
}

func TestADriverThatLacksFunctionsIsNoDevice(t *testing.T) {
	if cuda.Backend != "purego" {
		t.Skip("the driver is found only by a backend that loads it at run time")
	}
	before := cuda.Library
	t.Cleanup(func() { cuda.Library = before })
	cuda.Library = "libc.so.6" // it can be loaded, and has none of them

	_, err := cuda.Open(0)
	require.ErrorIs(t, err, cuda.ErrNoDevice)
	require.ErrorContains(t, err, "older than CUDA 11")
	require.ErrorContains(t, err, "cuMemAlloc_v2")
}

func TestABinaryWithoutABackendSaysSo(t *testing.T) {
	if cuda.Backend != "" {
		t.Skipf("this binary has %s", cuda.Backend)
	}
	_, err := cuda.Open(0)
	require.Regexp(t, "built without cgo.*-tags nwt_purego|GPUs work on linux", err.Error())
}

func TestAStubOfTheDriverIsNoDevice(t *testing.T) {
	driver := cudatest.Load(t)
	driver.Fail("cuInit", 1, cuda.StubLibrary)
	_, err := cuda.Open(0)
	require.ErrorIs(t, err, cuda.ErrNoDevice)
	require.ErrorContains(t, err, "stub of the CUDA toolkit")
}

func TestADriverThatIsBrokenIsNotTakenForNone(t *testing.T) {
	driver := cudatest.Load(t)
	const mismatch = cuda.Result(803)
	driver.Fail("cuInit", 1, mismatch)
	_, err := cuda.Open(0)
	require.NotErrorIs(t, err, cuda.ErrNoDevice)
	require.EqualError(t, err, "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)")
}
