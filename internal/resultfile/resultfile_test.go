package resultfile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/host"
)

func testFile(t *testing.T) (c File, warnings *bytes.Buffer) {
	warnings = new(bytes.Buffer)
	path := filepath.Join(t.TempDir(), "new", "dir", "tuning.json")
	return File{Path: path, Log: slog.New(slog.NewTextHandler(warnings, nil))}, warnings
}

func testKey(batchBytes int64) Key {
	return Key{
		Hardware:   Hardware{CPU: "Xeon", Logical: 64, Affinity: 64, GOMAXPROCS: 64, MemoryGiB: 512},
		Device:     "host",
		Fields:     "image uint8[3 224 224], label int64",
		BatchBytes: batchBytes,
		Options:    "4f53cda1",
	}
}

func TestAResultIsFoundAgain(t *testing.T) {
	c, warnings := testFile(t)
	_, ok := c.Lookup(testKey(1000))
	require.False(t, ok)

	c.Store(t.Context(), testKey(1000), json.RawMessage(`{"workers":14}`))
	c.Store(t.Context(), testKey(1000), json.RawMessage(`{"workers":12}`))
	c.Store(t.Context(), testKey(9000), json.RawMessage(`{"workers":3}`))
	entry, ok := c.Lookup(testKey(1000))
	require.True(t, ok)
	require.JSONEq(t, `{"workers":12}`, string(entry.Value))
	require.Equal(t, testKey(1000), entry.Key)
	require.WithinRange(t, entry.Saved, time.Now().Add(-time.Hour), time.Now())
	require.Empty(t, warnings.String())

	file, err := read(c.Path)
	require.NoError(t, err)
	require.Len(t, file.Entries, 2, "the newer result replaces the older one")
}

func TestTheNearestBatchSizeWithinAFactorOfTwoIsFound(t *testing.T) {
	c, _ := testFile(t)
	for _, size := range []int64{1000, 1500, 8000} {
		c.Store(t.Context(), testKey(size), size)
	}
	for size, want := range map[int64]string{
		499: "", 500: "1000", 1100: "1000", 1400: "1500", 3000: "1500", 3001: "", 4000: "8000", 16000: "8000", 16001: "",
		0: "", -1000: "",
	} {
		entry, ok := c.Lookup(testKey(size))
		require.Equal(t, want, string(entry.Value), "%d bytes", size)
		if ok {
			require.Equal(t, want, fmt.Sprint(entry.Key.BatchBytes))
		}
		require.Equal(t, want != "", ok)
	}
}

func TestAnotherSettingIsAnotherResult(t *testing.T) {
	c, _ := testFile(t)
	c.Store(t.Context(), testKey(1000), json.RawMessage("1"))
	for name, change := range map[string]func(*Key){
		"cpu":     func(k *Key) { k.Hardware.CPU = "EPYC" },
		"quota":   func(k *Key) { k.Hardware.Quota = 2.5 },
		"device":  func(k *Key) { k.Device = "cuda:0" },
		"fields":  func(k *Key) { k.Fields = "label int64" },
		"options": func(k *Key) { k.Options = "" },
	} {
		key := testKey(1000)
		change(&key)
		_, ok := c.Lookup(key)
		require.False(t, ok, name)
		c.Store(t.Context(), key, json.RawMessage("2"))
	}
	for range 2 { // each is found, wherever in the file it is
		entry, ok := c.Lookup(testKey(1000))
		require.True(t, ok)
		require.Equal(t, "1", string(entry.Value))
		c.Store(t.Context(), testKey(1000), json.RawMessage("1"))
	}
}

