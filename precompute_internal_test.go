package nwt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/pages"
)

// lines is a dataset of ragged samples: sample i is i%5 bytes of value i.
func lines(n int) Dataset {
	return NewDataset(n, []Field{{Name: "line", Type: Uint8, Shape: []int{4}, Ragged: true}}, func(_ context.Context, i int, dst *Sample) error {
		dst.SetLen(0, i%5)
		copy(dst.Bytes(0), bytes.Repeat([]byte{byte(i)}, 4))
		return nil
	})
}

func requireLines(t testing.TB, ds Dataset) {
	t.Helper()
	for i := range ds.Len() {
		s, err := LoadSample(context.Background(), ds, i)
		require.NoError(t, err)
		require.Equal(t, i%5, s.Len(0))
		require.Equal(t, append(bytes.Repeat([]byte{byte(i)}, i%5), 0, 0, 0, 0)[:4], s.Bytes(0))
	}
}

func TestWhereAFileCannotBeMappedItIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lines")
	p, err := Precompute(t.Context(), lines(100), path, "", WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	require.NoError(t, pages.UnmapFile(p.mem))
	p.mem = nil
	p.buffers.New = func() any { return new([]byte) }
	gone := errors.New("the source is gone")
	p.ds = NewDataset(100, p.Fields(), func(context.Context, int, *Sample) error { return gone })
	requireLines(t, p)
	l, err := NewLoader(p, WithWorkers(8), WithBatchSize(100))
	require.NoError(t, err)
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, []int32{0, 1, 2, 3, 4}, b.Lens(0)[:5])
	}
	require.NoError(t, l.Close())
	require.NoError(t, os.Truncate(path, p.data))
	_, err = LoadSample(t.Context(), p, 0)
	require.ErrorIs(t, err, gone)
	require.FileExists(t, path, "that a file can't be read doesn't prove it damaged")
	require.NoError(t, p.Close())
}

func TestSamplesInEachOthersPlaceAreNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lines")
	p, err := Precompute(t.Context(), lines(100), path, "")
	require.NoError(t, err)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(file[p.index+int64(8*i):]) }
	one, other := file[at(3):at(4)], file[at(8):at(9)]
	for i := range one {
		one[i], other[i] = other[i], one[i]
	}
	require.NoError(t, p.Close())
	require.NoError(t, os.WriteFile(path, file, 0o644))
	p, err = Precompute(t.Context(), lines(100), path, "", WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	requireLines(t, p)
	require.NoError(t, p.Close())
}

func FuzzAHeaderIsReadAsWrittenOrRefused(f *testing.F) {
	header := fileHeader{Version: "v1", ByteOrder: nativeOrder(), Samples: 3, Fields: lines(3).Fields()}
	want, err := header.describe()
	require.NoError(f, err)
	good := encodeHeader(want, 1000)
	f.Add(good, int64(1000))
	f.Add(good[:40], int64(40))
	f.Add(good, int64(999))
	other := bytes.Clone(good)
	binary.LittleEndian.PutUint32(other[8:], fileFormat+1)
	f.Add(other, int64(1000))
	for _, description := range []string{"", "{}", `{"Fields":[{"Type":"Complex64"}]}`, `{"Version":7}`} {
		f.Add(encodeHeader([]byte(description), 1000), int64(1000))
	}
	f.Fuzz(func(t *testing.T, file []byte, size int64) {
		description, err := readHeader(bytes.NewReader(file), size)
		if err == nil {
			again := encodeHeader(description, size)
			require.Equal(t, again[:headerBytes+len(description)], file[:headerBytes+len(description)])
		}
		if err := checkHeader(bytes.NewReader(file), size, want); err == nil {
			require.Equal(t, want, description)
		}
		again, err := readHeader(bytes.NewReader(encodeHeader(file, 1<<20)), 1<<20)
		require.NoError(t, err)
		require.Equal(t, len(file), len(again))
		require.True(t, bytes.Equal(file, again))
	})
}

func FuzzWhateverAFileHoldsItsSamplesAreRight(f *testing.F) {
	dir := f.TempDir()
	quiet := WithLogger(slog.New(slog.DiscardHandler))
	good := filepath.Join(dir, "good")
	p, err := Precompute(f.Context(), lines(7), good, "", quiet)
	require.NoError(f, err)
	require.NoError(f, p.Close())
	file, err := os.ReadFile(good)
	require.NoError(f, err)
	f.Add(uint16(0), []byte{}, uint16(0))
	f.Add(uint16(p.index), binary.LittleEndian.AppendUint64(nil, ^uint64(1)), uint16(0))
	f.Add(uint16(p.data), []byte{1, 2, 3, 4, 5, 6, 7, 8}, uint16(0))
	f.Add(uint16(p.data), []byte{}, uint16(9))
	f.Add(uint16(0), make([]byte, headerBytes), uint16(0))
	f.Add(uint16(0), []byte{}, uint16(len(file)))
	f.Add(uint16(p.data), make([]byte, len(file)), uint16(0))
	f.Fuzz(func(t *testing.T, at uint16, change []byte, cut uint16) {
		bad := bytes.Clone(file)
		copy(bad[min(int(at), len(bad)):], change)
		bad = bad[:max(0, len(bad)-int(cut))]
		path := filepath.Join(t.TempDir(), "lines")
		require.NoError(t, os.WriteFile(path, bad, 0o644))
		p, err := Precompute(context.Background(), lines(7), path, "", quiet, WithWorkers(0))
		require.NoError(t, err)
		requireLines(t, p)
		require.NoError(t, p.Close())

		// And if it becomes so while it is open.
		path = filepath.Join(t.TempDir(), "open")
		require.NoError(t, os.WriteFile(path, file, 0o644))
		p, err = Precompute(context.Background(), lines(7), path, "", quiet, WithWorkers(0))
		require.NoError(t, err)
		requireLines(t, p)
		require.NoError(t, os.WriteFile(path, bad, 0o644))
		requireLines(t, p)
		require.NoError(t, p.Close())
	})
}

func TestTypesAreWrittenByName(t *testing.T) {
	for d := Bool; d.valid(); d++ {
		name, err := d.MarshalText()
		require.NoError(t, err)
		var back DType
		require.NoError(t, back.UnmarshalText(name))
		require.Equal(t, d, back)
	}
	_, err := DType(0).MarshalText()
	require.ErrorContains(t, err, "DType(0)")
	require.ErrorContains(t, new(DType).UnmarshalText([]byte("Complex64")), `unknown type "Complex64"`)
}
