package wds

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/files"
)

func newTestGrouper(t *testing.T, data []byte, limits Limits) *grouper {
	t.Helper()
	s := &stream{seed: maphash.MakeSeed()}
	WithLimits(limits)(s)
	src, err := openSource(context.Background(), fstest.MapFS{"shard": {Data: data}}, "shard", &s.bufs)
	require.NoError(t, err)
	t.Cleanup(func() { src.Close() })
	g, err := s.newGrouper("shard", src)
	require.NoError(t, err)
	return g
}

// A reading is a record as the plainest reading of a tar file gives it.
type reading struct {
	key   string
	files []string // extension, content, extension …
	fine  bool     // it makes a sample
}

// plainly groups the files of a tar file in the most obvious way; whole tells
// whether it could be read to its end.
func plainly(data []byte, limits Limits) (all []reading, whole bool) {
	in := bytes.NewReader(data)
	tr := tar.NewReader(in)
	size, left := int64(0), false
	for {
		h, err := tr.Next()
		if err != nil {
			return all, err == io.EOF && (len(all) > 0 || !left) && len(bytes.Trim(data[len(data)-in.Len():], "\x00")) == 0
		}
		dir, base := path.Split(h.Name)
		key, ext, found := strings.Cut(base, ".")
		if h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader || !found || key == "" || ext == "" {
			continue
		}
		elements := strings.Split(h.Name, "/")
		if top := elements[0]; len(top) > 3 && strings.HasPrefix(top, "__") && strings.HasSuffix(top, "__") {
			continue
		}
		if slices.ContainsFunc(elements, func(e string) bool { return e != "." && e != ".." && files.IsLeftover(e) }) {
			left = true
			continue
		}
		if len(all) == 0 || all[len(all)-1].key != dir+key {
			all, size = append(all, reading{key: dir + key, fine: true}), 0
		}
		r := &all[len(all)-1]
		if r.fine = r.fine && !slices.Contains(r.files, strings.ToLower(ext)) && len(r.files) < 2*limits.Files &&
			len(h.Name) <= limits.Name && size+h.Size <= limits.Bytes && strings.ContainsRune("07", rune(h.Typeflag)) &&
			!strings.Contains(fmt.Sprint(h.PAXRecords), "GNU.sparse."); !r.fine {
			continue
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			return all, false
		}
		size += h.Size
		r.files = append(r.files, strings.ToLower(ext), string(content))
	}
}

// marked reports whether there is an end marker, if the rest can be read: else what
// is put after the data is a header, and a bad one.
func marked(data []byte) bool {
	tr := tar.NewReader(bytes.NewReader(append(bytes.Clone(data), bytes.Repeat([]byte("x"), 1024)...)))
	for {
		if _, err := tr.Next(); err != nil {
			return err == io.EOF
		}
	}
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
	f.Add(whole.Bytes()[:2048])                                              // cut between members
	f.Add(append(whole.Bytes()[:whole.Len():whole.Len()], whole.Bytes()...)) // two after another
	f.Add([]byte{})
	f.Add(make([]byte, 1024))
	var odd bytes.Buffer
	tw := tar.NewWriter(&odd)
	for _, h := range []*tar.Header{
		{Name: strings.Repeat("n", 300) + ".x"}, {Name: "l.x", Typeflag: tar.TypeLink, Linkname: "a.jpg"}, {Name: "d.x/", Typeflag: tar.TypeDir},
		{Name: "e.x", PAXRecords: map[string]string{"GNU.sparse.size": "1"}}, {Name: "c.x", Typeflag: tar.TypeCont},
	} {
		_ = tw.WriteHeader(h)
	}
	for i := range 7 {
		_ = tw.WriteHeader(&tar.Header{Name: fmt.Sprint("many.", i)})
	}
	_ = tw.Close()
	f.Add(odd.Bytes())
	root, _ := exec.Command("go", "env", "GOROOT").Output()
	for _, name := range []string{"gnu-nil-sparse-data.tar", "gnu-utf8.tar", "pax-nil-sparse-hole.tar", "pax-records.tar", "file-and-dir.tar"} {
		if data, err := os.ReadFile(path.Join(strings.TrimSpace(string(root)), "src/archive/tar/testdata", name)); err == nil {
			f.Add(data)
			f.Add(data[:512]) // cut in what is passed over
			f.Add(data[:len(data)/2])
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			return // compressed
		}
		limits := Limits{Bytes: 1 << 16, Files: 5, Name: 150}
		want, readable := plainly(data, limits)
		readable = readable && marked(data)
		g := newTestGrouper(t, data, limits)
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
			if len(want[i].key) <= limits.Name {
				require.Equal(t, want[i].key, r.Key)
			}
			require.Equal(t, want[i].fine, r.err == nil, "%v", r.err)
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
	f.Add(strings.Repeat("k", 5000), "x", "y", []byte("2"))
	f.Fuzz(func(t *testing.T, key, ext1, ext2 string, data []byte) {
		var b bytes.Buffer
		w := NewWriter(&b)
		if w.Write(key, File{ext1, data}, File{ext2, data}) != nil || w.Write("other"+key, File{ext1, nil}) != nil {
			return
		}
		require.NoError(t, w.Close())
		g := newTestGrouper(t, b.Bytes(), Limits{Name: 1 << 20}) // more than a header takes
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
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a.jpg", Size: 1 << 30}))
	_, _ = w.Write([]byte("not so much"))
	g := newTestGrouper(t, b.Bytes(), Limits{})
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
	g := newTestGrouper(t, b.Bytes(), Limits{Bytes: 100})
	var r Record
	require.NoError(t, g.next(&r))
	require.EqualError(t, r.err, "101 bytes up to its file y: must be at most 100")
	require.NoError(t, g.next(&r))
	require.Equal(t, "b", r.Key)
	require.NoError(t, r.err)
}
