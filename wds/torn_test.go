package wds_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

// member returns a tar member of any type, with content whether or not the type has some.
func member(t *testing.T, typeflag byte, name string, content []byte, changes ...func(head []byte)) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o644, Format: tar.FormatGNU}))
	_, err := w.Write(content)
	require.NoError(t, err)
	require.NoError(t, w.Flush())
	head := b.Bytes()[:512]
	head[156] = typeflag
	for _, change := range changes {
		change(head)
	}
	copy(head[148:156], "        ")
	sum := 0
	for _, c := range head {
		sum += int(c)
	}
	copy(head[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b.Bytes()
}

// records returns the content of a PAX header.
func records(all ...string) (content []byte) {
	for _, r := range all {
		n := len(r) + 3
		for len(fmt.Sprintf("%d %s\n", n, r)) != n {
			n++
		}
		content = fmt.Appendf(content, "%d %s\n", n, r)
	}
	return content
}

// plain is a file that can only be read, a piece at a time; its last piece comes
// together with the end if that is set.
type plain struct {
	fs.File
	piece   int
	withEnd bool
}

func (f *plain) Read(p []byte) (int, error) {
	n, err := f.File.Read(p[:min(len(p), f.piece)])
	if err == nil && f.withEnd {
		var none [0]byte
		_, err = f.File.Read(none[:])
	}
	return n, err
}

type plainFS struct {
	fs.FS
	piece   int
	withEnd bool
}

func (s plainFS) Open(name string) (fs.File, error) {
	f, err := s.FS.Open(name)
	return &plain{f, s.piece, s.withEnd}, err
}

// ending returns how a shard ends that is read or skipped through.
func ending(t *testing.T, fsys fs.FS, skip bool) error {
	t.Helper()
	s, err := wds.New(fsys, []string{"a.tar"}, fields, load)
	require.NoError(t, err)
	r, err := s.Open(t.Context(), 0)
	if err != nil {
		return err
	}
	defer func() { require.NoError(t, r.Close()) }()
	var rec nwt.Record
	for range 10 {
		if skip {
			_, err = r.(nwt.Skipper).Skip(t.Context(), 3)
		} else {
			err = r.Next(t.Context(), &rec)
		}
		if err != nil {
			return err
		}
	}
	t.Fatal("the shard doesn't end")
	return nil
}

// What a shard holds besides samples is passed over, not read: a cut in it must be
// noticed all the same.
func TestAShardIsWholeOnlyUpToItsEndMarkerWhateverItEndsWith(t *testing.T) {
	sample := entries(t, "0.txt", "0", "0.cls", "0")
	sample = sample[:len(sample)-1024]
	some, long := bytes.Repeat([]byte("x"), 1500), bytes.Repeat([]byte("x"), 80_000)
	oldSparse := func(head []byte) { copy(head[483:], "00000004000\x00") }
	pax := records("GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=1.txt", "GNU.sparse.realsize=700")
	newSparse := append(append([]byte("1\n0\n700\n"), make([]byte, 504)...), some[:700]...)
	path := filepath.Join(t.TempDir(), "a.tar")
	for name, last := range map[string][]byte{
		"another sample":            member(t, tar.TypeReg, "1.txt", some),
		"a file of no sample":       member(t, tar.TypeReg, "README", some),
		"a long file of no sample":  member(t, tar.TypeReg, "README", long),
		"a file that comes twice":   member(t, tar.TypeReg, "0.cls", some),
		"a file of an unknown type": member(t, 'Z', "1.txt", some),
		"a contiguous file":         member(t, tar.TypeCont, "1.txt", some),
		"a sparse file":             member(t, tar.TypeGNUSparse, "1.txt", some, oldSparse),
		"a PAX sparse file":         append(member(t, tar.TypeXHeader, "PaxHeaders/1", pax), member(t, tar.TypeReg, "1.txt", newSparse)...),
		"a global header":           member(t, tar.TypeXGlobalHeader, "PaxHeaders/1", records("comment=x")),
		"a name that is too long":   append(member(t, tar.TypeGNULongName, "././@LongLink", bytes.Repeat([]byte("n/"), 3000)), member(t, tar.TypeReg, "1.txt", some)...),
		"a link":                    member(t, tar.TypeLink, "1.txt", nil),
		"a directory":               member(t, tar.TypeDir, "d", nil),
	} {
		t.Run(name, func(t *testing.T) {
			whole := append(append(bytes.Clone(sample), last...), make([]byte, 1024)...)
			cuts := []int{len(whole) - 1025, len(whole) - 1024, len(whole) - 1023, len(whole) - 512, len(whole) - 1, len(whole)}
			for cut := len(sample); cut < len(whole)-1024; cut += 1 + len(last)/20 {
				cuts = append(cuts, cut)
			}
			for _, cut := range cuts {
				data := whole[:cut]
				require.NoError(t, os.WriteFile(path, data, 0o600))
				seekable := fstest.MapFS{"a.tar": {Data: data}}
				for kind, fsys := range map[string]fs.FS{
					"a local file":              os.DirFS(filepath.Dir(path)),
					"a file that can be sought": seekable,
					"a file that can't":         plainFS{seekable, 1 << 20, false},
					"a file that comes in pieces, the last with the end": plainFS{seekable, 700, true},
					"a compressed file": fstest.MapFS{"a.tar": {Data: compressed(t, data)}},
				} {
					for _, skip := range []bool{false, true} {
						err := ending(t, fsys, skip)
						if cut == len(whole) {
							require.Equal(t, io.EOF, err, kind)
							continue
						}
						require.NotErrorIs(t, err, io.EOF, "%s of %d bytes, cut after %d; skipped: %v", kind, len(whole), cut, skip)
						require.ErrorContains(t, err, "a.tar")
					}
				}
			}
		})
	}
}
