package objects

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// The data kept of an object lies in one file for each segment, named by the object's key and the number
// of the segment. A file has a head with the object's edition, then the checksums of the segment's
// blocks, then the blocks, each at its place; a checksum of 0 means that the block is missing. A block is
// written before its checksum. If the edition changes, the file is used for the new one.
//
// No process owns a file. Processes that write the same block write the same bytes, and a reader trusts
// only what its checksum proves; the checksum also covers the edition. So nothing is locked, a process
// that is killed leaves at most missing blocks, and a file may be cut, damaged or removed at any time.
const (
	blockSize   = 16 << 10
	segmentSize = 8 << 20 // bounds how much is removed at once, and how many files there are
	sumSize     = 4
	headSize    = 28 // the edition and its checksum
	nameSize    = 32
)

// An object is an edition of an object, as it is kept.
type object struct {
	kept *folder
	name string // derived from the key
	size int64
	head [headSize]byte
	seed uint32 // for the checksums
}

func (d *folder) object(key string, e edition) *object {
	sum := sha256.Sum256([]byte(key))
	o := &object{kept: d, name: hex.EncodeToString(sum[:nameSize/2]), size: e.size}
	head := binary.LittleEndian.AppendUint64(o.head[:0], uint64(e.size))
	head = binary.LittleEndian.AppendUint64(head, uint64(e.modified))
	head = binary.LittleEndian.AppendUint64(head, e.tag)
	o.seed = crc32.Checksum(append(head, o.name...), castagnoli)
	_ = binary.LittleEndian.AppendUint32(head, o.seed)
	return o
}

func (o *object) path(segment int64) string {
	return filepath.Join(o.kept.dir, o.name[:2], fmt.Sprintf("%s-%d", o.name, segment))
}

// blocks returns how many blocks a segment has.
func (o *object) blocks(segment int64) int64 {
	return (min(o.size-segment*segmentSize, segmentSize) + blockSize - 1) / blockSize
}

