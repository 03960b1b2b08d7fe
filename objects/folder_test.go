package objects_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/gcerrors"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/objects"
)

func TestAFolderIsListedAsAWhole(t *testing.T) {
	dir := t.TempDir()
	want := []string{"a", "b.txt"} // '.' is before '/'
	for i := range 1500 {
		want = append(want, fmt.Sprintf("b/%06d", i))
	}
	want = append(want, "c")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "b"), 0o700))
	for _, key := range want {
		require.NoError(t, os.WriteFile(filepath.Join(dir, key), nil, 0o600))
	}
	bucket, err := fileblob.OpenBucket(dir, nil)
	require.NoError(t, err)
	defer bucket.Close()
	keys, err := objects.List(t.Context(), bucket, "", nil)
	require.NoError(t, err)
	var got []string
	for i := range keys.Len() {
		got = append(got, keys.At(i))
	}
	require.Empty(t, slices.DeleteFunc(slices.Clone(want), func(key string) bool { return slices.Contains(got, key) }), "lost")
	require.Equal(t, want, got)
}

// emptyPages is a driver whose lists never end: each second it has another page, and
// nothing on it.
type emptyPages struct{ driver.Bucket }

func (emptyPages) ListPaged(ctx context.Context, _ *driver.ListOptions) (*driver.ListPage, error) {
	select {
	case <-time.After(time.Second):
		return &driver.ListPage{NextPageToken: []byte("more")}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (emptyPages) ErrorCode(error) gcerrors.ErrorCode { return gcerrors.Unknown }

func (emptyPages) As(any) bool { return false }

func (emptyPages) Close() error { return nil }

func TestAListWithoutAPageInTenMinutesIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := blob.NewBucket(emptyPages{})
		defer bucket.Close()
		began := time.Now()
		_, err := objects.List(t.Context(), bucket, "p/", nil)
		require.EqualError(t, err, `objects: List: prefix "p/", after 0 keys: no page of the list in 10m0s`)
		require.Equal(t, 10*time.Minute, time.Since(began))
	})
}

// failing is a bucket whose reads fail with an error.
type failing struct {
	driver.Bucket
	err error
}

func (f failing) NewRangeReader(context.Context, string, int64, int64, *driver.ReaderOptions) (driver.Reader, error) {
	return nil, f.err
}
func (failing) ErrorCode(error) gcerrors.ErrorCode { return gcerrors.Unknown }
func (failing) ErrorAs(err error, i any) bool      { return false }
func (failing) Close() error                       { return nil }

func TestWhatMayPassOfAnObjectIsWhatTheLoaderRepeats(t *testing.T) {
	of := func(err error) error { return &os.PathError{Op: "read", Path: "photos", Err: err} }
	for err, want := range map[error]bool{
		of(syscall.ESTALE): true, of(syscall.EIO): true, of(syscall.ENOTDIR): false, of(syscall.EISDIR): false,
		io.ErrUnexpectedEOF: true, syscall.ECONNRESET: true, nwt.Retryable(of(syscall.ENOTDIR)): true,
		errors.New("whatever a store says"): true,
	} {
		bucket := blob.NewBucket(failing{err: err})
		var keys objects.Keys
		keys.Add("photo")
		ds, made := objects.New(bucket, &keys, fields, decode)
		require.NoError(t, made)
		_, failed := nwt.LoadSample(t.Context(), ds, 0)
		var named *objects.Error
		require.ErrorAs(t, failed, &named)
		require.Equal(t, want, named.Temporary(), "%v", err)
		require.NoError(t, bucket.Close())
	}
}