func TestAnUnusableFileIsIgnoredKeptAsideAndReplaced(t *testing.T) {
	for name, tt := range map[string]struct{ content, warning string }{
		"empty":     {"", "unexpected end of JSON input"},
		"truncated": {`{"format":"nwt tuning results","version":1,"entries":[{"key`, "unexpected end of JSON input"},
		"foreign":   {`{"name":"my-model","version":1}`, `not \"nwt tuning results\"`},
		"no object": {`[1,2]`, "cannot unmarshal array"},
		"older":     {`{"format":"nwt tuning results","version":0,"entries":{}}`, "version is 0, not 1"},
		"newer":     {`{"format":"nwt tuning results","version":2,"entries":{}}`, "version is 2, not 1"},
		"bad size":  {`{"format":"nwt tuning results","version":1,"entries":[{"value":1}]}`, "entry 0: 0 batch bytes"},
		"no value":  {`{"format":"nwt tuning results","version":1,"entries":[{"key":{"batch_bytes":1}}]}`, "entry 0: no value"},
		"no list":   {`{"format":"nwt tuning results","version":1,"entries":{}}`, "cannot unmarshal object"},
		"oversized": {strings.Repeat(" ", maxSize+1), "larger than 8.39 MB"},
	} {
		t.Run(name, func(t *testing.T) {
			c, warnings := testFile(t)
			require.NoError(t, os.MkdirAll(filepath.Dir(c.Path), 0o755))
			require.NoError(t, os.WriteFile(c.Path, []byte(tt.content), 0o644))

			_, ok := c.Lookup(testKey(1000))
			require.False(t, ok)
			require.Contains(t, warnings.String(), tt.warning)
			require.Contains(t, warnings.String(), c.Path)

			c.Store(t.Context(), testKey(1000), json.RawMessage("7"))
			entry, ok := c.Lookup(testKey(1000))
			require.True(t, ok)
			require.Equal(t, "7", string(entry.Value))
			kept, err := os.ReadFile(c.Path + ".bak")
			require.NoError(t, err)
			require.Equal(t, tt.content, string(kept))
		})
	}
}

func TestAPlaceThatCannotBeWrittenCostsAWarning(t *testing.T) {
	c, warnings := testFile(t)
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o644))
	paths := []string{
		filepath.Join(blocked, "tuning.json"), // below a file
		t.TempDir(),                           // a directory, which stays one
	}
	if runtime.GOOS != "windows" {
		// Neither a file nor a directory, and not the machine's: if this fails, only the
		// test's own folder suffers.
		dir, err := os.MkdirTemp("", "") // a socket's path must be short
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		socket, err := net.Listen("unix", filepath.Join(dir, "socket"))
		require.NoError(t, err)
		defer socket.Close()
		to := filepath.Join(t.TempDir(), "link")
		require.NoError(t, os.Symlink(filepath.Join(dir, "socket"), to))
		paths = append(paths, to)
	}
	for _, path := range paths {
		warnings.Reset()
		c.Path = path
		c.Store(t.Context(), testKey(1000), json.RawMessage("1"))
		require.Contains(t, warnings.String(), "not kept")
		_, ok := c.Lookup(testKey(1000))
		require.False(t, ok)
		called := false
		require.NoError(t, c.WhileTuning(t.Context(), func() error { called = true; return nil }))
		require.True(t, called)
		left, err := filepath.Glob(path + "*.*")
		require.NoError(t, err)
		require.Subset(t, []string{path, path + ".lock", path + ".tune"}, left)
	}
}

func TestAResultThatIsNoJSONIsNotKept(t *testing.T) {
	c, warnings := testFile(t)
	c.Store(t.Context(), testKey(1000), json.RawMessage(`{"workers":`))
	require.Contains(t, warnings.String(), "not kept")
	require.NoFileExists(t, c.Path)
	c.Store(t.Context(), testKey(0), json.RawMessage("1"))
	require.Contains(t, warnings.String(), "0 batch bytes, want at least 1")
	require.NoFileExists(t, c.Path)
}

func TestTheFileForgetsTheOldest(t *testing.T) {
	var full contents
	for i := range int64(maxEntries) {
		full.Entries = append(full.Entries, Entry{Key: testKey(1 + i), Value: json.RawMessage("1")})
	}
	with := func(key Key, size int) (contents, error) {
		value := json.RawMessage(`"` + strings.Repeat("x", size) + `"`)
		data, err := full.with(Entry{Key: key, Value: value})
		if err != nil {
			return contents{}, err
		}
		return parse(data)
	}

	file, err := with(testKey(1e6), 10)
	require.NoError(t, err)
	require.Len(t, file.Entries, maxEntries)
	require.Equal(t, testKey(2), file.Entries[0].Key)
	require.Equal(t, testKey(1e6), file.Entries[maxEntries-1].Key)
}

