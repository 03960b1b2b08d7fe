package vision_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// The values are Pillow's.
func TestPGMAndPPMFilesAreReadAsPillowDoes(t *testing.T) {
	for text, want := range map[string][]byte{
		"P5\n# made by hand\n2 2\n255\n\x00\x10\x80\xff":                {0, 16, 128, 255},
		"P5 2 2 2 \x00\x01\x02\x02":                                     {0, 128, 255, 255},
		"P5 2 2 65535 \x00\x00\x10\x00\x80\x00\xff\xff":                 {0, 16, 128, 255},
		"P5 2 2\n# a comment\n6\n\x00\x01\x03\x06":                      {0, 42, 128, 255},
		"P6 2 2 255\n" + strings.Repeat("\x01\x02\x03", 4):              {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3},
		"P6 2 2 1023\n" + strings.Repeat("\x00\x00\x02\x00\x03\xff", 4): {0, 0, 0, 0, 128, 128, 128, 128, 255, 255, 255, 255},
	} {
		got, err := loadTwoByTwo(t, text)
		require.NoError(t, err, text)
		if len(want) == 4 {
			want = append(append(want[:4:4], want...), want...)
		}
		require.Equal(t, want, got, "%q", text)
	}
	for text, want := range map[string]string{
		"P5 2 2 255 \x00\x01\x02":     "the file is cut",
		"P6 2 2 70000 ":               "a largest value of 70000: must be 1 … 65535",
		"P2 2 2 255 1 2 3 4":          "not a JPEG",
		"P5 2":                        "the file is cut",
		"P6 20000 20000 255 ":         "must be at most",
		"P6 2 99999999999999 255 aaa": "where a number must be",
	} {
		_, err := loadTwoByTwo(t, text)
		require.ErrorContains(t, err, want, text)
	}
}

func loadTwoByTwo(t *testing.T, text string) ([]byte, error) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "c"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "c", "1.ppm"), []byte(text), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "c", "2.PGM"), []byte(text), 0o600))
	p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Square(2)}}, vision.WithType(nwt.Uint8), vision.WithMaxPixels(1<<20))
	require.NoError(t, err)
	ds, err := vision.OpenFolder(t.Context(), dir, p)
	require.NoError(t, err)
	require.Equal(t, 2, ds.Len())
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(1))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		if err != nil {
			return nil, err
		}
		return append([]byte{}, b.Bytes(0)...), nil
	}
	return nil, fmt.Errorf("no batch")
}
