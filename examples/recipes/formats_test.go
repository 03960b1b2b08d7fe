package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// The files of testdata were written by make.py there, through the formats' own libraries.

func batches(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) []*nwt.Batch {
	l, err := nwt.NewLoader(ds, append(opts, nwt.WithBatchSize(8))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	var all []*nwt.Batch
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		b.Retain()
		t.Cleanup(b.Release)
		all = append(all, b)
	}
	return all
}

func TestJSONLinesAreWhatPythonWrote(t *testing.T) {
	seen := map[int64]bool{}
	for _, b := range batches(t, nwt.Streamed(stories(testdata, []string{"testdata/stories-0.jsonl.zst", "testdata/stories-1.jsonl.zst"}))) {
		lens, width := storyTokens.Lens(b, 0), storyTokens.Shape(b)[1]
		for i, id := range storyID.Of(b) {
			text := fmt.Sprintf("Shard %d, part %d: %send.", id/100, id/10%10, strings.Repeat("größer, ", int(id%10)))
			text = text[:min(len(text), longestStory)]
			var got []byte
			for _, token := range storyTokens.Of(b)[i*width : i*width+int(lens[i])] {
				got = append(got, byte(token))
			}
			require.Equal(t, text, string(got))
			seen[id] = true
		}
	}
	require.Len(t, seen, 40)
}

func TestAJSONLineWithoutANumberIsABadSampleThatIsNamed(t *testing.T) {
	var file bytes.Buffer
	w, err := zstd.NewWriter(&file)
	require.NoError(t, err)
	for _, line := range []string{
		`{"id":0,"text":"a","weight":0.5}`, `{"text":"a"}`, `{"id":null,"text":"a"}`, `{"id":3}`, `{"id":"4","text":"a"}`, `{"id":5,"text":"","weight":null}`,
	} {
		_, err := fmt.Fprintln(w, line)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	l, err := nwt.NewLoader(nwt.Streamed(stories(fstest.MapFS{"s": {Data: file.Bytes()}}, []string{"s"})), nwt.WithErrorBudget(10))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, []int64{0, 5}, storyID.Of(b))
		require.Equal(t, []float32{0.5, 1}, storyWeight.Of(b))
	}
	bad := l.BadSamples()
	require.Len(t, bad, 4)
	require.ErrorContains(t, bad[0], `record 1 of shard 0: key "id" is missing or null in the line "{\"text\":\"a\"}"`)
	require.ErrorContains(t, bad[1], `record 2 of shard 0: key "id" is missing or null`)
	require.ErrorContains(t, bad[2], `record 3 of shard 0: key "text" is missing or null`)
	require.ErrorContains(t, bad[3], "record 4 of shard 0: json: cannot unmarshal string")
}

func TestTFRecordsAreWhatPythonWrote(t *testing.T) {
	seen := map[int64]bool{}
	for _, b := range batches(t, nwt.Streamed(pixels(testdata, []string{"testdata/pixels-0.tfrecord", "testdata/pixels-1.tfrecord"})), nwt.WithShuffle(1)) {
		for i, label := range pixelLabel.Of(b) {
			n := -label
			for k, v := range pixelImage.Of(b)[12*i : 12*i+12] {
				require.Equal(t, uint8(int(n)+k), v)
			}
			first := float32(n) + 0.5
			require.Equal(t, []float32{first, first + 1, first + 2, first + 3}, pixelBox.Of(b)[4*i:4*i+4])
			seen[label] = true
		}
	}
	require.Len(t, seen, 20)
}

func TestADamagedTFRecordNamesItsFile(t *testing.T) {
	whole, err := fs.ReadFile(testdata, "testdata/pixels-0.tfrecord")
	require.NoError(t, err)
	for at, want := range map[int]string{3: "the length's checksum", 40: "a record's checksum"} {
		data := append([]byte(nil), whole...)
		data[at] ^= 1
		for name, data := range map[string][]byte{want: data, "cut: unexpected EOF": whole[:len(whole)-3]} {
			l, err := nwt.NewLoader(nwt.Streamed(pixels(fstest.MapFS{"a": {Data: data}}, []string{"a"})))
			require.NoError(t, err)
			for _, e := range l.Epoch(t.Context(), 0) {
				err = e
			}
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, "a: ")
			require.NoError(t, l.Close())
		}
	}
}

func TestTokensAreWhatPythonWrote(t *testing.T) {
	ds, err := corpusWindows(testdata, "testdata/corpus")
	require.NoError(t, err)
	var tokens []uint16
	begins := map[int]bool{}
	for d := range 40 {
		begins[len(tokens)] = true
		for i := range d + 1 {
			tokens = append(tokens, uint16(1000*d+i))
		}
	}
	at := map[uint16]int{}
	for i, token := range tokens {
		at[token] = i
	}
	n := 0
	for _, b := range batches(t, ds, nwt.WithShuffle(1)) {
		for i := range b.Len() {
			window := corpusTokens.Of(b)[i*(corpusWindow+1) : (i+1)*(corpusWindow+1)]
			from := at[window[0]]
			require.Equal(t, tokens[from:from+corpusWindow+1], window)
			for k := range window {
				require.Equal(t, begins[from+k], corpusBegins.Of(b)[i*(corpusWindow+1)+k])
			}
			n++
		}
	}
	require.Equal(t, ds.Len(), n)
}
