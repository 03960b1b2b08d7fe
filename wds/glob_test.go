package wds_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

func tree(names ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for _, name := range names {
		m[name] = &fstest.MapFile{}
	}
	return m
}

// folderless is a file system of which some folders can't be listed, for so many attempts.
type folderless struct {
	fs.FS
	err   map[string]error
	times int
}

func (f *folderless) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(f.FS, name)
	if why := f.err[name]; why != nil && f.times > 0 {
		f.times--
		return entries[:len(entries)/2], why
	}
	return entries, err
}

func TestGlobNamesShardsAsAShellDoes(t *testing.T) {
	fsys := tree("train/0/a.tar", "train/0/b.tar", "train/0/._a.tar", "train/1/a.tar", "train/1/b.tar.gz", "train/x.tar",
		"train/.hidden/a.tar", "train/dir.tar/a.txt", "extra/00.tar", "extra/01.tar", "extra/02.tar", "train/1/deep/a.tar")
	for pattern, want := range map[string][]string{
		"train/*/*.tar":          {"train/0/a.tar", "train/0/b.tar", "train/1/a.tar"},
		"train/*.tar":            {"train/x.tar"},
		"{train/1,extra}/*.tar":  {"train/1/a.tar", "extra/00.tar", "extra/01.tar", "extra/02.tar"},
		"extra/{02..00}.tar":     {"extra/02.tar", "extra/01.tar", "extra/00.tar"},
		"extra/{00,0*}.tar":      {"extra/00.tar", "extra/01.tar", "extra/02.tar"},
		"extra/0[12].tar":        {"extra/01.tar", "extra/02.tar"},
		"extra/{00..05}.tar":     nil,
		"train/*/deep/*.tar":     {"train/1/deep/a.tar"},
		"train/.hidden/*.tar":    {"train/.hidden/a.tar"},
		"train/x.tar":            {"train/x.tar"},
		"train/y.tar":            nil,
		"train/dir.tar":          nil,
		"missing/*.tar":          nil,
		"*/{x,00}.tar":           {"train/x.tar", "extra/00.tar"},
		"train/1/b.tar{,.gz}":    nil,
		"train/1/b.{tar.gz,*gz}": {"train/1/b.tar.gz"},
	} {
		got, err := wds.Glob(fsys, pattern)
		if want == nil {
			require.ErrorIs(t, err, fs.ErrNotExist, pattern)
			require.ErrorContains(t, err, "wds: Glob: ", pattern)
			require.Empty(t, got)
			continue
		}
		require.NoError(t, err, pattern)
		require.Equal(t, want, got, pattern)
	}
	_, err := wds.Glob(fsys, "extra/{00..05}.tar")
	require.ErrorContains(t, err, "glob extra/03.tar: no file matches")
	for _, pattern := range []string{"/train/*.tar", "train/[.tar", "", "train//x.tar", "../*.tar", "./*.tar"} {
		_, err := wds.Glob(fsys, pattern)
		var option *nwt.ArgumentError
		require.ErrorAs(t, err, &option, pattern)
	}
	_, err = wds.Glob(fsys, "{0..99999999}.tar")
	require.ErrorContains(t, err, "more than 10000000 shards")
	_, err = wds.Glob(nil, "*.tar")
	require.ErrorContains(t, err, "fsys")
}

// fs.Glob returns the shards of the other folders, and no error.
func TestAFolderThatCannotBeListedIsAnErrorOfGlob(t *testing.T) {
	all := []string{"0/a.tar", "0/b.tar", "1/a.tar", "1/b.tar", "2/a.tar", "2/b.tar"}
	busy := nwt.Retryable(errors.New("503"))
	fsys := &folderless{tree(all...), map[string]error{"1": busy}, 3}
	got, err := wds.Glob(fsys, "*/*.tar")
	require.NoError(t, err)
	require.Equal(t, all, got)
	fsys.times = 4
	_, err = wds.Glob(fsys, "*/*.tar")
	require.ErrorIs(t, err, busy)
	for _, why := range []error{fs.ErrPermission, fs.ErrNotExist} { // it vanished since its name was listed
		for folder, pattern := range map[string]string{"1": "*/*.tar", ".": "*/a.tar"} {
			_, err = wds.Glob(&folderless{tree(all...), map[string]error{folder: why}, 1 << 30}, pattern)
			require.ErrorIs(t, err, why)
		}
	}

	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, tree(all...)))
	link := filepath.Join(dir, "2", "c.tar")
	if err := os.Symlink(filepath.Join(dir, "1", "a.tar"), link); err != nil {
		t.Skip("no symbolic links here:", err)
	}
	require.NoError(t, os.Symlink(filepath.Join(dir, "1"), filepath.Join(dir, "3")))
	got, err = wds.Glob(os.DirFS(dir), "*/*.tar")
	require.NoError(t, err)
	require.Equal(t, append(all, "2/c.tar", "3/a.tar", "3/b.tar"), got)
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("nowhere", link))
	_, err = wds.Glob(os.DirFS(dir), "*/*.tar")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "2/c.tar")
	if require.NoError(t, os.Chmod(filepath.Join(dir, "0"), 0)); os.Getuid() > 0 {
		_, err = wds.Glob(os.DirFS(dir), "*/*.tar")
		require.ErrorIs(t, err, fs.ErrPermission)
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, "0"), 0o755))
}

// linking is a file system whose links can't be followed for so many attempts.
type linking struct {
	fstest.MapFS
	times int
}

func (l *linking) Stat(name string) (fs.FileInfo, error) {
	if l.times--; l.times >= 0 {
		return nil, nwt.Retryable(errors.New("503"))
	}
	return l.MapFS.Stat(name)
}

func TestALinkThatCannotBeFollowedForAMomentIsFollowedByGlob(t *testing.T) {
	m := tree("a.tar")
	m["b.tar"] = &fstest.MapFile{Data: []byte("a.tar"), Mode: fs.ModeSymlink}
	fsys := &linking{m, 3}
	got, err := wds.Glob(fsys, "*.tar")
	require.NoError(t, err)
	require.Equal(t, []string{"a.tar", "b.tar"}, got)
	fsys.times = 4
	_, err = wds.Glob(fsys, "*.tar")
	require.ErrorContains(t, err, "503")
}
