//go:build !race

// The race detector has sync.Pool drop what it is given, at random: archive/tar
// skips what isn't read through io.Discard, whose buffers lie in one.

package wds

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGroupingAllocatesNoMoreThanReadingTheTarFile(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for key := range strings.FieldsSeq(strings.Repeat("a b ", 300)) {
		require.NoError(t, w.Write(key, File{"jpg", make([]byte, 5000)}, File{"cls", []byte("1")}))
	}
	require.NoError(t, w.Close())
	bare := tar.NewReader(bytes.NewReader(b.Bytes()))
	forTar := testing.AllocsPerRun(500, func() {
		for range 2 {
			_, _ = bare.Next()
		}
	})
	g := newTestGrouper(t, b.Bytes(), Limits{})
	var r Record
	require.NoError(t, g.next(&r))
	ours := testing.AllocsPerRun(500, func() { _ = g.next(&r) })
	t.Logf("allocations of a record: %v, archive/tar alone %v", ours, forTar)
	require.LessOrEqual(t, ours, forTar)
}
