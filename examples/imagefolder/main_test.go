package main

import (
	"context"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/photos"
	"github.com/nwt-go/nwt/folder"
)

// write makes a file of an image all of one colour, by its extension.
func write(t *testing.T, c color.Color, width, height int, name ...string) string {
	t.Helper()
	path := filepath.Join(name...)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	img := image.NewNRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		img.Set(i%width, i/width, c)
	}
	encode(t, img, path)
	return path
}

// encode writes img as the file's extension says.
func encode(t *testing.T, img image.Image, path string) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	if filepath.Ext(path) == ".png" {
		require.NoError(t, png.Encode(f, img))
	} else {
		require.NoError(t, jpeg.Encode(f, img, nil))
	}
	require.NoError(t, f.Close())
}

// truncate cuts a file in two and leaves the first part.
func truncate(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, info.Size()/2))
	return path
}

var red, grey = color.NRGBA{255, 0, 0, 255}, color.NRGBA{51, 51, 51, 255}

func TestARunTunesAndPrintsWhatTrainingNeeds(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.png", "b.PNG", "c.jpg", "d.jpeg"} {
		write(t, grey, 20, 10, dir, "dull", name)
	}
	write(t, grey, 3, 7, dir, "duller", "e.png")
	bad := truncate(t, write(t, red, 40, 40, dir, "duller", "broken.png"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("no image"), 0o644))

	var stdout, stderr strings.Builder
	err := run(t.Context(), []string{"-dir", dir, "-size", "8", "-batch", "2", "-repeat", "2"}, &stdout, &stderr)
	require.NoError(t, err)
	out := stdout.String()
	require.Contains(t, out, "6 images, classes: 2\n")
	require.Contains(t, out, "left out, for they can't be decoded: 1\n   "+bad+": ")
	require.Contains(t, out, "per batch")
	require.Contains(t, out, "10 images, each file 2 times, in")
	for _, channel := range []string{"red  ", "green", "blue "} {
		require.Contains(t, out, channel+"  mean 0.2000  deviation 0.0000\n")
	}
	require.Contains(t, stderr.String(), "measuring")
	require.NotContains(t, stderr.String(), "\r")
}

func TestWithoutRepeatAnEpochHasAThousandImages(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.png", "b.png", "c.png"} {
		write(t, grey, 2, 2, dir, "dull", name)
	}
	var stdout strings.Builder
	require.NoError(t, run(t.Context(), []string{"-dir", dir, "-size", "1", "-strategy", "exhaustive"}, &stdout, &strings.Builder{}))
	require.Contains(t, stdout.String(), "1002 images, each file 334 times, in")
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	empty, corrupt := t.TempDir(), t.TempDir()
	file := write(t, red, 1, 1, t.TempDir(), "class", "a.png")
	bad := truncate(t, write(t, red, 40, 40, corrupt, "class", "bad.png"))
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"a missing folder", []string{"-dir", filepath.Join(empty, "none")}, []string{filepath.Join(empty, "none")}},
		{"a folder that is a file", []string{"-dir", file}, []string{file}},
		{"an empty folder", []string{"-dir", empty}, []string{empty, ".png"}},
		{"nothing but corrupt files", []string{"-dir", corrupt}, []string{"none of the 1 images", bad}},
		{"size 0", []string{"-dir", empty, "-size", "0"}, []string{"-size 0", "1 … 4096"}},
		{"size 5000", []string{"-dir", empty, "-size", "5000"}, []string{"-size 5000", "1 … 4096"}},
		{"repeat -1", []string{"-dir", empty, "-repeat", "-1"}, []string{"-repeat -1", "0 … 1000000"}},
		{"batch 0", []string{"-dir", filepath.Dir(filepath.Dir(file)), "-batch", "0"}, []string{"WithBatchSize", "0"}},
		{"an unknown strategy", []string{"-strategy", "lucky"}, []string{"lucky", "greedy or exhaustive"}},
		{"an argument", []string{"photos"}, []string{`"photos"`, "-dir"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := run(t.Context(), c.args, &strings.Builder{}, &strings.Builder{})
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestWithoutGoOneIsToldWhatToPass(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	require.ErrorContains(t, run(t.Context(), nil, &strings.Builder{}, &strings.Builder{}), "-dir")
}

func TestTheImagesThatComeWithGoHaveCorruptOnesAmongThem(t *testing.T) {
	dir, err := photos.Bundled(t.Context())
	if err != nil {
		t.Skip(err)
	}
	images, err := open(t.Context(), dir, 16, folder.WithEmptyClasses())
	require.NoError(t, err)
	bad, err := images.check(t.Context(), func(nwt.Progress) {})
	require.NoError(t, err)
	require.NotEmpty(t, bad)
	for _, err := range bad {
		require.ErrorContains(t, err, dir)
	}
	for i := range images.Len() {
		_, err := nwt.LoadSample(t.Context(), images, i)
		require.NoError(t, err)
	}
}

func TestAnInterruptEndsTheRun(t *testing.T) {
	dir := t.TempDir()
	write(t, red, 1, 1, dir, "class", "a.png")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run(ctx, []string{"-dir", dir}, &strings.Builder{}, &strings.Builder{}), context.Canceled)
}
