package blob

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

	"github.com/nwt-go/nwt/internal/files"
)

// What is kept of an object lies in files of its own for each segment, named by key,
// edition and number of the segment: an object that changes gets other files. A file has
// the checksums of the segment's blocks, then the blocks, each at its place; a checksum of 0
// stands for a block that is missing. A block is written before its checksum.
//
// Nobody owns a file. Processes that write the same block write the same bytes, and a
// reader believes only what its checksum proves. So nothing is locked, whoever is killed
// leaves nothing behind but missing blocks, and a file may be cut, damaged or removed at
// any time.
const (
	blockSize   = 16 << 10
	segmentSize = 8 << 20 // bounds how much goes at once, and how many files there are
	sumSize     = 4
)

// An object is an edition of one, as it is kept.
type object struct {
	kept *folder
	name string
	size int64
}

func nameOf(key string, e edition) string {
	b := binary.LittleEndian.AppendUint64(nil, uint64(e.size))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.modified))
	b = binary.LittleEndian.AppendUint64(b, e.tag)
	sum := sha256.Sum256(append(b, key...))
	return hex.EncodeToString(sum[:nameSize/2])
}

const nameSize = 32

func (o *object) path(segment int64) string {
	return filepath.Join(o.kept.dir, o.name[:2], fmt.Sprintf("%s-%d", o.name, segment))
}

// blocks is how many blocks a segment has.
func (o *object) blocks(segment int64) int64 {
	return (min(o.size-segment*segmentSize, segmentSize) + blockSize - 1) / blockSize
}

// sum is the checksum of the block that lies at a place of the object. It is of that place
// alone, so that a block in the place of another, or zeros, are no block.
func (o *object) sum(at int64, block []byte) uint32 {
	seed := binary.LittleEndian.AppendUint64([]byte(o.name), uint64(at))
	return max(1, crc32.Update(crc32.Checksum(seed, castagnoli), castagnoli, block))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A segment is open to be read.
type segment struct {
	*object
	number int64
	file   *os.File // nil: nothing is kept
	sums   []byte
}

func (o *object) open(number int64) *segment {
	s := &segment{object: o, number: number}
	path := o.path(number)
	file, err := files.Open(path)
	if err != nil {
		return s
	}
	sums := make([]byte, sumSize*o.blocks(number))
	if _, err := file.ReadAt(sums, 0); err != nil {
		file.Close()
		return s
	}
	s.file, s.sums = file, sums
	if info, err := file.Stat(); err == nil && time.Since(info.ModTime()) > time.Minute {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // is used
	}
	return s
}

func (s *segment) close() {
	if s.file != nil {
		s.file.Close()
	}
}

// has tells how many bytes in a row seem to be kept from the place at on, which is a
// block's, up to the place to.
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

// read reads blocks from the place at on into p, which ends where a block does. It
// returns how many bytes are proved.
func (s *segment) read(p []byte, at int64) (n int) {
	got, _ := s.file.ReadAt(p, int64(len(s.sums))+at%segmentSize)
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

// keep keeps blocks that lie at a place of the object, each whole.
func (o *object) keep(at int64, data []byte) {
	for len(data) > 0 {
		number := at / segmentSize
		part := data[:min(int64(len(data)), (number+1)*segmentSize-at)]
		if err := o.write(number, at, part); err != nil {
			o.kept.warn.Do(func() { slog.Warn("nwt: blob.Cached can't keep what is read", "error", err) })
			return
		}
		o.kept.wrote(int64(len(part)))
		data, at = data[len(part):], at+int64(len(part))
	}
}

func (o *object) write(number, at int64, data []byte) error {
	path := o.path(number)
	const flags = os.O_RDWR | os.O_CREATE
	file, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		file, err = os.OpenFile(path, flags, 0o600)
	}
	if err != nil {
		return err
	}
	var sums []byte
	for from := 0; from < len(data); from += blockSize {
		block := data[from:min(from+blockSize, len(data))]
		sums = binary.LittleEndian.AppendUint32(sums, o.sum(at+int64(from), block))
	}
	if _, err = file.WriteAt(data, sumSize*o.blocks(number)+at%segmentSize); err == nil {
		_, err = file.WriteAt(sums, sumSize*(at%segmentSize/blockSize))
	}
	return errors.Join(err, file.Close())
}

// A folder bounds what is kept.
type folder struct {
	dir   string
	bytes int64
	warn  sync.Once
	looks sync.WaitGroup

	mu      sync.Mutex
	written int64 // since the last look
	next    int64 // how much may be written before the next look
	looking bool
}

func openFolder(dir string, bytes int64) (*folder, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, err
	}
	d := &folder{dir: dir, bytes: bytes}
	d.wrote(0)
	return d, nil
}

// wrote counts what was written, and looks after the folder now and then.
func (d *folder) wrote(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.written += n
	if d.looking || d.written < d.next {
		return
	}
	d.looking, d.written = true, 0
	d.looks.Go(func() {
		room := d.look()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.looking, d.next = false, max(d.bytes/64, room/8)
	})
}

// look removes files that were used longest ago if there are more than seven eighths of
// what may be. It returns how much room there is up to that. The last eighth is for what
// processes write between their looks.
func (d *folder) look() (room int64) {
	unlock, ok := files.TryLock(filepath.Join(d.dir, "lock"))
	if !ok {
		return 0 // another process is looking
	}
	defer unlock()
	type file struct {
		path string
		size int64
		used time.Time
	}
	var all []file
	room = d.bytes - d.bytes/8
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
				room -= f.size
			}
		}
	}
	if room >= 0 {
		return room
	}
	slices.SortFunc(all, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range all {
		if room >= 0 {
			break
		}
		if os.Remove(f.path) == nil {
			room += f.size
		}
	}
	return max(room, 0)
}
