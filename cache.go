package nwt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/nwt-go/nwt/internal/host"
)

// cacheKey is what a tuning result depends on. Results are found under an
// equal key, but for BatchBytes: any within cacheFactor will do.
type cacheKey struct {
	Hardware   cacheHardware `json:"hardware"`
	Device     string        `json:"device"`
	Fields     string        `json:"fields"`      // layout of a sample
	BatchBytes int64         `json:"batch_bytes"` // > 0
	Options    string        `json:"options"`     // a digest of all else that changes the answer
}

type cacheHardware struct {
	CPU        string  `json:"cpu"`
	Logical    int     `json:"logical"`
	Affinity   int     `json:"affinity"`
	GOMAXPROCS int     `json:"gomaxprocs"`
	Quota      float64 `json:"quota"`      // CPUs; 0: none
	MemoryGiB  uint64  `json:"memory_gib"` // of machine or container, rounded up: it varies a little between kernels
}

const (
	cacheFormat  = "nwt tuning results" // marks the file as this library's
	cacheVersion = 1
	cacheFactor  = 2       // how far apart batch sizes may be
	cacheEntries = 64      // kept, the newest
	cacheMaxSize = 2 << 20 // bytes of a file
)

// errBadCache: what lies at the path is no cache of this version.
var errBadCache = errors.New("no usable cache")

type cacheFile struct {
	Format  string       `json:"format"`
	Version int          `json:"version"`
	Entries []cacheEntry `json:"entries"` // oldest first
}

type cacheEntry struct {
	Key   cacheKey        `json:"key"`
	Saved time.Time       `json:"saved"`
	Value json.RawMessage `json:"value"`
}

// cache keeps tuning results in a file that several processes may share. A
// file that can't be read or written costs a warning, never the tuning.
//
// Two lock files lie beside it: .lock is held while the file is replaced, for
// milliseconds; .tune by whoever tunes. They are never removed, since another
// process may be about to lock them. Readers take no lock: the file is only
// ever replaced as a whole.
type cache struct {
	path string
	log  *slog.Logger
}

// lookup finds the entry with the nearest batch size, of equals the newest.
func (c cache) lookup(key cacheKey) (entry cacheEntry, ok bool) {
	file, err := readCache(c.path)
	if err != nil {
		c.log.Warn("ignoring the cache of tuning results", "path", c.path, "error", err)
		return cacheEntry{}, false
	}
	return file.nearest(key)
}

// store adds a result, in place of an older one for the same key.
func (c cache) store(ctx context.Context, key cacheKey, value json.RawMessage) {
	if err := c.tryStore(ctx, key, value); err != nil {
		c.log.Warn("tuning result not kept in the cache", "path", c.path, "error", err)
	}
}

func (c cache) tryStore(ctx context.Context, key cacheKey, value json.RawMessage) error {
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	unlock, err := lockFile(ctx, c.path+".lock")
	switch {
	case err == nil:
		defer unlock()
	case ctx.Err() != nil:
		return fmt.Errorf("waiting for %s.lock: %w", c.path, ctx.Err())
	default:
		// Some network file systems have no locks. The file stays whole
		// without, but of two results stored at once one is lost.
		c.log.Warn("writing the cache of tuning results without a lock", "error", err)
	}

	file, err := readCache(c.path)
	if errors.Is(err, errBadCache) {
		// It may be a file of the user's, and the path a slip.
		kept := c.path + ".bak"
		c.log.Warn("starting the cache of tuning results anew", "path", c.path, "kept", kept, "error", err)
		err = os.Rename(c.path, kept)
	}
	if err != nil {
		return err
	}
	data, err := file.with(cacheEntry{Key: key, Saved: time.Now().UTC(), Value: value})
	if err != nil {
		return err
	}
	return replaceFile(c.path, data)
}

// whileTuning calls f, but never in two processes at once that share this
// cache: ranks on one host let the first of them tune, and find its result
// when their turn comes. Waiting ends with ctx, and then with its error.
// Where the file system can't lock, f is called at once.
func (c cache) whileTuning(ctx context.Context, f func() error) error {
	err := os.MkdirAll(filepath.Dir(c.path), 0o755)
	if err == nil {
		slow := time.AfterFunc(time.Second, func() {
			c.log.Info("waiting for another process to tune", "lock", c.path+".tune")
		})
		var unlock func()
		if unlock, err = lockFile(ctx, c.path+".tune"); err == nil {
			defer unlock()
		}
		slow.Stop()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("nwt: waiting for another process to tune: %w", ctx.Err())
	}
	if err != nil {
		c.log.Warn("tuning without waiting for other processes", "path", c.path, "error", err)
	}
	return f()
}

