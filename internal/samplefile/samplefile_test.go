package samplefile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/osmemory"
)

const longest = 100

// sample returns what sample i consists of: up to longest bytes, none of them zero.
func sample(i int) []byte { return bytes.Repeat([]byte{byte(i%250) + 1}, longest-i%7) }

var quiet = slog.New(slog.DiscardHandler)

func spec(version string, n int) Spec {
	return Spec{
		Description: []byte(version),
		Difference:  func(there []byte) string { return fmt.Sprintf("version %q, not %q", there, version) },
		Samples:     n,
		Longest:     longest,
	}
}

// filled writes n samples, each with a byte added; before it writes sample i it calls do.
func filled(n int, add byte, do func(i int)) func(*Writer) error {
	return func(w *Writer) error {
		for i := range n {
			if do != nil {
				do(i)
			}
			b := sample(i)
			err := w.Write(i, len(b), func(dst []byte) {
				for k := range b {
					dst[k] = b[k] + add
				}
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// opened opens a file of n samples, which is written if it must be.
func opened(t testing.TB, path string, n int, log *slog.Logger) *File {
	t.Helper()
	f, err := Open(t.Context(), path, spec("v1", n), log, filled(n, 0, nil))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// written returns a new file of n samples, and what is in it.
func written(t testing.TB, n int) (path string, content []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "samples")
	require.NoError(t, opened(t, path, n, quiet).Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return path, content
}

// copied returns the sample as Read gives it, copied.
func (f *File) copied(index int) (got []byte, ok bool, err error) {
	ok, err = f.Read(index, index, func(b []byte) (uint32, error) {
		got = bytes.Clone(b)
		return Sum(0, got), nil
	})
	return got, ok, err
}

// requireRight reads all samples in several goroutines. Each is right or said to be unusable;
// missing counts these.
func requireRight(t testing.TB, f *File) (missing int) {
	t.Helper()
	var all sync.WaitGroup
	var count atomic.Int32
	for worker := range 4 {
		all.Go(func() {
			for i := worker; i < f.spec.Samples; i += 4 {
				got, ok, err := f.copied(i)
				switch {
				case err != nil:
					t.Errorf("sample %d: %v", i, err)
				case !ok:
					count.Add(1)
				case !bytes.Equal(got, sample(i)):
					t.Errorf("sample %d is wrong", i)
				}
			}
		})
	}
	all.Wait()
	return int(count.Load())
}

func damage(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("damage"), info.Size()-100)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func requireHolds(t *testing.T, want, path string) {
	t.Helper()
	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(kept))
}

func TestWhicheverByteIsDamagedItIsNoticedAndEverySampleIsRight(t *testing.T) {
	path, good := written(t, 3)
	for at := len(magic); at < len(good); at += 3 { // each number of the file is longer
		bad := slices.Clone(good)
		bad[at] ^= 0x10
		require.NoError(t, os.WriteFile(path, bad, 0o644))
		anew := 0
		f, err := Open(t.Context(), path, spec("v1", 3), quiet, filled(3, 0, func(int) { anew++ }))
		require.NoError(t, err)
		require.NotZero(t, anew+requireRight(t, f), "byte %d of %d", at, len(good))
		require.NoError(t, f.Close(), "a process may not have many files open")
	}
}

func TestAFileThatIsCutShortOrLongerIsMadeAnew(t *testing.T) {
	path, good := written(t, 4)
	for n := 0; n < len(good); n += 7 {
		require.NoError(t, os.WriteFile(path, good[:n], 0o644))
		require.NoError(t, opened(t, path, 4, quiet).Close())
		requireHolds(t, string(good), path)
	}
	require.NoError(t, os.WriteFile(path, append(slices.Clone(good), 0), 0o644))
	require.Zero(t, requireRight(t, opened(t, path, 4, quiet)))
	requireHolds(t, string(good), path)
}

func TestAFileCutShortWhileItIsMappedIsNoFault(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	f := opened(t, path, 2000, quiet)
	require.Zero(t, requireRight(t, f))
	require.NoError(t, os.Truncate(path, 30_000))
	require.NotZero(t, requireRight(t, f))
	requireRight(t, f)
}

func TestAFileCutWithinAPageAfterItsSamplesWereReadGivesNoZeros(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	f := opened(t, path, 100, quiet)
	require.Zero(t, requireRight(t, f))
	info, err := os.Stat(path)
	require.NoError(t, err)
	for cut := int64(1); cut < 2500; cut += 499 {
		require.NoError(t, os.Truncate(path, info.Size()-cut))
		requireRight(t, f)
		if _, err := os.Stat(path); err != nil {
			break // the damage was seen
		}
	}
	require.Zero(t, requireRight(t, opened(t, path, 100, quiet)))
	again, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, info.Size(), again.Size(), "the next Open has written it anew")
}

func TestAFileThatIsWrittenOverUnderItsReadersGivesNoOthersSamples(t *testing.T) {
	path, mine := written(t, 200)
	other, err := Open(t.Context(), path+"2", spec("v2", 200), quiet, filled(200, 3, nil))
	require.NoError(t, err)
	require.NoError(t, other.Close())
	theirs, err := os.ReadFile(path + "2")
	require.NoError(t, err)
	require.Len(t, theirs, len(mine), "sample by sample, one takes the other's place")
	f := opened(t, path, 200, quiet)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	var done atomic.Bool
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; !done.Load(); i++ {
			if _, err := file.WriteAt([][]byte{theirs, mine}[i%2], 0); err != nil {
				t.Error(err)
				return
			}
			runtime.Gosched()
		}
	})
	for range 30 {
		requireRight(t, f)
	}
	done.Store(true)
	writing.Wait()
	require.NoError(t, file.Close())
}

func TestSamplesInEachOthersPlaceAreNoticed(t *testing.T) {
	path, file := written(t, 100)
	s := spec("v1", 100)
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(file[s.index()+int64(entryBytes*i):]) }
	one, other := file[at(3):at(4)], file[at(10):at(11)]
	require.Len(t, one, len(other))
	for i := range one {
		one[i], other[i] = other[i], one[i]
	}
	require.NoError(t, os.WriteFile(path, file, 0o644))
	require.Equal(t, 2, requireRight(t, opened(t, path, 100, quiet)))
}

func TestWhereAFileCannotBeMappedItIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	f := opened(t, path, 100, quiet)
	if f.mem != nil {
		require.NoError(t, osmemory.UnmapFile(f.mem))
		f.mem = nil
	}
	require.Zero(t, requireRight(t, f))
	require.NoError(t, os.Truncate(path, f.spec.data()))
	require.Equal(t, 100, requireRight(t, f))
}

func TestASampleThatIsLeftOutIsNoDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	var log bytes.Buffer
	f, err := Open(t.Context(), path, spec("v1", 9), slog.New(slog.NewTextHandler(&log, nil)), func(w *Writer) error {
		for _, i := range []int{1, 2, 5} {
			if err := w.Write(i, len(sample(i)), func(dst []byte) { copy(dst, sample(i)) }); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 6, requireRight(t, f))
	require.NoError(t, f.Close())
	require.Empty(t, log.String())
	require.FileExists(t, path)
}

func TestWhoCannotTakeAGoodSampleGetsTheirOwnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	f := opened(t, path, 9, quiet)
	tooLong := errors.New("too long for me")
	take := func([]byte) (uint32, error) { return 0, tooLong }
	_, err := f.Read(0, 3, take)
	require.ErrorIs(t, err, tooLong)
	damage(t, path)
	ok, err := f.Read(0, 8, take)
	require.NoError(t, err, "what they were given was damaged")
	require.False(t, ok)
}

func TestWhatIsNoFileOfSamplesIsNotOverwritten(t *testing.T) {
	for name, theirs := range map[string][]byte{
		"a text":      []byte("years of work"),
		"zeros":       append(make([]byte, 28), "tensors"...),
		"a few zeros": make([]byte, 5),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "labels.raw")
			require.NoError(t, os.WriteFile(path, theirs, 0o644))
			_, err := Open(t.Context(), path, spec("v1", 9), quiet, nil)
			require.ErrorContains(t, err, "it is not a file of precomputed samples")
			requireHolds(t, string(theirs), path)
		})
	}
}

