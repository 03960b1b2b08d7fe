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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

func compressed(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestAShardIsReadToAnEndThatIsProvedOrItsEpochFails(t *testing.T) {
	whole := shard(t, 0, 100) // four blocks for each sample, and two that end the file
	const endMarker = 1024
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"cut between samples", whole[:50*2048], "a.tar: after s/49.cls: the end marker is missing"},
		{"cut between the files of a sample", whole[:50*2048+1024], "a.tar: after s/50.txt: the end marker is missing"},
		{"cut before the end marker", whole[:len(whole)-endMarker], "a.tar: after s/99.cls: the end marker is missing"},
		{"cut in the end marker", whole[:len(whole)-512], "a.tar: after s/99.cls: the end marker is missing"},
		{"an empty file", nil, "a.tar: it is empty"},
		{"two files one after the other", append(bytes.Clone(whole), whole...), "a.tar: after s/99.cls: something follows the end marker"},
		{"a hole", append(append(bytes.Clone(whole[:50*2048]), make([]byte, 2048)...), whole[51*2048:]...), "a.tar: after s/49.cls: something follows the end marker"},
		{"nothing but zeros", make([]byte, 20<<20), "a.tar: more than 16777216 zeros follow the end marker"},
		{"compressed and cut", compressed(t, whole)[:len(compressed(t, whole))-8], "unexpected EOF"},
		{"compressed, and cut before that", compressed(t, whole[:50*2048]), "the end marker is missing"},
		{"compressed, with another checksum", flipped(compressed(t, whole), -8), "invalid checksum"},
		{"compressed, with another length", flipped(compressed(t, whole), -4), "invalid checksum"},
		{"an empty compressed file", compressed(t, nil), "a.tar: it is empty"},
		{"compressed, followed by zeros", append(compressed(t, whole), make([]byte, 1000)...), "gzip: invalid header"},
		{"compressed, followed by something", append(compressed(t, whole), "something else"...), "gzip: invalid header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: c.data}}))
			require.ErrorContains(t, err, c.want)
			require.NotErrorIs(t, err, io.EOF)
			require.Less(t, len(got), 100, "the last sample may lack files")
			got, bad, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: c.data}}), nwt.WithErrorBudget(1))
			require.NoError(t, err)
			require.Len(t, bad, 1)
			require.Less(t, len(got), 100)
		})
	}
	for name, data := range map[string][]byte{
		"padded to a block of tar's":  append(bytes.Clone(whole), make([]byte, 10240-endMarker)...),
		"compressed in two parts":     append(compressed(t, whole[:50*2048]), compressed(t, whole[50*2048:])...),
		"compressed, with an end pad": compressed(t, append(bytes.Clone(whole), make([]byte, 1<<20)...)),
	} {
		t.Run(name, func(t *testing.T) {
			got, bad, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: data}}))
			require.NoError(t, err)
			require.Empty(t, bad)
			require.Equal(t, upTo(100), got)
		})
	}
}

func flipped(data []byte, at int) []byte {
	data = bytes.Clone(data)
	data[(at+len(data))%len(data)] ^= 1
	return data
}

func TestNoFlippedBitOfACompressedShardChangesASampleUnnoticed(t *testing.T) {
	good := compressed(t, shard(t, 0, 5))
	for at := range good {
		for bit := range 8 {
			data := bytes.Clone(good)
			data[at] ^= 1 << bit
			got, _, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: data}}))
			if err == nil { // another way to write the same
				require.Equal(t, upTo(5), got, "bit %d of byte %d of %d", bit, at, len(good))
			}
		}
	}
}

// failing is a file system whose files can't be opened, or not at once.
type failing struct {
	fstest.MapFS
	fail func(name string) error
}

func (f failing) Open(name string) (fs.File, error) {
	if err := f.fail(name); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return f.MapFS.Open(name)
}

func TestAShardThatCannotBeOpenedForItEndsIsNoEmptyShard(t *testing.T) {
	data := fstest.MapFS{"a.tar": {Data: shard(t, 0, 5)}}
	ended := failing{data, func(string) error { return fmt.Errorf("the connection: %w", io.EOF) }}
	s, err := wds.New(ended, []string{"a.tar"}, fields, load)
	require.NoError(t, err)
	_, err = s.Open(t.Context(), 0)
	require.ErrorContains(t, err, "a.tar: the connection: EOF")
	require.NotErrorIs(t, err, io.EOF)
	_, _, err = epoch(t, nwt.Streamed(s))
	require.ErrorContains(t, err, "the connection")
}

