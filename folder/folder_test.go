package folder_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tree makes a folder of files that hold their own names.
func tree(t testing.TB, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(name), 0o644))
	}
	return dir
}

var sound = []nwt.Field{{Name: "sound", Type: nwt.Uint8, Shape: []int{100}, RaggedDims: 1}}

func readSound(_ context.Context, path string, dst *nwt.Sample) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	dst.SetLen(0, len(data))
	copy(dst.Bytes(0), data)
	return nil
}

func TestASampleOfAFolderThatPanicsOrHangsNamesItsFile(t *testing.T) {
	f, err := folder.Open(t.Context(), tree(t, "cat/1.wav", "cat/2.wav", "dog/3.wav"), nil, nil, nil)
	require.NoError(t, err)
	file := f.Path(1)
	for name, load := range map[string]func(context.Context) error{
		"a panic":  func(context.Context) error { panic("odd") },
		"an error": func(context.Context) error { return errors.New("odd") },
		"a hang":   func(ctx context.Context) error { <-ctx.Done(); return nil },
	} {
		ds, err := f.With(nil, func(ctx context.Context, path string, _ *nwt.Sample) error {
			if path == file {
				return load(ctx)
			}
			return nil
		})
		require.NoError(t, err)
		subset, err := nwt.Subset(ds, []int{2, 1})
		require.NoError(t, err)
		for _, ds := range []nwt.Dataset{ds, subset, nwt.Cached(ds, 1<<20)} {
			l, err := nwt.NewLoader(ds, nwt.WithTimeout(10*time.Millisecond), nwt.WithWorkers(1), nwt.WithErrorBudget(1), nwt.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			for _, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
			}
			require.Len(t, l.BadSamples(), 1)
			require.Equal(t, 1, strings.Count(l.BadSamples()[0].Error(), file), "%s: %v", name, l.BadSamples()[0])
			require.NoError(t, l.Close())
		}
	}
}

func TestAFolderOfAnyFilesIsADatasetWithClasses(t *testing.T) {
	dir := tree(t, "dog/2.wav", "cat/b/1.WAV", "cat/a.wav", "dog/notes.txt", "readme.md", "dog/1.flac", "dog/.x.wav", "__MACOSX/cat/1.wav")
	f, err := folder.Open(t.Context(), dir, []string{".wav", ".flac"}, sound, readSound)
	require.NoError(t, err)
	require.Equal(t, []string{"cat", "dog"}, f.Classes())
	want := []string{"cat/a.wav", "cat/b/1.WAV", "dog/1.flac", "dog/2.wav"}
	require.Equal(t, len(want), f.Len())

	lengths, err := f.Lengths(t.Context(), func(_ context.Context, path string) (int, error) {
		info, err := os.Stat(path)
		return int(info.Size()), err
	})
	require.NoError(t, err)
	l, err := nwt.NewLoader(nwt.Sized(f, func(i int, sizes []int) { sizes[0] = lengths[i] }), nwt.WithBatchSize(3), nwt.WithWorkers(2))
	require.NoError(t, err)
	defer l.Close()
	at := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		longest := b.Shape(0)[1]
		require.LessOrEqual(t, longest, 11, "as long as the longest of the batch")
		for i := range b.Len() {
			n := b.Lens(0, 0)[i]
			require.Equal(t, want[at], string(b.Bytes(0)[i*longest:][:n]))
			require.Equal(t, filepath.Join(dir, filepath.FromSlash(want[at])), f.Path(at))
			require.EqualValues(t, f.Class(at), nwt.Values[int64](b, 1)[i])
			require.EqualValues(t, want[at][:3], f.Classes()[f.Class(at)])
			at++
		}
	}
	require.Equal(t, len(want), at)
}

func TestWithoutExtensionsEveryFileIsTaken(t *testing.T) {
	dir := tree(t, "a/1", "a/2.bin", "b/x.tar.gz", "b/Thumbs.db", "b/desktop.ini", "b/.DS_Store")
	elsewhere := tree(t, "deep/3")
	want := 3
	if os.Symlink(elsewhere, filepath.Join(dir, "b", "link")) == nil {
		want++
	}
	f, err := folder.Open(t.Context(), dir, nil, nil, nil)
	require.NoError(t, err)
	require.Equal(t, want, f.Len())
}

