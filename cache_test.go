package nwt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func testCache(t *testing.T) (c cache, warnings *bytes.Buffer) {
	warnings = new(bytes.Buffer)
	path := filepath.Join(t.TempDir(), "new", "dir", "tuning.json")
	return cache{path: path, log: slog.New(slog.NewTextHandler(warnings, nil))}, warnings
}

func testKey(batchBytes int64) cacheKey {
	return cacheKey{
		Hardware:   cacheHardware{CPU: "Xeon", Logical: 64, Affinity: 64, GOMAXPROCS: 64, MemoryGiB: 512},
		Device:     "host",
		Fields:     "image uint8[3 224 224], label int64",
		BatchBytes: batchBytes,
		Options:    "4f53cda1",
	}
}

func TestAResultIsFoundAgain(t *testing.T) {
	c, warnings := testCache(t)
	_, ok := c.lookup(testKey(1000))
	require.False(t, ok)

	c.store(t.Context(), testKey(1000), json.RawMessage(`{"workers":14}`))
	c.store(t.Context(), testKey(1000), json.RawMessage(`{"workers":12}`))
	c.store(t.Context(), testKey(9000), json.RawMessage(`{"workers":3}`))
	entry, ok := c.lookup(testKey(1000))
	require.True(t, ok)
	require.JSONEq(t, `{"workers":12}`, string(entry.Value))
	require.Equal(t, testKey(1000), entry.Key)
	require.WithinRange(t, entry.Saved, time.Now().Add(-time.Hour), time.Now())
	require.Empty(t, warnings.String())

	file, err := readCache(c.path)
	require.NoError(t, err)
	require.Len(t, file.Entries, 2, "the newer result replaces the older one")
}

func TestTheNearestBatchSizeWithinAFactorOfTwoIsFound(t *testing.T) {
	c, _ := testCache(t)
	for _, size := range []int64{1000, 1500, 8000} {
		c.store(t.Context(), testKey(size), fmt.Appendf(nil, "%d", size))
	}
	for size, want := range map[int64]string{
		499: "", 500: "1000", 1100: "1000", 1400: "1500", 3000: "1500", 3001: "", 4000: "8000", 16000: "8000", 16001: "",
		0: "", -1000: "",
	} {
		entry, ok := c.lookup(testKey(size))
		require.Equal(t, want, string(entry.Value), "%d bytes", size)
		require.Equal(t, want != "", ok)
	}
}

func TestAnotherSettingIsAnotherResult(t *testing.T) {
	c, _ := testCache(t)
	c.store(t.Context(), testKey(1000), json.RawMessage("1"))
	for name, change := range map[string]func(*cacheKey){
		"cpu":     func(k *cacheKey) { k.Hardware.CPU = "EPYC" },
		"quota":   func(k *cacheKey) { k.Hardware.Quota = 2.5 },
		"device":  func(k *cacheKey) { k.Device = "cuda:0" },
		"fields":  func(k *cacheKey) { k.Fields = "label int64" },
		"options": func(k *cacheKey) { k.Options = "" },
	} {
		key := testKey(1000)
		change(&key)
		_, ok := c.lookup(key)
		require.False(t, ok, name)
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
		"oversized": {strings.Repeat(" ", cacheMaxSize+1), "larger than 2.1 MB"},
	} {
		t.Run(name, func(t *testing.T) {
			c, warnings := testCache(t)
			require.NoError(t, os.MkdirAll(filepath.Dir(c.path), 0o755))
			require.NoError(t, os.WriteFile(c.path, []byte(tt.content), 0o644))

			_, ok := c.lookup(testKey(1000))
			require.False(t, ok)
			require.Contains(t, warnings.String(), tt.warning)
			require.Contains(t, warnings.String(), c.path)

			c.store(t.Context(), testKey(1000), json.RawMessage("7"))
			entry, ok := c.lookup(testKey(1000))
			require.True(t, ok)
			require.Equal(t, "7", string(entry.Value))
			kept, err := os.ReadFile(c.path + ".bak")
			require.NoError(t, err)
			require.Equal(t, tt.content, string(kept))
		})
	}
}

