// Package samplefile keeps samples in a file with checksums; it treats samples as bytes. Such a file is
// written once, read by many goroutines, and replaced if it is damaged or holds other samples than those
// asked for. Any other file at its path is an error, and is never overwritten.
package samplefile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/osmemory"
	"github.com/nwt-go/nwt/internal/permute"
)

// A File is an open file of samples.
type File struct {
	path string // resolved
	spec Spec
	key  uint64 // derived from the description; part of every checksum
	log  *slog.Logger

	// Whoever uses the fields below enters users; Close waits until nobody else is in.
	users osmemory.Users
	file  *os.File // nil once closed
	mem   []byte   // the mapped file; nil if it can't be mapped
	size  int64

	warned  atomic.Bool
	buffers sync.Pool // of *[]byte, for reading a file that isn't mapped
}

// Open opens the file at path. If it is missing or can't be used, Open first lets it be written, under
// the lock path.lock: fill must call Write for the samples of the Writer, in order. If that fails, or the
// process is killed, the samples written so far stay in path.partial for the next Open. If another
// process has the lock, Open waits until it has written the file, or ctx ends.
func Open(ctx context.Context, path string, spec Spec, log *slog.Logger, fill func(*Writer) error) (*File, error) {
	path, err := files.Resolve(path)
	if err != nil {
		return nil, err
	}
	warned := false
	tell := func(why error) {
		if !warned && !errors.Is(why, fs.ErrNotExist) {
			warned = true
			log.Warn("nwt: the precomputed samples can't be used and are made anew", "path", path, "reason", why)
		}
	}
	f, err := open(path, spec, log)
	if !rewritable(err) {
		return f, err
	}
	tell(err) // logged now, because making the samples again may take hours
	told := make(chan struct{})
	slow := time.AfterFunc(10*time.Second, func() {
		defer close(told)
		log.Info("nwt: waiting for another process to precompute the samples", "path", path)
	})
	held, err := files.Hold(ctx, path+".lock")
	if !slow.Stop() {
		<-told
	}
	if err != nil {
		return nil, fmt.Errorf("its lock: %w", err)
	}
	defer held.Release()
	// Another process may have written it while this one waited.
	if f, err = open(path, spec, log); !rewritable(err) {
		return f, err
	}
	tell(err)
	if err := write(ctx, path, spec, held, log, fill); err != nil {
		return nil, err
	}
	return open(path, spec, log)
}

