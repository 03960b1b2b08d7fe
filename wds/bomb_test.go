package wds_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

// What is small in a shard and large in memory: compressed files, and headers of
// which archive/tar makes maps and lists.
func TestBombsTakeNoMoreThanTheirBound(t *testing.T) {
	const times = 10
	good := entries(t, "good/7.txt", "7", "good/7.cls", "7")
	repeat := func(f func(i int) []byte) []byte {
		var all [][]byte
		for i := range times {
			all = append(all, f(i))
		}
		return append(slices.Concat(all...), good...)
	}
	header := func(typeflag byte, content []byte) []byte { return member(t, typeflag, "PaxHeaders/0", content) }
	file := func(i int) []byte { return member(t, tar.TypeReg, fmt.Sprint(i, ".txt"), []byte("1")) }
	long := strings.Repeat("d/", 450_000)
	var many []string
	for i := range 60_000 {
		many = append(many, fmt.Sprintf("k%d=", i))
	}
	manyRecords := records(many...)
	require.Less(t, len(manyRecords), 1<<20)
	holes := strings.TrimSuffix(strings.Repeat("0,0,", 100_000), ",")
	sparse := records("GNU.sparse.major=0", "GNU.sparse.minor=1", "GNU.sparse.numblocks=100000", "GNU.sparse.map="+holes, "GNU.sparse.size=1000000000000")
	newSparse := records("GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.realsize=1000000000000")
	newMap := append([]byte("100000\n"), bytes.Repeat([]byte("0\n0\n"), 100_000)...)
	newMap = append(newMap, make([]byte, 512-len(newMap)%512)...)
	zeros := bytes.Repeat(compressed(t, make([]byte, 1<<20)), 200)

	for name, c := range map[string]struct {
		data   []byte
		limits wds.Limits
		bad    int
		got    []int64
	}{
		"names in PAX headers": {bad: times, got: []int64{7}, data: repeat(func(i int) []byte {
			return append(header(tar.TypeXHeader, records(fmt.Sprint("path=", long, i, ".txt"))), file(i)...)
		})},
		"long names of GNU": {bad: times, got: []int64{7}, data: repeat(func(i int) []byte {
			return append(header(tar.TypeGNULongName, fmt.Append(nil, long, i, ".txt")), file(i)...)
		})},
		"many records": {bad: times, got: []int64{7}, data: repeat(func(i int) []byte {
			return append(header(tar.TypeXHeader, manyRecords), file(i)...)
		})},
		"global headers": {bad: 0, got: []int64{7}, data: repeat(func(int) []byte {
			return header(tar.TypeXGlobalHeader, manyRecords)
		})},
		"maps of sparse files": {bad: times, got: []int64{7}, data: repeat(func(i int) []byte {
			return append(header(tar.TypeXHeader, sparse), file(i)...)
		})},
		"maps in sparse files": {bad: times, got: []int64{7}, data: repeat(func(i int) []byte {
			return append(header(tar.TypeXHeader, newSparse), member(t, tar.TypeReg, fmt.Sprint(i, ".txt"), newMap)...)
		})},
		"a header of more than a megabyte": {bad: 1, data: append(header(tar.TypeXHeader, records("comment="+long+long)), good...)},
		"a compressed file beyond its limit": {bad: 1, got: []int64{7}, limits: wds.Limits{Bytes: 1 << 20},
			data: slices.Concat(compressed(t, member(t, tar.TypeReg, "0.txt", make([]byte, 200<<20))[:512]), zeros, compressed(t, good))},
		"compressed zeros": {bad: 1, data: zeros},
		"a file beyond its limit, by Zstandard": {bad: 1, got: []int64{7}, limits: wds.Limits{Bytes: 1 << 20},
			data: zstandard(t, append(member(t, tar.TypeReg, "0.txt", make([]byte, 200<<20)), good...))},
		"zeros by Zstandard":     {bad: 1, data: zstandard(t, make([]byte, 200<<20))},
		"very many empty frames": {bad: 1, data: bytes.Repeat([]byte("\x28\xb5\x2f\xfd\x00\x00\x01\x00\x00"), 200_000)},
		"frames to be skipped":   {bad: 1, data: bytes.Repeat([]byte("\x50\x2a\x4d\x18\x00\x00\x00\x00"), 200_000)},
		"very many empty parts":  {bad: 1, data: bytes.Repeat(compressed(t, nil), 200_000)},
		"compressed, and again":  {bad: 1, data: compressed(t, compressed(t, good))},
		"a name of gzip's, long": {bad: 1, data: append([]byte("\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\x00"), bytes.Repeat([]byte("n"), 16<<20)...)},
	} {
		t.Run(name, func(t *testing.T) {
			defer debug.SetGCPercent(debug.SetGCPercent(10)) // so that the heap is what is in use
			debug.FreeOSMemory()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s, err := wds.New(fstest.MapFS{"a.tar": {Data: c.data}}, []string{"a.tar"}, fields, load, wds.WithLimits(c.limits))
			require.NoError(t, err)
			got, bad, err := epoch(t, nwt.Streamed(s), nwt.WithErrorBudget(times))
			require.NoError(t, err)
			require.Equal(t, c.got, got, "%v", bad)
			require.Len(t, bad, c.bad)
			for _, b := range bad {
				require.Less(t, len(b.Error()), 1000)
			}
			runtime.ReadMemStats(&after)
			taken := int64(after.HeapSys-after.HeapReleased) - int64(before.HeapSys-before.HeapReleased)
			t.Logf("%d MiB taken for a shard of %d", taken>>20, len(c.data)>>20)
			require.Less(t, taken, int64(64<<20))
			runtime.GC()
			runtime.ReadMemStats(&after)
			require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(8<<20), "what is remembered")
		})
	}
}
