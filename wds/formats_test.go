package wds_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

func zstandard(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	require.NoError(t, err)
	_, err = w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestAShardMayBeCompressedByZstandard(t *testing.T) {
	whole := shard(t, 0, 30)
	packed := zstandard(t, whole)
	skippable := append([]byte{0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0}, "pad"...)
	for name, data := range map[string][]byte{
		"in one frame":             packed,
		"in two frames":            append(zstandard(t, whole[:5000]), zstandard(t, whole[5000:])...),
		"after a skippable frame":  append(bytes.Clone(skippable), packed...),
		"before a skippable frame": append(bytes.Clone(packed), skippable...),
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{"a.tar.zst", "a.tar"} {
				got, bad, err := epoch(t, dataset(t, fstest.MapFS{file: {Data: data}}))
				require.NoError(t, err)
				require.Empty(t, bad)
				require.Equal(t, upTo(30), got)
			}
			got, _, err := epoch(t, dataset(t, bytewise{fstest.MapFS{"a.tar.zst": {Data: data}}}))
			require.NoError(t, err)
			require.Equal(t, upTo(30), got)
		})
	}
	for cut := 1; cut < len(packed); cut += 1 + len(packed)/50 {
		got, _, err := epoch(t, dataset(t, fstest.MapFS{"a.tar.zst": {Data: packed[:cut]}}))
		require.Error(t, err, "cut after %d of %d bytes", cut, len(packed))
		require.NotErrorIs(t, err, io.EOF)
		require.Less(t, len(got), 30)
	}
	_, _, err := epoch(t, dataset(t, fstest.MapFS{"a.tar.zst": {Data: append(bytes.Clone(packed), "something else"...)}}))
	require.ErrorContains(t, err, "magic")
	_, _, err = epoch(t, dataset(t, fstest.MapFS{"a.tar.zst": {Data: flipped(packed, -1)}}))
	require.ErrorContains(t, err, "a.tar.zst: ")
	require.ErrorContains(t, err, "CRC")
}

func TestAWindowBeyondZstandardsOwnBoundTakesNoMemory(t *testing.T) {
	frame := binary.LittleEndian.AppendUint32(nil, 0xfd2fb528)
	frame = append(frame, 0, 18<<3)    // a window of 2²⁸ bytes
	frame = append(frame, 1, 0, 0, 42) // an empty block, the last
	_, _, err := epoch(t, dataset(t, fstest.MapFS{"a.tar.zst": {Data: frame}}))
	require.ErrorContains(t, err, "a.tar.zst: window size exceeded")
}

const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"

func TestWhatIsNoTarFileIsToldWhatItIs(t *testing.T) {
	var zipped bytes.Buffer
	z := zip.NewWriter(&zipped)
	_, err := z.Create("0.txt")
	require.NoError(t, err)
	require.NoError(t, z.Close())
	page := "\ufeff\n<!DOCTYPE html>\n<html><title>Sign in</title>" + strings.Repeat("<p>", 300) + "</html>"
	whole := shard(t, 0, 5)
	for _, c := range []struct {
		name, data, want string
	}{
		{"xz", "\xfd7zXZ\x00\x00\x04" + strings.Repeat("x", 1000), `it is compressed by xz: a shard may be compressed once, by gzip or Zstandard`},
		{"bzip2", "BZh91AY&SY" + strings.Repeat("x", 1000), `it is compressed by bzip2`},
		{"bzip2, a small file", "BZh91AY&SY" + strings.Repeat("x", 100), `it is compressed by bzip2`},
		{"lz4", "\x04\x22\x4d\x18" + strings.Repeat("x", 1000), `it is compressed by lz4`},
		{"zip", zipped.String(), "it is a zip archive"},
		{"a Git LFS pointer", pointer, "it is a Git LFS pointer, not the file: fetch the file by git lfs pull"},
		{"an HTML page", page, "it is an HTML or XML page, perhaps an error message of a server: it begins with \"<!DOCTYPE html>"},
		{"a small XML page", `<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>`, "it is an HTML or XML page"},
		{"a message", "404: Not Found", `it begins with "404: Not Found": unexpected EOF`},
		{"a picture", "\xff\xd8\xff\xe0" + strings.Repeat("x", 1000), `it isn't a tar file, or its first header is damaged: it begins with "\xff\xd8\xff\xe0xx`},
		{"a cut tar file", string(whole[:300]), `it begins with "s/0.txt`},
		{"a tar file whose first header is damaged", string(flipped(whole, 20)), `or its first header is damaged: it begins with "s/0.txt`},
		{"compressed twice", string(compressed(t, compressed(t, whole))), "what it unpacks to is compressed by gzip"},
		{"a page, compressed", string(compressed(t, []byte(page))), "what it unpacks to is an HTML or XML page"},
		{"a page, compressed by Zstandard", string(zstandard(t, []byte(page))), "what it unpacks to is an HTML or XML page"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: []byte(c.data)}}))
			require.ErrorContains(t, err, c.want)
			require.Less(t, len(err.Error()), 600)
			require.NotErrorIs(t, err, io.EOF)
			require.Empty(t, got)
		})
	}
	// A name that begins like something else is none.
	got, _, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: entries(t, "BZh.txt", "1", "BZh.cls", "1", "<html>.txt", "2", "<html>.cls", "2")}}))
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2}, got)
}

