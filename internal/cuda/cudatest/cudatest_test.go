package cudatest_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

// What the fake is for: each of these is a mistake that a real driver would let
// pass, now and then.

const (
	size           = 4 << 10
	invalidHandle  = cuda.Result(400)
	illegalAddress = cuda.Result(700)
)

func gpu(t *testing.T) *cuda.Device {
	d, err := cuda.Open(0)
	require.NoError(t, err)
	return d
}

func session(t *testing.T, d *cuda.Device) driver.Session {
	s, err := d.Open()
	require.NoError(t, err)
	return s
}

// put copies src, and leaves the event behind.
func put(t *testing.T, d *cuda.Device, s driver.Session, dst uintptr, src []byte) error {
	ev, err := d.NewEvent()
	require.NoError(t, err)
	return s.Copy([]driver.Copy{{Dst: dst, Src: src}}, ev)
}

func TestASlotThatIsRefilledTooEarlyArrivesRefilled(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t)
	s := session(t, d)
	driver.Hold()
	dst, err := d.Alloc(size)
	require.NoError(t, err)
	src, err := d.AllocHost(size)
	require.NoError(t, err)

	copy(src, bytes.Repeat([]byte{1}, size))
	require.NoError(t, put(t, d, s, dst, src))
	copy(src, bytes.Repeat([]byte{2}, size))
	require.NotContains(t, driver.Read(t, dst, size), byte(1), "the copy is late")
	driver.Release()
	require.NoError(t, s.Close())
	require.Equal(t, bytes.Repeat([]byte{2}, size), driver.Read(t, dst, size))

	require.NoError(t, d.FreeHost(src))
	driver.Reset()
}

func TestASlotOfOrdinaryMemoryIsReadAtTheCall(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t)
	s := session(t, d)
	driver.Hold()
	dst, err := d.Alloc(size)
	require.NoError(t, err)
	src := bytes.Repeat([]byte{1}, size)
	require.NoError(t, put(t, d, s, dst, src))
	clear(src)
	driver.Release()
	require.NoError(t, s.Close())
	require.Equal(t, bytes.Repeat([]byte{1}, size), driver.Read(t, dst, size))
	driver.Reset()
}

func TestMemoryThatIsFreedUnderACopyFailsEverythingAfter(t *testing.T) {
	for _, c := range []struct {
		name string
		free func(d *cuda.Device, dst uintptr, src []byte) error
	}{
		{"the slot", func(d *cuda.Device, _ uintptr, src []byte) error { return d.FreeHost(src) }},
		{"the device's buffer", func(d *cuda.Device, dst uintptr, _ []byte) error { return d.Free(dst) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			driver := cudatest.Load(t)
			d := gpu(t)
			s := session(t, d)
			driver.Hold()
			dst, err := d.Alloc(size)
			require.NoError(t, err)
			src, err := d.AllocHost(size)
			require.NoError(t, err)
			require.NoError(t, put(t, d, s, dst, src))
			require.NoError(t, c.free(d, dst, src))
			driver.Release()
			require.ErrorIs(t, s.Close(), illegalAddress)
			driver.Reset()
		})
	}
}

func TestFreesOfWhatIsNotThereAreRefused(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t)
	s := session(t, d)
	ptr, err := d.Alloc(size)
	require.NoError(t, err)
	require.NoError(t, d.Free(ptr))
	require.ErrorIs(t, s.Wait(ptr), invalidHandle)
	require.ErrorIs(t, put(t, d, s, ptr, make([]byte, 1)), cuda.InvalidValue)
	require.Equal(t, 2, driver.Misuses())
	require.NoError(t, s.Close())
	driver.Reset()
}

func TestACallFailsWhenItIsToldTo(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t)
	driver.Fail("cuEventCreate", 2, cuda.OutOfMemory)
	ev, err := d.NewEvent()
	require.NoError(t, err)
	require.Empty(t, driver.Failed())
	_, err = d.NewEvent()
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.Equal(t, "cuEventCreate", driver.Failed())

	driver.Fail("cuEventDestroy_v2", 1, cuda.OutOfMemory)
	require.ErrorIs(t, d.FreeEvent(ev), cuda.OutOfMemory, "and it is freed all the same")
}

func TestLeftNamesWhatIsLeft(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t)
	s := session(t, d)
	_, err := d.Alloc(size)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Equal(t, map[cudatest.Kind]int{cudatest.DeviceMemory: 1, cudatest.RetainedContext: 1}, driver.Left())
	require.Equal(t, "device buffers", cudatest.DeviceMemory.String())
	driver.Reset()
}
