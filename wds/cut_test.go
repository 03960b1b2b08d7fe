package wds_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/wds"
)

// A weak is a file system each of whose files breaks off after some bytes, until it has been
// opened often.
type weak struct {
	fs.FS
	bears  int // bytes
	opened int
	read   int                             // bytes of all files
	open   func(opened int) (fs.FS, error) // not nil: for the n-th opening; may return another file system
}

func (w *weak) Open(name string) (fs.File, error) {
	fsys := w.FS
	if w.opened++; w.open != nil {
		other, err := w.open(w.opened)
		if err != nil {
			return nil, err
		}
		if other != nil {
			fsys = other
		}
	}
	file, err := fsys.Open(name)
	return &weakFile{File: file, of: w, left: w.bears}, err
}

type weakFile struct {
	fs.File
	of   *weak
	left int
}

var errReset = &fs.PathError{Op: "read", Path: "a.tar", Err: syscall.ETIMEDOUT}

func (f *weakFile) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, errReset
	}
	n, err := f.File.Read(p[:min(len(p), f.left)])
	f.left -= n
	f.of.read += n
	return n, err
}

// A weakSeeker is a weakFile that can seek.
type weakSeeker struct{ *weakFile }

func (f weakSeeker) Seek(offset int64, whence int) (int64, error) {
	return f.File.(io.Seeker).Seek(offset, whence)
}

// seekable makes the files of a weak file system seek.
type seekable struct{ *weak }

func (s seekable) Open(name string) (fs.File, error) {
	file, err := s.weak.Open(name)
	if err != nil {
		return nil, err
	}
	return weakSeeker{file.(*weakFile)}, nil
}

func TestAShardWhoseReadingBreaksOffIsReadOnWhereItStood(t *testing.T) {
	plain := shard(t, 0, 1000)
	var packed bytes.Buffer
	z, err := zstd.NewWriter(&packed)
	require.NoError(t, err)
	_, err = z.Write(plain)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	for name, data := range map[string][]byte{"plain": plain, "gzip": compressed(t, plain), "zstd": packed.Bytes()} {
		for _, workers := range []int{0, 2} {
			t.Run(fmt.Sprint(name, workers), func(t *testing.T) {
				files := fstest.MapFS{"a.tar": {Data: data, ModTime: time.Unix(1, 0)}}
				w := &weak{FS: files, bears: max(len(data)/20, 1000)}
				s, err := wds.New(seekable{w}, []string{"a.tar"}, fields, load)
				require.NoError(t, err)
				got, bad, err := epoch(t, nwt.Streamed(s), nwt.WithWorkers(workers), nwt.WithRetry(1, 0))
				require.NoError(t, err)
				require.Empty(t, bad)
				require.Equal(t, upTo(1000), got)
				require.Equal(t, len(data), w.read, "no byte comes twice")
				require.Greater(t, w.opened, 5)

				w.opened, w.bears = 0, len(data)*2/3 // what can't seek is read from its beginning
				w.open = func(opened int) (fs.FS, error) { w.bears += opened * 1000; return nil, nil }
				s, err = wds.New(w, []string{"a.tar"}, fields, load)
				require.NoError(t, err)
				got, _, err = epoch(t, nwt.Streamed(s), nwt.WithWorkers(workers), nwt.WithRetry(3, 0))
				require.NoError(t, err)
				require.Equal(t, upTo(1000), got)
			})
		}
	}
}

// A resume passes over records, and seeks over their files.
func TestARestOfAShardWhoseReadingBreaksOffIsReadOn(t *testing.T) {
	var b bytes.Buffer
	writer := wds.NewWriter(&b)
	for i := range 40 {
		require.NoError(t, writer.Write(fmt.Sprint(i), wds.File{Ext: "txt", Data: fmt.Append(nil, i)}, wds.File{Ext: "cls", Data: fmt.Append(nil, i)},
			wds.File{Ext: "large", Data: make([]byte, 5<<20)}))
	}
	require.NoError(t, writer.Close())
	w := &weak{FS: fstest.MapFS{"a.tar": {Data: b.Bytes()}}, bears: 2 << 20}
	s, err := wds.New(seekable{w}, []string{"a.tar"}, fields, load)
	require.NoError(t, err)
	l, err := nwt.NewLoader(nwt.Streamed(s), nwt.WithBatchSize(1), nwt.WithRetry(2, 0))
	require.NoError(t, err)
	defer l.Close()
	var got []int64
	for batch, err := range l.Resume(t.Context(), nwt.State{Samples: 30, World: 1}) {
		require.NoError(t, err)
		got = append(got, nwt.Values[int64](batch, 0)...)
	}
	require.Equal(t, upTo(40)[30:], got)
	require.Greater(t, w.opened, 10)
}

