package datasets_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

func precompute(t testing.TB, ds nwt.Dataset, path string, opts ...nwt.Option) *nwt.Precomputed {
	t.Helper()
	p, err := nwt.Precompute(t.Context(), ds, path, "v1", append([]nwt.Option{nwt.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// requireLoads checks that all samples of ds are those of counted, by
// themselves, and that it took so many loads of its source.
func requireLoads(t testing.TB, ds nwt.Dataset, loads []atomic.Int32, want int) {
	t.Helper()
	requireSamples(t, ds)
	sum := 0
	for _, n := range counts(loads) {
		sum += n
	}
	require.Equal(t, want, sum)
}

func requireSamples(t testing.TB, ds nwt.Dataset) {
	t.Helper()
	fresh, _ := counted(ds.Len())
	for i := range ds.Len() {
		want, err := nwt.LoadSample(t.Context(), fresh, i)
		require.NoError(t, err)
		got, err := nwt.LoadSample(t.Context(), ds, i)
		require.NoError(t, err)
		require.Equal(t, want.Len(0, 0), got.Len(0, 0))
		require.Equal(t, want.Bytes(0), got.Bytes(0))
		require.Equal(t, want.Bytes(1), got.Bytes(1))
	}
}

func TestAFileOfAnotherDatasetOrOfOlderCodeIsAnError(t *testing.T) {
	numbers := func(n, add int) nwt.Dataset {
		return nwt.NewDataset(n, []nwt.Field{{Name: "i", Type: nwt.Int64}}, func(_ context.Context, i int, dst *nwt.Sample) error {
			nwt.Values[int64](dst, 0)[0] = int64(i + add)
			return nil
		})
	}
	for name, c := range map[string]struct{ training, validation nwt.Dataset }{
		"of the same length": {numbers(50, 0), numbers(50, 1000)},
		"one sample":         {numbers(1, 0), numbers(1, 1)},
		"that begin alike": {nwt.Map(numbers(50, 0), numbers(1, 0).Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
			nwt.Values[int64](dst, 0)[0] = max(1, nwt.Values[int64](src, 0)[0])
			return nil
		}), nwt.Map(numbers(50, 0), numbers(1, 0).Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
			nwt.Values[int64](dst, 0)[0] = 1
			return nil
		})},
	} {
		path := filepath.Join(t.TempDir(), "samples")
		var log kit.Journal
		precompute(t, c.training, path, log.Option())
		precompute(t, c.training, path, log.Option())
		_, err := nwt.Precompute(t.Context(), c.validation, path, "v1", log.Option())
		require.ErrorContains(t, err, "isn't the one that the dataset loads now: the file is another dataset's, which needs a path of its own, or loading has changed: then give another version", name)
		precompute(t, c.training, path, log.Option()) // the file is as it was
		require.Empty(t, log.String(), name)
		p, err := nwt.Precompute(t.Context(), c.validation, path, "v2", kit.Silent)
		require.NoError(t, err)
		require.NoError(t, p.Close())
	}
}

func TestAFileWhoseSamplesCannotBeComparedStandsWithALine(t *testing.T) {
	for why, now := range map[string]func(calls int) ([]int32, error){
		"the store is offline":                     func(int) ([]int32, error) { return nil, errors.New("the store is offline") },
		"it is another one each time it is loaded": func(calls int) ([]int32, error) { return []int32{int32(calls)}, nil },
	} {
		path := filepath.Join(t.TempDir(), "samples")
		load := func(int) ([]int32, error) { return []int32{7}, nil }
		calls := 0
		ds := nwt.NewDataset(1, []nwt.Field{{Name: "x", Type: nwt.Int32}}, func(_ context.Context, _ int, dst *nwt.Sample) error {
			calls++
			values, err := load(calls)
			copy(nwt.Values[int32](dst, 0), values)
			return err
		})
		precompute(t, ds, path)
		load = now
		var log kit.Journal
		p := precompute(t, ds, path, log.Option())
		s, err := nwt.LoadSample(t.Context(), p, 0)
		require.NoError(t, err)
		require.Equal(t, []int32{7}, nwt.Values[int32](s, 0))
		require.Equal(t, 1, strings.Count(log.String(), "\n"), &log)
		require.Contains(t, log.String(), "can't be compared with its dataset; the file is used")
		require.Contains(t, log.String(), why)
	}
}

func TestASecondRunLoadsTwoSamplesToCompareThem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	source, loads := counted(300)
	requireLoads(t, precompute(t, source, path), loads, 300)
	ds := precompute(t, source, path)
	requireLoads(t, ds, loads, 302)
	l := kit.NewLoader(t, ds, nwt.WithWorkers(12), nwt.WithBatchSize(7), nwt.WithShuffle(5))
	for epoch := range 3 {
		requireCounted(t, l, epoch)
	}
	requireLoads(t, ds, loads, 302)
}

func TestOrderAndSeedDoNotMatterToWhatIsPrecomputed(t *testing.T) {
	source, loads := counted(100)
	for _, opts := range [][]nwt.Option{
		{nwt.WithShuffle(8), nwt.WithSeed(9), nwt.WithRank(1, 3), nwt.WithDropLast(), nwt.WithBatchSize(64), nwt.WithWorkers(3)},
		{nwt.WithSampler(nwt.Shuffled(10, 4)), nwt.WithWorkers(0)},
	} {
		before := len(loads)
		ds := precompute(t, source, filepath.Join(t.TempDir(), "samples"), opts...)
		requireSamples(t, ds)
		require.Len(t, loads, before)
	}
	require.Equal(t, slices.Repeat([]int{2}, 100), counts(loads))
}

// lengths returns a dataset whose samples are one longer each, and tell that. One of them is longer still.
func lengths(n, longer int) nwt.Dataset {
	fields := []nwt.Field{{Name: "bytes", Type: nwt.Uint8, Shape: []int{100}, RaggedDims: 1}}
	length := func(i int) int {
		if i == longer {
			return i + 2
		}
		return i + 1
	}
	load := func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, length(i))
		copy(dst.Bytes(0), bytes.Repeat([]byte{byte(i + 1)}, length(i)))
		return nil
	}
	return nwt.Sized(nwt.NewDataset(n, fields, load), func(i int, sizes []int) { sizes[0] = length(i) })
}

