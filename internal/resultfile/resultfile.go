// Package resultfile keeps tuning results in a file that several processes may
// share: its format, its locks and its atomic replacement.
package resultfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/human"
)

// A Key is what a tuning result depends on. A result is found by an equal key, except that BatchBytes may
// differ by up to factor.
type Key struct {
	Hardware   Hardware `json:"hardware"`
	Device     string   `json:"device"`
	Fields     string   `json:"fields"`      // the layout of a sample
	BatchBytes int64    `json:"batch_bytes"` // > 0
	Options    string   `json:"options"`     // a hash of everything else that changes the answer
}

// Hardware is the part of a Key that belongs to the machine.
type Hardware struct {
	CPU        string  `json:"cpu"`
	Logical    int     `json:"logical"`
	Affinity   int     `json:"affinity"`
	GOMAXPROCS int     `json:"gomaxprocs"`
	Quota      float64 `json:"quota"`      // in CPUs; 0: none
	MemoryGiB  uint64  `json:"memory_gib"` // of the machine or container, rounded up, because it varies a little between kernels
}

const (
	format     = "nwt tuning results" // identifies the file as this library's
	version    = 1
	factor     = 2       // how far apart batch sizes may be
	maxEntries = 64      // the newest are kept
	maxSize    = 8 << 20 // most bytes of a file that are read
)

// errUnusable says that the file at the path isn't a file of this version.
var errUnusable = errors.New("no usable file of tuning results")

type contents struct {
	Format  string  `json:"format"`
	Version int     `json:"version"`
	Entries []Entry `json:"entries"` // the oldest comes first
}

// An Entry is a result and the key by which it is found.
type Entry struct {
	Key   Key             `json:"key"`
	Saved time.Time       `json:"saved"`
	Value json.RawMessage `json:"value"`
}

// A File keeps tuning results in a file that several processes may share. If the file can't be read or
// written, File logs a warning, and tuning still works.
//
// Two lock files lie beside it: .lock is held while the file is replaced, which takes milliseconds; .tune
// is held by the process that tunes. They are never removed, since another process may be about to lock
// them. Readers take no lock: the file is only ever replaced as a whole.
type File struct {
	Path string
	Log  *slog.Logger // where warnings are logged
}

// Lookup finds the entry with the nearest batch size. If several are equally near, it takes the newest.
func (f File) Lookup(key Key) (entry Entry, ok bool) {
	file, err := read(f.Path)
	if err != nil {
		f.Log.Warn("nwt: ignoring the file of tuning results", "path", f.Path, "error", err)
		return Entry{}, false
	}
	return file.nearest(key)
}

// read reads the file at path. A missing file counts as empty.
func read(path string) (contents, error) {
	f, err := files.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return contents{}, nil
	}
	if err != nil {
		return contents{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return contents{}, err
	}
	return parse(data)
}

func parse(data []byte) (contents, error) {
	if len(data) > maxSize {
		return contents{}, fmt.Errorf("%w: larger than %s", errUnusable, human.Bytes(maxSize))
	}
	// The head is read first, because the rest may look different in other versions.
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return contents{}, fmt.Errorf("%w: %w", errUnusable, err)
	}
	if head.Format != format {
		return contents{}, fmt.Errorf("%w: format is %.40q, not %q", errUnusable, head.Format, format)
	}
	if head.Version != version {
		return contents{}, fmt.Errorf("%w: version is %d, not %d", errUnusable, head.Version, version)
	}
	var file contents
	if err := json.Unmarshal(data, &file); err != nil {
		return contents{}, fmt.Errorf("%w: %w", errUnusable, err)
	}
	for i, e := range file.Entries {
		if err := e.check(); err != nil {
			return contents{}, fmt.Errorf("%w: entry %d: %w", errUnusable, i, err)
		}
	}
	return file, nil
}

func (e Entry) check() error {
	if e.Key.BatchBytes <= 0 {
		return fmt.Errorf("%d batch bytes, want at least 1", e.Key.BatchBytes)
	}
	if len(e.Value) == 0 {
		return errors.New("no value")
	}
	return nil
}

func (f contents) nearest(key Key) (best Entry, ok bool) {
	least := math.Log2(factor)
	for _, e := range f.Entries {
		alike := e.Key
		alike.BatchBytes = key.BatchBytes
		if apart := math.Abs(math.Log2(float64(e.Key.BatchBytes) / float64(key.BatchBytes))); alike == key && apart <= least {
			best, least, ok = e, apart, true
		}
	}
	return best, ok
}

