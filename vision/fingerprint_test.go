package vision_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

func TestAPipelinesFingerprintIsItsTransformsAndWhatChangesPixels(t *testing.T) {
	seen := map[string]int{}
	size := vision.Resize{Size: vision.Square(8)}
	for i, made := range []struct {
		steps []vision.Transform
		opts  []vision.Option
	}{
		{steps: []vision.Transform{size}},
		{steps: []vision.Transform{vision.Resize{Size: vision.Square(9)}}},
		{steps: []vision.Transform{vision.CenterCrop{Size: vision.Square(8)}}},
		{steps: []vision.Transform{vision.CenterCrop{Size: vision.Square(8)}, size}},
		{steps: []vision.Transform{size, vision.CenterCrop{Size: vision.Square(8)}}},
		{steps: []vision.Transform{size, vision.ImageNetNormalize}},
		{steps: []vision.Transform{size, vision.Normalize{Mean: vision.ImageNetNormalize.Mean, Std: [3]float64{.229, .224, .226}}}},
		{steps: []vision.Transform{size, vision.ColorJitter{Hue: .1}}},
		{steps: []vision.Transform{size, vision.RandomErasing{P: 0.5}}},
		{steps: []vision.Transform{size}, opts: []vision.Option{vision.WithType(nwt.Uint8)}},
		{steps: []vision.Transform{size}, opts: []vision.Option{vision.WithLayout(vision.HWC)}},
		{steps: []vision.Transform{size}, opts: []vision.Option{vision.WithOrientation()}},
		{steps: []vision.Transform{size}, opts: []vision.Option{vision.WithDamaged()}},
	} {
		tells := func(opts ...vision.Option) string {
			p, err := vision.New(made.steps, append(made.opts, opts...)...)
			require.NoError(t, err)
			return p.Fingerprint()
		}
		one := tells()
		require.NotContains(t, seen, one, "%d is as another", i)
		seen[one] = i
		require.Equal(t, one, tells())
		require.Equal(t, one, tells(vision.WithMaxPixels(1000)), "the same pixels")
	}
}

func TestAFingerprintOfAPipelineBesideAnotherTellsBoth(t *testing.T) {
	seen := map[string]bool{}
	for _, side := range []int{8, 9} {
		p, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Square(side)}})
		require.NoError(t, err)
		seen[p.Fingerprint()] = true
		for _, transforms := range [][]vision.Transform{nil, {vision.ImageNetNormalize}} {
			beside, err := p.Companion(transforms)
			require.NoError(t, err)
			seen[beside.Fingerprint()] = true
		}
		for _, outside := range []int{0, 255} {
			for _, of := range []nwt.DType{nwt.Uint8, nwt.Int64} {
				masks, err := p.Masks(of, outside)
				require.NoError(t, err)
				seen[masks.Fingerprint()] = true
			}
		}
	}
	require.Len(t, seen, 14)
}

func TestAFoldersFingerprintIsItsFilesAndItsPipeline(t *testing.T) {
	of := func(dir string, p *vision.Pipeline) string {
		f, err := vision.OpenFolder(t.Context(), dir, p)
		require.NoError(t, err)
		return f.Fingerprint()
	}
	made := func() string { return tree(t, "a/1.png", "a/2.png", "b/1.png") }
	at := func(dir, name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	for name, change := range map[string]func(dir string) error{
		"a class's name": func(dir string) error { return os.Rename(at(dir, "b"), at(dir, "c")) },
		"a file's name":  func(dir string) error { return os.Rename(at(dir, "a/2.png"), at(dir, "a/3.png")) },
		"a file's class": func(dir string) error { return os.Rename(at(dir, "a/2.png"), at(dir, "b/2.png")) },
		"a file less":    func(dir string) error { return os.Remove(at(dir, "a/2.png")) },
		"a file's size":  func(dir string) error { return os.Truncate(at(dir, "a/2.png"), 5) },
		"a file's time": func(dir string) error {
			return os.Chtimes(at(dir, "a/2.png"), time.Time{}, time.Unix(1_700_000_000, 1))
		},
	} {
		dir := made()
		before := of(dir, small(t))
		require.Equal(t, before, of(dir, small(t)))
		require.NotEqual(t, before, of(dir, small(t, vision.WithDamaged())), "another pipeline")
		moved := at(t.TempDir(), "elsewhere")
		require.NoError(t, os.Rename(dir, moved))
		require.Equal(t, before, of(moved, small(t)), "the same files elsewhere")
		require.NoError(t, change(moved))
		require.NotEqual(t, before, of(moved, small(t)), name)
	}
	f, err := vision.OpenFolder(t.Context(), made(), small(t))
	require.NoError(t, err)
	other, err := f.With(small(t, vision.WithDamaged()))
	require.NoError(t, err)
	before := f.Fingerprint()
	require.NotEqual(t, before, other.Fingerprint())
	require.NoError(t, os.Remove(f.Path(0)))
	require.Equal(t, before, f.Fingerprint(), "remembered: it is asked for in the middle of training too")
}