// A damaged length may be more than was told, and is damage all the same.
func TestWhicheverByteOfSizedSamplesIsDamagedEverySampleIsRight(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	want := lensAndBytes(t, lengths(4, -1))
	require.NoError(t, precompute(t, lengths(4, -1), path).Close())
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	for at := len("\x89nwt\r\n\x1a\n"); at < len(good); at += 3 {
		bad := slices.Clone(good)
		bad[at] ^= 0x10
		require.NoError(t, os.WriteFile(path, bad, 0o644))
		damaged := precompute(t, lengths(4, -1), path)
		require.Equal(t, want, lensAndBytes(t, damaged), "byte %d of %d", at, len(good))
		require.NoError(t, damaged.Close())
	}
}

func TestAPrecomputedSampleLargerThanToldIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	require.NoError(t, precompute(t, lengths(4, 3), path).Close())
	longer := precompute(t, lengths(4, -1), path) // the sample isn't one of the two that are compared
	_, err := nwt.LoadSample(t.Context(), longer, 3)
	require.NoError(t, err, "by itself it has the longest shape")
	l := kit.NewLoader(t, longer, nwt.WithBatchSize(4), nwt.WithWorkers(0))
	var last error
	for _, err := range l.Epoch(t.Context(), 0) {
		last = err
	}
	require.ErrorContains(t, last, `length 5 of field "bytes" is more than the 4 that Sizes gave`)
	require.FileExists(t, path, "it isn't taken for damaged")
}

// lensAndBytes returns the lengths and bytes of all samples, in one batch.
func lensAndBytes(t *testing.T, ds nwt.Dataset) (all []any) {
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(ds.Len()), nwt.WithWorkers(0))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		all = append(all, slices.Clone(b.Lens(0, 0)), bytes.Clone(b.Bytes(0)))
	}
	return all
}

func TestADamagedSampleIsLoadedAnewWithAWarning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	source, loads := counted(50)
	precompute(t, source, path)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	file[len(file)-1] ^= 1
	require.NoError(t, os.WriteFile(path, file, 0o644))
	var log bytes.Buffer
	ds := precompute(t, source, path, nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	requireLoads(t, ds, loads, 53)
	requireLoads(t, ds, loads, 54)
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("index=49")), "warned once: %s", &log)
	require.NoError(t, os.Remove(path)) // as the warning says
	requireLoads(t, precompute(t, source, path), loads, 104)
}

