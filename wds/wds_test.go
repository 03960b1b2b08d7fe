package wds_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

// shard returns a tar file of the samples from … to−1, each its number twice.
func shard(t *testing.T, from, to int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := wds.NewWriter(&b)
	for i := from; i < to; i++ {
		n := strconv.Itoa(i)
		require.NoError(t, w.Write("s/"+n, wds.File{Ext: "txt", Data: []byte(n)}, wds.File{Ext: "cls", Data: []byte(n)}))
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

var fields = []nwt.Field{{Name: "txt", Type: nwt.Int64}, {Name: "cls", Type: nwt.Int64}}

func load(_ context.Context, r *wds.Record, dst *nwt.Sample) error {
	for i, ext := range []string{"txt", "cls"} {
		data, err := r.File(ext)
		if err != nil {
			return err
		}
		if nwt.Values[int64](dst, i)[0], err = strconv.ParseInt(string(data), 10, 64); err != nil {
			return err
		}
	}
	return nil
}

func dataset(t *testing.T, fsys fs.FS) nwt.Dataset {
	t.Helper()
	shards, err := fs.Glob(fsys, "*.tar*")
	require.NoError(t, err)
	s, err := wds.New(fsys, shards, fields, load)
	require.NoError(t, err)
	return nwt.Streamed(s)
}

// epoch returns the samples of an epoch as they come, and the error that ended it.
func epoch(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) (all []int64, bad []*nwt.LoadError, err error) {
	t.Helper()
	l, err := nwt.NewLoader(ds, append(opts, nwt.WithLogger(slog.New(slog.DiscardHandler)))...)
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		if err != nil {
			return all, nil, err
		}
		require.Equal(t, nwt.Values[int64](b, 0), nwt.Values[int64](b, 1))
		all = append(all, nwt.Values[int64](b, 0)...)
	}
	return all, l.BadSamples(), nil
}

func upTo(n int) (all []int64) {
	for i := range n {
		all = append(all, int64(i))
	}
	return all
}

func TestWhatIsWrittenIsReadByRanksAndWorkersShuffledOrNot(t *testing.T) {
	fsys := fstest.MapFS{}
	for i := range 7 {
		fsys[fmt.Sprintf("%d.tar", i)] = &fstest.MapFile{Data: shard(t, 10*i, 10*i+10)}
	}
	ds := dataset(t, fsys)
	got, _, err := epoch(t, ds, nwt.WithInterleave(1), nwt.WithWorkers(3))
	require.NoError(t, err)
	require.Equal(t, upTo(70), got)

	opts := []nwt.Option{nwt.WithShuffle(1), nwt.WithShuffleWindow(20), nwt.WithBatchSize(8)}
	var ranks, again []int64
	for rank := range 2 {
		shard := nwt.WithRank(rank, 2)
		got, _, err := epoch(t, ds, append(opts, shard, nwt.WithWorkers(0))...)
		require.NoError(t, err)
		ranks = append(ranks, got...)
		got, _, err = epoch(t, ds, append(opts, shard, nwt.WithWorkers(4))...)
		require.NoError(t, err)
		again = append(again, got...)
	}
	require.Equal(t, ranks, again)
	require.NotEqual(t, upTo(70), ranks)
	slices.Sort(ranks)
	require.Equal(t, upTo(70), ranks)
}

// bytewise is a file system whose files give a byte at a time.
type bytewise struct{ fs.FS }

func (f bytewise) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	return byteFile{file, iotest.OneByteReader(file)}, err
}

func (f bytewise) Glob(pattern string) ([]string, error) { return fs.Glob(f.FS, pattern) }

type byteFile struct {
	fs.File
	bytes io.Reader
}

func (f byteFile) Read(p []byte) (int, error) { return f.bytes.Read(p) }

func TestAShardThatComesByteByByteIsReadAllTheSame(t *testing.T) {
	fsys := fstest.MapFS{
		"0.tar":    {Data: shard(t, 0, 5)},
		"1.tar.gz": {Data: compressed(t, shard(t, 5, 10))},
	}
	got, bad, err := epoch(t, dataset(t, bytewise{fsys}), nwt.WithInterleave(1))
	require.NoError(t, err)
	require.Empty(t, bad)
	require.Equal(t, upTo(10), got)
}

// reluctant is a file system whose files give nothing, without an error, 99 times before
// they end.
type reluctant struct{ fs.FS }

func (f reluctant) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	return &reluctantFile{file, 99}, err
}

