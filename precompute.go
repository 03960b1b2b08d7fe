package nwt

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/pages"
)

// Precompute keeps the samples of ds in a file. The first run loads all samples,
// with the workers of a [Loader], and writes them to the file at path. Later runs
// find the file, map it into memory, and load nothing.
//
// The file is used if the number of samples, the fields and version are those that
// it was written for. Put into version what else the samples depend on: a date of
// the data, a number that changes with the code. If the file is of another version,
// damaged or cut short, it is replaced, with a warning in the log. Only a file that
// begins as Precompute's files do is replaced. Any other file is moved out of the
// way, to path.foreign or, if that name is taken, to the first free one of
// path.foreign1, path.foreign2 … If path is a link, it stays one, and the file lies
// where the link leads.
//
// Each sample has a checksum. It is compared each time that the sample is read,
// after the sample was copied: whatever becomes of the file meanwhile, a sample that
// is delivered is right. If the checksum differs, the sample is loaded from ds, and
// the next Precompute writes the file anew.
//
// The samples are those of [LoadSample], of epoch 0 and seed 0: augmentation
// belongs in a [Map] over the result. Only the options that say how to load count:
// workers, batch size, prefetch, worker init, timeout, retries, logger and error
// budget. A bad sample within the budget is left out of the file, and loaded from ds
// whenever it is asked for.
//
// Several processes may call Precompute at the same time: one of them writes, under
// the lock path.lock, and the others wait for it. The file appears under its name
// when it is complete and on disk; until then it is path.partial.
//
// What loads the samples must not call Precompute for the same path: it would wait for its
// caller.
func Precompute(ctx context.Context, ds Dataset, path, version string, opts ...Option) (*Precomputed, error) {
	o, err := newOptions(opts)
	n, l, dsErr := checkIndexed(ds)
	if path == "" {
		err = errors.Join(err, optionError("Precompute", path, "the path must not be empty"))
	}
	if err := errors.Join(err, dsErr); err != nil {
		return nil, err
	}
	head := fileHeader{Version: version, ByteOrder: nativeOrder(), Samples: n, Fields: l.fields}
	description, err := head.describe()
	if err != nil {
		return nil, err
	}
	p := &Precomputed{ds: ds, path: path, n: n, layout: l, log: o.log, description: description, key: descriptionKey(description)}
	p.index = indexOffset(len(description))
	p.data = p.index + 8*(int64(n)+1)
	if p.path, err = files.Resolve(path); err != nil {
		return p.orError(err)
	}
	told := false
	warn := func(err error) {
		if !told && !errors.Is(err, fs.ErrNotExist) {
			told = true
			p.log.Warn("nwt: the precomputed samples can't be used and are made anew", "path", path, "reason", err)
		}
	}
	err = p.open()
	if err == nil || !rewritable(err) {
		return p.orError(err)
	}
	warn(err) // now: to make them anew may take hours
	unlock, err := files.Lock(ctx, p.path+".lock")
	if err != nil {
		return p.orError(fmt.Errorf("its lock: %w", err))
	}
	defer unlock()
	// Another process may have written it while this one waited.
	err = p.open()
	if err == nil || !rewritable(err) {
		return p.orError(err)
	}
	if warn(err); errors.Is(err, errForeign) {
		if err := p.setAside(); err != nil {
			return p.orError(err)
		}
	}
	if err := p.write(ctx, opts); err != nil {
		return p.orError(err)
	}
	return p.orError(p.open())
}

// Precomputed is a dataset whose samples are in a file: see [Precompute].
type Precomputed struct {
	ds     Dataset
	path   string // resolved
	n      int
	layout *layout
	log    *slog.Logger

	description []byte
	key         uint64 // of the description, in every checksum
	index       int64  // where the file's index begins
	data        int64  // where the index ends and the samples begin

	// users is entered by those who use what follows; Close waits until nobody else
	// is in.
	users inUse
	file  *os.File // nil once closed
	mem   []byte   // the file; nil if it can't be mapped
	size  int64

	warned  atomic.Bool
	buffers sync.Pool // of *[]byte, to read into if the file isn't mapped
}