func TestWhatIsPutInTheFilesPlaceWhileItIsWrittenIsNotOverwritten(t *testing.T) {
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
			var put error
			_, err := Open(t.Context(), path, spec("v1", 9), quiet, filled(9, 0, func(i int) {
				if i == 5 {
					put = c.put(path)
				}
			}))
			if name == "a link" && put != nil {
				t.Skip("no symbolic links here:", put)
			}
			require.NoError(t, put)
			require.ErrorContains(t, err, "is in the way")
			kept, err := c.get(path)
			require.NoError(t, err)
			require.Equal(t, "years of work", kept)
		})
	}
}

func TestAFileOfSamplesThatAppearsWhileItIsWrittenIsReplaced(t *testing.T) {
	_, theirs := written(t, 8)
	path := filepath.Join(t.TempDir(), "samples")
	f, err := Open(t.Context(), path, spec("v1", 9), quiet, filled(9, 0, func(i int) {
		if i == 5 {
			require.NoError(t, os.WriteFile(path, theirs, 0o644))
		}
	}))
	require.NoError(t, err)
	require.Zero(t, requireRight(t, f))
	require.NoError(t, f.Close())
}

func TestWhatLiesInThePlaceOfThePartialFileIsNotOverwritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	require.NoError(t, os.WriteFile(path+".partial", []byte("years of work"), 0o644))
	_, err := Open(t.Context(), path, spec("v1", 9), quiet, filled(9, 0, nil))
	require.ErrorContains(t, err, "samples.partial is in the way")
	requireHolds(t, "years of work", path+".partial")
}

func TestALinkToAFileStaysALink(t *testing.T) {
	dir := t.TempDir()
	path, target := filepath.Join(dir, "link"), filepath.Join(dir, "disk", "samples")
	require.NoError(t, os.Mkdir(filepath.Dir(target), 0o755))
	err := os.Symlink(filepath.Join("disk", "samples"), path)
	if _, there := os.Readlink(path); err != nil || there != nil {
		t.Skip("no symbolic links here:", err)
	}
	for _, version := range []string{"v1", "v2"} {
		f, err := Open(t.Context(), path, spec(version, 9), quiet, filled(9, 0, nil))
		require.NoError(t, err)
		require.Zero(t, requireRight(t, f))
		require.NoError(t, f.Close())
		info, err := os.Lstat(path)
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&os.ModeSymlink)
		require.FileExists(t, target)
		require.FileExists(t, target+".lock", "who knows the file by another name waits for the same lock")
	}
}

func TestAFileThatIsHeldOpenIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	old := opened(t, path, 9, quiet)
	var log bytes.Buffer
	f, err := Open(t.Context(), path, spec("v2", 9), slog.New(slog.NewTextHandler(&log, nil)), filled(9, 0, nil))
	require.NoError(t, err)
	require.Contains(t, log.String(), `it was made for something else: version \"v1\", not \"v2\"`)
	require.Zero(t, requireRight(t, f))
	require.Zero(t, requireRight(t, old))
	require.NoError(t, f.Close())
}

func TestOneWritesAndTheOthersWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	var times atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			f, err := Open(t.Context(), path, spec("v1", 200), quiet, filled(200, 0, func(int) { times.Add(1) }))
			if err == nil {
				err = f.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 200, times.Load())
}

func TestWaitingForTheFileEndsWithTheContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	_, err := Open(t.Context(), path, spec("v1", 1), quiet, func(w *Writer) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := Open(ctx, path, spec("v1", 1), quiet, filled(1, 0, nil))
		require.ErrorIs(t, err, context.Canceled)
		return filled(1, 0, nil)(w)
	})
	require.NoError(t, err)
}