func TestAFileMadeForSomethingElseIsReplacedWithAWarning(t *testing.T) {
	source, _ := counted(9)
	more, _ := counted(10)
	noop := func(context.Context, int, *nwt.Sample) error { return nil }
	for reason, c := range map[string]struct {
		ds      nwt.Dataset
		version string
	}{
		`version \"v1\", not \"v2\"`:                           {source, "v2"},
		`9 samples, not 10`:                                    {more, "v1"},
		`field 0 has the name \"tokens\", want \"x\"`:          {nwt.NewDataset(9, kit.Scalar, noop), "v1"},
		`field 1 (\"noise\") has the type Float64, want Int64`: {nwt.NewDataset(9, []nwt.Field{source.Fields()[0], {Name: "noise", Type: nwt.Int64}}, func(_ context.Context, _ int, dst *nwt.Sample) error { dst.SetLen(0, 1); return nil }), "v1"},
		`field 0 (\"tokens\") has 1 ragged dimensions, want 0`: {nwt.NewDataset(9, []nwt.Field{{Name: "tokens", Type: nwt.Int32, Shape: []int{8, 3}}, source.Fields()[1]}, noop), "v1"},
	} {
		path := filepath.Join(t.TempDir(), "samples")
		precompute(t, source, path)
		var log bytes.Buffer
		p, err := nwt.Precompute(t.Context(), c.ds, path, c.version, nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		require.NoError(t, p.Close())
		require.Contains(t, log.String(), reason)
		log.Reset()
		p, err = nwt.Precompute(t.Context(), c.ds, path, c.version, nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		require.NoError(t, p.Close())
		require.Empty(t, log.String())
	}
}

func TestAnInterruptedWriteLeavesNothingThatIsBelieved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	source, _ := counted(100)
	rotten := errors.New("rotten")
	ctx, cancel := context.WithCancel(t.Context())
	for _, interruption := range []func(i int) error{
		func(i int) error {
			if i == 60 {
				return rotten
			}
			return nil
		},
		func(i int) error {
			if i == 60 {
				cancel()
			}
			return nil
		},
	} {
		failing := nwt.NewDataset(100, source.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
			return errors.Join(source.Load(ctx, i, dst), interruption(i))
		})
		_, err := nwt.Precompute(ctx, failing, path, "v1", nwt.WithWorkers(3), nwt.WithBatchSize(8))
		require.Error(t, err)
		require.True(t, errors.Is(err, rotten) || errors.Is(err, context.Canceled), "%v", err)
		require.NoFileExists(t, path)
	}
	require.NoError(t, os.WriteFile(path+".partial", []byte("\x89nwt\r\n\x1a\nleft by a process that was killed"), 0o644))
	requireSamples(t, precompute(t, source, path))
	require.NoFileExists(t, path+".partial")
}

func TestABadSampleIsLeftOutAndTriedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	source, _ := counted(40)
	mended := false
	var tries atomic.Int32
	sometimes := nwt.NewDataset(40, source.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		if i == 0 || i == 17 || i == 39 {
			tries.Add(1)
			if !mended {
				return errors.New("rotten")
			}
		}
		return source.Load(ctx, i, dst)
	})
	ds := precompute(t, sometimes, path, nwt.WithErrorBudget(3), nwt.WithBatchSize(6))
	_, err := nwt.LoadSample(t.Context(), ds, 17)
	require.ErrorContains(t, err, "rotten")
	mended = true
	requireSamples(t, ds)
	require.EqualValues(t, 3+1+3, tries.Load())
	require.FileExists(t, path, "what is left out is no damage")
}

func TestAClosedFileOfSamplesSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	source, loads := counted(1000)
	ds := precompute(t, source, path)
	l := kit.NewLoader(t, ds, nwt.WithWorkers(6))
	var closing sync.WaitGroup
	var err error
	for b, e := range l.Epoch(t.Context(), 0) {
		if err = e; err == nil && b.Number() == 2 {
			closing.Go(func() { require.NoError(t, ds.Close()) })
		}
	}
	closing.Wait()
	_, err = nwt.LoadSample(t.Context(), ds, 1)
	require.ErrorIs(t, err, os.ErrClosed)
	require.NoError(t, ds.Close())
	require.Equal(t, slices.Repeat([]int{1}, 1000), counts(loads))
}

