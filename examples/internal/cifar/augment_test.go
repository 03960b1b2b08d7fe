package cifar

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func noise() *record {
	r, rng := &record{}, rand.New(rand.NewPCG(1, 2))
	for i := range r {
		r[i] = byte(rng.Uint32())
	}
	return r
}

// value returns what augment should write to a pixel, computed by itself.
func value(r *record, c, y, x, dx, dy int, flip bool) float32 {
	mean := [...]float64{0.4914, 0.4822, 0.4465}[c]
	deviation := [...]float64{0.2470, 0.2435, 0.2616}[c]
	y, x = y+dy-4, x+dx-4
	if flip {
		x = 31 - x
	}
	v := 0.0
	if y >= 0 && y < 32 && x >= 0 && x < 32 {
		v = float64(r[1+c*1024+y*32+x])
	}
	return float32((v/255 - mean) / deviation)
}

func TestAugmentMirrorsPadsCropsAndNormalizes(t *testing.T) {
	r := noise()
	for dx := range 9 {
		for dy := range 9 {
			for _, flip := range []bool{false, true} {
				got, want := &[pixels]float32{}, &[pixels]float32{}
				augment(got, r, dx, dy, flip)
				for i := range want {
					want[i] = value(r, i/1024, i/32%32, i%32, dx, dy, flip)
				}
				require.True(t, *want == *got, "dx %d, dy %d, flip %v", dx, dy, flip)
			}
		}
	}
}
