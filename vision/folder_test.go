package vision_test

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/vision"
)

// small makes pictures of 4 × 4 bytes.
func small(t testing.TB, opts ...vision.Option) *vision.Pipeline {
	t.Helper()
	p, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Square(4)}}, append(opts, vision.WithType(nwt.Uint8))...)
	require.NoError(t, err)
	return p
}

// tree makes a folder of files, all of one grey picture.
func tree(t testing.TB, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, image.NewGray(image.Rect(0, 0, 8, 6))))
	for _, name := range names {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
	}
	return dir
}

func TestAFolderIsAnImageFolder(t *testing.T) {
	dir := tree(t, "dog/2.png", "cat/b/1.PNG", "cat/a.jpeg", "dog/notes.txt", "readme.md", "dog/1.webp")
	f, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.NoError(t, err)
	require.Equal(t, []string{"cat", "dog"}, f.Classes())
	require.Equal(t, 4, f.Len())
	for i, want := range []struct {
		name  string
		class int64
	}{{"cat/a.jpeg", 0}, {"cat/b/1.PNG", 0}, {"dog/1.webp", 1}, {"dog/2.png", 1}} {
		require.Equal(t, filepath.Join(dir, filepath.FromSlash(want.name)), f.Path(i))
		require.EqualValues(t, want.class, f.Class(i))
		s, err := nwt.LoadSample(t.Context(), f, i) // by what it is, not by its name
		require.NoError(t, err)
		require.Equal(t, []int64{want.class}, nwt.Values[int64](s, 1))
		require.Equal(t, make([]uint8, 48), nwt.Values[uint8](s, 0))
	}
}

// relabelled has a Load of its own, which leaves something out.
type relabelled struct{ *vision.Folder }

func TestAFolderWritesEveryElementAndSaysSo(t *testing.T) {
	dir := tree(t, "cat/1.png", "dog/2.png")
	for _, opts := range [][]vision.Option{nil, {vision.WithLayout(vision.HWC)}} {
		for _, transforms := range [][]vision.Transform{
			{vision.Resize{Size: vision.Square(4)}},
			{vision.CenterCrop{Size: vision.Square(20)}}, // larger than the picture
			{vision.RandomCrop{Size: vision.Square(8), Padding: 4}},
			{vision.Resize{Size: vision.Square(4)}, vision.ImageNetNormalize, vision.RandomErasing{P: 1}},
		} {
			p, err := vision.New(transforms, opts...)
			require.NoError(t, err)
			f, err := vision.OpenFolder(t.Context(), dir, p)
			require.NoError(t, err)
			used := nwt.NewDataset(f.Len(), f.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
				for field := range f.Fields() {
					for k := range dst.Bytes(field) {
						dst.Bytes(field)[k] = 0xff
					}
				}
				return f.Load(ctx, i, dst)
			})
			for i := range f.Len() {
				want, err := nwt.LoadSample(t.Context(), f, i)
				require.NoError(t, err)
				got, err := nwt.LoadSample(t.Context(), used, i)
				require.NoError(t, err)
				require.Equal(t, want.Bytes(0), got.Bytes(0))
				require.Equal(t, want.Bytes(1), got.Bytes(1))
			}
			// WritesAll has nothing to add to what promises already.
			require.Same(t, f, nwt.WritesAll(f))
			require.NotEqual(t, nwt.Dataset(relabelled{f}), nwt.WritesAll(relabelled{f}), "its Load may leave something out")
		}
	}
}

func TestSymbolicLinksToClassesAreFollowedAndCirclesEnd(t *testing.T) {
	elsewhere := tree(t, "1.png", "deep/2.png")
	dir := tree(t, "a/0.png")
	for name, to := range map[string]string{"b": elsewhere, "a/round": dir, "c": filepath.Join(dir, "a"), "lost": filepath.Join(dir, "none")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Skip(err)
		}
	}
	_, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.ErrorContains(t, err, "no class's folder (in Go, folder.WithoutStrayFiles skips them): lost", "it may be a class on a disk that isn't mounted")
	f, err := vision.OpenFolder(t.Context(), dir, small(t), folder.WithoutStrayFiles())
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, f.Classes())
	require.Equal(t, 4, f.Len())
}

func TestFilesThatCannotBeLoadedAreNamed(t *testing.T) {
	dir := tree(t, "a/1.png", "a/2.png", "a/3.png")
	f, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.NoError(t, err)
	require.NoError(t, os.Remove(f.Path(0)))
	require.NoError(t, os.WriteFile(f.Path(1), []byte("no picture"), 0o644))
	require.NoError(t, os.Remove(f.Path(2)))
	require.NoError(t, os.Mkdir(f.Path(2), 0o755))
	for i := range 3 {
		_, err := nwt.LoadSample(t.Context(), f, i)
		require.ErrorContains(t, err, f.Path(i))
	}
}

func TestAFolderThatCannotBeUsedSaysWhy(t *testing.T) {
	dir := tree(t, "a/notes.txt")
	_, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, ".png")
	_, err = vision.OpenFolder(t.Context(), filepath.Join(dir, "none"), small(t))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = vision.OpenFolder(t.Context(), dir, nil)
	require.ErrorContains(t, err, "pipeline")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = vision.OpenFolder(ctx, tree(t, "a/1.png"), small(t))
	require.ErrorIs(t, err, context.Canceled)
}

