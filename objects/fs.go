package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/nwt-go/nwt"
)

// fileStall is how long a request for a file may bring nothing.
const fileStall = 20 * time.Second

// FS returns the objects of bucket as files, for package wds of nwt and for functions that take an [fs.FS].
// The part of a key before a "/" is the name of a folder.
//
// A *blob.Bucket is itself an fs.FS, but it reports any failed look-up as a missing file. FS passes on the
// store's own error. If the error is [fs.ErrNotExist], the store has no such object. If it is
// [fs.ErrPermission], the store refuses access. All other errors are temporary unless they are known to be
// permanent: see nwt.WithRetry. A request that brings no data for 20 s is a temporary error.
//
// Opening a file takes one request. Reading a folder takes one request for each 1000 objects in it. Closing
// the file ends the request. FS(nil) is nil.
func FS(bucket *blob.Bucket) fs.FS {
	if bucket == nil {
		return nil
	}
	return fileSystem{bucket}
}

type fileSystem struct{ bucket *blob.Bucket }

func (f fileSystem) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	if name == "." {
		return &storeFolder{fileInfo: fileInfo{name: ".", folder: true}, fsys: f, path: name}, nil
	}
	file := &storeFile{fileInfo: fileInfo{name: path.Base(name)}, path: name}
	file.ctx, file.end = context.WithCancelCause(context.Background())
	err := file.ask("open", func() (err error) {
		file.reader, err = f.bucket.NewReader(file.ctx, name, nil)
		return err
	})
	if err == nil {
		file.size, file.modified = file.reader.Size(), file.reader.ModTime()
		return file, nil
	}
	file.end(nil)
	if errors.Is(err, fs.ErrNotExist) {
		switch entries, failed := f.ReadDir(name); {
		case failed == nil:
			return &storeFolder{fileInfo: fileInfo{name: path.Base(name), folder: true}, fsys: f, path: name, entries: entries, listed: true}, nil
		case !errors.Is(failed, fs.ErrNotExist):
			return nil, failed
		}
	}
	return nil, err
}

// ReadDir returns what is in a folder, in order. After temporary errors it asks again, as [List] does.
func (f fileSystem) ReadDir(name string) (entries []fs.DirEntry, err error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	prefix := ""
	if name != "." {
		prefix = name + "/"
	}
	exists := name == "."
	err = eachPage(context.Background(), f.bucket, blob.ListOptions{Prefix: prefix, Delimiter: "/"}, func(page []*blob.ListObject) error {
		exists = exists || len(page) > 0
		for _, o := range page {
			base, ok := strings.CutPrefix(o.Key, prefix)
			if o.IsDir {
				base = strings.TrimSuffix(base, "/")
			}
			if ok && base != "." && fs.ValidPath(base) { // another key has no name as a file; one that ends in / marks a folder
				entries = append(entries, fs.FileInfoToDirEntry(fileInfo{base, o.Size, o.ModTime, o.IsDir}))
			}
		}
		return nil
	})
	if err == nil && !exists {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// pathError returns the error of a store such that callers know what it means.
func pathError(op, name string, err error) error {
	may := temporary(err)
	switch gcerrors.Code(err) {
	case gcerrors.NotFound:
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case gcerrors.PermissionDenied:
		err = fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	if may {
		err = nwt.Retryable(err)
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// fileInfo describes a file or a folder.
type fileInfo struct {
	name     string
	size     int64
	modified time.Time
	folder   bool
}

func (i fileInfo) Stat() (fs.FileInfo, error) { return i, nil }
func (i fileInfo) Name() string               { return i.name }
func (i fileInfo) Size() int64                { return i.size }
func (i fileInfo) ModTime() time.Time         { return time.Unix(i.modified.Unix(), 0) } // lists and answers round differently
func (i fileInfo) IsDir() bool                { return i.folder }
func (i fileInfo) Sys() any                   { return nil }
func (i fileInfo) Mode() fs.FileMode {
	if i.folder {
		return fs.ModeDir | 0o555
	}
	return 0o444
}

// A storeFile reads an object.
type storeFile struct {
	fileInfo
	path   string
	ctx    context.Context // of its requests
	end    context.CancelCauseFunc
	reader *blob.Reader
}

// ask gives a request up if it stalls.
func (f *storeFile) ask(op string, request func() error) error {
	stalled := time.AfterFunc(fileStall, func() { f.end(errStalled) })
	err := request()
	stalled.Stop()
	if err == nil || err == io.EOF {
		return err
	}
	if context.Cause(f.ctx) == errStalled {
		err = fmt.Errorf("nothing came for %v: the request %w", fileStall, errStalled)
	}
	return pathError(op, f.path, err)
}

func (f *storeFile) Read(p []byte) (n int, err error) {
	err = f.ask("read", func() (err error) {
		n, err = f.reader.Read(p)
		return err
	})
	return n, err
}

// Seek makes the next Read begin elsewhere, with another request.
func (f *storeFile) Seek(offset int64, whence int) (int64, error) {
	return f.reader.Seek(offset, whence)
}

func (f *storeFile) Close() error {
	f.end(nil)
	return f.reader.Close()
}

// A storeFolder yields the entries of a folder.
type storeFolder struct {
	fileInfo
	fsys    fileSystem
	path    string
	entries []fs.DirEntry // those still to come
	listed  bool
}

func (f *storeFolder) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: f.path, Err: errors.New("is a folder")}
}

func (f *storeFolder) Close() error { return nil }

func (f *storeFolder) ReadDir(n int) (entries []fs.DirEntry, err error) {
	if !f.listed {
		if f.entries, err = f.fsys.ReadDir(f.path); err != nil {
			return nil, err
		}
		f.listed = true
	}
	if n <= 0 {
		n = len(f.entries)
	} else if len(f.entries) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(f.entries))
	entries, f.entries = f.entries[:n:n], f.entries[n:]
	return entries, nil
}
