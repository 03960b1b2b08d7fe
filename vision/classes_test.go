package vision_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/vision"
)

// Package folder's tests say what each option does.
func TestAFolderOfPicturesHasTheOptionsOfAFolderOfFiles(t *testing.T) {
	var said bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	dir := tree(t, "a/1.png", "b/1.png", "b/README", "cover.png")
	open := func(opts ...folder.Option) (*vision.Folder, error) {
		return vision.OpenFolder(t.Context(), dir, small(t), opts...)
	}
	_, err := open()
	require.ErrorContains(t, err, "folder.WithoutStrayFiles skips them): cover.png")
	f, err := open(folder.WithoutStrayFiles(), folder.WithClasses([]string{"b", "none", "a"}))
	require.NoError(t, err)
	require.Equal(t, []int{0, 2}, []int{f.Class(0), f.Class(1)})
	require.Contains(t, said.String(), `msg="vision: files were passed over" folder=`+dir+` files=2 extensions=".png: 1, others: 1"`)

	require.NoError(t, os.Mkdir(filepath.Join(dir, "c"), 0o755))
	_, err = open(folder.WithoutStrayFiles())
	require.ErrorContains(t, err, "the names of all classes): c")
	all := []folder.Option{folder.WithoutStrayFiles(), folder.WithEmptyClasses()}
	before, err := open(all...)
	require.NoError(t, err)
	copied, err := open(append(all, folder.WithContentFingerprint())...)
	require.NoError(t, err)
	times, content := before.Fingerprint(), copied.Fingerprint()
	require.NoError(t, os.Chtimes(before.Path(0), time.Time{}, time.Unix(1e9, 0)))
	before, err = open(all...)
	require.NoError(t, err)
	copied, err = open(append(all, folder.WithContentFingerprint())...)
	require.NoError(t, err)
	require.NotEqual(t, times, before.Fingerprint())
	require.Equal(t, content, copied.Fingerprint())
}

func TestJPEGFilesOfOtherNamesAreRead(t *testing.T) {
	f, err := vision.OpenFolder(t.Context(), tree(t, "a/1.jfif", "a/2.JPE"), small(t))
	require.NoError(t, err)
	require.Equal(t, 2, f.Len())
}