// stuck is a file that is read when its turn comes, if ever.
type stuck struct {
	fs.File
	turn func()
}

func (f stuck) Read(p []byte) (int, error) {
	f.turn()
	return f.File.Read(p)
}

// stuckFS opens and reads files when their turn comes.
type stuckFS struct {
	fs.FS
	open, read func()
	closed     chan<- string
}

func (s stuckFS) Open(name string) (fs.File, error) {
	s.open()
	f, err := s.FS.Open(name)
	return closing{stuck{f, s.read}, func() { s.closed <- name }}, err
}

type closing struct {
	stuck
	note func()
}

func (c closing) Close() error { c.note(); return c.stuck.Close() }

func TestOpeningAndReadingEndWithTheirContext(t *testing.T) {
	for _, where := range []string{"open", "read"} {
		t.Run(where, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			turn, closed := make(chan struct{}), make(chan string, 1)
			now, later := func() {}, func() { cancel(); <-turn }
			fsys := stuckFS{fstest.MapFS{"a.tar": {Data: shard(t, 0, 5)}}, now, now, closed}
			if where == "open" {
				fsys.open = later
			} else {
				fsys.read = later
			}
			s, err := wds.New(fsys, []string{"a.tar"}, fields, load)
			require.NoError(t, err)
			l, err := nwt.NewLoader(nwt.Streamed(s))
			require.NoError(t, err)
			for _, err = range l.Epoch(ctx, 0) {
			}
			require.ErrorIs(t, err, context.Canceled)
			require.NoError(t, l.Close())
			close(turn)
			require.Equal(t, "a.tar", <-closed, "the call that was given up closes what it has open")
		})
	}
}

// typed returns a tar file of entries of these types.
func typed(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		require.NoError(t, w.WriteHeader(h))
		_, err := io.CopyN(w, strings.NewReader("1"), h.Size)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// panicking is a file whose Close panics, and whose Read waits first.
type panicking struct {
	fs.File
	read <-chan struct{}
	late chan<- struct{}
}

func (f panicking) Read(p []byte) (int, error) { <-f.read; return f.File.Read(p) }
func (f panicking) Close() error               { defer close(f.late); panic("not open") }

type panickingFS struct {
	fs.FS
	read <-chan struct{}
	late chan<- struct{}
}

func (f panickingFS) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	return panicking{file, f.read, f.late}, err
}

func TestAFileThatPanicsAfterItWasGivenUpHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, late := make(chan struct{}), make(chan struct{})
		s, err := wds.New(panickingFS{fstest.MapFS{"a.tar": {Data: shard(t, 0, 5)}}, read, late}, []string{"a.tar"}, fields, load)
		require.NoError(t, err)
		l, err := nwt.NewLoader(nwt.Streamed(s))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the file is being read by then
		defer cancel()
		for _, err = range l.Epoch(ctx, 0) {
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, l.Close())
		close(read)
		<-late
		synctest.Wait() // the program would have ended by now
	})
}

func TestTheLabelOfAnArchiveIsNoSample(t *testing.T) {
	label := typed(t, &tar.Header{Typeflag: 'V', Name: "train.v1", Format: tar.FormatGNU})[:512]
	got, bad, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: append(label, shard(t, 0, 3)...)}}))
	require.NoError(t, err)
	require.Empty(t, bad)
	require.Equal(t, upTo(3), got)
}

func TestWhatHasTheNameOfASamplesFileAndIsNoneIsABadSample(t *testing.T) {
	for typeflag, want := range map[byte]string{
		tar.TypeLink: "a hard link", tar.TypeSymlink: "a symbolic link", tar.TypeFifo: "a FIFO", tar.TypeChar: "a device", tar.TypeBlock: "a device",
	} {
		data := typed(t,
			&tar.Header{Typeflag: tar.TypeReg, Name: "0.txt", Size: 1}, &tar.Header{Typeflag: tar.TypeReg, Name: "0.cls", Size: 1},
			&tar.Header{Typeflag: tar.TypeReg, Name: "1.txt", Size: 1}, &tar.Header{Typeflag: typeflag, Name: "1.cls", Linkname: "0.cls"},
			&tar.Header{Typeflag: tar.TypeReg, Name: "2.txt", Size: 1}, &tar.Header{Typeflag: tar.TypeReg, Name: "2.cls", Size: 1},
		)
		got, bad, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: data}}), nwt.WithErrorBudget(1))
		require.NoError(t, err)
		require.Len(t, got, 2)
		require.Len(t, bad, 1)
		require.EqualError(t, bad[0].Err, "record 1 of shard 0: a.tar: 1: its file cls is "+want+", which holds no data")
	}
}

