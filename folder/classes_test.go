package folder_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
)

// logged returns what goes to the default logger while f runs.
func logged(t *testing.T, f func()) string {
	t.Helper()
	var b bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
	f()
	return b.String()
}

func TestClassesOfAnotherFolderKeepTheirNumbers(t *testing.T) {
	open := func(dir string, opts ...folder.Option) (*folder.Folder, error) {
		return folder.Open(t.Context(), dir, []string{".png"}, nil, nil, opts...)
	}
	training, err := open(tree(t, "0/a.png", "180/a.png", "270/a.png", "90/a.png"))
	require.NoError(t, err)
	dir := tree(t, "90/b.png", "0/b.png", "270/b.png")
	validation, err := open(dir, folder.WithClasses(training.Classes()))
	require.NoError(t, err)
	require.Equal(t, training.Classes(), validation.Classes())
	for i := range 3 {
		require.Equal(t, filepath.Base(filepath.Dir(validation.Path(i))), training.Classes()[validation.Class(i)])
	}
	require.Equal(t, []int{0, 2, 3}, []int{validation.Class(0), validation.Class(1), validation.Class(2)})

	require.NoError(t, os.Mkdir(filepath.Join(dir, "180"), 0o755))
	_, err = open(dir, folder.WithClasses(training.Classes()))
	require.NoError(t, err, "a class without files")
	turned, err := open(dir, folder.WithClasses([]string{"90", "0", "270", "180", "more"}))
	require.NoError(t, err)
	require.Equal(t, "90", filepath.Base(filepath.Dir(turned.Path(0))), "in the order of the numbers")
	require.Equal(t, 0, turned.Class(0))
	for want, classes := range map[string][]string{`that aren't among the classes given: "180", "270"`: {"0", "90"}, `the class "0" comes twice among the classes given`: {"0", "0", "180", "270", "90"}, `"0", "180", "270", "90"`: nil} {
		_, err = open(dir, folder.WithClasses(classes))
		require.ErrorContains(t, err, want)
	}
}

func TestFilesThatArePassedOverAreCountedInOneLine(t *testing.T) {
	open := func(dir string, opts ...folder.Option) (*folder.Folder, error) {
		return folder.Open(t.Context(), dir, []string{".png"}, nil, nil, opts...)
	}
	dir := tree(t, "a/1.png", "a/2.AVIF", "a/deep/3.avif", "b/1.png", "b/4.heic", "b/README", "b/Thumbs.db", "b/.x.png", "labels.csv")
	said := logged(t, func() {
		f, err := open(dir)
		require.NoError(t, err)
		require.Equal(t, 2, f.Len())
	})
	require.Contains(t, said, `msg="folder: files were passed over" folder=`+dir+` files=6 extensions=".avif: 2, .csv: 1, .heic: 1, hidden: 1, others: 1"`)
	require.Equal(t, 1, strings.Count(said, "\n"))
	require.Empty(t, logged(t, func() {
		_, err := open(tree(t, "a/1.png"))
		require.NoError(t, err)
	}))
}

func TestStrayFilesAreAnErrorOrSkippedAndCounted(t *testing.T) {
	open := func(dir string, opts ...folder.Option) (*folder.Folder, error) {
		return folder.Open(t.Context(), dir, []string{".png"}, nil, nil, opts...)
	}
	dir := tree(t, "a/1.png", "cover.png", "overview.png")
	_, err := open(dir)
	require.ErrorContains(t, err, "WithoutStrayFiles skips them): cover.png, overview.png")
	require.Contains(t, logged(t, func() {
		f, err := open(dir, folder.WithoutStrayFiles())
		require.NoError(t, err)
		require.Equal(t, 1, f.Len())
	}), `files=2 extensions=".png: 2"`)
}

func TestACopyOfAFolderHasTheSameContentFingerprint(t *testing.T) {
	tells := func(dir string, opts ...folder.Option) string {
		f, err := folder.Open(t.Context(), dir, []string{".png"}, nil, nil, opts...)
		require.NoError(t, err)
		return f.Fingerprint()
	}
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "a"), 0o755))
	at := filepath.Join(dir, "a", "1.png")
	data := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	write := func(data []byte) { require.NoError(t, os.WriteFile(at, data, 0o644)) }
	for _, size := range []int{0, 1, 4096, 4097, 8192, 16000} {
		data := data[:size]
		write(data)
		times, bytes := tells(dir), tells(dir, folder.WithContentFingerprint())
		require.NoError(t, os.Chtimes(at, time.Time{}, time.Unix(1e9, int64(size))))
		require.NotEqual(t, times, tells(dir))
		require.Equal(t, bytes, tells(dir, folder.WithContentFingerprint()))
		for _, i := range []int{0, size - 1} {
			if size > 0 {
				other := slices.Clone(data)
				other[i] ^= 1
				write(other)
				require.NotEqual(t, bytes, tells(dir, folder.WithContentFingerprint()), "byte %d of %d", i, size)
			}
		}
	}
}

