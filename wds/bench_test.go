package wds_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

// BenchmarkShard reads records from a file in the page cache.
func BenchmarkShard(b *testing.B) {
	for _, size := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			dir := b.TempDir()
			f, err := os.Create(filepath.Join(dir, "a.tar"))
			require.NoError(b, err)
			w := wds.NewWriter(f)
			for i := range 64_000_000 / size {
				require.NoError(b, w.Write(fmt.Sprint(i), wds.File{Ext: "jpg", Data: make([]byte, size)}, wds.File{Ext: "cls", Data: []byte("1")}))
			}
			require.NoError(b, w.Close())
			require.NoError(b, f.Close())
			s, err := wds.New(os.DirFS(dir), []string{"a.tar"}, fields, load)
			require.NoError(b, err)
			b.SetBytes(int64(size))
			var rec nwt.Record
			var r nwt.ShardReader
			for b.Loop() {
				if r == nil {
					r, err = s.Open(b.Context(), 0)
					require.NoError(b, err)
				}
				if err := r.Next(b.Context(), &rec); err != nil {
					require.Equal(b, io.EOF, err)
					require.NoError(b, r.Close())
					r = nil
				}
			}
		})
	}
}