func TestAShardThatStaysBrokenIsAnErrorAfterAsManyAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := shard(t, 0, 100)
		for workers := range 2 {
			w := &weak{FS: fstest.MapFS{"a.tar": {Data: data}}, bears: 50*2048 + 600}
			w.open = func(opened int) (fs.FS, error) {
				if opened > 1 {
					w.bears = 0
				}
				return nil, nil
			}
			s, err := wds.New(seekable{w}, []string{"a.tar"}, fields, load)
			require.NoError(t, err)
			began := time.Now()
			got, _, err := epoch(t, nwt.Streamed(s), nwt.WithWorkers(workers), nwt.WithBatchSize(10), nwt.WithRetry(3, time.Second))
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
			require.ErrorContains(t, err, "(attempt 4)")
			require.NotContains(t, err.Error(), "(attempt 4) (attempt")
			require.Equal(t, upTo(50), got)
			require.Equal(t, 4, w.opened)
			require.Equal(t, 7*time.Second, time.Since(began))

			w.opened, w.bears = 0, 50*2048+600
			got, _, err = epoch(t, nwt.Streamed(s), nwt.WithWorkers(workers), nwt.WithBatchSize(10), nwt.WithRetry(0, 0))
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
			require.Equal(t, upTo(50), got)
			require.Equal(t, 1, w.opened)
		}
	})
}

func TestAShardThatIsReplacedWhileItsReadingBreaksOffIsAnError(t *testing.T) {
	data := shard(t, 0, 100)
	other := slices.Clone(data)
	for name, then := range map[string]func() (fs.FS, error){
		"another time": func() (fs.FS, error) {
			return fstest.MapFS{"a.tar": {Data: other, ModTime: time.Unix(9, 0)}}, nil
		},
		"another size": func() (fs.FS, error) { return fstest.MapFS{"a.tar": {Data: other[:len(other)-512]}}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := &weak{FS: fstest.MapFS{"a.tar": {Data: data}}, bears: 50*2048 + 600}
			w.open = func(opened int) (fs.FS, error) {
				if opened > 1 {
					return then()
				}
				return nil, nil
			}
			s, err := wds.New(seekable{w}, []string{"a.tar"}, fields, load)
			require.NoError(t, err)
			_, _, err = epoch(t, nwt.Streamed(s), nwt.WithRetry(3, 0))
			require.ErrorContains(t, err, "it was replaced while it was read")
		})
	}
	w := &weak{FS: fstest.MapFS{"a.tar": {Data: data}}, bears: 50*2048 + 600}
	w.open = func(opened int) (fs.FS, error) {
		if opened == 2 {
			return nil, fs.ErrNotExist // as a bucket says if it can't tell
		}
		return nil, nil
	}
	s, err := wds.New(seekable{w}, []string{"a.tar"}, fields, load)
	require.NoError(t, err)
	got, _, err := epoch(t, nwt.Streamed(s), nwt.WithRetry(2, 0))
	require.NoError(t, err)
	require.Equal(t, upTo(100), got)
}

// A copy that was interrupted is as short on the next attempt: waiting for it would only cost time.
func TestAFileThatIsCutIsNoTemporaryErrorUnlikeAReadThatIs(t *testing.T) {
	plain := shard(t, 0, 300)
	var packed bytes.Buffer
	z, err := zstd.NewWriter(&packed)
	require.NoError(t, err)
	_, err = z.Write(plain)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	for name, data := range map[string][]byte{"plain": plain, "gzip": compressed(t, plain), "zstd": packed.Bytes()} {
		for _, at := range []int{5, len(data) / 2, len(data) - 5} {
			t.Run(fmt.Sprint(name, " at ", at), func(t *testing.T) {
				of := func(fsys fs.FS) error {
					s, err := wds.New(fsys, []string{"a.tar"}, fields, load)
					require.NoError(t, err)
					_, _, err = epoch(t, nwt.Streamed(s), nwt.WithWorkers(0))
					require.Error(t, err)
					require.NotContains(t, err.Error(), "can't be opened")
					return err
				}
				dir := t.TempDir()
				require.NoError(t, os.WriteFile(filepath.Join(dir, "a.tar"), data[:at], 0o600))
				temporary, _ := driver.Temporary(of(os.DirFS(dir)))
				require.False(t, temporary, "the file is as short as that")

				whole := fstest.MapFS{"a.tar": {Data: data, ModTime: time.Unix(1, 0)}}
				temporary, _ = driver.Temporary(of(hangingUp{whole, at}))
				require.True(t, temporary, "the rest of the file wasn't read")
			})
		}
	}
}

// hangingUp is a file system whose server hangs up after some bytes of a file, which it says is longer.
type hangingUp struct {
	fs.FS
	after int
}

func (h hangingUp) Open(name string) (fs.File, error) {
	file, err := h.FS.Open(name)
	return &cutFile{File: file, left: h.after}, err
}

type cutFile struct {
	fs.File
	left int
}

func (f *cutFile) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	n, err := f.File.Read(p[:min(len(p), f.left)])
	f.left -= n
	return n, err
}
