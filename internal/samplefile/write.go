package samplefile

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/human"
)

// A Writer writes the samples of a file that an interrupted call hasn't written yet.
type Writer struct {
	Done int // samples that are in the file

	spec    Spec
	key     uint64
	f       *os.File
	partial string // the path of the partial file
	held    *files.Held

	missing []int // the samples before next that are missing
	next    int   // the sample after the last one that is in the file
	turn    int   // how many of the missing samples have had their turn
	end     int64 // end of the samples written so far
	flushed time.Time

	// These aren't written yet: samples, and the index of the samples that begin at first.
	data, index []byte
	first       int
}

// Len returns how many samples were missing.
func (w *Writer) Len() int { return len(w.missing) + w.spec.Samples - w.next }

// At returns the i-th missing sample. (A Writer is the sampler for the loader that loads them.)
func (w *Writer) At(_, i int) int {
	if i < len(w.missing) {
		return w.missing[i]
	}
	return w.next + i - len(w.missing)
}

// These bound how much is lost if the process is killed.
const (
	flushBytes = 1 << 20
	flushEvery = time.Second
)

// Write adds a sample of size bytes, at least 1, which pack writes. Samples that are skipped are left out
// of the file.
func (w *Writer) Write(sample, size int, pack func(dst []byte)) error {
	if err := w.leaveOut(sample); err != nil {
		return err
	}
	w.Done++
	return w.add(size, pack)
}

// leaveOut leaves out the samples whose turn comes before the sample before.
func (w *Writer) leaveOut(before int) error {
	for w.At(0, w.turn) != before {
		if err := w.add(0, func([]byte) {}); err != nil {
			return err
		}
	}
	return nil
}

// add adds the sample whose turn it is.
func (w *Writer) add(size int, pack func(dst []byte)) error {
	sample := w.At(0, w.turn)
	w.turn++
	if sample != w.first+len(w.index)/entryBytes {
		if err := w.flush(); err != nil {
			return err
		}
		w.first = sample
	}
	from := len(w.data)
	w.data = append(w.data, make([]byte, sumBytes+size)...)
	record := w.data[from:]
	pack(record[sumBytes:])
	binary.LittleEndian.PutUint32(record, checksum(w.key, sample, Sum(0, record[sumBytes:])))
	w.index = binary.LittleEndian.AppendUint64(w.index, uint64(w.end)+uint64(from))
	w.index = binary.LittleEndian.AppendUint64(w.index, uint64(w.end)+uint64(len(w.data)))
	if len(w.data) < flushBytes && time.Since(w.flushed) < flushEvery {
		return nil
	}
	return w.flush()
}

// flush writes the samples and then their index, so that the index never lists a sample that isn't there,
// even if the process is killed.
func (w *Writer) flush() error {
	data, index := w.data, w.index
	w.data, w.index, w.flushed = data[:0], index[:0], time.Now() // an error is final
	if len(index) == 0 {
		return nil
	}
	if err := w.lost(); err != nil {
		return err
	}
	if _, err := w.f.WriteAt(data, w.end); err != nil {
		return err
	}
	w.end += int64(len(data))
	at := w.spec.index() + entryBytes*int64(w.first)
	w.first += len(index) / entryBytes
	_, err := w.f.WriteAt(index, at)
	return err
}

// lost returns an error if another process may now be writing the file.
func (w *Writer) lost() error {
	if w.held.Still() && files.IsAt(w.f, w.partial) {
		return nil
	}
	return fmt.Errorf("%s or its lock was removed or replaced while it was written", w.partial)
}

// write writes the file under another name and then renames it. The caller holds its lock.
func write(ctx context.Context, path string, spec Spec, held *files.Held, log *slog.Logger, fill func(*Writer) error) error {
	w := &Writer{spec: spec, key: spec.key(), partial: path + ".partial", held: held, end: spec.data(), flushed: time.Now()}
	if err := w.open(ctx, log); err != nil {
		return err
	}
	err := fill(w)
	if err == nil {
		err = w.finish()
	}
	err = errors.Join(err, w.flush())
	lost := w.lost()
	if err = errors.Join(cmp.Or(err, lost), w.f.Close()); err == nil {
		err = makeWay(path, spec, log)
	}
	if err == nil {
		err = files.Replace(ctx, w.partial, path)
	}
	switch {
	case err == nil || lost != nil:
		return err
	case w.Done == 0:
		return errors.Join(err, os.Remove(w.partial))
	}
	return fmt.Errorf("%w (what was done is kept in %s: the next call loads the rest)", err, w.partial)
}