// Len is the number of samples.
func (p *Precomputed) Len() int { return p.n }

// Fields is the layout of a sample.
func (p *Precomputed) Fields() []Field { return p.layout.fields }

func (p *Precomputed) parts() []Dataset { return []Dataset{p.ds} }

// Overwrites tells that Load writes every element, unless ds only embeds p: see
// [Overwrites].
func (p *Precomputed) Overwrites(ds Dataset) bool { return ds == Dataset(p) }

// Load copies a sample from the file. After Close its error is os.ErrClosed.
func (p *Precomputed) Load(ctx context.Context, index int, dst *Sample) error {
	if index < 0 || index >= p.n { // or it would be taken for damage
		return fmt.Errorf("nwt: precomputed samples in %s: index %d is out of range 0 … %d", p.path, index, p.n-1)
	}
	switch err := p.read(index, dst); {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrClosed), errors.Is(err, errTooLarge):
		return err
	case !errors.Is(err, errLeftOut):
		p.distrust(index, err)
	}
	return dst.loadAlone(ctx, p.ds, index)
}

// Close unmaps the file.
func (p *Precomputed) Close() error {
	var err error
	p.users.alone(func() {
		if p.mem != nil {
			err = pages.UnmapFile(p.mem)
		}
		if p.file != nil {
			err = errors.Join(err, p.file.Close())
		}
		p.file, p.mem = nil, nil
	})
	return err
}

// The errors of a file. Writing the file anew mends the first three.
var (
	errForeign  = errors.New("it is not a file of precomputed samples")
	errDamaged  = errors.New("it is damaged")
	errOther    = errors.New("it was made for something else")
	errLeftOut  = errors.New("the sample is not in the file")
	errTooLarge = errors.New("the sample is larger than the dataset tells")
)

// rewritable tells whether there is no file, or one that must be replaced.
func rewritable(err error) bool {
	for _, known := range []error{fs.ErrNotExist, errForeign, errDamaged, errOther} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

func (p *Precomputed) orError(err error) (*Precomputed, error) {
	if err != nil {
		return nil, fmt.Errorf("nwt: precomputed samples in %s: %w", p.path, err)
	}
	return p, nil
}

// open opens and maps the file, if it is what it should be.
func (p *Precomputed) open() (err error) {
	f, err := files.Open(p.path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := checkHeader(f, info.Size(), p.description); err != nil {
		return err
	}
	if p.data > info.Size() {
		return fmt.Errorf("%w: its index ends at byte %d of %d", errDamaged, p.data, info.Size())
	}
	p.file, p.size = f, info.Size()
	if p.mem, err = pages.MapFile(f, p.size); err != nil {
		p.log.Debug("nwt: the precomputed samples are read, not mapped", "path", p.path, "reason", err)
		p.buffers.New = func() any { return new([]byte) }
	}
	return nil
}

// read copies a sample from the file.
func (p *Precomputed) read(index int, dst *Sample) (err error) {
	lock := p.users.enter(dst.worker)
	defer lock.RUnlock()
	if p.file == nil {
		return fmt.Errorf("nwt: precomputed samples in %s: %w", p.path, os.ErrClosed)
	}
	// If the file is cut short while it is mapped, or the disk fails, reading it is a
	// fault, which would end the program.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer faulted(&err)
	var buf *[]byte
	if p.mem == nil {
		buf = p.buffers.Get().(*[]byte)
		defer p.buffers.Put(buf)
	}
	bounds, err := p.bytes(p.index+8*int64(index), 16, buf)
	if err != nil {
		return err
	}
	from, to := binary.LittleEndian.Uint64(bounds), binary.LittleEndian.Uint64(bounds[8:])
	if from < uint64(p.data) || to > uint64(p.size) || from > to || to-from < sumBytes || to-from > uint64(sumBytes+p.layout.packed()) {
		return fmt.Errorf("%w: sample %d is said to be its bytes %d to %d", errDamaged, index, from, to)
	}
	rec, err := p.bytes(int64(from), int(to-from), buf)
	if err != nil {
		return err
	}
	return p.unpackTo(dst, index, rec)
}

// faulted is deferred, and makes an error of a fault.
func faulted(err *error) {
	switch fault := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }:
		*err = fmt.Errorf("its memory can't be read: %v", fault)
	default:
		panic(fault)
	}
}

