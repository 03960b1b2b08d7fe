package vision_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// damagedCopies are copies of a file that are cut, or in which bits or bytes differ.
func damagedCopies(r *rand.Rand, data []byte) [][]byte {
	copies := [][]byte{data, data[:len(data)*3/4]}
	for i := range 4 {
		damaged := bytes.Clone(data)
		for range 1 << (2 * i) {
			damaged[len(data)/4+r.IntN(len(data)*3/4)] = [...]byte{0xff, 0, byte(r.IntN(256))}[r.IntN(3)]
		}
		copies = append(copies, damaged)
	}
	return copies
}

// The epochs of a loader: crops differ, and so do the places that each finds known.
func TestWhatIsRememberedOfAFileChangesNoPixelAndNoError(t *testing.T) {
	names, err := filepath.Glob("testdata/*.jp*g")
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	steps := []vision.Transform{vision.RandomResizedCrop{Size: vision.Size{Height: 20, Width: 30}, Scale: [2]float64{.01, .5}}, vision.RandomHorizontalFlip{P: 0.5}}
	for _, opts := range [][]vision.Option{nil, {vision.WithDamaged(), vision.WithOrientation()}} {
		remembers, err := vision.New(steps, opts...)
		require.NoError(t, err)
		forgets, err := vision.New(steps, append(opts, vision.WithRowMemory(0))...)
		require.NoError(t, err)
		for _, name := range names {
			data, err := os.ReadFile(name)
			require.NoError(t, err)
			for i, file := range damagedCopies(r, data) {
				const n = 12
				load := func(p *vision.Pipeline, workers int) (made [n]string) {
					ds := nwt.NewDataset(n, []nwt.Field{p.Field("image")}, func(_ context.Context, k int, dst *nwt.Sample) error {
						err := p.Load(dst, 0, slices.Clone(file))
						made[k] = fmt.Sprintf("%x", nwt.Values[float32](dst, 0))
						if err != nil {
							made[k] = err.Error()
						}
						return nil
					})
					l, err := nwt.NewLoader(ds, nwt.WithBatchSize(n), nwt.WithWorkers(workers))
					require.NoError(t, err)
					defer l.Close()
					for _, err := range l.Epoch(t.Context(), i) {
						require.NoError(t, err)
					}
					return made
				}
				want := load(forgets, 0)
				for again := range 3 {
					require.Equal(t, want, load(remembers, 2*again), "%s, copy %d, time %d", name, i, again)
				}
			}
		}
		require.Positive(t, vision.Remembered(remembers))
		require.Zero(t, vision.Remembered(forgets))
	}
}

func TestWhatIsRememberedIsCountedBoundedAndFreed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "class"), 0o755))
	for i := range 40 {
		data := append(read(t, "photo.jpg"), byte(i)) // each file is another
		require.NoError(t, os.WriteFile(filepath.Join(dir, "class", fmt.Sprint(i, ".jpg")), data, 0o644))
	}
	remembered := func(opts ...vision.Option) int64 {
		p, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(16)}}, opts...)
		require.NoError(t, err)
		f, err := vision.OpenFolder(t.Context(), dir, p)
		require.NoError(t, err)
		both, err := nwt.Concat(f, f)
		require.NoError(t, err)
		l, err := nwt.NewLoader(both, nwt.WithBatchSize(20))
		require.NoError(t, err)
		defer l.Close()
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		return l.Stats().DatasetBytes
	}
	require.EqualValues(t, 1<<20+40*32, remembered(), "a chunk, and the entries, once")
	require.Zero(t, remembered(vision.WithRowMemory(0)))
	require.LessOrEqual(t, remembered(vision.WithRowMemory(1<<20)), int64(1<<20), "no room for an entry")
	require.Eventually(t, func() bool {
		runtime.GC()
		return vision.RememberedInAll() == 0
	}, 10*time.Second, 10*time.Millisecond)
	_, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Square(16)}}, vision.WithRowMemory(-1))
	require.ErrorContains(t, err, "WithRowMemory: -1: must be at least 0")
}