// finish leaves out the samples that were never written, and makes sure that the file is on the disk.
func (w *Writer) finish() error {
	if err := errors.Join(w.leaveOut(w.spec.Samples), w.flush()); err != nil {
		return err
	}
	if _, err := w.f.WriteAt(encodeHeader(w.spec.Description, w.end), 0); err != nil {
		return err
	}
	return w.f.Sync()
}

// open opens the partial file, and finds the samples that an interrupted call has left in it.
func (w *Writer) open(ctx context.Context, log *slog.Logger) error {
	left, err := w.leftover(ctx, log)
	if err != nil {
		return err
	}
	need := float64(w.spec.data()) + float64(w.spec.Samples)*float64(sumBytes+w.spec.Shortest)
	if left != nil {
		log.Info("nwt: precomputing goes on with what an interrupted call has left: if loading has changed since, remove it", "path", w.partial)
		need -= float64(left.size)
		if err := errors.Join(w.find(ctx, left), left.Close()); err != nil {
			return err
		}
	}
	if free, known := host.DiskLeft(filepath.Dir(w.partial)); known && need > float64(free) {
		return fmt.Errorf("the disk has %s left, and at least %s are needed", human.Bytes(free), human.Bytes(uint64(min(need, 1<<63))))
	}
	flag := os.O_RDWR
	if left == nil {
		flag |= os.O_CREATE | os.O_EXCL
	}
	if w.f, err = os.OpenFile(w.partial, flag, 0o666); err != nil || left != nil {
		return err
	}
	// Whatever happens after that, the file is known to hold these samples.
	if _, err = w.f.Write(encodeHeader(w.spec.Description, w.spec.data())); err == nil {
		err = errors.Join(w.f.Truncate(w.spec.data()), w.f.Sync())
	}
	if err != nil {
		_ = w.f.Close()
	}
	return err
}

// leftover opens the file that an interrupted call has left, if it holds these samples. It removes a file
// of other samples, but no other kind of file.
func (w *Writer) leftover(ctx context.Context, log *slog.Logger) (*File, error) {
	f, err := files.Open(w.partial)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	size, why := info.Size(), w.spec.check(f, w.spec.data())
	if size >= w.spec.data() && (why == nil || w.spec.check(f, size) == nil) { // half or completely written
		return newFile(f, size, w.partial, w.spec, log), nil
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	if errors.Is(why, errForeign) {
		return nil, fmt.Errorf("%s is in the way: %w", w.partial, why)
	}
	log.Warn("nwt: the partial file of an interrupted call can't be used and is made anew", "path", w.partial, "reason", why)
	return nil, files.Remove(ctx, w.partial)
}

// find finds the samples that are complete in the file.
func (w *Writer) find(ctx context.Context, left *File) error {
	for i := range w.spec.Samples {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Since(w.flushed) > flushEvery {
			w.flushed = time.Now()
			w.held.Still() // reading may take long
		}
		if whole, _, _ := left.read(0, i, func(b []byte) (uint32, error) { return Sum(0, b), nil }); whole {
			for ; w.next < i; w.next++ {
				w.missing = append(w.missing, w.next)
			}
			w.next, w.Done = i+1, w.Done+1
		}
	}
	w.end = left.size
	return nil
}

// makeWay makes sure that nothing but a file of samples is replaced, also if something was put at the path while
// the samples were loaded.
func makeWay(path string, spec Spec, log *slog.Logger) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f, err := open(path, spec, log)
	if err == nil {
		return f.Close()
	}
	if errors.Is(err, errDamaged) || errors.Is(err, errOther) {
		return nil
	}
	return fmt.Errorf("%s is in the way: %w", path, err)
}
