package wds

import (
	"archive/tar"
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func newTestGrouper(t *testing.T, data []byte, limit int64) grouper {
	t.Helper()
	g, err := newGrouper("shard", bufio.NewReader(bytes.NewReader(data)))
	require.NoError(t, err)
	g.limit = limit
	return g
}

// A reading is a record as the plainest reading of a tar file gives it.
type reading struct {
	key   string
	files []string // extension, content, extension …
}

// plainly groups the files of a tar file in the most obvious way; whole tells
// whether it could be read to its end.
func plainly(data []byte, limit int64) (all []reading, whole bool) {
	tr := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := tr.Next()
		if err != nil {
			return all, err == io.EOF
		}
		dir, base := path.Split(h.Name)
		key, ext, found := strings.Cut(base, ".")
		if h.Typeflag != tar.TypeReg || !found || key == "" || ext == "" ||
			dir == "" && strings.HasPrefix(base, "__") && strings.HasSuffix(base, "__") {
			continue
		}
		if len(all) == 0 || all[len(all)-1].key != dir+key {
			all = append(all, reading{key: dir + key})
		}
		r := &all[len(all)-1]
		content, err := io.ReadAll(io.LimitReader(tr, limit+1))
		if err != nil {
			return all, false
		}
		r.files = append(r.files, strings.ToLower(ext), string(content))
	}
}

// fine tells whether a reading makes a sample.
func (r reading) fine(limit int64) bool {
	var exts []string
	for i := 0; i < len(r.files); i += 2 {
		if slices.Contains(exts, r.files[i]) {
			return false
		}
		exts = append(exts, r.files[i])
		limit -= int64(len(r.files[i+1]))
	}
	return limit >= 0
}

func FuzzGrouping(f *testing.F) {
	var whole bytes.Buffer
	w := NewWriter(&whole)
	for _, key := range []string{"a", "b/c", "b/d"} {
		_ = w.Write(key, File{"jpg", []byte(key)}, File{"seg.png", bytes.Repeat([]byte(key), 700)})
	}
	_ = w.Close()
	f.Add(whole.Bytes())
	f.Add(whole.Bytes()[:3000])
	root, _ := exec.Command("go", "env", "GOROOT").Output()
	for _, name := range []string{"gnu-nil-sparse-data.tar", "gnu-utf8.tar", "pax-nil-sparse-hole.tar", "pax-records.tar", "file-and-dir.tar"} {
		if data, err := os.ReadFile(path.Join(strings.TrimSpace(string(root)), "src/archive/tar/testdata", name)); err == nil {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			return // compressed
		}
		const limit = 1 << 16
		want, readable := plainly(data, limit)
		g := newTestGrouper(t, data, limit)
		var r Record
		for i := 0; ; i++ {
			err := g.next(&r)
			if err == io.EOF {
				require.True(t, readable)
				require.Len(t, want, i)
				return
			}
			if err != nil {
				require.False(t, readable)
				return
			}
			require.Equal(t, want[i].key, r.Key)
			require.Equal(t, want[i].fine(limit), r.err == nil, "%v", r.err)
			if r.err == nil {
				var files []string
				from := 0
				for _, f := range r.files {
					files, from = append(files, f.ext, string(r.data[from:f.end])), f.end
				}
				require.Equal(t, want[i].files, files)
			}
		}
	})
}

func FuzzWhatAWriterTakesComesBack(f *testing.F) {
	f.Add("a/b", "jpg", "cls", []byte("1"))
	f.Add(strings.Repeat("long/", 60)+"ключ", "x.y", "z", []byte{})
	f.Fuzz(func(t *testing.T, key, ext1, ext2 string, data []byte) {
		var b bytes.Buffer
		w := NewWriter(&b)
		if w.Write(key, File{ext1, data}, File{ext2, data}) != nil || w.Write("other"+key, File{ext1, nil}) != nil {
			return
		}
		require.NoError(t, w.Close())
		g := newTestGrouper(t, b.Bytes(), maxRecord)
		var r Record
		require.NoError(t, g.next(&r))
		require.Equal(t, key, r.Key)
		for _, ext := range []string{ext1, ext2} {
			got, err := r.File("none\x00", ext)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
		}
		require.NoError(t, g.next(&r))
		require.Equal(t, "other"+key, r.Key)
		require.Equal(t, io.EOF, g.next(&r))
		require.Equal(t, io.EOF, g.next(&r))
	})
}

func TestAHeaderThatLiesTakesNoMemory(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a.jpg", Size: maxRecord}))
	_, _ = w.Write([]byte("not so much"))
	g := newTestGrouper(t, b.Bytes(), maxRecord)
	var r Record
	require.ErrorIs(t, g.next(&r), io.ErrUnexpectedEOF)
	require.Less(t, cap(r.data), 2<<20)
}

func TestARecordLargerThanTheBoundIsBadAlone(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	require.NoError(t, w.Write("a", File{"x", make([]byte, 60)}, File{"y", make([]byte, 41)}))
	require.NoError(t, w.Write("b", File{"x", make([]byte, 60)}, File{"y", make([]byte, 40)}))
	require.NoError(t, w.Close())
	g := newTestGrouper(t, b.Bytes(), 100)
	var r Record
	require.NoError(t, g.next(&r))
	require.EqualError(t, r.err, "101 bytes up to its file y: must be at most 100")
	require.NoError(t, g.next(&r))
	require.Equal(t, "b", r.Key)
	require.NoError(t, r.err)
}