// Store adds a result, in place of an older result for the same key. It does so even if ctx has ended,
// because finding the result took longer.
func (f File) Store(ctx context.Context, key Key, value any) {
	if err := f.tryStore(ctx, key, value); err != nil {
		f.Log.Warn("nwt: tuning result not kept", "path", f.Path, "error", err)
	}
}

// patience is how long storing may take. Other processes take milliseconds for it, but on a busy machine
// many of them may come first.
const patience = 5 * time.Second

func (f File) tryStore(ctx context.Context, key Key, value any) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return err
	}
	path, err := f.place()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	unlock, err := files.Lock(ctx, path+".lock")
	switch {
	case err == nil:
		defer unlock()
	case ctx.Err() != nil:
		return fmt.Errorf("waiting for %s.lock: %w", path, ctx.Err())
	default:
		// Some network file systems have no locks. Without a lock the file stays intact, but if two
		// results are stored at once, one is lost.
		f.Log.Warn("nwt: writing the file of tuning results without a lock", "error", err)
	}

	file, err := read(path)
	if errors.Is(err, errUnusable) {
		// It may be a file of the user's, if the path is a mistake.
		kept, aside := files.SetAside(path, ".bak")
		if aside != nil {
			return errors.Join(err, aside)
		}
		f.Log.Warn("nwt: starting the file of tuning results anew", "path", path, "kept", kept, "error", err)
		err = nil
	}
	if err != nil {
		return err
	}
	data, err := file.with(Entry{Key: key, Saved: time.Now().UTC(), Value: encoded})
	if err != nil {
		return err
	}
	return replaceFile(ctx, path, data)
}

// place returns the path of the file, which need not exist. It makes the directory if there is none. A
// symbolic link at the path stays a link.
func (f File) place() (string, error) {
	path, err := files.Resolve(f.Path)
	if err != nil {
		return "", err
	}
	return path, os.MkdirAll(filepath.Dir(path), 0o755)
}

// with encodes the file with one more entry. If there are too many entries, it leaves out the oldest.
func (f contents) with(e Entry) ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	entries := slices.DeleteFunc(slices.Clone(f.Entries), func(old Entry) bool { return old.Key == e.Key })
	entries = append(entries, e)
	entries = entries[max(0, len(entries)-maxEntries):]
	return json.Marshal(contents{format, version, entries})
}

// replaceFile writes data to path. A reader finds either the old file or the new one, even after a crash.
// Permissions stay as they are; those of a new file follow the umask.
func replaceFile(ctx context.Context, path string, data []byte) (err error) {
	mode := fs.FileMode(0o666)
	info, statErr := os.Stat(path)
	if statErr == nil {
		mode = info.Mode().Perm()
	}
	temporary := fmt.Sprintf("%s.%d-%x.tmp", path, os.Getpid(), rand.Uint64())
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temporary))
		}
	}()
	_, err = f.Write(data)
	if statErr == nil {
		err = errors.Join(err, f.Chmod(mode)) // the umask may have narrowed it
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return files.Replace(ctx, temporary, path)
}

// WhileTuning calls tune, but never in two processes that share this file at the same time. The first of
// the ranks on one host tunes, and the others find its result when their turn comes. If ctx ends, waiting
// ends with its error and cause. If the file system can't lock, WhileTuning calls tune without waiting.
func (f File) WhileTuning(ctx context.Context, tune func() error) error {
	path, err := f.place()
	if err == nil {
		told := make(chan struct{})
		slow := time.AfterFunc(time.Second, func() {
			defer close(told)
			f.Log.Info("nwt: waiting for another process to tune", "lock", path+".tune")
		})
		var unlock func()
		if unlock, err = files.Lock(ctx, path+".tune"); err == nil {
			defer unlock()
		}
		if !slow.Stop() {
			<-told
		}
	}
	if ended := ctx.Err(); ended != nil {
		if cause := context.Cause(ctx); cause != ended {
			ended = fmt.Errorf("%w: %w", ended, cause)
		}
		return fmt.Errorf("nwt: waiting for another process to tune: %w", ended)
	}
	if err != nil {
		f.Log.Warn("nwt: tuning without waiting for other processes", "path", f.Path, "error", err)
	}
	return tune()
}

// ThisHardware returns the part of a Key that belongs to the machine.
func ThisHardware() Hardware {
	cpus, memory, limit := host.CPUs(), host.Memory().Total, host.Limit().Bytes
	if limit != 0 {
		memory = min(memory, limit)
	}
	return Hardware{
		CPU:        cpus.Model,
		Logical:    cpus.Logical,
		Affinity:   cpus.Affinity,
		GOMAXPROCS: cpus.GOMAXPROCS,
		Quota:      cpus.Quota,
		MemoryGiB:  (memory + 1<<30 - 1) >> 30,
	}
}