func (f reluctant) Glob(pattern string) ([]string, error) { return fs.Glob(f.FS, pattern) }

type reluctantFile struct {
	fs.File
	left int
}

func (f *reluctantFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	if err == io.EOF && f.left > 0 {
		f.left--
		err = nil
	}
	return n, err
}

func TestAnEndThatComesAfterManyEmptyReadsIsAnEnd(t *testing.T) {
	got, bad, err := epoch(t, dataset(t, reluctant{fstest.MapFS{"0.tar": {Data: shard(t, 0, 5)}}}), nwt.WithInterleave(1))
	require.NoError(t, err)
	require.Empty(t, bad)
	require.Equal(t, upTo(5), got)
}

func TestAShardMayBeCompressed(t *testing.T) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(shard(t, 0, 30))
	require.NoError(t, w.Close())
	got, _, err := epoch(t, dataset(t, fstest.MapFS{"a.tar.gz": {Data: b.Bytes()}}))
	require.NoError(t, err)
	require.Equal(t, upTo(30), got)
}

// entries returns a tar file of empty or given files.
func entries(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: files[i], Size: int64(len(files[i+1])), Mode: 0o644}
		if files[i][len(files[i])-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		require.NoError(t, w.WriteHeader(h))
		_, err := w.Write([]byte(files[i+1]))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestFilesOfNoSampleAreLeftOut(t *testing.T) {
	got, bad, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: entries(t,
		"dir.d/", "",
		"dir.d/1.txt", "1",
		"README", "text",
		".hidden", "text",
		"dir.d/.hidden.txt", "text",
		"dot.", "text",
		"__meta.json__", "text",
		"dir.d/1.CLS", "1",
		"dir.d/2.cls", "2",
		"dir.d/2.txt", "2",
	)}}))
	require.NoError(t, err)
	require.Empty(t, bad)
	require.Equal(t, []int64{1, 2}, got)
}

func TestABadSampleIsNamedAndTheNextAreRead(t *testing.T) {
	fsys := fstest.MapFS{"part.tar": {Data: entries(t,
		"1.txt", "1", "1.cls", "1",
		"2.txt", "2", "2.txt", "2", "2.cls", "2",
		"3.txt", "3", "3.class", "3",
		"4.txt", "four", "4.cls", "4",
		"5.txt", "5", "5.cls", "5",
	)}}
	got, bad, err := epoch(t, dataset(t, fsys), nwt.WithErrorBudget(3))
	require.NoError(t, err)
	require.Equal(t, []int64{1, 5}, got)
	require.Len(t, bad, 3)
	require.EqualError(t, bad[0].Err, "record 1 of shard 0: part.tar: 2: two files txt")
	require.EqualError(t, bad[1].Err, "record 2 of shard 0: part.tar: 3: no file cls: it has txt, class")
	require.EqualError(t, bad[2].Err, `record 3 of shard 0: part.tar: 4: strconv.ParseInt: parsing "four": invalid syntax`)
}

func TestAPanicInLoadNamesItsSample(t *testing.T) {
	s, err := wds.New(fstest.MapFS{"part.tar": {Data: entries(t, "1.txt", "1", "2.txt", "")}}, []string{"part.tar"}, []nwt.Field{{Name: "x", Type: nwt.Uint8}},
		func(_ context.Context, r *wds.Record, dst *nwt.Sample) error {
			text, err := r.File("txt")
			dst.Bytes(0)[0] = text[0]
			return err
		})
	require.NoError(t, err)
	_, _, err = epoch(t, nwt.Streamed(s))
	require.ErrorContains(t, err, "record 1 of shard 0: panic: part.tar: 2: runtime error: index out of range [0] with length 0 (")
	require.ErrorContains(t, err, "wds_test.go:")
}

func TestADamagedShardIsNamedAndTheOthersAreRead(t *testing.T) {
	whole := shard(t, 0, 5)
	damaged := bytes.Clone(whole)
	copy(damaged[4*1024:], "no header at all") // of the first file of sample 2
	for _, c := range []struct {
		name string
		data []byte
		want string
		read int // samples before the damage
	}{
		{"cut in a file", whole[:2*2048+512], "a.tar: s/2.txt: unexpected EOF", 2},
		{"cut in a header", whole[:2*2048+100], "a.tar: after s/1.cls: unexpected EOF", 1},
		{"a header of noise", damaged, "a.tar: after s/1.cls: archive/tar: invalid tar header", 1},
		{"no tar file", bytes.Repeat([]byte("x"), 1024), "a.tar: it isn't a tar file, or its first header is damaged: it begins with \"xx", 0},
		{"no gzip file after all", []byte{0x1f, 0x8b, 0}, "a.tar: unexpected EOF", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ds := dataset(t, fstest.MapFS{"a.tar": {Data: c.data}, "b.tar": {Data: shard(t, 5, 8)}})
			got, bad, err := epoch(t, ds, nwt.WithErrorBudget(1), nwt.WithInterleave(1))
			require.NoError(t, err)
			require.Equal(t, append(upTo(c.read), 5, 6, 7), got)
			require.Len(t, bad, 1)
			require.ErrorContains(t, bad[0], c.want)
		})
	}
}

