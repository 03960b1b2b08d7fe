package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

// These run only if there is a GPU, on its own driver.

func realGPU(t testing.TB) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(0)
	if err != nil {
		t.Skip(err)
	}
	if strings.HasPrefix(d.Name(), "Fake") {
		t.Skip("this binary is linked with the fake driver")
	}
	return d
}

func TestAGPUHoldsWhatWasCopied(t *testing.T) { holdsWhatWasCopied(t, realGPU(t)) }

func TestTheFakeHoldsWhatWasCopied(t *testing.T) {
	cudatest.Load(t)
	holdsWhatWasCopied(t, gpu(t, 0))
}

func holdsWhatWasCopied(t *testing.T, d *cuda.Device) {
	s := session(t, d)
	const n = 5<<20 + 3
	random := rand.NewChaCha8([32]byte{1})
	for range 4 {
		pageLocked, dst, ev := host(t, d, n), device(t, d, n), event(t, d)
		_, _ = random.Read(pageLocked)
		require.NoError(t, put(s, dst, pageLocked, ev))
		require.NoError(t, s.Wait(ev))
		require.Equal(t, pageLocked, cudatest.ReadBack(t, 0, dst, n))
	}
	_, err := d.Alloc(math.MaxInt >> 16)
	require.ErrorIs(t, err, cuda.OutOfMemory)
	var failed *cuda.Error
	require.ErrorAs(t, err, &failed)
	var asked, free, total uint64
	_, err = fmt.Sscanf(failed.Asked, "%d bytes of device memory asked for, %d of %d are free", &asked, &free, &total)
	require.NoError(t, err, failed.Asked)
	require.Less(t, free, total)
}

// BenchmarkCopy moves a batch of 128 images of 3 × 224 × 224 float32.
func BenchmarkCopy(b *testing.B) {
	const n = 128 * 3 * 224 * 224 * 4
	d := realGPU(b)
	s := session(b, d)
	dst, ev := device(b, d, n), event(b, d)
	for _, c := range []struct {
		from string
		src  []byte
	}{
		{"page-locked", host(b, d, n)},
		{"ordinary", make([]byte, n)},
	} {
		b.Run(c.from, func(b *testing.B) {
			b.SetBytes(n)
			for b.Loop() {
				require.NoError(b, put(s, dst, c.src, ev))
				require.NoError(b, s.Wait(ev))
			}
		})
	}
}