func TestWhatCannotBePrecomputedIsNamed(t *testing.T) {
	source, _ := counted(9)
	dir := t.TempDir()
	for want, attempt := range map[string]func() (*nwt.Precomputed, error){
		"the path must not be empty": func() (*nwt.Precomputed, error) { return nwt.Precompute(t.Context(), source, "", "v1") },
		"Dataset: is nil":            func() (*nwt.Precomputed, error) { return nwt.Precompute(t.Context(), nil, "x", "v1") },
		"WithWorkers: -1": func() (*nwt.Precomputed, error) {
			return nwt.Precompute(t.Context(), source, "x", "v1", nwt.WithWorkers(-1))
		},
		"must be valid UTF-8": func() (*nwt.Precomputed, error) { return nwt.Precompute(t.Context(), source, "x", "\xff") },
		dir + " is a folder":  func() (*nwt.Precomputed, error) { return nwt.Precompute(t.Context(), source, dir, "v1") },
	} {
		_, err := attempt()
		require.ErrorContains(t, err, want)
	}
	_, err := nwt.Precompute(t.Context(), source, filepath.Join(dir, "a", "b"), "v1")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestAPrecomputedFileIsMadeAnewIfTheFingerprintOfItsDatasetHasChanged(t *testing.T) {
	fields := filled(9, 0).Fields()
	always := func(_, dst *nwt.Sample) error { nwt.Values[uint8](dst, 0)[0] = 1; return nil }
	for name, made := range map[string]func(ds nwt.Dataset) (nwt.Dataset, error){
		"itself":    func(ds nwt.Dataset) (nwt.Dataset, error) { return ds, nil },
		"Subset":    func(ds nwt.Dataset) (nwt.Dataset, error) { return nwt.Subset(ds, []int{8, 2, 2}) },
		"Concat":    func(ds nwt.Dataset) (nwt.Dataset, error) { return nwt.Concat(filled(3, 0), ds) },
		"Split":     func(ds nwt.Dataset) (nwt.Dataset, error) { all, err := nwt.Split(ds, 1, 0.3, 0.7); return all[1], err },
		"Sized":     func(ds nwt.Dataset) (nwt.Dataset, error) { return nwt.Sized(ds, func(int, []int) {}), nil },
		"WritesAll": func(ds nwt.Dataset) (nwt.Dataset, error) { return nwt.WritesAll(ds), nil },
		"Cached":    func(ds nwt.Dataset) (nwt.Dataset, error) { return nwt.Cached(ds, 1<<20), nil },
		"Map": func(ds nwt.Dataset) (nwt.Dataset, error) {
			return nwt.Map(ds, fields, func(_ context.Context, src, dst *nwt.Sample) error { return always(src, dst) }), nil
		},
		"Zip": func(ds nwt.Dataset) (nwt.Dataset, error) {
			other, err := nwt.FromSlices(nwt.SliceOf("x", make([]float32, 9)))
			require.NoError(t, err)
			return nwt.Zip(other, ds)
		},
		"all of them": func(ds nwt.Dataset) (nwt.Dataset, error) {
			ds, err := nwt.Concat(nwt.Cached(nwt.Map(ds, fields, func(_ context.Context, src, dst *nwt.Sample) error { return always(src, dst) }), 1<<20), filled(2, 0))
			require.NoError(t, err)
			ds, err = nwt.Zip(ds)
			require.NoError(t, err)
			return nwt.Subset(nwt.WritesAll(ds), []int{1, 10, 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "samples")
			run := func(print string) string {
				var log kit.Journal
				ds, err := made(kit.Printed{Dataset: filled(9, 0), Print: print})
				require.NoError(t, err)
				require.NoError(t, precompute(t, ds, path, log.Option()).Close())
				return log.String()
			}
			require.Empty(t, run("monday"))
			require.Empty(t, run("monday"), "the same")
			require.Contains(t, run("tuesday"), "the dataset tells another Fingerprint")
			require.Contains(t, run(""), "the dataset tells another Fingerprint")
			require.Contains(t, run("monday"), "the dataset tells another Fingerprint")
			require.Empty(t, run("monday"))
		})
	}
}

func TestOtherArgumentsOfADatasetAreAnotherFingerprint(t *testing.T) {
	for _, ds := range []nwt.Dataset{kit.Printed{Dataset: filled(9, 0), Print: "monday"}, filled(9, 0)} {
		seen := map[string]bool{}
		add := func(ds nwt.Dataset, err error) {
			require.NoError(t, err)
			print := ds.(nwt.Fingerprinter).Fingerprint()
			require.False(t, seen[print], "%T", ds)
			seen[print] = true
		}
		for _, indices := range [][]int{{1, 2}, {2, 1}, {1, 2, 2}, {0, 1, 2}} {
			add(nwt.Subset(ds, indices))
		}
		for seed := range uint64(2) {
			for _, shares := range [][]float64{{0.5, 0.5}, {0.3, 0.7}} {
				parts, err := nwt.Split(ds, seed, shares...)
				add(parts[0], err)
				add(parts[1], err)
			}
		}
		add(nwt.Concat(ds, filled(2, 0)))
		add(nwt.Concat(filled(2, 0), ds))
		add(nwt.Concat(ds))
	}
}

// What was precomputed before datasets had fingerprints is not made anew.
func TestADatasetWithoutAFingerprintIsDescribedAsEver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	require.NoError(t, precompute(t, filled(9, 0), path).Close())
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(file), "Fingerprint")
}

func TestAFingerprintThatPanicsIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	_, err := nwt.Precompute(t.Context(), unprintable{filled(9, 0)}, path, "v1")
	require.ErrorContains(t, err, "nwt: Dataset.Fingerprint: panic: the table is locked")
	require.NoFileExists(t, path)
}

type unprintable struct{ nwt.Dataset }

func (unprintable) Fingerprint() string { panic("the table is locked") }

// spoilt is counted, some of whose samples can't be loaded.
func spoilt(n int, bad func(i int) error) (ds nwt.Dataset, loads []atomic.Int32) {
	source, loads := counted(n)
	return nwt.NewDataset(n, source.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		if err := bad(i); err != nil {
			return err
		}
		return source.Load(ctx, i, dst)
	}), loads
}

func TestPrecomputeTriesAllSamplesAndTheNextCallLoadsTheRest(t *testing.T) {
	for _, batched := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "samples")
		mended := map[int]bool{}
		ds, loads := spoilt(1000, func(i int) error {
			if (i == 17 || i == 400 || i == 999) && !mended[i] {
				return kit.ErrBad
			}
			return nil
		})
		if batched {
			ds = oneCall{ds}
		}
		try := func(budget int) (string, error) {
			p, err := nwt.Precompute(t.Context(), ds, path, "v1", nwt.WithBatchSize(16), nwt.WithWorkers(3), nwt.WithErrorBudget(budget), kit.Silent)
			if err != nil {
				return err.Error(), err
			}
			return "", p.Close()
		}
		said, err := try(2)
		require.ErrorIs(t, err, kit.ErrBad)
		var bad *nwt.LoadError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, 17, bad.Index)
		require.Contains(t, said, "3 samples can't be loaded, WithErrorBudget allows 2; the first: sample 17 of epoch 0")
		require.Contains(t, said, "what was done is kept in "+path+".partial: the next call loads the rest")
		before := counts(loads)
		mended[400] = true
		said, _ = try(0)
		require.Contains(t, said, "2 samples can't be loaded, WithErrorBudget allows 0; the first: sample 17 of epoch 0")
		mended[17], mended[999] = true, true
		_, err = try(0)
		require.NoError(t, err)
		compared := 0
		for i, n := range counts(loads) {
			if mended[i] {
				require.Greater(t, n, before[i], "sample %d, batched: %t", i, batched)
			} else {
				compared += n - before[i]
				require.LessOrEqual(t, n, before[i]+1, "sample %d, batched: %t", i, batched)
			}
		}
		require.Equal(t, 2, compared)
		requireSamples(t, precompute(t, ds, path))
	}
}

// oneCall is a dataset that loads several samples in a call.
type oneCall struct{ nwt.Dataset }

func (d oneCall) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for i, index := range indices {
		if err := d.Load(ctx, index, dst[i]); err != nil {
			return err
		}
	}
	return nil
}