// Somebody removes the lock while it is held, so that two write at once.
func TestAWriterWhoseLockWasRemovedPutsNobodysHalfFileInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	begun, goOn, wrote := make(chan struct{}), make(chan struct{}), make(chan error)
	first := filled(20, 0, func(i int) {
		if i != 10 {
			return
		}
		if err := os.Remove(path + ".lock"); err != nil {
			t.Skip("a lock that is held can't be removed here:", err)
		}
		go func() {
			f, err := Open(t.Context(), path, spec("v1", 20), quiet, filled(20, 0, func(i int) {
				if i == 10 {
					close(begun)
					<-goOn
				}
			}))
			if err == nil {
				err = f.Close()
			}
			wrote <- err
		}()
		<-begun
	})
	_, err := Open(t.Context(), path, spec("v1", 20), quiet, first)
	require.ErrorContains(t, err, "samples.partial or its lock was removed or replaced while it was written")
	require.NoFileExists(t, path)
	close(goOn)
	require.NoError(t, <-wrote)
	f, err := Open(t.Context(), path, spec("v1", 20), quiet, nil)
	require.NoError(t, err, "the file of the other is whole")
	require.Zero(t, requireRight(t, f))
	require.NoError(t, f.Close())
}

func TestAPartialFileThatIsRemovedIsNoticedAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	last := 0
	_, err := Open(t.Context(), path, spec("v1", 100_000), quiet, filled(100_000, 0, func(i int) {
		if last = i; i != 10 {
			return
		}
		if err := os.Remove(path + ".partial"); err != nil {
			t.Skip("a file that is open can't be removed here:", err)
		}
	}))
	require.ErrorContains(t, err, "samples.partial or its lock was removed or replaced while it was written")
	require.Less(t, last, 2*flushBytes/longest)
	f := opened(t, path, 9, quiet)
	require.Zero(t, requireRight(t, f))
}

func FuzzAHeaderIsReadAsWrittenOrRefused(f *testing.F) {
	want := spec("v1", 3)
	good := encodeHeader(want.Description, 1000)
	f.Add(good, int64(1000))
	f.Add(good[:30], int64(30))
	f.Add(good, int64(999))
	other := bytes.Clone(good)
	binary.LittleEndian.PutUint32(other[8:], format+1)
	f.Add(other, int64(1000))
	f.Add(encodeHeader(nil, 1000), int64(1000))
	f.Fuzz(func(t *testing.T, file []byte, size int64) {
		description, whole, err := readHeader(bytes.NewReader(file), size)
		if err == nil {
			again := encodeHeader(description, int64(whole))
			require.Equal(t, again[:headerBytes+len(description)], file[:headerBytes+len(description)])
		}
		if err := want.check(bytes.NewReader(file), size); err == nil {
			require.Equal(t, want.Description, description)
		}
		again, _, err := readHeader(bytes.NewReader(encodeHeader(file, 1<<20)), 1<<20)
		require.NoError(t, err)
		require.True(t, bytes.Equal(file, again))
	})
}

func FuzzWhateverAFileHoldsItsSamplesAreRight(f *testing.F) {
	_, file := written(f, 7)
	s := spec("v1", 7)
	f.Add(uint16(0), []byte{}, uint16(0))
	f.Add(uint16(s.index()), binary.LittleEndian.AppendUint64(nil, ^uint64(1)), uint16(0))
	f.Add(uint16(s.data()), []byte{1, 2, 3, 4, 5, 6, 7, 8}, uint16(0))
	f.Add(uint16(s.data()), []byte{}, uint16(9))
	f.Add(uint16(0), make([]byte, headerBytes), uint16(0))
	f.Add(uint16(0), []byte{}, uint16(len(file)))
	f.Add(uint16(s.data()), make([]byte, len(file)), uint16(0))
	f.Fuzz(func(t *testing.T, at uint16, change []byte, cut uint16) {
		bad := bytes.Clone(file)
		copy(bad[min(int(at), len(bad)):], change)
		bad = bad[:max(0, len(bad)-int(cut))]
		path := filepath.Join(t.TempDir(), "samples")
		require.NoError(t, os.WriteFile(path, bad, 0o644))
		if strings.HasPrefix(magic, string(bad[:min(len(magic), len(bad))])) { // else it is another program's
			requireRight(t, opened(t, path, 7, quiet))
		}

		// And if it becomes so while it is open.
		path = filepath.Join(t.TempDir(), "open")
		require.NoError(t, os.WriteFile(path, file, 0o644))
		open := opened(t, path, 7, quiet)
		require.Zero(t, requireRight(t, open))
		require.NoError(t, os.WriteFile(path, bad, 0o644))
		requireRight(t, open)
	})
}