func TestAFolderOfFilesThatCannotBeUsedSaysWhy(t *testing.T) {
	dir := tree(t, "a/1.wav", "b/readme", "c/2.wav")
	_, err := folder.Open(t.Context(), dir, []string{".wav"}, nil, nil)
	require.ErrorContains(t, err, "folder: "+dir+" has classes without a .wav file (to keep them, give folder.WithEmptyClasses or, in Python, the names of all classes): b")
	f, err := folder.Open(t.Context(), dir, []string{".wav"}, sound, readSound, folder.WithEmptyClasses())
	require.NoError(t, err)
	require.Equal(t, 2, f.Class(1))
	_, err = folder.Open(t.Context(), tree(t, "a/1", "top"), nil, nil, nil)
	require.ErrorContains(t, err, "in no class's folder (in Go, folder.WithoutStrayFiles skips them): top")
	for _, opts := range [][]folder.Option{nil, {folder.WithoutStrayFiles()}} {
		_, err = folder.Open(t.Context(), tree(t, "1.wav", "readme"), []string{".wav"}, nil, nil, opts...)
		require.ErrorContains(t, err, "has no folders of classes: put its files into DIR/CLASS/, or, for files without classes, write an nwt.NewDataset (in Python, give Images or Files a list of paths): 1.wav")
	}
	_, err = folder.Open(t.Context(), tree(t, "a/1"), []string{".wav"}, nil, nil)
	require.ErrorContains(t, err, "has no class folder with a .wav file")
	_, err = folder.Open(t.Context(), filepath.Join(dir, "none", "train"), nil, nil, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, filepath.Join(dir, "none", "train"))
	_, err = folder.Open(t.Context(), dir, []string{".wav", ""}, nil, nil)
	require.ErrorContains(t, err, "extensions[1]")
	_, err = folder.Open(t.Context(), dir, nil, nil, nil, nil)
	require.ErrorContains(t, err, "options[0]")
	require.NoError(t, os.Remove(f.Path(1)))
	_, err = nwt.LoadSample(t.Context(), f, 1)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, f.Path(1))
	_, err = folder.Open(t.Context(), dir, nil, sound, nil)
	require.ErrorContains(t, err, "load is nil")
	_, err = f.With(nil, nil)
	require.ErrorContains(t, err, "load is nil")
}

func TestAFileWhoseLengthCannotBeToldEndsLengthsAndIsNamed(t *testing.T) {
	f, err := folder.Open(t.Context(), tree(t, "a/1", "a/2", "b/3"), nil, nil, nil)
	require.NoError(t, err)
	cause := errors.New("no header")
	_, err = f.Lengths(t.Context(), func(_ context.Context, path string) (int, error) {
		if path == f.Path(1) {
			return 0, cause
		}
		return 1, nil
	})
	require.ErrorIs(t, err, cause)
	require.ErrorContains(t, err, f.Path(1))
	_, err = f.Lengths(t.Context(), func(context.Context, string) (int, error) { panic("cut") })
	require.ErrorContains(t, err, "cut")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	var calls atomic.Int32
	_, err = f.Lengths(ctx, func(context.Context, string) (int, error) { calls.Add(1); return 1, nil })
	require.ErrorIs(t, err, cause)
	require.Zero(t, calls.Load())
	_, err = f.Lengths(t.Context(), nil)
	require.ErrorContains(t, err, "nil")
}

func TestAFoldersFingerprintTellsItsFiles(t *testing.T) {
	tells := func(dir string) string {
		f, err := folder.Open(t.Context(), dir, nil, nil, nil)
		require.NoError(t, err)
		return f.Fingerprint()
	}
	dir := tree(t, "a/1", "b/2")
	before := tells(dir)
	require.Equal(t, before, tells(dir))
	require.NoError(t, os.Chtimes(filepath.Join(dir, "a", "1"), time.Time{}, time.Unix(1e9, 0)))
	require.NotEqual(t, before, tells(dir))
}