func TestWhereNothingCanBePrecomputedNothingIsLeft(t *testing.T) {
	ds, _ := spoilt(1000, func(int) error { return kit.ErrBad })
	path := filepath.Join(t.TempDir(), "samples")
	var log bytes.Buffer
	_, err := nwt.Precompute(t.Context(), ds, path, "v1", nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	require.ErrorIs(t, err, kit.ErrBad)
	require.ErrorContains(t, err, "1000 samples can't be loaded, WithErrorBudget allows 0")
	require.Contains(t, log.String(), "during=precomputing")
	require.Contains(t, log.String(), `bad=1 budget="counted at the end"`)
	require.NoFileExists(t, path+".partial")
}

func TestADiskThatIsTooSmallIsSeenBeforeTheFirstSampleIsLoaded(t *testing.T) {
	fields := []nwt.Field{{Name: "boxes", Type: nwt.Float32, Shape: []int{1000, 4}, RaggedDims: 1}, {Name: "image", Type: nwt.Uint8, Shape: []int{1 << 20}}}
	huge := nwt.NewDataset(1<<30, fields, func(context.Context, int, *nwt.Sample) error {
		t.Error("a sample is loaded")
		return nil
	})
	path := filepath.Join(t.TempDir(), "samples")
	_, err := nwt.Precompute(t.Context(), huge, path, "v1", nwt.WithBatchSize(1), kit.Silent)
	require.ErrorContains(t, err, "the disk has ")
	require.ErrorContains(t, err, " left, and at least 1.13 PB are needed")
	require.NoFileExists(t, path+".partial")
}

func TestWhatIsInterruptedAnywhereGoesOnThere(t *testing.T) {
	for _, cut := range []int{0, 1, 60, 61, 199} {
		for i := range 4 {
			workers, budget := []int{0, 3}[i%2], []int{0, 5}[i/2]
			path := filepath.Join(t.TempDir(), "samples")
			ctx, cancel := context.WithCancel(t.Context())
			ds, loads := spoilt(200, func(i int) error {
				if i == cut {
					cancel()
				}
				return nil
			})
			opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithErrorBudget(budget), kit.Silent}
			_, err := nwt.Precompute(ctx, ds, path, "v1", opts...)
			require.ErrorIs(t, err, context.Canceled)
			before := counts(loads)
			p, err := nwt.Precompute(t.Context(), ds, path, "v1", opts...)
			require.NoError(t, err)
			requireSamples(t, p)
			require.NoError(t, p.Close())
			compared := 0
			for i, after := range counts(loads) {
				if workers == 0 && i < cut-8 { // else it may not have been written yet
					compared += after - before[i]
				}
			}
			require.LessOrEqual(t, compared, 2, "they are in the file")
		}
	}
}

func TestPrecomputeShowsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := nwt.NewDataset(100, kit.Scalar, func(ctx context.Context, i int, _ *nwt.Sample) error {
			time.Sleep(time.Second)
			return nil
		})
		dir := t.TempDir()
		var log kit.Journal
		opts := []nwt.Option{nwt.WithBatchSize(1), nwt.WithWorkers(1), log.Option()}
		p, err := nwt.Precompute(t.Context(), slow, filepath.Join(dir, "told"), "v1", opts...)
		require.NoError(t, err)
		require.NoError(t, p.Close())
		require.Equal(t, 10, strings.Count(log.String(), "precomputing samples"), log.String())
		require.Contains(t, log.String(), `done=50 of=100 elapsed="50 s" left="50 s"`)
		require.Contains(t, log.String(), "done=100 of=100")
		var shown []nwt.Progress
		p, err = nwt.Precompute(t.Context(), slow, filepath.Join(dir, "shown"), "v1", append(opts, nwt.WithProgress(func(p nwt.Progress) { shown = append(shown, p) }))...)
		require.NoError(t, err)
		require.NoError(t, p.Close())
		require.Len(t, shown, 101)
		require.Equal(t, nwt.Progress{Phase: "precomputing", Workers: 1, Done: 0.25, Elapsed: 25 * time.Second, Left: 75 * time.Second}, shown[24])
		require.Equal(t, nwt.Progress{Phase: "done", Done: 1, Elapsed: 100 * time.Second}, shown[100])
	})
}

// filled returns a dataset of samples of 1000 bytes, none of them zero: all of sample i
// are i%250+1+of.
func filled(n int, of byte) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "bytes", Type: nwt.Uint8, Shape: []int{1000}}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		copy(dst.Bytes(0), bytes.Repeat([]byte{byte(i%250) + 1 + of}, 1000))
		return nil
	})
}

// A dataset of the program may ask for it.
func TestASampleThatIsNotThereIsNotTakenForDamage(t *testing.T) {
	for _, index := range []int{-1, math.MinInt, 10, 11, math.MaxInt} {
		path := filepath.Join(t.TempDir(), "samples")
		var log kit.Journal
		p, err := nwt.Precompute(t.Context(), filled(10, 0), path, "1", log.Option())
		require.NoError(t, err)
		wrong := nwt.NewDataset(1, p.Fields(), func(ctx context.Context, _ int, dst *nwt.Sample) error { return p.Load(ctx, index, dst) })
		_, err = nwt.LoadSample(t.Context(), wrong, 0)
		require.ErrorContains(t, err, fmt.Sprintf("samples: index %d is out of range 0 … 9", index))
		require.FileExists(t, path)
		require.Empty(t, log.String())
		require.NoError(t, p.Close())
	}
}