// unpackTo copies a sample from its bytes in the file, and compares its checksum. The file
// may be cut or rewritten at any moment. So the checksum is computed from what was copied.
func (p *Precomputed) unpackTo(dst *Sample, index int, rec []byte) error {
	want, empty := binary.LittleEndian.Uint32(rec), len(rec) == sumBytes
	got := p.checksum(index, 0)
	if !empty {
		rest, err := dst.unpack(rec[sumBytes:])
		switch {
		case err == errNotPacked || len(rest) > 0:
			return fmt.Errorf("%w: sample %d is no sample of these fields", errDamaged, index)
		case err != nil && p.checksum(index, crc32.Checksum(rec[sumBytes:], castagnoli)) == want:
			return errors.Join(errTooLarge, err)
		case err != nil:
			return fmt.Errorf("%w: %w", errDamaged, err)
		}
		got = p.checksum(index, dst.packedSum())
	}
	switch {
	case got != want:
		return fmt.Errorf("%w: the checksum of sample %d is %08x, not %08x", errDamaged, index, got, want)
	case empty:
		return errLeftOut
	}
	return nil
}

// bytes is n bytes of the file; if the file isn't mapped, they are read into buf.
func (p *Precomputed) bytes(from int64, n int, buf *[]byte) ([]byte, error) {
	if p.mem != nil {
		return p.mem[from : from+int64(n)], nil
	}
	*buf = slices.Grow((*buf)[:0], n)[:n]
	_, err := p.file.ReadAt(*buf, from)
	return *buf, err
}

// distrust logs, the first time, that a sample can't be used. It removes a damaged file, so
// that the next Precompute writes it anew, unless somebody has replaced the file or put
// something else into it.
func (p *Precomputed) distrust(index int, err error) {
	if p.warned.Swap(true) {
		return
	}
	if errors.Is(err, errDamaged) {
		p.removeDamaged()
	}
	p.log.Warn("nwt: a precomputed sample can't be used; it is loaded anew, as others like it will be without a warning",
		"path", p.path, "index", index, "reason", err)
}

// removeDamaged removes the file if it is the one that is open and still a file of
// Precompute. It holds the lock, or another process could put a good file there between the
// check and the removal. (A program that puts a file there without the lock still could.)
// If somebody else has the lock, or the file can't be removed, it stays: the next run finds
// the damage as this one did.
func (p *Precomputed) removeDamaged() {
	lock := p.users.enter(0)
	defer lock.RUnlock()
	if p.file == nil {
		return
	}
	ours, err := p.file.Stat()
	if err != nil {
		return
	}
	if _, err := readHeader(p.file, ours.Size()); errors.Is(err, errForeign) {
		return
	}
	unlock, locked := files.TryLock(p.path + ".lock")
	if !locked {
		return
	}
	defer unlock()
	if isAt(p.file, p.path) {
		_ = files.Remove(context.Background(), p.path)
	}
}

// write makes the file. The caller holds its lock.
func (p *Precomputed) write(ctx context.Context, opts []Option) (err error) {
	l, err := NewLoader(p.ds, append(slices.Clip(opts), onlyHowToLoad, WithSampler(Sequential(p.n)))...)
	if err != nil {
		return err
	}
	defer l.Close()
	partial := p.path + ".partial"
	if err := p.removePartial(ctx, partial); err != nil {
		return err
	}
	f, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	ours, done := false, false
	defer func() { // even if Load has ended the goroutine
		if !done {
			ours = isAt(f, partial)
			err = errors.Join(err, f.Close())
		}
		if ours {
			err = errors.Join(err, os.Remove(partial))
		}
	}()
	err = p.writeSynced(ctx, f, l)
	ours, done = isAt(f, partial), true
	err = errors.Join(err, f.Close())
	if !ours {
		return errors.Join(err, fmt.Errorf("%s was removed or replaced while it was written: was %s.lock removed?", partial, p.path))
	}
	if err == nil {
		err = p.makeWay()
	}
	if err == nil {
		err = files.Replace(ctx, partial, p.path)
	}
	ours = err != nil // otherwise it has another name now
	return err
}