func TestAFileMayBeAsLargeAsTheBound(t *testing.T) {
	empty := `{"format":"nwt tuning results","version":1,"entries":[]}`
	for size, usable := range map[int]bool{maxSize: true, maxSize + 1: false} {
		path := filepath.Join(t.TempDir(), "tuning.json")
		require.NoError(t, os.WriteFile(path, []byte(empty+strings.Repeat(" ", size-len(empty))), 0o644))
		_, err := read(path)
		require.Equal(t, usable, err == nil, err)
	}
}

func TestAFileThatCannotBeReplacedLeavesNothingBehind(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a directory")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.Error(t, replaceFile(t.Context(), dir, []byte("{}")))
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestAFileSetAsideEarlierIsKept(t *testing.T) {
	c, _ := testFile(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(c.Path), 0o755))
	require.NoError(t, os.WriteFile(c.Path+".bak", []byte("the user's"), 0o644))
	require.NoError(t, os.WriteFile(c.Path, []byte("weights"), 0o644))
	c.Store(t.Context(), testKey(1000), json.RawMessage("1"))
	for path, want := range map[string]string{c.Path + ".bak": "the user's", c.Path + ".bak1": "weights"} {
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, string(kept))
	}
	_, ok := c.Lookup(testKey(1000))
	require.True(t, ok)
}

// link makes a symbolic link, if the system has them.
func TestAFileThatCannotBeSetAsideStaysAndIsNotSaidToBeKeptElsewhere(t *testing.T) {
	c, warnings := testFile(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(c.Path), 0o755))
	require.NoError(t, os.WriteFile(c.Path, []byte("years of work"), 0o644))
	require.NoError(t, os.WriteFile(c.Path+".bak", nil, 0o644))
	for i := range 100 { // no name is left
		require.NoError(t, os.WriteFile(fmt.Sprint(c.Path, ".bak", i), nil, 0o644))
	}
	c.Store(t.Context(), testKey(1), json.RawMessage("7"))
	data, err := os.ReadFile(c.Path)
	require.NoError(t, err)
	require.Equal(t, "years of work", string(data))
	require.Contains(t, warnings.String(), "can't be moved out of the way")
	require.NotContains(t, warnings.String(), "kept=")
}

func link(t *testing.T, to, path string) {
	t.Helper()
	err := os.Symlink(to, path)
	if _, there := os.Readlink(path); err != nil || there != nil {
		t.Skip("no symbolic links here:", err)
	}
}

func TestALinkToTheFileStaysALink(t *testing.T) {
	c, _ := testFile(t)
	target := filepath.Join(t.TempDir(), "shared.json")
	c.Store(t.Context(), testKey(1000), json.RawMessage("1"))
	require.NoError(t, os.Rename(c.Path, target))
	link(t, target, c.Path)
	c.Store(t.Context(), testKey(9000), json.RawMessage("2"))
	info, err := os.Lstat(c.Path)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink)
	file, err := read(target)
	require.NoError(t, err)
	require.Len(t, file.Entries, 2)
}

func TestALinkToAFileThatIsStillToBeMadeStaysALink(t *testing.T) {
	c, warnings := testFile(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(c.Path), 0o755))
	link(t, "shared.json", c.Path)
	c.Store(t.Context(), testKey(1000), json.RawMessage("1"))
	require.Empty(t, warnings.String())
	require.FileExists(t, filepath.Join(filepath.Dir(c.Path), "shared.json"))
	info, err := os.Lstat(c.Path)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink)
}

func TestWhatWasThereIsNamedWithTheReasonWhyItIsKept(t *testing.T) {
	c, warnings := testFile(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(c.Path), 0o755))
	require.NoError(t, os.WriteFile(c.Path, []byte("weights"), 0o644))
	c.Store(t.Context(), testKey(1000), json.RawMessage("1"))
	require.Contains(t, warnings.String(), "tuning.json.bak")
	require.Contains(t, warnings.String(), "invalid character 'w'")
}