func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	lock := flock.New(path, flock.SetPermissions(0o644))
	if _, err := lock.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return func() { lock.Close() }, nil
}

// readCache reads the file at path; one that isn't there is empty.
func readCache(path string) (cacheFile, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return cacheFile{}, nil
	}
	if err != nil {
		return cacheFile{}, err
	}
	if !info.Mode().IsRegular() {
		return cacheFile{}, fmt.Errorf("not a regular file: %v", info.Mode())
	}
	f, err := os.Open(path)
	if err != nil {
		return cacheFile{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, cacheMaxSize+1))
	if err != nil {
		return cacheFile{}, err
	}
	return parseCache(data)
}

func parseCache(data []byte) (cacheFile, error) {
	if len(data) > cacheMaxSize {
		return cacheFile{}, fmt.Errorf("%w: larger than %s", errBadCache, formatBytes(cacheMaxSize))
	}
	// The head first: what follows it may look different in other versions.
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return cacheFile{}, fmt.Errorf("%w: %w", errBadCache, err)
	}
	if head.Format != cacheFormat {
		return cacheFile{}, fmt.Errorf("%w: format is %.40q, not %q", errBadCache, head.Format, cacheFormat)
	}
	if head.Version != cacheVersion {
		return cacheFile{}, fmt.Errorf("%w: version is %d, not %d", errBadCache, head.Version, cacheVersion)
	}
	var file cacheFile
	if err := json.Unmarshal(data, &file); err != nil {
		return cacheFile{}, fmt.Errorf("%w: %w", errBadCache, err)
	}
	for i, e := range file.Entries {
		if err := e.check(); err != nil {
			return cacheFile{}, fmt.Errorf("%w: entry %d: %w", errBadCache, i, err)
		}
	}
	return file, nil
}

func (e cacheEntry) check() error {
	if e.Key.BatchBytes <= 0 {
		return fmt.Errorf("%d batch bytes, want at least 1", e.Key.BatchBytes)
	}
	if len(e.Value) == 0 {
		return errors.New("no value")
	}
	return nil
}

func (f cacheFile) nearest(key cacheKey) (best cacheEntry, ok bool) {
	least := math.Log2(cacheFactor)
	for _, e := range f.Entries {
		size := e.Key.BatchBytes
		e.Key.BatchBytes = key.BatchBytes
		if e.Key != key {
			continue
		}
		e.Key.BatchBytes = size
		if apart := math.Abs(math.Log2(float64(size) / float64(key.BatchBytes))); apart <= least {
			best, least, ok = e, apart, true
		}
	}
	return best, ok
}

// with encodes the file with one more entry, and without the oldest ones where
// there would be too many or too much.
func (f cacheFile) with(e cacheEntry) ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	entries := slices.DeleteFunc(slices.Clone(f.Entries), func(old cacheEntry) bool { return old.Key == e.Key })
	entries = append(entries, e)
	entries = entries[max(0, len(entries)-cacheEntries):]
	for {
		data, err := json.Marshal(cacheFile{cacheFormat, cacheVersion, entries})
		if err != nil {
			return nil, err
		}
		if len(data) <= cacheMaxSize {
			return data, nil
		}
		if len(entries) == 1 {
			return nil, fmt.Errorf("a result of %s is larger than a cache may be (%s)",
				formatBytes(uint64(len(data))), formatBytes(cacheMaxSize))
		}
		entries = entries[(len(entries)+1)/2:]
	}
}

// replaceFile puts data at path such that a reader, or whoever comes after a
// crash, finds either the old file or the new one.
func replaceFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// thisHardware is the part of a cacheKey that belongs to the machine.
func thisHardware() cacheHardware {
	cpus, memory, limit := host.CPUs(), host.Memory().Total, host.Limit().Bytes
	if limit != 0 {
		memory = min(memory, limit)
	}
	return cacheHardware{
		CPU:        cpus.Model,
		Logical:    cpus.Logical,
		Affinity:   cpus.Affinity,
		GOMAXPROCS: cpus.GOMAXPROCS,
		Quota:      cpus.Quota,
		MemoryGiB:  (memory + 1<<30 - 1) >> 30,
	}
}
