package wds_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/wds"
)

func TestFilesLieWhereLocateSays(t *testing.T) {
	fsys := fstest.MapFS{}
	for shard := range 3 {
		var data bytes.Buffer
		w := wds.NewWriter(&data)
		for i := range 40 {
			content := bytes.Repeat([]byte{byte(i)}, i*i*9)
			require.NoError(t, w.Write(fmt.Sprintf("a/%d-%d", shard, i), wds.File{Ext: "txt", Data: []byte("x")}, wds.File{Ext: "bin", Data: content}))
		}
		require.NoError(t, w.Close())
		fsys[fmt.Sprintf("%d.tar", shard)] = &fstest.MapFile{Data: data.Bytes()}
	}
	keys, err := wds.Locate(t.Context(), fsys, []string{"{0..2}.tar"}, []string{"txt"}, func(r *wds.Record) (string, error) {
		at, size, err := r.Range("bin")
		require.NoError(t, err)
		var i int
		_, err = fmt.Sscanf(r.Key[len("a/0-"):], "%d", &i)
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, i*i*9), fsys[r.Shard].Data[at:at+size:at+size])
		text, err := r.File("txt")
		require.NoError(t, err)
		require.Equal(t, "x", string(text))
		_, err = r.File("bin")
		require.ErrorContains(t, err, "the content of bin wasn't asked for")
		_, _, err = r.Range("jpg", "png")
		require.ErrorContains(t, err, "no file jpg or png: it has txt, bin")
		return r.Key, nil
	})
	require.NoError(t, err)
	require.Len(t, keys, 120)
	require.Equal(t, []string{"a/0-0", "a/1-1", "a/2-39"}, []string{keys[0], keys[41], keys[119]})
}

func TestARecordThatIsNoSampleSaysSoWhereItIsLocated(t *testing.T) {
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "1.jpg", Typeflag: tar.TypeLink, Linkname: "0.jpg"}))
	require.NoError(t, w.Close())
	fsys := fstest.MapFS{"1.tar": {Data: data.Bytes()}}
	_, err := wds.Locate(t.Context(), fsys, []string{"1.tar"}, nil, func(r *wds.Record) (int, error) {
		_, _, err := r.Range("jpg")
		return 0, err
	})
	require.ErrorContains(t, err, "its file jpg is a hard link, which holds no data")
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err = z.Write(data.Bytes())
	require.NoError(t, err)
	require.NoError(t, z.Close())
	fsys["1.tar"].Data = packed.Bytes()
	_, err = wds.Locate(t.Context(), fsys, []string{"1.tar"}, nil, func(*wds.Record) (int, error) { return 0, nil })
	require.ErrorContains(t, err, "1.tar: is compressed")
}