// sum returns the checksum of the block that lies at a place of the object. It depends on the place, so
// that a block in another place, or zeros, don't match.
func (o *object) sum(at int64, block []byte) uint32 {
	var place [8]byte
	binary.LittleEndian.PutUint64(place[:], uint64(at))
	return max(1, crc32.Update(crc32.Update(o.seed, castagnoli, place[:]), castagnoli, block))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A segment is a file that is open for reading.
type segment struct {
	*object
	number int64
	file   *os.File // nil: nothing is kept
	sums   []byte
}

func (o *object) open(number int64) *segment {
	s := &segment{object: o, number: number}
	path := o.path(number)
	file, err := os.Open(path)
	if err != nil {
		return s
	}
	beginning := make([]byte, headSize+sumSize*o.blocks(number))
	if _, err := file.ReadAt(beginning, 0); err != nil || [headSize]byte(beginning) != o.head {
		file.Close()
		return s
	}
	s.file, s.sums = file, beginning[headSize:]
	if info, err := file.Stat(); err == nil && time.Since(info.ModTime()) > time.Minute {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // marks the file as used
	}
	return s
}

func (s *segment) close() {
	if s.file != nil {
		s.file.Close()
	}
}

// has reports whether all data between two places of a segment seems to be kept.
func (o *object) has(at, to int64) bool {
	s := o.open(at / segmentSize)
	s.close()
	return s.file != nil && s.has(at, to) == to-at
}

// has returns how many bytes in a row seem to be kept, from at, where a block begins, up to at most to.
func (s *segment) has(at, to int64) int64 {
	from := at
	for to = min(to, (s.number+1)*segmentSize); at < to && s.file != nil; at += blockSize {
		if binary.LittleEndian.Uint32(s.sums[s.index(at):]) == 0 {
			break
		}
	}
	return min(at, to) - from
}

func (s *segment) index(at int64) int64 { return sumSize * (at % segmentSize / blockSize) }

// read reads blocks into p, beginning at the place at; p ends where a block ends. It returns how many
// bytes their checksums prove.
func (s *segment) read(p []byte, at int64) (n int) {
	got, _ := s.file.ReadAt(p, headSize+int64(len(s.sums))+at%segmentSize)
	for n < len(p) {
		end := min(n+blockSize, len(p))
		i := s.index(at + int64(n))
		if end > got || s.sum(at+int64(n), p[n:end]) != binary.LittleEndian.Uint32(s.sums[i:]) {
			clear(s.sums[i : i+sumSize])
			break
		}
		n = end
	}
	return n
}

// keep keeps whole blocks that lie at a place of the object.
func (o *object) keep(at int64, data []byte) {
	for len(data) > 0 {
		part := data[:min(int64(len(data)), chunkSize-at%chunkSize)]
		if err := o.write(at, part); err == errFull {
			return
		} else if err != nil {
			o.kept.warn.Do(func() { slog.Warn("objects: Cached can't keep what is read", "error", err) })
			return
		}
		data, at = data[len(part):], at+int64(len(part))
	}
}

// write writes blocks of one segment.
func (o *object) write(at int64, data []byte) (err error) {
	if err := o.kept.take(int64(len(data))); err != nil {
		return err
	}
	number := at / segmentSize
	file, err := o.kept.open(o.path(number), os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var head [headSize]byte
	n, _ := file.ReadAt(head[:], 0)
	if n > 0 && head != o.head { // the file has another edition
		if err := file.Truncate(0); err != nil {
			return err
		}
	}
	if head != o.head {
		if _, err := file.WriteAt(o.head[:], 0); err != nil {
			return err
		}
	}
	var sums []byte
	for from := 0; from < len(data); from += blockSize {
		block := data[from:min(from+blockSize, len(data))]
		sums = binary.LittleEndian.AppendUint32(sums, o.sum(at+int64(from), block))
	}
	if _, err := file.WriteAt(data, headSize+sumSize*o.blocks(number)+at%segmentSize); err != nil {
		return err
	}
	_, err = file.WriteAt(sums, headSize+sumSize*(at%segmentSize/blockSize))
	return err
}

// A folder bounds how much is kept, for all processes that use it. The length of its file "taken" counts
// the kept data, in units: processes append to it before they write. A look sets the count to what it
// finds, and so misses what is being written: up to a chunk for each worker.
type folder struct {
	dir   string
	bytes int64
	warn  sync.Once
	looks sync.WaitGroup

	mu      sync.Mutex
	left    int64 // bytes that this process has counted but not written
	looking bool
}

const (
	unit     = 64 << 10
	overhead = 8 << 10 // what a write takes on the disk besides its data: the page with the head, and the last page
)

func openFolder(dir string, bytes int64) (*folder, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	return &folder{dir: dir, bytes: bytes}, err
}

// open opens a file of the folder, and makes the file and its folder if they don't exist.
func (d *folder) open(path string, flags int) (*os.File, error) {
	file, err := os.OpenFile(path, flags|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		file, err = os.OpenFile(path, flags|os.O_CREATE, 0o600)
	}
	return file, err
}

func (d *folder) count() string { return filepath.Join(d.dir, "taken") }

// taken returns the count, in bytes.
func (d *folder) taken() int64 {
	info, err := os.Stat(d.count())
	if err != nil {
		return 0
	}
	return info.Size() * unit
}

// take counts n bytes that will be written, or returns errFull. Beyond seven eighths of the bound it
// starts a look; the last sixteenth is for what looks miss.
func (d *folder) take(n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n += overhead; d.left < n {
		units := (n - d.left + chunkSize) / unit // more than needed, for the next writes
		total, most := d.taken()+units*unit, d.bytes-d.bytes/16
		if total <= most {
			file, err := d.open(d.count(), os.O_WRONLY|os.O_APPEND)
			if err != nil {
				return err
			}
			_, err = file.Write(make([]byte, units))
			if err := errors.Join(err, file.Close()); err != nil {
				return err
			}
			d.left += units * unit
			total = d.taken() // other processes have counted at the same time
		}
		if total > d.bytes-d.bytes/8 {
			d.lookSoon()
		}
		if total > most {
			return errFull
		}
	}
	d.left -= n
	return nil
}

var errFull = errors.New("the cache is full")

// lookSoon starts a look in the background, unless one is under way. The caller holds mu.
func (d *folder) lookSoon() {
	if d.looking {
		return
	}
	d.looking = true
	d.looks.Go(func() {
		d.look()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.looking = false
	})
}

// look counts what is in the folder. If that is more than seven eighths of the bound, it removes the
// files that were used longest ago, down to three quarters.
func (d *folder) look() {
	lock := flock.New(filepath.Join(d.dir, "lock"))
	if locked, err := lock.TryLock(); err == nil && !locked { // an error: there are no locks here
		return // another process is looking
	}
	defer lock.Close()
	before := d.taken()
	total := d.clean()
	// If the count has fallen, another process has looked, which can happen because there are no locks.
	if after := d.taken(); after >= before {
		_ = os.Truncate(d.count(), (total+after-before+unit-1)/unit)
	}
}

// clean removes files for look. It returns how many bytes are left.
func (d *folder) clean() (total int64) {
	type file struct {
		path string
		size int64
		used time.Time
	}
	var all []file
	parts, _ := os.ReadDir(d.dir)
	for _, part := range parts {
		if len(part.Name()) != 2 {
			continue
		}
		entries, _ := os.ReadDir(filepath.Join(d.dir, part.Name()))
		for _, entry := range entries {
			name := entry.Name()
			info, err := entry.Info()
			if err == nil && len(name) > nameSize && name[nameSize] == '-' && name[:2] == part.Name() {
				f := file{filepath.Join(d.dir, part.Name(), name), onDisk(info), info.ModTime()}
				all = append(all, f)
				total += f.size
			}
		}
	}
	if total <= d.bytes-d.bytes/8 {
		return total
	}
	slices.SortFunc(all, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range all {
		if total <= d.bytes-d.bytes/4 {
			break
		}
		if err := os.Remove(f.path); err == nil || errors.Is(err, fs.ErrNotExist) {
			total -= f.size
		}
	}
	return total
}