func TestAMissingShardIsNamed(t *testing.T) {
	s, err := wds.New(fstest.MapFS{}, []string{"train-7.tar"}, fields, load)
	require.NoError(t, err)
	_, _, err = epoch(t, nwt.Streamed(s))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "train-7.tar")
}

func TestNewNamesAllThatItCannotUse(t *testing.T) {
	_, err := wds.New(nil, nil, fields, nil, nil)
	for _, want := range []string{"fsys", "shards", "load", "options[0]: is nil"} {
		require.ErrorContains(t, err, want)
	}
}

func TestANameThatIsNoPathInItsFileSystemIsToldBeforeTheFirstEpoch(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.tar"), shard(t, 0, 3), 0o600))
	for _, name := range []string{"/abs/a.tar", "./a.tar", "../a.tar", "b//a.tar", "b/", ""} {
		_, err := wds.New(os.DirFS(dir), []string{"a.tar", name}, fields, load)
		var option *nwt.ArgumentError
		require.ErrorAs(t, err, &option, name)
		require.Equal(t, name, option.Value)
		require.ErrorContains(t, err, "the name of a shard must be a path in fsys")
	}
	_, err := wds.New(os.DirFS(dir), []string{"a.tar"}, fields, load, wds.WithIndex("/index.json"))
	require.ErrorContains(t, err, "wds: WithIndex: /index.json: must be a path in fsys")
	if s, err := wds.New(os.DirFS(dir), []string{filepath.Join(dir, "a.tar")}, fields, load); err == nil { // Windows' paths are valid
		_, err = s.Open(t.Context(), 0)
		require.ErrorContains(t, err, "the name of a shard must be a path in fsys")
	}
	s, err := wds.New(os.DirFS(dir), []string{"b.tar"}, fields, load)
	require.NoError(t, err)
	_, err = s.Open(t.Context(), 0)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NotContains(t, err.Error(), "a path in fsys")
}

func TestAWriterRefusesWhatWouldBeReadOtherwise(t *testing.T) {
	x := wds.File{Ext: "x"}
	for _, c := range []struct {
		key   string
		files []wds.File
		want  string
	}{
		{"", []wds.File{x}, `key ""`},
		{"a.b", []wds.File{x}, `key "a.b"`},
		{"a/", []wds.File{x}, `key "a/"`},
		{"last", []wds.File{x}, "the sample before"},
		{"a", nil, "at least one file"},
		{"a", []wds.File{{Ext: ""}}, `extension ""`},
		{"a", []wds.File{{Ext: "JPG"}}, `extension "JPG"`},
		{"a", []wds.File{{Ext: ".jpg"}}, `extension ".jpg"`},
		{"a", []wds.File{{Ext: "b/c"}}, `extension "b/c"`},
		{"__a", []wds.File{{Ext: "b__"}}, "__a.b__: would be passed over"},
		{"a", []wds.File{x, x}, "two files x"},
		{"a\x00b", []wds.File{x}, "cannot encode"},
		{"a", []wds.File{x, {Ext: "b\x00"}}, "cannot encode"},
		{"a", []wds.File{x, {Ext: strings.Repeat("b", 1<<20)}}, "too long"},
	} {
		var b bytes.Buffer
		w := wds.NewWriter(&b)
		require.NoError(t, w.Write("last", x))
		size := b.Len()
		err := w.Write(c.key, c.files...)
		require.ErrorContains(t, err, c.want)
		require.Less(t, len(err.Error()), 1000)
		require.Equal(t, size, b.Len(), "nothing is written of a sample that can't be")
	}
}

var errFull = errors.New("disk full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestAWritersErrorsAreThoseOfItsDisk(t *testing.T) {
	w := wds.NewWriter(full{})
	require.ErrorIs(t, w.Write("a", wds.File{Ext: "x"}), errFull)
}
