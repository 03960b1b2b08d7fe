package folder_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/folder"
)

// A class on a disk that isn't mounted: without an error, all later classes would get other numbers.
func TestAClassThatIsALinkToNothingIsAnError(t *testing.T) {
	dir := t.TempDir()
	for _, class := range []string{"a", "c"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, class), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, class, "1.wav"), nil, 0o644))
	}
	if err := os.Symlink(filepath.Join(dir, "not mounted"), filepath.Join(dir, "b")); err != nil {
		t.Skip(err)
	}
	for _, opts := range [][]folder.Option{nil, {folder.WithEmptyClasses()}, {folder.WithClasses([]string{"a", "b", "c"})}} {
		_, err := folder.Open(t.Context(), dir, []string{".wav"}, nil, nil, opts...)
		require.ErrorContains(t, err, "b")
		require.ErrorContains(t, err, "no class's folder")
	}
}