func TestWaitingForAnotherTuningEndsWithTheContext(t *testing.T) {
	c, _ := testFile(t)
	stop := errors.New("stop")
	err := c.WhileTuning(t.Context(), func() error {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(stop)
		return c.WhileTuning(ctx, func() error { return errors.New("two tune at once") })
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, stop)
	require.ErrorContains(t, err, "waiting for another process to tune")
}

func TestTheErrorOfATuningIsHandedOnAndFreesTheLock(t *testing.T) {
	c, _ := testFile(t)
	failed := errors.New("no data")
	for range 2 {
		require.ErrorIs(t, c.WhileTuning(t.Context(), func() error { return failed }), failed)
	}
}

func TestThisHardwareIsTheSameEachTime(t *testing.T) {
	require.Equal(t, ThisHardware(), ThisHardware())
	memory := host.Memory().Total
	if limit := host.Limit().Bytes; limit > 0 {
		memory = min(memory, limit)
	}
	rounded := ThisHardware().MemoryGiB << 30
	require.GreaterOrEqual(t, rounded, memory)
	require.Less(t, rounded-memory, uint64(1<<30))
}

func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"format":"nwt tuning results","version":1,"entries":[{"key":{"batch_bytes":5},"saved":"2021-11-04T00:00:00Z","value":{"workers":14}}]}`))
	f.Add([]byte(`{"format":"nwt tuning results","version":1,"entries":null}`))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parse(data)
		if err != nil {
			require.ErrorIs(t, err, errUnusable)
			return
		}
		for _, e := range file.Entries {
			found, ok := file.nearest(e.Key)
			require.True(t, ok)
			require.Equal(t, e.Key, found.Key)
		}
		again, err := file.with(Entry{Key: testKey(1000), Value: json.RawMessage("1")})
		require.NoError(t, err)
		_, err = parse(again)
		require.NoError(t, err)
	})
}

func TestWhyAResultIsNotKeptIsSaid(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, c *File)
		says    string
	}{
		"the lock is taken": {func(t *testing.T, c *File) {
			unlock, err := files.Lock(t.Context(), c.Path+".lock")
			require.NoError(t, err)
			t.Cleanup(unlock)
		}, "waiting for "},
		"no room for a longer name": {func(_ *testing.T, c *File) {
			c.Path = filepath.Join(filepath.Dir(c.Path), strings.Repeat("x", 245))
		}, "file name too long"},
		"a link to itself": {func(t *testing.T, c *File) { link(t, c.Path, c.Path) }, "too many links"},
	} {
		t.Run(name, func(t *testing.T) {
			if runtime.GOOS == "windows" && name != "the lock is taken" {
				t.Skip("names and links differ there")
			}
			c, warnings := testFile(t)
			require.NoError(t, os.MkdirAll(filepath.Dir(c.Path), 0o755))
			tt.prepare(t, &c)
			ctx := t.Context()
			if name == "the lock is taken" {
				ctx = ended
			}
			c.Store(ctx, testKey(1000), json.RawMessage("1"))
			require.Contains(t, warnings.String(), "not kept")
			require.Contains(t, warnings.String(), tt.says)
			left, err := filepath.Glob(c.Path + "*.tmp")
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestOnlyWhoWaitsForAnotherTuningSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, log := testFile(t)
		tune := func() error { time.Sleep(time.Minute); return nil }
		require.NoError(t, c.WhileTuning(t.Context(), tune))
		require.Empty(t, log.String())
		go func() { _ = c.WhileTuning(t.Context(), tune) }()
		synctest.Wait()
		require.NoError(t, c.WhileTuning(t.Context(), tune))
		require.Equal(t, 1, strings.Count(log.String(), "waiting for another process to tune"))
	})
}

// slowly takes an hour to log anything.
type slowly struct {
	slog.Handler
	logged *int
}

func (slowly) Enabled(context.Context, slog.Level) bool { return true }
func (s slowly) Handle(context.Context, slog.Record) error {
	time.Sleep(time.Hour)
	*s.logged++
	return nil
}

func TestThatAnotherProcessTunesIsSaidBeforeTheAnswerHoweverSlowTheLogIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := testFile(t)
		go func() { _ = c.WhileTuning(t.Context(), func() error { time.Sleep(time.Minute); return nil }) }()
		synctest.Wait()
		logged := 0
		c.Log = slog.New(slowly{slog.DiscardHandler, &logged})
		require.NoError(t, c.WhileTuning(t.Context(), func() error { require.Equal(t, 1, logged); return nil }))
	})
}
