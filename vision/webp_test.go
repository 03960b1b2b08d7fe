package vision_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

func TestACropOfAWebPFileIsThatOfTheWholePicture(t *testing.T) {
	const width, height = 240, 180
	r := rand.New(rand.NewPCG(3, 4))
	for _, name := range []string{"lossy.webp", "alpha.webp", "lossless.webp"} {
		file := read(t, name)
		whole := nwt.Values[uint8](load(t, of(t, width, height), file), 0)
		for range 100 {
			size := vision.Size{Height: 1 + r.IntN(height), Width: 1 + r.IntN(width)}
			left, top := r.IntN(width-size.Width+1), r.IntN(height-size.Height+1)
			p, err := vision.New([]vision.Transform{vision.FixedCrop{Left: left, Top: top, Size: size}}, vision.WithType(nwt.Uint8), vision.WithLayout(vision.HWC))
			require.NoError(t, err)
			got := nwt.Values[uint8](load(t, p, file), 0)
			for y := range size.Height {
				require.Equal(t, whole[3*((top+y)*width+left):][:3*size.Width], got[3*y*size.Width:][:3*size.Width], "%s, row %d of %v at %d, %d", name, y, size, left, top)
			}
		}
	}
}