// Along every way from one to the next there would be some 9! folders.
func TestFoldersThatLinkToEachOtherAreListedOncePerClass(t *testing.T) {
	dir := t.TempDir()
	const n = 9
	for i := range n {
		d := filepath.Join(dir, fmt.Sprint("d", i))
		require.NoError(t, os.Mkdir(d, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(d, "x.png"), nil, 0o644))
		for j := range n {
			require.NoError(t, os.Symlink(filepath.Join(dir, fmt.Sprint("d", j)), filepath.Join(d, fmt.Sprint("l", j))))
		}
	}
	f, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.NoError(t, err)
	require.Equal(t, n*n, f.Len(), "in each class, each folder's picture once")
}

func TestALinkToAClassMayHaveAPicturesName(t *testing.T) {
	elsewhere, dir := tree(t, "1.png"), tree(t, "a/0.png")
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(dir, "b.jpg")))
	f, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b.jpg"}, f.Classes())
}

// torchvision sorts the folders of a class by path, and the files of each by name.
func TestFilesAndClassesAreInTorchvisionsOrderOnEachSystem(t *testing.T) {
	dir := tree(t, "cat/a/1.png", "cat/b.png", "cat/a/z/1.png", "cat/a-b/1.png", "cat/aB.png", "cat/a/x.png", "!new/1.png")
	f, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.NoError(t, err)
	require.Equal(t, []string{"!new", "cat"}, f.Classes())
	for i, want := range []struct {
		name  string
		class int
	}{
		{"!new/1.png", 0}, {"cat/aB.png", 1}, {"cat/b.png", 1}, {"cat/a/1.png", 1}, {"cat/a/x.png", 1},
		{"cat/a-b/1.png", 1}, {"cat/a/z/1.png", 1},
	} {
		require.Equal(t, filepath.Join(dir, filepath.FromSlash(want.name)), f.Path(i))
		require.Equal(t, want.class, f.Class(i))
		_, err := nwt.LoadSample(t.Context(), f, i)
		require.NoError(t, err)
	}
}

func TestAClassWithoutPicturesIsNamedOrKeptButNeverLeftOut(t *testing.T) {
	dir := tree(t, "ant/1.png", "bee/1.heic", "cow/1.png", "dog/deep/readme.md")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "eel"), 0o755))
	_, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.ErrorContains(t, err, "bee, dog, eel")
	require.ErrorContains(t, err, "to keep them, give folder.WithEmptyClasses or")
	f, err := vision.OpenFolder(t.Context(), dir, small(t), folder.WithEmptyClasses())
	require.NoError(t, err)
	require.Equal(t, []string{"ant", "bee", "cow", "dog", "eel"}, f.Classes())
	require.Equal(t, 2, f.Len())
	require.Equal(t, []int{0, 2}, []int{f.Class(0), f.Class(1)})
	_, err = vision.OpenFolder(t.Context(), dir, small(t), nil)
	require.ErrorContains(t, err, "nil")
}

func TestPicturesThatAreInNoClassAreNamed(t *testing.T) {
	dir := tree(t, "a/1.png", "top.gif")
	_, err := vision.OpenFolder(t.Context(), dir, small(t))
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, "top.gif")
}

func TestACutPictureIsNotLoadedAgain(t *testing.T) {
	for _, name := range []string{"a/1.png", "a/1.jpg"} {
		dir := tree(t, name)
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data[:len(data)/2], 0o644))
		f, err := vision.OpenFolder(t.Context(), dir, small(t))
		require.NoError(t, err)
		l, err := nwt.NewLoader(f)
		require.NoError(t, err)
		for _, err = range l.Epoch(t.Context(), 0) {
		}
		require.ErrorContains(t, err, path)
		require.NotContains(t, err.Error(), "attempt", "the same bytes would fail again")
		require.NoError(t, l.Close())
	}
}

// As a Mac, Windows, two kinds of file servers, a notebook and a file system leave them.
func TestWhatSystemsAndToolsLeaveInAFolderIsNoClassAndNoPicture(t *testing.T) {
	dir := tree(t, "cat/0.png", "cat/._0.png", "cat/.hidden/1.png", "cat/@eaDir/0.png/SYNOPHOTO_THUMB_M.jpg", "dog/Thumbs.db", "dog/0.png",
		"dog/.ipynb_checkpoints/0-checkpoint.png", "._top.png", ".DS_Store", "desktop.ini", ".ipynb_checkpoints/0.png", ".git/x", "__MACOSX/cat/._0.png",
		"@eaDir/0.png", "#recycle/0.png", "$Recycle.Bin/0.png", "System Volume Information/x", ".@__thumb/0.png", "lost+found/0.png")
	for _, opts := range [][]folder.Option{nil, {folder.WithEmptyClasses()}} {
		f, err := vision.OpenFolder(t.Context(), dir, small(t), opts...)
		require.NoError(t, err)
		require.Equal(t, []string{"cat", "dog"}, f.Classes())
		require.Equal(t, 2, f.Len())
		require.Equal(t, []string{filepath.Join(dir, "cat", "0.png"), filepath.Join(dir, "dog", "0.png")}, []string{f.Path(0), f.Path(1)})
	}
}