// sparse returns a tar file with a file that says of itself that it is of size bytes,
// of which none are there.
func sparse(t *testing.T, name string, size int64) []byte {
	t.Helper()
	head := member(t, tar.TypeXHeader, "PaxHeaders/0", records("GNU.sparse.major=0", "GNU.sparse.minor=1", "GNU.sparse.name="+name,
		fmt.Sprintf("GNU.sparse.size=%d", size), "GNU.sparse.numblocks=0", "GNU.sparse.map="))
	return slices.Concat(head, member(t, tar.TypeReg, "GNUSparseFile.0/"+name, nil), make([]byte, 1024))
}

func TestASparseFileInATarIsABadSampleNotItsZeros(t *testing.T) {
	data := append(sparse(t, "1.txt", 1<<30)[:1536], entries(t, "1.cls", "1", "2.txt", "2", "2.cls", "2")...)
	got, bad, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: data}}), nwt.WithErrorBudget(1))
	require.NoError(t, err)
	require.Equal(t, []int64{2}, got)
	require.Len(t, bad, 1)
	require.EqualError(t, bad[0].Err, "record 0 of shard 0: a.tar: 1: its file txt is sparse: pack it without holes (GNU tar: without --sparse)")
}

func TestNamesAndCountsHaveBoundsAndAnOptionRaisesThem(t *testing.T) {
	long := strings.Repeat("d/", 3000)
	many := []string{}
	for i := range 1200 {
		many = append(many, fmt.Sprintf("1.x%d", i), "")
	}
	many = append(many, "1.txt", "1", "1.cls", "1")
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"a name", entries(t, long+"1.txt", "1", long+"1.cls", "1"), "a name of 6005 bytes: must be at most 4096"},
		{"files", entries(t, many...), "more than 1000 files"},
		{"bytes", entries(t, "1.txt", "1", "1.cls", "1", "1.jpg", strings.Repeat("x", 3<<20)), "3145730 bytes up to its file jpg: must be at most 3145729"},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := append(bytes.Clone(c.data[:len(c.data)-1024]), entries(t, "2.txt", "2", "2.cls", "2")...)
			fsys := fstest.MapFS{"a.tar": {Data: data}}
			s, err := wds.New(fsys, []string{"a.tar"}, fields, load, wds.WithLimits(wds.Limits{Bytes: 3<<20 + 1}))
			require.NoError(t, err)
			got, bad, err := epoch(t, nwt.Streamed(s), nwt.WithErrorBudget(1))
			require.NoError(t, err)
			require.Equal(t, []int64{2}, got)
			require.Len(t, bad, 1)
			require.ErrorContains(t, bad[0].Err, c.want)
			require.Less(t, len(bad[0].Error()), 500)

			s, err = wds.New(fsys, []string{"a.tar"}, fields, load, wds.WithLimits(wds.Limits{Name: 7000, Files: 2000}))
			require.NoError(t, err)
			got, _, err = epoch(t, nwt.Streamed(s))
			require.NoError(t, err)
			require.Equal(t, []int64{1, 2}, got)
		})
	}
	for _, bad := range []wds.Limits{{Bytes: -1}, {Name: -1}, {Files: -1}} {
		_, err := wds.New(fstest.MapFS{}, []string{"a.tar"}, fields, load, wds.WithLimits(bad))
		var option *nwt.ArgumentError
		require.ErrorAs(t, err, &option)
		require.Equal(t, "wds.WithLimits", option.Name)
	}
}

func TestAMessageDoesNotGrowWithWhatASampleHas(t *testing.T) {
	files := []string{"1.cls", "1"}
	for i := range 900 {
		files = append(files, fmt.Sprintf("1.%s%d", strings.Repeat("x", 200), i), "")
	}
	_, _, err := epoch(t, dataset(t, fstest.MapFS{"a.tar": {Data: entries(t, files...)}}))
	require.ErrorContains(t, err, "no file txt: it has cls, xxx")
	require.ErrorContains(t, err, "and 891 more")
	require.Less(t, len(err.Error()), 2500)
}

func TestWhatIsSkippedOfAFileIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.tar")
	f, err := os.Create(path)
	require.NoError(t, err)
	w := tar.NewWriter(f)
	const size = 16 << 30 // as a hole, if the file system has them
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "README", Size: size}))
	at, err := f.Seek(0, io.SeekCurrent)
	require.NoError(t, err)
	if err := f.Truncate(at + size); err != nil {
		t.Skip("no room for a file of 16 GiB:", err)
	}
	_, err = f.Seek(size, io.SeekCurrent)
	require.NoError(t, err)
	_, err = f.Write(shard(t, 0, 5))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	counted := &countedFS{FS: os.DirFS(filepath.Dir(path))}
	got, _, err := epoch(t, dataset(t, counted))
	require.NoError(t, err)
	require.Equal(t, upTo(5), got)
	require.Less(t, counted.read.Load(), int64(1<<20))
}

// countedFS counts the bytes that are read.
type countedFS struct {
	fs.FS
	read atomic.Int64
}

func (c *countedFS) Open(name string) (fs.File, error) {
	f, err := c.FS.Open(name)
	if osFile, ok := f.(*os.File); ok {
		return countedFile{osFile, &c.read}, err
	}
	return f, err
}

type countedFile struct {
	*os.File
	read *atomic.Int64
}

func (c countedFile) Read(p []byte) (int, error) {
	n, err := c.File.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func TestALongSkipEndsWithItsContext(t *testing.T) {
	// A member that goes on and on, in a file that can't be sought in.
	var head bytes.Buffer
	require.NoError(t, tar.NewWriter(&head).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "README", Size: 1 << 50}))
	ctx, cancel := context.WithCancel(t.Context())
	s, err := wds.New(endless{head.Bytes(), cancel}, []string{"a.tar"}, fields, load)
	require.NoError(t, err)
	r, err := s.Open(ctx, 0)
	require.NoError(t, err)
	require.ErrorIs(t, r.Next(ctx, &nwt.Record{}), context.Canceled)
	require.NoError(t, r.Close())
}

// A few kilobytes may hold megabytes: reading must not go on until they are used up.
func TestWhatIsUnpackedEndsWithItsContext(t *testing.T) {
	const size = 16 << 20
	var file bytes.Buffer
	packed := gzip.NewWriter(&file)
	archive := tar.NewWriter(packed)
	require.NoError(t, archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "README", Size: size}))
	_, err := archive.Write(make([]byte, size))
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	require.NoError(t, packed.Close())
	require.Less(t, file.Len(), 64<<10)
	s, err := wds.New(fstest.MapFS{"a.tar": {Data: file.Bytes()}}, []string{"a.tar"}, fields, load)
	require.NoError(t, err)
	for name, pass := range map[string]func(ctx context.Context, r nwt.ShardReader) error{
		"Next": func(ctx context.Context, r nwt.ShardReader) error { return r.Next(ctx, &nwt.Record{}) },
		"Skip": func(ctx context.Context, r nwt.ShardReader) error {
			_, err := r.(nwt.Skipper).Skip(ctx, 1)
			return err
		},
	} {
		for _, ends := range []int{0, 1, 100} {
			r, err := s.Open(t.Context(), 0)
			require.NoError(t, err)
			ctx := &looks{Context: context.Background(), ends: ends}
			err = pass(ctx, r)
			require.NoError(t, r.Close())
			if ends == 0 {
				require.ErrorIs(t, err, io.EOF, name)
				require.Greater(t, ctx.n, size/(64<<10), "%s: looks at the context", name)
				continue
			}
			require.ErrorIs(t, err, context.Canceled, name)
			require.LessOrEqual(t, ctx.n, ends+2, "%s: looks at the context", name)
		}
	}
}

// A looks is a context that counts how often it is looked at, and ends after so many
// looks; 0: never.
type looks struct {
	context.Context
	n, ends int
}

func (c *looks) Err() error {
	if c.n++; c.ends > 0 && c.n > c.ends {
		return context.Canceled
	}
	return nil
}

// endless is one file: some bytes, and then zeros without end.
type endless struct {
	head   []byte
	onLate func() // called after 10 MiB
}

func (e endless) Open(string) (fs.File, error) { return &endlessFile{e, 0}, nil }

type endlessFile struct {
	endless
	at int
}

func (f *endlessFile) Stat() (fs.FileInfo, error) { return nil, errors.ErrUnsupported }
func (f *endlessFile) Close() error               { return nil }
func (f *endlessFile) Read(p []byte) (int, error) {
	clear(p)
	if f.at < len(f.head) {
		n := copy(p, f.head[f.at:])
		f.at += n
		return n, nil
	}
	if f.at += len(p); f.at > 10<<20 {
		f.onLate()
	}
	return len(p), nil
}
