package cifar

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func put(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, data, 0o644))
	return path
}

// labelled returns a file of black images.
func labelled(labels ...byte) []byte {
	data := make([]byte, len(labels)*recordSize)
	for i, label := range labels {
		data[i*recordSize] = label
	}
	return data
}

func TestOpenReadsTheTrainingFilesInOrder(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "data_batch_2.bin", labelled(3))
	put(t, dir, "data_batch_1.bin", labelled(9, 1))
	put(t, dir, "test_batch.bin", labelled(7))
	put(t, dir, "batches.meta.txt", []byte("airplane"))
	s, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, 3, s.Len())
	for i, want := range []int64{9, 1, 3} {
		sample, err := nwt.LoadSample(t.Context(), s, i)
		require.NoError(t, err)
		require.Equal(t, []int64{want}, Label.Of(sample))
		for j, v := range Image.Of(sample) {
			require.Equal(t, normalized[j/plane][0], v)
		}
	}
}

func TestOpenSaysWhatIsWrongWithAFolder(t *testing.T) {
	for _, c := range []struct {
		name string
		data []byte
		want []string
	}{
		{"an empty file", nil, []string{"0 bytes", "3073"}},
		{"a file cut short", labelled(1, 2)[:5000], []string{"5000 bytes", "3073"}},
		{"CIFAR-100", make([]byte, 10*3074), []string{"30740 bytes", "3073"}},
		{"a label too high", labelled(1, 10), []string{"record 1", "label 10", "0 … 9"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, "data_batch_1.bin", labelled(0))
			path := put(t, dir, "data_batch_2.bin", c.data)
			_, err := Open(dir)
			for _, want := range append(c.want, path) {
				require.ErrorContains(t, err, want)
			}
		})
	}
	empty := t.TempDir()
	_, err := Open(empty)
	require.ErrorContains(t, err, empty)
	require.ErrorContains(t, err, "data_batch_*.bin")
	_, err = Open(filepath.Join(empty, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "none")
}

func TestASyntheticFileReadsAsARealOne(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "data_batch_1.bin")
	require.NoError(t, WriteSynthetic(path, 200, 1))
	s, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, 200, s.Len())
	labels := map[byte]int{}
	for _, r := range s.records {
		labels[r[0]]++
	}
	require.Len(t, labels, Classes)

	first, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, WriteSynthetic(path, 200, 1))
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(first, again), "a seed gives one file")
	require.NoError(t, WriteSynthetic(path, 200, 1+1<<40))
	other, err := os.ReadFile(path)
	require.NoError(t, err)
	require.False(t, bytes.Equal(first, other))
}

func TestLoadAugmentsAnewEveryEpochAndTheSameAtEveryWorkerCount(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, WriteSynthetic(filepath.Join(dir, "data_batch_1.bin"), 50, 1))
	s, err := Open(dir)
	require.NoError(t, err)
	load := func(workers, epoch int) string {
		l, err := nwt.NewLoader(s, nwt.WithBatchSize(16), nwt.WithWorkers(workers))
		require.NoError(t, err)
		defer l.Close()
		var all strings.Builder
		for batch, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			all.Write(batch.Bytes(0))
			all.Write(batch.Bytes(1))
		}
		return all.String()
	}
	alone := load(0, 0)
	require.Len(t, alone, 50*(pixels*4+8))
	require.True(t, alone == load(3, 0))
	require.False(t, alone == load(0, 1))
}

func TestLoadMakesEveryAugmentation(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "data_batch_1.bin", bytes.Repeat(append([]byte{1}, noise()[1:]...), 3000))
	s, err := Open(dir)
	require.NoError(t, err)
	seen := map[string]bool{}
	for i := range s.Len() {
		sample, err := nwt.LoadSample(t.Context(), s, i)
		require.NoError(t, err)
		seen[string(sample.Bytes(0))] = true
	}
	require.Equal(t, 9*9*2, len(seen))
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(labelled(1, 2))
	f.Add(labelled(1, 200))
	f.Add(labelled(1)[:3000])
	f.Fuzz(func(t *testing.T, data []byte) {
		records, err := parse(data)
		if err != nil {
			return
		}
		require.Len(t, records, len(data)/recordSize)
		var again []byte
		for _, r := range records {
			require.Less(t, r[0], byte(Classes))
			again = append(again, r[:]...)
		}
		require.True(t, bytes.Equal(data, again))
	})
}
