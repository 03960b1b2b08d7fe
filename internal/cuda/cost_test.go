//go:build !race

// The race detector has sync.Pool drop what it is given, at random.

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	parts "github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

func TestWhatIsCalledForEachBatchAllocatesNothing(t *testing.T) {
	driver := cudatest.Load(t)
	d := gpu(t, 0)
	s := session(t, d)
	driver.Inline()
	ev, copies := event(t, d), []parts.Copy{{Dst: device(t, d, size), Src: host(t, d, size)}}
	for name, f := range map[string]func() error{
		"Copy": func() error { return s.Copy(copies, ev) },
		"Wait": func() error { return s.Wait(ev) },
	} {
		require.NoError(t, f(), name)
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = f() }), name)
	}
}

// The driver's own part is small here: nothing to copy to speak of, and no
// other thread.
func BenchmarkCall(b *testing.B) {
	driver := cudatest.Load(b)
	driver.Inline()
	d := gpu(b, 0)
	s, ev := session(b, d), event(b, d)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Wait(ev); err != nil {
			b.Fatal(err)
		}
	}
}