func TestAFolderAboveTheFoldersOfTrainingAndValidationIsToldOnce(t *testing.T) {
	const line = "folder: the classes are called like splits"
	for _, c := range []struct {
		files []string
		opts  []folder.Option
		told  bool
	}{
		{[]string{"train/cat/1.wav", "train/dog/1.wav", "val/cat/2.wav"}, nil, true},
		{[]string{"Test/cat/1.wav"}, nil, true},
		{[]string{"train/cat/1.wav", "val/cat/2.wav"}, []folder.Option{folder.WithClasses([]string{"train", "val"})}, false},
		{[]string{"train/1.wav", "bus/1.wav"}, nil, false},
	} {
		dir := tree(t, c.files...)
		said := logged(t, func() {
			_, err := folder.Open(t.Context(), dir, nil, nil, nil, c.opts...)
			require.NoError(t, err)
		})
		require.Equal(t, c.told, strings.Contains(said, line), "%v: %s", c.files, said)
	}
}

func TestAClassThatLooksLikeAnotherIsToldByItsCharacters(t *testing.T) {
	_, err := folder.Open(t.Context(), tree(t, "tea/1.wav", "cafe\u0301/1.wav"), nil, nil, nil, folder.WithClasses([]string{"tea", "caf\u00e9"}))
	require.ErrorContains(t, err, "has classes that aren't among the classes given: \"cafe\u0301\" (\"cafe\\u0301\")")
}

func TestFoldersWhoseClassesDifferAreNotPutTogether(t *testing.T) {
	open := func(dir string, opts ...folder.Option) nwt.Dataset {
		f, err := folder.Open(t.Context(), dir, nil, sound, readSound, opts...)
		require.NoError(t, err)
		return f
	}
	farm, house, zoo := tree(t, "cow/1.wav", "dog/1.wav"), tree(t, "cat/2.wav", "dog/2.wav"), tree(t, "cow/3.wav", "dog/3.wav", "lion/3.wav")
	half := func(ds nwt.Dataset) nwt.Dataset {
		part, err := nwt.Subset(ds, []int{0})
		require.NoError(t, err)
		return nwt.Cached(part, 1<<20)
	}
	for _, ds := range []nwt.Dataset{open(house), half(open(house)), nwt.WritesAll(open(house))} {
		_, err := nwt.Concat(open(farm), open(zoo), ds)
		require.EqualError(t, err, `nwt: Concat: dataset 2: differs from dataset 0: class 0 is "cat", not "cow": open both folders WithClasses, so that a class has one number`)
	}
	paired := func(ds nwt.Dataset) nwt.Dataset {
		masks := nwt.Map(ds, []nwt.Field{{Name: "mask", Type: nwt.Uint8}}, func(_ context.Context, src, dst *nwt.Sample) error { return nil })
		pairs, err := nwt.Zip(masks, ds)
		require.NoError(t, err)
		return pairs
	}
	_, err := nwt.Concat(paired(open(farm)), paired(open(house)))
	require.ErrorContains(t, err, `class 0 is "cat", not "cow"`)
	_, err = nwt.Concat(open(tree(t, "caf\u00e9/1.wav")), open(tree(t, "cafe\u0301/1.wav")))
	require.ErrorContains(t, err, "class 0 is \"cafe\u0301\" (\"cafe\\u0301\"), not \"caf\u00e9\" (\"caf\\u00e9\"): open both")
	classes := folder.WithClasses([]string{"cat", "cow", "dog", "lion"})
	renumbered := nwt.Map(open(house), open(house).Fields(), func(_ context.Context, src, dst *nwt.Sample) error { return nil })
	for _, parts := range [][]nwt.Dataset{
		{open(farm, classes), open(house, classes)}, {open(farm), open(zoo)}, {open(farm), renumbered}, {open(farm), nwt.NewDataset(1, open(farm).Fields(), open(farm).Load)},
	} {
		_, err := nwt.Concat(parts...)
		require.NoError(t, err)
	}
}
