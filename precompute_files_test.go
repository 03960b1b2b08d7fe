package nwt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/files"
)

// filled is a dataset of samples of 1000 bytes, none of them zero: all of sample i
// are i%250+1+of.
func filled(n int, of byte) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "bytes", Type: nwt.Uint8, Shape: []int{1000}}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		copy(dst.Bytes(0), bytes.Repeat([]byte{byte(i%250) + 1 + of}, 1000))
		return nil
	})
}

// requireFilled reads all samples in workers, and fails where one is wrong.
func requireFilled(t *testing.T, ds nwt.Dataset) {
	t.Helper()
	l, err := nwt.NewLoader(ds, nwt.WithWorkers(4), nwt.WithBatchSize(10))
	require.NoError(t, err)
	defer l.Close()
	seen := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		for k, i := range b.Indices() {
			sample := b.Bytes(0)[1000*k : 1000*(k+1)]
			require.Equal(t, bytes.Repeat([]byte{byte(i%250) + 1}, 1000), sample, "sample %d", i)
			seen++
		}
	}
	require.Equal(t, ds.Len(), seen)
}

func TestAFileCutWithinAPageAfterItsSamplesWereReadGivesNoZeros(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	ds := precompute(t, filled(100, 0), path)
	requireFilled(t, ds)
	info, err := os.Stat(path)
	require.NoError(t, err)
	for cut := int64(1); cut < 2500; cut += 499 {
		require.NoError(t, os.Truncate(path, info.Size()-cut))
		requireFilled(t, ds)
		if _, err := os.Stat(path); err != nil {
			break // the damage was seen
		}
	}
	requireFilled(t, precompute(t, filled(100, 0), path))
	again, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, info.Size(), again.Size(), "the next Precompute has written it anew")
}

func TestAFileThatIsWrittenOverUnderItsReadersGivesNoOthersSamples(t *testing.T) {
	dir := t.TempDir()
	mine, other := filepath.Join(dir, "mine"), filepath.Join(dir, "other")
	ds := precompute(t, filled(200, 0), mine)
	p, err := nwt.Precompute(t.Context(), filled(200, 3), other, "v2")
	require.NoError(t, err)
	require.NoError(t, p.Close())
	content := map[bool][]byte{}
	for _, path := range []string{mine, other} {
		content[path == mine], err = os.ReadFile(path)
		require.NoError(t, err)
	}
	require.Len(t, content[true], len(content[false]), "sample by sample, one takes the other's place")
	f, err := os.OpenFile(mine, os.O_WRONLY, 0)
	require.NoError(t, err)
	var done atomic.Bool
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; !done.Load(); i++ {
			if _, err := f.WriteAt(content[i%2 == 1], 0); err != nil {
				t.Error(err)
				return
			}
			runtime.Gosched()
		}
	})
	for range 30 {
		requireFilled(t, ds)
	}
	done.Store(true)
	writing.Wait()
	require.NoError(t, f.Close())
}

func TestWhatBeginsWithZerosOrIsEmptyIsMovedAwayNotOverwritten(t *testing.T) {
	for name, theirs := range map[string][]byte{
		"zeros":          append(make([]byte, 28), "tensors"...),
		"nothing":        {},
		"a few zeros":    make([]byte, 5),
		"part of a mark": []byte("\x89nwt"),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "labels.raw")
			require.NoError(t, os.WriteFile(path, theirs, 0o644))
			require.NoError(t, os.WriteFile(path+".foreign", []byte("older"), 0o644))
			requireFilled(t, precompute(t, filled(9, 0), path))
			for at, want := range map[string][]byte{".foreign": []byte("older"), ".foreign1": theirs} {
				kept, err := os.ReadFile(path + at)
				require.NoError(t, err)
				require.Equal(t, want, kept)
			}
		})
	}
}

func TestWhatIsPutInTheFilesPlaceWhileItIsWrittenIsMovedAwayNotOverwritten(t *testing.T) {
	for name, c := range map[string]struct {
		put func(path string) error
		get func(path string) (string, error)
	}{
		"a file": {
			func(path string) error { return os.WriteFile(path, []byte("years of work"), 0o644) },
			func(path string) (string, error) { data, err := os.ReadFile(path); return string(data), err },
		},
		"a folder": {
			func(path string) error {
				return errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "thesis"), []byte("years of work"), 0o644))
			},
			func(path string) (string, error) {
				data, err := os.ReadFile(filepath.Join(path, "thesis"))
				return string(data), err
			},
		},
		"a link": {
			func(path string) error {
				if err := os.Symlink("years of work", path); err != nil {
					return err
				}
				_, err := os.Readlink(path)
				return err
			},
			os.Readlink,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "samples")
			source := filled(9, 0)
			var put error
			ds := nwt.NewDataset(9, source.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
				if i == 5 {
					put = c.put(path)
				}
				return source.Load(ctx, i, dst)
			})
			requireFilled(t, precompute(t, ds, path, nwt.WithWorkers(0)))
			if name == "a link" && put != nil {
				t.Skip("no symbolic links here:", put)
			}
			require.NoError(t, put)
			kept, err := c.get(path + ".foreign")
			require.NoError(t, err)
			require.Equal(t, "years of work", kept)
		})
	}
}

