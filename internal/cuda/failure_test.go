package cuda_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

func TestOutOfMemorySaysHowMuchWasAskedFor(t *testing.T) {
	driver := cudatest.Load(t)
	driver.Limit(cudatest.DeviceMemory, 3*size)
	driver.Limit(cudatest.HostMemory, 3*size)
	d := gpu(t, 0)
	device(t, d, size)

	_, err := d.Alloc(4 * size)
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.EqualError(t, err, "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): 262144 bytes of device memory asked for, 131072 of 196608 are free")
	_, err = d.AllocHost(4 * size)
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.EqualError(t, err, "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): 262144 bytes of page-locked memory asked for")
	_, err = d.Alloc(0)
	require.ErrorContains(t, err, "CUDA_ERROR_INVALID_VALUE (1): 0 bytes of device memory")
	_, err = d.AllocHost(-1)
	require.ErrorContains(t, err, "-1 bytes of page-locked memory")
}

func TestAResultThatIsNotKnownIsANumber(t *testing.T) {
	require.Equal(t, "CUresult (12345)", cuda.Result(12345).Error())
}

// epoch does everything that a loader does with a device, and gives back what
// it got however it ends.
func epoch() (err error) {
	undo := func(f func() error) { err = errors.Join(err, f()) }
	d, err := cuda.Open(0)
	if err != nil {
		return err
	}
	s, err := d.Open()
	if err != nil {
		return err
	}
	defer undo(s.Close)
	src, err := d.AllocHost(size)
	if err != nil {
		return err
	}
	defer undo(func() error { return d.FreeHost(src) })
	dst, err := d.Alloc(size)
	if err != nil {
		return err
	}
	defer undo(func() error { return d.Free(dst) })
	ev, err := d.NewEvent()
	if err != nil {
		return err
	}
	defer undo(func() error { return d.FreeEvent(ev) })

	for range 3 {
		err := put(s, dst, src, ev)
		if err == nil {
			err = s.Wait(ev)
		}
		if err != nil { // nothing may be freed under a copy
			return errors.Join(err, s.Copy(nil, ev), s.Wait(ev))
		}
	}
	return nil
}

func TestEveryCallThatFailsIsNamedAndNothingIsLeft(t *testing.T) {
	driver := cudatest.Load(t)
	everyFailure(t, driver, epoch)
}

func TestEveryCallThatFailsAroundPageLockedMemoryIsNamedAndNothingIsLeft(t *testing.T) {
	driver := cudatest.Load(t)
	everyFailure(t, driver, func() error {
		d, err := cuda.Open(0)
		if err != nil {
			return err
		}
		b, err := d.AllocHost(size)
		if err != nil {
			return err
		}
		err = d.FreeHost(b)
		if driver.Left()[cudatest.HostMemory] > 0 { // the context couldn't be had; it can be now
			return errors.Join(err, d.FreeHost(b))
		}
		return err
	})
}

// everyFailure runs a program again and again, its first call failing, then its
// second, and so on to the last.
func everyFailure(t *testing.T, driver cudatest.Driver, program func() error) {
	t.Helper()
	const code = cuda.Result(719)
	for n := 1; ; n++ {
		driver.Fail("", n, code)
		err := program()
		require.Empty(t, driver.Left(), "after a failure of call %d, %s", n, driver.Failed())
		require.Zero(t, driver.Misuses(), "after a failure of call %d, %s", n, driver.Failed())
		if driver.Failed() == "" {
			require.NoError(t, err)
			require.Greater(t, n, 5)
			return
		}
		require.ErrorContains(t, err, driver.Failed()+": CUDA_ERROR_LAUNCH_FAILED (719)")
		require.ErrorIs(t, err, code)
	}
}
