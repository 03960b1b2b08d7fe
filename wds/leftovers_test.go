package wds_test

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/wds"
)

// packed returns a tar file of files with these names, whose content is a number.
func packed(t *testing.T, content string, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}))
		_, err := io.WriteString(w, content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestWhatSystemsLeaveBehindIsNoSample(t *testing.T) {
	got, bad, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: packed(t, "7",
		"./._s", "./.DS_Store", "./Thumbs.db", "s/desktop.ini", "@eaDir/1.txt", "__MACOSX/s/._1.txt", "__MACOSX/s/1.txt",
		".ipynb_checkpoints/1.txt", "s/.cache/1.cls", "__meta__/1.txt", "__info__", "#recycle/s/1.cls",
		"../s/1.txt", "../s/1.cls", "s/._1.txt", "s/__2__/1.txt", "s/__2__/1.cls")}}))
	require.NoError(t, err)
	require.Empty(t, bad)
	require.Equal(t, []int64{7, 7}, got)
}

func TestAShardWithNothingButLeftoversIsAnError(t *testing.T) {
	_, _, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: packed(t, "7", "home/me/.cache/1.txt", "home/me/.cache/1.cls")}}))
	require.ErrorContains(t, err, "a.tar: no sample is in it: its files, such as home/me/.cache/1.cls, have the names of leftovers")
}

func TestAWriterRefusesTheNamesOfLeftovers(t *testing.T) {
	w := wds.NewWriter(io.Discard)
	for _, name := range [][2]string{{"Thumbs", "db"}, {"__MACOSX/1", "txt"}, {".cache/1", "txt"}, {"__x__/1", "txt"}} {
		require.ErrorContains(t, w.Write(name[0], wds.File{Ext: name[1]}), "would be passed over as a leftover")
	}
}