// rest writes the samples that aren't there, but for those that are bad, and notes which.
func rest(wrote *[]int, bad ...int) func(*Writer) error {
	return func(w *Writer) error {
		*wrote = nil
		for k := range w.Len() {
			i := w.At(0, k)
			if slices.Contains(bad, i) {
				continue
			}
			*wrote = append(*wrote, i)
			if err := w.Write(i, len(sample(i)), func(dst []byte) { copy(dst, sample(i)) }); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestWhatWasInterruptedGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	rotten := errors.New("rotten")
	var wrote []int
	open := func(bad ...int) error {
		f, err := Open(t.Context(), path, spec("v1", 100), quiet, func(w *Writer) error {
			err := rest(&wrote, bad...)(w)
			if len(bad) > 0 {
				return errors.Join(err, rotten)
			}
			return err
		})
		if err == nil {
			require.Zero(t, requireRight(t, f))
			require.NoError(t, f.Close())
		}
		return err
	}
	require.ErrorIs(t, open(3, 17, 97, 98, 99), rotten)
	require.Len(t, wrote, 95)
	require.ErrorIs(t, open(17, 98), rotten)
	require.Equal(t, []int{3, 97, 99}, wrote)
	require.ErrorIs(t, open(98), rotten)
	require.Equal(t, []int{17}, wrote)
	require.NoError(t, open())
	require.Equal(t, []int{98}, wrote)
	require.NoFileExists(t, path+".partial")
	require.NoError(t, open())
}

// Whatever a process that was killed, or a machine that lost its power, has left of a file.
func TestWhateverIsLeftOfAFileTheRestIsRight(t *testing.T) {
	path, whole := written(t, 50)
	s := spec("v1", 50)
	rng := rand.New(rand.NewPCG(1, 2))
	for try := range 400 {
		left := slices.Clone(whole)
		switch try % 4 {
		case 0: // cut
			left = left[:rng.IntN(len(left))]
		case 1: // pages that were never written
			from := rng.IntN(len(left))
			clear(left[from:min(len(left), from+rng.IntN(2000))])
		case 2: // the index isn't there from somewhere on
			clear(left[int(s.index())+entryBytes*rng.IntN(50) : s.data()])
		case 3: // garbage behind
			left = append(left, bytes.Repeat([]byte{7}, rng.IntN(300))...)
		}
		if try%8 < 4 && len(left) > headerBytes { // as while it is written
			copy(left, encodeHeader(s.Description, s.data())[:min(len(left), int(s.index()))])
		}
		if !bytes.HasPrefix(left, []byte(magic)) {
			continue // it isn't known as ours
		}
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.WriteFile(path+".partial", left, 0o644))
		var wrote []int
		f, err := Open(t.Context(), path, s, quiet, rest(&wrote))
		require.NoError(t, err)
		require.Zero(t, requireRight(t, f), "try %d", try)
		require.NoError(t, f.Close())
		if try%8 == 3 {
			require.Empty(t, wrote)
		}
	}
}

func TestAPartialFileOfOtherSamplesIsMadeAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	_, err := Open(t.Context(), path, spec("v1", 20), quiet, func(w *Writer) error {
		return errors.Join(filled(10, 3, nil)(w), errors.New("rotten"))
	})
	require.Error(t, err)
	var wrote []int
	var log bytes.Buffer
	f, err := Open(t.Context(), path, spec("the second version", 20), slog.New(slog.NewTextHandler(&log, nil)), rest(&wrote))
	require.NoError(t, err)
	require.Len(t, wrote, 20)
	require.Contains(t, log.String(), `version \"v1\", not \"the second version\"`)
	require.Zero(t, requireRight(t, f))
	require.NoError(t, f.Close())
}
