package vision

import (
	"cmp"
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// unseen is a writer that writes nothing.
type unseen struct{ writer }

func (unseen) ycc(_, _, _ int, _, _, _ []byte, _ *chroma) {}

// BenchmarkStages tells how many microseconds each stage of a photograph's way into a batch
// takes. The photographs are those of benchmarks/peers/photos.py, or else one of testdata. The
// stages take turns, so that a machine's moods meet all of them.
//
//	go test -run '^$' -bench Stages -benchtime 3000x ./vision
func BenchmarkStages(b *testing.B) {
	names, err := filepath.Glob("../benchmarks/peers/photos/*/*.jpg")
	require.NoError(b, err)
	if len(names) == 0 {
		names = []string{"testdata/photo.jpg"}
	}
	p, err := New([]Transform{RandomResizedCrop{Size: Square(224)}, RandomHorizontalFlip{P: 0.5}, ImageNetNormalize})
	require.NoError(b, err)
	batch := make([]float32, 64*3*224*224) // more than a cache holds
	took := map[string]time.Duration{}
	began := time.Now()
	lap := func(stage string) {
		took[stage] += time.Since(began)
		began = time.Now()
	}
	r := rand.New(rand.NewPCG(1, 2))
	w := &worker{p: p, ctx: context.Background(), out: p.newWriter()}
	out, files := w.out.(*output[float32]), new(fileReader)
	for i := range b.N {
		name := names[r.IntN(len(names))]
		began = time.Now()
		data, err := files.read(w.ctx, name)
		lap("reading")
		h, headerErr := w.inspect(data)
		scans, complete, restErr := h.jpeg.rest(w.ctx, data)
		require.NoError(b, cmp.Or(err, headerErr, restErr))
		require.True(b, complete && scans == 1)
		g, err := w.draw(r, h.width, h.height)
		require.NoError(b, err)
		var needed region
		needed.left, needed.right = g.x.span(h.width)
		needed.top, needed.bottom = g.y.span(h.height)
		lap("header")
		require.NoError(b, w.decodePlanes(data, h, region{0, needed.bottom, 0, needed.bottom}, shrink{1, 1}, places{})) // an empty part
		lap("codes")
		require.NoError(b, w.decodePlanes(data, h, needed, shrink{1, 1}, places{}))
		lap("decoding")
		out.dst = batch[i%64*3*224*224:][:3*224*224]
		w.resample(g.x, g.y, unseen{}, 0, 0)
		lap("resampling")
		w.resample(g.x, g.y, out, 0, 0)
		lap("result")
	}
	took["inverse"] = took["decoding"] - took["codes"]
	took["colours"] = took["result"] - took["resampling"]
	took["sum"] = took["reading"] + took["header"] + took["decoding"] + took["result"]
	delete(took, "decoding")
	delete(took, "result")
	for stage, d := range took {
		b.ReportMetric(float64(d.Microseconds())/float64(b.N), stage+"-µs")
	}
}