func TestAFileOfPrecomputeThatAppearsWhileItIsWrittenIsReplaced(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "samples"), filepath.Join(dir, "other")
	precompute(t, filled(9, 3), other)
	theirs, err := os.ReadFile(other)
	require.NoError(t, err)
	source := filled(9, 0)
	ds := nwt.NewDataset(9, source.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		if i == 5 {
			if err := os.WriteFile(path, theirs, 0o644); err != nil {
				return err
			}
		}
		return source.Load(ctx, i, dst)
	})
	requireFilled(t, precompute(t, ds, path, nwt.WithWorkers(0)))
	require.NoFileExists(t, path+".foreign")
}

func TestWhatLiesInThePlaceOfThePartialFileIsNotOverwritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	require.NoError(t, os.WriteFile(path+".partial", []byte("years of work"), 0o644))
	_, err := nwt.Precompute(t.Context(), filled(9, 0), path, "v1")
	require.ErrorContains(t, err, "samples.partial is in the way")
	kept, err := os.ReadFile(path + ".partial")
	require.NoError(t, err)
	require.Equal(t, "years of work", string(kept))
}

func TestAFileThatHasBecomeSomethingElseIsNotRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	var log bytes.Buffer
	ds := precompute(t, filled(9, 0), path, nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	require.NoError(t, err)
	_, err = f.Write(bytes.Repeat([]byte("years of work "), 2000))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	requireFilled(t, ds)
	require.Contains(t, log.String(), "can't be used")
	require.FileExists(t, path)
}

func TestWhatTookTheFilesPlaceIsNotRemovedIfTheFileIsDamaged(t *testing.T) {
	dir := t.TempDir()
	path, moved := filepath.Join(dir, "samples"), filepath.Join(dir, "moved")
	var log bytes.Buffer
	ds := precompute(t, filled(9, 0), path, nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err := os.Rename(path, moved); err != nil {
		t.Skip("an open file can't be renamed here:", err)
	}
	require.NoError(t, os.WriteFile(path, []byte("years of work"), 0o644))
	f, err := os.OpenFile(moved, os.O_WRONLY, 0)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("damage"), info.Size()-100)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	requireFilled(t, ds)
	require.Contains(t, log.String(), "it is damaged")
	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "years of work", string(kept))
}

// Whoever has the lock may be about to put a good file in the damaged one's place.
func TestADamagedFileIsNotRemovedWhileSomebodyElseHasItsLock(t *testing.T) {
	for _, held := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "samples")
		ds := precompute(t, filled(9, 0), path, quietLog)
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		require.NoError(t, err)
		info, err := f.Stat()
		require.NoError(t, err)
		_, err = f.WriteAt([]byte("damage"), info.Size()-100)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		if held {
			unlock, err := files.Lock(t.Context(), path+".lock")
			require.NoError(t, err)
			defer unlock()
		}
		requireFilled(t, ds)
		_, err = os.Stat(path)
		require.Equal(t, held, err == nil, "%v", err)
	}
}

func TestALinkToAPrecomputedFileStaysALink(t *testing.T) {
	dir := t.TempDir()
	path, target := filepath.Join(dir, "link"), filepath.Join(dir, "disk", "samples")
	require.NoError(t, os.Mkdir(filepath.Dir(target), 0o755))
	err := os.Symlink(filepath.Join("disk", "samples"), path)
	if _, there := os.Readlink(path); err != nil || there != nil {
		t.Skip("no symbolic links here:", err)
	}
	for _, version := range []string{"v1", "v2"} {
		p, err := nwt.Precompute(t.Context(), filled(9, 0), path, version, nwt.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		requireFilled(t, p)
		require.NoError(t, p.Close())
		info, err := os.Lstat(path)
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&os.ModeSymlink)
		require.FileExists(t, target)
		require.FileExists(t, target+".lock", "who knows the file by another name waits for the same lock")
	}
}

func TestAFileThatIsHeldOpenIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	old := precompute(t, filled(9, 0), path)
	p, err := nwt.Precompute(t.Context(), filled(9, 0), path, "v2", nwt.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	requireFilled(t, p)
	requireFilled(t, old)
	require.NoError(t, p.Close())
}

// A dataset of the program may ask for it.
func TestASampleThatIsNotThereIsNotTakenForDamage(t *testing.T) {
	for _, index := range []int{-1, math.MinInt, 10, 11, math.MaxInt} {
		path := filepath.Join(t.TempDir(), "samples")
		var log journal
		p, err := nwt.Precompute(t.Context(), filled(10, 0), path, "1", log.option())
		require.NoError(t, err)
		wrong := nwt.NewDataset(1, p.Fields(), func(ctx context.Context, _ int, dst *nwt.Sample) error { return p.Load(ctx, index, dst) })
		_, err = nwt.LoadSample(t.Context(), wrong, 0)
		require.ErrorContains(t, err, fmt.Sprintf("samples: index %d is out of range 0 … 9", index))
		require.FileExists(t, path)
		require.Empty(t, log.String())
		require.NoError(t, p.Close())
	}
}