// writeSynced writes a file to disk.
func (p *Precomputed) writeSynced(ctx context.Context, f *os.File, l *Loader) error {
	// The magic comes first: whatever happens then, the file is known as one of
	// Precompute.
	if _, err := f.WriteString(fileMagic); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := p.writeTo(ctx, f, l); err != nil {
		return err
	}
	return f.Sync()
}

// setAside moves what lies at the path out of the way.
func (p *Precomputed) setAside() error {
	kept, err := files.SetAside(p.path, ".foreign")
	if err == nil {
		p.log.Warn("nwt: what was there is kept", "path", p.path, "kept", kept)
	}
	return err
}

// makeWay sets aside what somebody has put at the path while the samples were loaded,
// which may have taken hours. Only a file of Precompute is replaced.
func (p *Precomputed) makeWay() error {
	info, err := os.Lstat(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.Mode().IsRegular() {
		return p.setAside()
	}
	f, err := files.Open(p.path)
	if err != nil {
		return p.setAside()
	}
	_, err = readHeader(f, info.Size())
	if err := f.Close(); err != nil {
		return err
	}
	if err == nil || errors.Is(err, errDamaged) || errors.Is(err, errOther) {
		return nil
	}
	return p.setAside()
}

// isAt tells whether f is the file at path.
func isAt(f *os.File, path string) bool {
	is, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(is, there)
}

// removePartial removes a partial file that a killed process has left, and nothing
// else.
func (p *Precomputed) removePartial(ctx context.Context, partial string) error {
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

// writeTo loads all samples, and writes them, their index and the header.
func (p *Precomputed) writeTo(ctx context.Context, f *os.File, l *Loader) error {
	index := bufio.NewWriter(io.NewOffsetWriter(f, p.index))
	data := bufio.NewWriterSize(io.NewOffsetWriter(f, p.data), 1<<20)
	next, end := 0, p.data // number of the next sample, and where it begins
	mark := func() { index.Write(binary.LittleEndian.AppendUint64(index.AvailableBuffer(), uint64(end))) }
	// write adds a sample; rec has room for its checksum. Flush returns write errors.
	write := func(rec []byte) {
		mark()
		sum := uint32(0)
		if len(rec) > sumBytes {
			sum = crc32.Checksum(rec[sumBytes:], castagnoli)
		}
		binary.LittleEndian.PutUint32(rec, p.checksum(next, sum))
		data.Write(rec)
		next++
		end += int64(len(rec))
	}
	rec := make([]byte, sumBytes)
	leaveOut := func(to int) {
		for next < to {
			write(rec[:sumBytes])
		}
	}
	for b, err := range l.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		s := Sample{common: &common{layout: l.layout, columns: b.columns, offsets: b.offsets, mem: b.mem, lens: b.lens}}
		for place, i := range b.Indices() {
			leaveOut(i)
			s.place = place
			n := sumBytes + s.packedSize()
			rec = slices.Grow(rec[:0], n)[:n]
			s.pack(rec[sumBytes:])
			write(rec)
		}
		if _, err := data.Write(nil); err != nil {
			return err // the disk is full: the rest would be loaded in vain
		}
	}
	leaveOut(p.n)
	mark()
	if err := errors.Join(index.Flush(), data.Flush()); err != nil {
		return err
	}
	_, err := f.WriteAt(encodeHeader(p.description, end), 0)
	return err
}

// onlyHowToLoad undoes what the options say about order, delivery and tuning.
func onlyHowToLoad(o *options) error {
	plain, err := newOptions(nil)
	if err != nil {
		return err
	}
	plain.batchSize, plain.workers, plain.prefetch = o.batchSize, o.workers, o.prefetch
	plain.init, plain.log, plain.maxBad = o.init, o.log, o.maxBad
	plain.timeout, plain.retries, plain.backoff = o.timeout, o.retries, o.backoff
	*o = *plain
	return nil
}
