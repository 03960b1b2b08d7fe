package main

import (
	"context"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
	"github.com/nwt-go/nwt/wds"
)

// images writes n small images, by turns of two kinds and of two classes.
func images(t *testing.T, n int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for i := range n {
		name := filepath.Join(dir, "class"+strconv.Itoa(i%2), fmt.Sprint(i, []string{".png", ".v2.JPG"}[i%2]))
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		f, err := os.Create(name)
		require.NoError(t, err)
		encode := png.Encode
		if i%2 == 1 {
			encode = func(w io.Writer, m image.Image) error { return jpeg.Encode(w, m, nil) }
		}
		require.NoError(t, encode(f, image.NewGray(image.Rect(0, 0, 4, 4))))
		require.NoError(t, f.Close())
	}
	return dir
}

// example runs the program with images that are quickly made.
func example(t *testing.T, args ...string) string {
	t.Helper()
	var stdout strings.Builder
	require.NoError(t, run(t.Context(), append(args, "-size", "2", "-batch", "2"), &stdout, io.Discard))
	return stdout.String()
}

func TestARunPacksTunesAndGoesOverEveryImage(t *testing.T) {
	dir := images(t, 5)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "class1", "broken.png"), []byte("no image"), 0o644))
	out := example(t, "-dir", dir, "-repeat", "2", "-per-shard", "4")
	require.Contains(t, out, "6 images, classes: 2; left out, for they can't be decoded: 1\n")
	require.Contains(t, out, "3 shards, train-000000.tar … train-000002.tar\n")
	require.Contains(t, out, "chosen")
	require.Contains(t, out, "10 images of 2 classes in")
}

func TestWithoutRepeatThereAreAThousandImages(t *testing.T) {
	shards := filepath.Join(t.TempDir(), "shards")
	require.NoError(t, pack(t.Context(), images(t, 3), shards, 1, 0, io.Discard))
	names, err := os.ReadDir(shards)
	require.NoError(t, err)
	require.Len(t, names, 1002)
}

func TestShardsThatAreKeptAreReadByTheRanksOfALauncher(t *testing.T) {
	shards := filepath.Join(t.TempDir(), "new")
	example(t, "-pack", "-dir", images(t, 4), "-shards", shards, "-per-shard", "3", "-repeat", "3")
	kept, err := os.ReadDir(shards)
	require.NoError(t, err)
	require.Len(t, kept, 4)

	all := 0
	t.Setenv("WORLD_SIZE", "2")
	for rank := range 2 {
		t.Setenv("RANK", strconv.Itoa(rank))
		out := example(t, "-dir", "not needed", "-shards", shards)
		found := regexp.MustCompile(`(\d+) images of`).FindStringSubmatch(out)
		require.NotNil(t, found, out)
		n, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		all += n
	}
	require.Equal(t, 12, all)
	require.Contains(t, example(t, "-shards", shards, "-epoch", "8"), " 4 images of")
}

func TestASampleIsARandomPartOfItsImageAndItsClass(t *testing.T) {
	shards := filepath.Join(t.TempDir(), "shards")
	require.NoError(t, pack(t.Context(), images(t, 6), shards, 10, 1, io.Discard))
	pipeline, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(2)}, vision.ImageNetNormalize})
	require.NoError(t, err)
	ds, err := records(shards, []string{"train-000000.tar"}, pipeline)
	require.NoError(t, err)
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(6))
	require.NoError(t, err)
	defer loader.Close()
	for batch, err := range loader.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.ElementsMatch(t, []int64{0, 1, 0, 1, 0, 1}, nwt.Values[int64](batch, 1))
		for _, v := range nwt.Values[float32](batch, 0) {
			require.InDelta(t, -1.96, v, 0.17, "black, normalized")
		}
	}
}

func TestAnImageThatCannotBeDecodedIsNamedByShardAndKey(t *testing.T) {
	shards := t.TempDir()
	f, err := os.Create(filepath.Join(shards, "train-7.tar"))
	require.NoError(t, err)
	w := wds.NewWriter(f)
	require.NoError(t, w.Write("00042", wds.File{Ext: "jpg", Data: []byte("no image")}, wds.File{Ext: "cls", Data: []byte("1")}))
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
	err = run(t.Context(), []string{"-shards", shards}, io.Discard, io.Discard)
	require.ErrorContains(t, err, "train-7.tar: 00042: vision: not a JPEG, PNG, GIF, WebP, BMP, TIFF, PPM or PGM file")
}

func TestPackingThatFailsLeavesNothing(t *testing.T) {
	parent := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, pack(ctx, images(t, 2), filepath.Join(parent, "shards"), 1, 1, writerFunc(cancel)), context.Canceled)
	left, err := os.ReadDir(parent)
	require.NoError(t, err)
	require.Empty(t, left)
}

// writerFunc is called when something is printed.
type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) { f(); return len(p), nil }

func TestWhatIsInTheShardsPlaceIsLeftAlone(t *testing.T) {
	for _, theirs := range []string{"shards/thesis.txt", "shards", "shards.partial/thesis.txt"} {
		parent := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(parent, theirs)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(parent, theirs), []byte("years of work"), 0o644))
		require.Error(t, pack(t.Context(), images(t, 2), filepath.Join(parent, "shards"), 1, 1, io.Discard))
		require.FileExists(t, filepath.Join(parent, theirs))
	}
}

func TestAnInterruptEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run(ctx, []string{"-dir", images(t, 2)}, io.Discard, io.Discard), context.Canceled)
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	empty, dir := t.TempDir(), images(t, 2)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"photos"}, `"photos"`},
		{[]string{"-pack"}, "needs -shards"},
		{[]string{"-shards", empty}, "no file matches"},
		{[]string{"-dir", empty}, empty},
		{[]string{"-dir", filepath.Join(empty, "none")}, "none"},
		{[]string{"-per-shard", "0"}, "-per-shard 0: must be 1 … 1000000"},
		{[]string{"-repeat", "-1"}, "-repeat -1: must be 0 … 1000000"},
		{[]string{"-size", "5000"}, "-size 5000: must be 1 … 4096"},
		{[]string{"-dir", dir, "-batch", "0"}, "WithBatchSize"},
		{[]string{"-dir", dir, "-epoch", "-1"}, "WithEpochSamples"},
	} {
		require.ErrorContains(t, run(t.Context(), c.args, io.Discard, io.Discard), c.want)
	}
}