func TestAPlaceThatCannotBeWrittenCostsAWarning(t *testing.T) {
	c, warnings := testCache(t)
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o644))
	paths := []string{
		filepath.Join(blocked, "tuning.json"), // below a file
		t.TempDir(),                           // a directory, which stays one
	}
	if runtime.GOOS != "windows" {
		device := filepath.Join(t.TempDir(), "device") // reading one might never end
		require.NoError(t, os.Symlink(os.DevNull, device))
		paths = append(paths, device)
	}
	for _, path := range paths {
		warnings.Reset()
		c.path = path
		c.store(t.Context(), testKey(1000), json.RawMessage("1"))
		require.Contains(t, warnings.String(), "not kept in the cache")
		_, ok := c.lookup(testKey(1000))
		require.False(t, ok)
		called := false
		require.NoError(t, c.whileTuning(t.Context(), func() error { called = true; return nil }))
		require.True(t, called)
		left, err := filepath.Glob(path + "*.*")
		require.NoError(t, err)
		require.Subset(t, []string{path, path + ".lock", path + ".tune"}, left)
	}
}

func TestAResultThatIsNoJSONIsNotKept(t *testing.T) {
	c, warnings := testCache(t)
	c.store(t.Context(), testKey(1000), json.RawMessage(`{"workers":`))
	require.Contains(t, warnings.String(), "not kept in the cache")
	require.NoFileExists(t, c.path)
}

func TestTheCacheForgetsTheOldestAndStaysSmall(t *testing.T) {
	var full cacheFile
	for i := range int64(cacheEntries) {
		full.Entries = append(full.Entries, cacheEntry{Key: testKey(1 + i), Value: json.RawMessage("1")})
	}
	with := func(key cacheKey, size int) (cacheFile, error) {
		value := json.RawMessage(`"` + strings.Repeat("x", size) + `"`)
		data, err := full.with(cacheEntry{Key: key, Value: value})
		if err != nil {
			return cacheFile{}, err
		}
		return parseCache(data)
	}

	file, err := with(testKey(1e6), 10)
	require.NoError(t, err)
	require.Len(t, file.Entries, cacheEntries)
	require.Equal(t, testKey(2), file.Entries[0].Key)
	require.Equal(t, testKey(1e6), file.Entries[cacheEntries-1].Key)

	file, err = with(testKey(1e6), cacheMaxSize-10_000)
	require.NoError(t, err)
	require.Less(t, len(file.Entries), cacheEntries)
	require.Equal(t, testKey(1e6), file.Entries[len(file.Entries)-1].Key)

	_, err = with(testKey(1e6), cacheMaxSize)
	require.ErrorContains(t, err, "larger than a cache may be (2.1 MB)")
}

func TestWaitingForAnotherTuningEndsWithTheContext(t *testing.T) {
	c, _ := testCache(t)
	err := c.whileTuning(t.Context(), func() error {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("stop"))
		return c.whileTuning(ctx, func() error { return errors.New("two tune at once") })
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "waiting for another process to tune")
}

func TestTheErrorOfATuningIsHandedOnAndFreesTheLock(t *testing.T) {
	c, _ := testCache(t)
	failed := errors.New("no data")
	for range 2 {
		require.ErrorIs(t, c.whileTuning(t.Context(), func() error { return failed }), failed)
	}
}

func TestThisHardwareIsTheSameEachTime(t *testing.T) {
	require.Equal(t, thisHardware(), thisHardware())
	require.Positive(t, thisHardware().MemoryGiB)
}

func FuzzCacheFile(f *testing.F) {
	f.Add([]byte(`{"format":"nwt tuning results","version":1,"entries":[{"key":{"batch_bytes":5},"saved":"2021-11-04T00:00:00Z","value":{"workers":14}}]}`))
	f.Add([]byte(`{"format":"nwt tuning results","version":1,"entries":null}`))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parseCache(data)
		if err != nil {
			require.ErrorIs(t, err, errBadCache)
			return
		}
		for _, e := range file.Entries {
			found, ok := file.nearest(e.Key)
			require.True(t, ok)
			require.Equal(t, e.Key, found.Key)
		}
		again, err := file.with(cacheEntry{Key: testKey(1000), Value: json.RawMessage("1")})
		require.NoError(t, err)
		_, err = parseCache(again)
		require.NoError(t, err)
	})
}