func TestACompressedShardThatIsCutIsToldToBeOnceAndIsNoOtherKindOfFile(t *testing.T) {
	for _, packed := range [][]byte{compressed(t, shard(t, 0, 5)), zstandard(t, shard(t, 0, 5))} {
		for n := 12; n < len(packed); n++ {
			s, err := wds.New(fstest.MapFS{"a.tar": {Data: packed[:n]}}, []string{"a.tar"}, fields, load)
			require.NoError(t, err)
			r, err := s.Open(t.Context(), 0)
			require.NoError(t, err)
			for err == nil {
				err = r.Next(t.Context(), &nwt.Record{})
			}
			require.ErrorContains(t, err, "unexpected EOF", n)
			require.NotContains(t, err.Error(), "isn't a tar file", n)
			require.NoError(t, r.Close(), n)
		}
	}
}

func TestAKeyThatComesBackInAShardIsToldOnce(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	torn := entries(t, "1.txt", "1", "2.txt", "2", "1.cls", "1", "2.cls", "2", "3.txt", "3", "3.cls", "3")
	fsys := fstest.MapFS{
		"a.tar":    {Data: torn},
		"b.tar.gz": {Data: compressed(t, torn)},
		"c.tar":    {Data: shard(t, 5, 10)},
	}
	ds := dataset(t, fsys)
	got, bad, err := epoch(t, ds, nwt.WithErrorBudget(8), nwt.WithInterleave(1))
	require.NoError(t, err)
	require.Equal(t, []int64{3, 3, 5, 6, 7, 8, 9}, got)
	require.Len(t, bad, 8)
	_, _, err = epoch(t, ds, nwt.WithErrorBudget(8))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	for _, want := range []string{"level=WARN", "shard=a.tar", "key=1", "must follow each other"} {
		require.Contains(t, log.String(), want)
	}

	// Records that are skipped count too.
	log.Reset()
	s, err := wds.New(fstest.MapFS{"a.tar": {Data: entries(t, "1.txt", "1", "2.txt", "2", "1.cls", "1")}}, []string{"a.tar"}, fields, load)
	require.NoError(t, err)
	r, err := s.Open(t.Context(), 0)
	require.NoError(t, err)
	_, err = r.(nwt.Skipper).Skip(t.Context(), 3)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.Contains(t, log.String(), "key=1")

	// The same key in two shards is no fault.
	log.Reset()
	_, _, err = epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: shard(t, 0, 5)}, "b.tar": {Data: shard(t, 0, 5)}}))
	require.NoError(t, err)
	require.Empty(t, log.String())
}

func TestBraceListsNameManyShards(t *testing.T) {
	for list, want := range map[string]string{
		"a.tar":                       "a.tar",
		"{000..003}.tar":              "000.tar 001.tar 002.tar 003.tar",
		"x-{8..11}.tar":               "x-8.tar x-9.tar x-10.tar x-11.tar",
		"{08..11}":                    "08 09 10 11",
		"{3..1}":                      "3 2 1",
		"{train,val}-{0..1}.tar":      "train-0.tar train-1.tar val-0.tar val-1.tar",
		"{a,b{0..1},c}/x":             "a/x b0/x b1/x c/x",
		"{a,}x":                       "ax x",
		"{{0..1},{5..6}}":             "0 1 5 6",
		"{a}.tar {} {0..} {x..10} {a": "{a}.tar {} {0..} {x..10} {a", // no lists
		"{a..c} {-1..1} {0..9..3}":    "{a..c} {-1..1} {0..9..3}",
		"a}b{c,d}":                    "a}bc a}bd",
		"{a{b,c}":                     "{ab {ac",
		"{{a}}{0..1}":                 "{{a}}0 {{a}}1",
		"{0..99999999999999999999}":   "{0..99999999999999999999}",
	} {
		fsys := fstest.MapFS{}
		s, err := wds.New(fsys, []string{list}, fields, load)
		require.NoError(t, err)
		var got []string
		for i := range s.Shards() {
			_, err := s.Open(t.Context(), i)
			var path *os.PathError
			require.ErrorAs(t, err, &path)
			got = append(got, path.Path)
		}
		require.Equal(t, want, strings.Join(got, " "), list)
	}
	for _, list := range []string{"{0..99999999999}.tar", "{0..9999}{0..9999}", "{0..9223372036854775807}"} {
		_, err := wds.New(fstest.MapFS{}, []string{list}, fields, load)
		var option *nwt.ArgumentError
		require.ErrorAs(t, err, &option)
		require.ErrorContains(t, err, list)
		require.ErrorContains(t, err, "more than 10000000 shards")
	}

	dir := t.TempDir()
	for i := range 12 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("x-%03d.tar", i)), shard(t, 3*i, 3*i+3), 0o600))
	}
	s, err := wds.New(os.DirFS(dir), []string{"x-{000..011}.tar"}, fields, load)
	require.NoError(t, err)
	got, _, err := epoch(t, nwt.Streamed(s), nwt.WithInterleave(1))
	require.NoError(t, err)
	require.Equal(t, upTo(36), got)
}