// rewritable reports whether there is no file, or one that must be replaced.
func rewritable(err error) bool {
	for _, known := range []error{fs.ErrNotExist, errDamaged, errOther} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// open opens and maps the file, if it is as it should be.
func open(path string, spec Spec, log *slog.Logger) (*File, error) {
	file, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = spec.check(file, info.Size())
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return newFile(file, info.Size(), path, spec, log), nil
}

// newFile maps an open file if possible.
func newFile(file *os.File, size int64, path string, spec Spec, log *slog.Logger) *File {
	f := &File{path: path, spec: spec, key: spec.key(), log: log, file: file, size: size}
	f.buffers.New = func() any { return new([]byte) }
	var err error
	if f.mem, err = osmemory.MapFile(file, size); err != nil {
		log.Debug("nwt: the precomputed samples are read, not mapped", "path", path, "reason", err)
	}
	return f
}

// Read passes a sample's bytes to take, which copies them and returns the CRC-32C of its copy. The file
// may be cut or rewritten at any moment, so only the copy can be checked. If take fails although the
// bytes are those that were written, Read returns its error. Read returns false if the sample isn't in
// the file or is damaged; the first damaged sample is logged. After Close the error is os.ErrClosed. worker is
// the caller's number: workers with different numbers seldom contend.
func (f *File) Read(worker, index int, take func(sample []byte) (sum uint32, err error)) (ok bool, err error) {
	if index < 0 || index >= f.spec.Samples { // otherwise it would count as damage
		return false, fmt.Errorf("index %d is out of range 0 … %d", index, f.spec.Samples-1)
	}
	ok, damage, err := f.read(worker, index, take)
	if damage != nil && !f.warned.Swap(true) {
		f.log.Warn("nwt: a precomputed sample can't be used; it is loaded anew, as others like it will be without a warning: remove the file, and all are precomputed anew",
			"path", f.path, "index", index, "reason", damage)
	}
	return ok, err
}

func (f *File) read(worker, index int, take func(sample []byte) (sum uint32, err error)) (ok bool, damage, err error) {
	lock := f.users.Enter(worker)
	defer lock.RUnlock()
	if f.file == nil {
		return false, nil, os.ErrClosed
	}
	// If the file is cut short while it is mapped, or the disk fails, reading the memory is a fault,
	// which would otherwise end the program.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer faulted(&damage)
	var buf *[]byte
	if f.mem == nil {
		buf = f.buffers.Get().(*[]byte)
		defer f.buffers.Put(buf)
	}
	bounds, damage := f.bytes(f.spec.index()+entryBytes*int64(index), entryBytes, buf)
	if damage != nil {
		return false, damage, nil
	}
	from, to := binary.LittleEndian.Uint64(bounds), binary.LittleEndian.Uint64(bounds[8:])
	if from < uint64(f.spec.data()) || to > uint64(f.size) || from > to || to-from < sumBytes || to-from > uint64(sumBytes+f.spec.Longest) {
		return false, fmt.Errorf("%w: sample %d is said to be its bytes %d to %d", errDamaged, index, from, to), nil
	}
	record, damage := f.bytes(int64(from), int(to-from), buf)
	if damage != nil {
		return false, damage, nil
	}
	want, sample := binary.LittleEndian.Uint32(record), record[sumBytes:]
	sum := uint32(0)
	if len(sample) > 0 {
		if sum, err = take(sample); err != nil {
			if checksum(f.key, index, Sum(0, sample)) == want {
				return false, nil, err
			}
			return false, fmt.Errorf("%w: sample %d: %w", errDamaged, index, err), nil
		}
	}
	if got := checksum(f.key, index, sum); got != want {
		return false, fmt.Errorf("%w: the checksum of sample %d is %08x, not %08x", errDamaged, index, got, want), nil
	}
	return len(sample) > 0, nil, nil
}

// faulted is deferred, and turns a fault into an error.
func faulted(err *error) {
	switch fault := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }:
		*err = fmt.Errorf("its memory can't be read: %v", fault)
	default:
		panic(fault)
	}
}

// bytes returns n bytes of the file; if the file isn't mapped, they are read into buf.
func (f *File) bytes(from int64, n int, buf *[]byte) ([]byte, error) {
	if f.mem != nil {
		return f.mem[from : from+int64(n)], nil
	}
	*buf = slices.Grow((*buf)[:0], n)[:n]
	_, err := f.file.ReadAt(*buf, from)
	return *buf, err
}

// Compare compares two samples of the file, the first and another, with what load returns now: the file may
// hold samples of another dataset or of older code, and nothing else would show it. If they differ, it
// closes the file and returns an error. If they can't be loaded, or are different each time, it logs that.
func (f *File) Compare(ctx context.Context, load func(index int) ([]byte, error)) error {
	for _, index := range slices.Compact([]int{0, int(permute.Mix64(uint64(f.spec.Samples)) % uint64(f.spec.Samples))}) {
		var kept []byte
		there, err := f.Read(0, index, func(sample []byte) (uint32, error) {
			kept = slices.Clone(sample)
			return Sum(0, kept), nil
		})
		if err != nil || !there {
			continue // it was left out, or is damaged
		}
		now, err := load(index)
		if err == nil && !bytes.Equal(now, kept) {
			again, failed := load(index)
			switch {
			case failed != nil:
				err = failed
			case !bytes.Equal(again, now):
				err = errors.New("it is another one each time it is loaded")
			default:
				return errors.Join(fmt.Errorf("sample %d isn't the one that the dataset loads now: the file is another dataset's, which needs a path of its own, or loading has changed: then give another version, and the file is made anew", index), f.Close())
			}
		}
		switch {
		case ctx.Err() != nil:
			return errors.Join(ctx.Err(), f.Close())
		case err != nil:
			f.log.Warn("nwt: a precomputed sample can't be compared with its dataset; the file is used", "path", f.path, "index", index, "error", err)
		}
	}
	return nil
}

// Close unmaps the file and closes it.
func (f *File) Close() error {
	var err error
	f.users.Alone(func() {
		if f.mem != nil {
			err = osmemory.UnmapFile(f.mem)
		}
		if f.file != nil {
			err = errors.Join(err, f.file.Close())
		}
		f.file, f.mem = nil, nil
	})
	return err
}
