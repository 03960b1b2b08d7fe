package cuda_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	parts "github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

func gpu(t testing.TB, ordinal int) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(ordinal)
	require.NoError(t, err)
	return d
}

// session and the helpers below give back what they took when the test ends.
func session(t testing.TB, d *cuda.Device) parts.Session {
	t.Helper()
	s, err := d.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func host(t testing.TB, d *cuda.Device, n int) []byte {
	t.Helper()
	b, err := d.AllocHost(n)
	require.NoError(t, err)
	require.Len(t, b, n)
	t.Cleanup(func() { require.NoError(t, d.FreeHost(b)) })
	return b
}

func device(t testing.TB, d *cuda.Device, n int) uintptr {
	t.Helper()
	ptr, err := d.Alloc(n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Free(ptr)) })
	return ptr
}

func event(t testing.TB, d *cuda.Device) uintptr {
	t.Helper()
	ev, err := d.NewEvent()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.FreeEvent(ev)) })
	return ev
}

// finish waits for everything that the session has queued.
func finish(t testing.TB, d *cuda.Device, s parts.Session) {
	t.Helper()
	ev := event(t, d)
	require.NoError(t, s.Copy(nil, ev))
	require.NoError(t, s.Wait(ev))
}

// put copies src, and makes ev stand for its end.
func put(s parts.Session, dst uintptr, src []byte, ev uintptr) error {
	return s.Copy([]parts.Copy{{Dst: dst, Src: src}}, ev)
}

func fill(b []byte, v byte) []byte {
	for i := range b {
		b[i] = v
	}
	return b
}

func all(v byte, n int) []byte { return bytes.Repeat([]byte{v}, n) }

const size = 64 << 10

func TestCopiesArriveInTheirOrder(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t, 0)
	s := session(t, d)
	dst, ev := device(t, d, size), event(t, d)
	for v := range byte(20) {
		require.NoError(t, put(s, dst, fill(host(t, d, size), v), ev))
	}
	finish(t, d, s)
	require.Equal(t, all(19, size), driver.Read(t, dst, size))
}

func TestCopiesFromOrdinaryMemoryArriveToo(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t, 0)
	s := session(t, d)
	dst := device(t, d, size)
	require.NoError(t, put(s, dst, all(7, size), event(t, d)))
	finish(t, d, s)
	require.Equal(t, all(7, size), driver.Read(t, dst, size))
}

func TestAnEmptyCopyIsNoCall(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t, 0)
	s, ev := session(t, d), event(t, d)
	before := driver.Calls()
	require.NoError(t, s.Copy(nil, ev))
	calls := driver.Calls() - before
	require.NoError(t, put(s, 0, nil, ev))
	require.Equal(t, before+2*calls, driver.Calls())
}

func TestAnEventIsDoneWhenWhatItStandsForIs(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t, 0)
	s := session(t, d)
	dst, src, ev := device(t, d, size), fill(host(t, d, size), 1), event(t, d)
	require.NoError(t, s.Wait(ev), "nothing was recorded")

	driver.Hold()
	require.NoError(t, put(s, dst, src, ev))
	require.NotEqual(t, all(1, size), driver.Read(t, dst, size), "the copy waits")
	var later sync.WaitGroup
	later.Go(driver.Release)
	require.NoError(t, s.Wait(ev))
	require.Equal(t, all(1, size), driver.Read(t, dst, size))
	later.Wait()
}

func TestSessionsOnSeveralThreadsAndGPUsDontDisturbEachOther(t *testing.T) {
	driver := cudatest.Load(t)
	driver.GPUs(3)
	var threads sync.WaitGroup
	for i := range 6 {
		threads.Go(func() {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				d := gpu(t, i%3)
				s := session(t, d)
				dst, src, ev := device(t, d, size), host(t, d, size), event(t, d)
				for v := range byte(20) {
					require.NoError(t, put(s, dst, fill(src, v), ev))
					require.NoError(t, s.Wait(ev))
					require.Equal(t, all(v, size), driver.Read(t, dst, size))
				}
			})
		})
	}
	threads.Wait()
}

func TestCloseWaitsForTheCopies(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t, 0)
	s, err := d.Open()
	require.NoError(t, err)
	dst := device(t, d, size)
	require.NoError(t, put(s, dst, all(1, size), event(t, d)))
	require.NoError(t, s.Close())
	require.Equal(t, all(1, size), driver.Read(t, dst, size))
}

func TestASessionPutsBackTheThreadsContext(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t, 0)
	s, ev := session(t, d), event(t, d)
	require.NoError(t, s.Copy(nil, ev))
	require.NoError(t, s.Wait(ev))
	require.Zero(t, driver.Left()[cudatest.CurrentContext])
}

func TestPageLockedMemoryOutlivesItsSession(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t, 0)
	s, err := d.Open()
	require.NoError(t, err)
	b, err := d.AllocHost(size)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Equal(t, map[cudatest.Kind]int{cudatest.HostMemory: 1, cudatest.RetainedContext: 1}, driver.Left())

	fill(b, 1)
	var other sync.WaitGroup
	other.Go(func() { require.NoError(t, d.FreeHost(b)) })
	other.Wait()
	require.Empty(t, driver.Left())
}

func TestPageLockedMemoryNeedsNoSession(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t, 0)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				b, err := d.AllocHost(size + i)
				if err != nil {
					t.Error(err)
					return
				}
				fill(b, byte(i))
				if err := d.FreeHost(b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Empty(t, driver.Left())
}

func TestASecondFreeIsRefusedAndReleasesNothingMore(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t, 0)
	keep, err := d.AllocHost(size)
	require.NoError(t, err)
	b, err := d.AllocHost(size)
	require.NoError(t, err)
	require.NoError(t, d.FreeHost(b))
	require.EqualError(t, d.FreeHost(b), "cuMemFreeHost: CUDA_ERROR_INVALID_VALUE (1)")
	require.Error(t, d.FreeHost(make([]byte, size)), "memory of Go's")
	require.Equal(t, 2, driver.Misuses())
	require.Equal(t, 1, driver.Left()[cudatest.RetainedContext], "the other buffer's")
	require.NoError(t, d.FreeHost(keep))
}
