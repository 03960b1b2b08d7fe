package samplefile

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"

	"github.com/nwt-go/nwt/internal/files"
)

// A Writer writes the samples of a file.
type Writer struct {
	key    uint64
	index  *bufio.Writer
	data   *bufio.Writer
	next   int   // the next sample …
	end    int64 // … and where it begins
	record []byte
}

// Write adds a sample of size bytes, at least 1, which pack writes. Samples that are passed
// over are left out of the file.
func (w *Writer) Write(index, size int, pack func(dst []byte)) error {
	w.leaveOut(index)
	n := sumBytes + size
	w.record = slices.Grow(w.record[:0], n)[:n]
	pack(w.record[sumBytes:])
	return w.add(Sum(0, w.record[sumBytes:]))
}

// leaveOut leaves the samples before to out of the file.
func (w *Writer) leaveOut(to int) {
	for w.next < to {
		w.record = w.record[:sumBytes]
		_ = w.add(0) // later writes and Flush return the error too
	}
}

// add adds the record, once its checksum is filled in.
func (w *Writer) add(sum uint32) error {
	w.mark()
	binary.LittleEndian.PutUint32(w.record, checksum(w.key, w.next, sum))
	w.next, w.end = w.next+1, w.end+int64(len(w.record))
	_, err := w.data.Write(w.record)
	return err
}

// mark notes in the index where the next sample begins.
func (w *Writer) mark() {
	_, _ = w.index.Write(binary.LittleEndian.AppendUint64(w.index.AvailableBuffer(), uint64(w.end)))
}

// write writes the file under another name and puts it in place. The caller holds its lock.
func write(ctx context.Context, path string, spec Spec, log *slog.Logger, fill func(*Writer) error) error {
	partial := path + ".partial"
	if err := removePartial(ctx, partial); err != nil {
		return err
	}
	f, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	err = writeSynced(f, spec, fill)
	ours := isAt(f, partial)
	err = errors.Join(err, f.Close())
	if !ours {
		return errors.Join(err, fmt.Errorf("%s was removed or replaced while it was written: was %s.lock removed?", partial, path))
	}
	if err == nil {
		err = makeWay(path, log)
	}
	if err == nil {
		err = files.Replace(ctx, partial, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	return nil
}

// writeSynced writes a file to disk.
func writeSynced(f *os.File, spec Spec, fill func(*Writer) error) error {
	// The magic comes first: whatever happens then, the file is known as one of samples.
	if _, err := f.WriteString(magic); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	w := &Writer{
		key:    spec.key(),
		index:  bufio.NewWriter(io.NewOffsetWriter(f, spec.index())),
		data:   bufio.NewWriterSize(io.NewOffsetWriter(f, spec.data()), 1<<20),
		end:    spec.data(),
		record: make([]byte, sumBytes),
	}
	if err := fill(w); err != nil {
		return err
	}
	w.leaveOut(spec.Samples)
	w.mark()
	if err := errors.Join(w.index.Flush(), w.data.Flush()); err != nil {
		return err
	}
	if _, err := f.WriteAt(encodeHeader(spec.Description, w.end), 0); err != nil {
		return err
	}
	return f.Sync()
}

// makeWay sets aside what lies at the path, and may have been put there while the samples were
// loaded. Only a file of samples is replaced.
func makeWay(path string, log *slog.Logger) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode().IsRegular() {
		var f *os.File
		if f, err = files.Open(path); err == nil {
			_, err = readHeader(f, info.Size())
			if err := f.Close(); err != nil {
				return err
			}
			if err == nil || errors.Is(err, errDamaged) || errors.Is(err, errOther) {
				return nil
			}
		}
	}
	kept, err := files.SetAside(path, ".foreign")
	if err == nil {
		log.Warn("nwt: what was there is kept", "path", path, "kept", kept)
	}
	return err
}

// removePartial removes a partial file that a killed process has left, and nothing else.
func removePartial(ctx context.Context, partial string) error {
	f, err := files.Open(partial)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	// An empty file holds nothing that could be lost.
	if _, err := readHeader(f, info.Size()); info.Size() > 0 && errors.Is(err, errForeign) {
		return fmt.Errorf("%s is in the way, and %w: move or remove it", partial, err)
	}
	return files.Remove(ctx, partial)
}
