package nwt_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/nwt-go/nwt"

// importsOf is what the packages in a folder and beneath it import of this module: the paths
// beneath the module's, "" for root, and which file does. Tests are left out.
func importsOf(t *testing.T, folder string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	require.NoError(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range file.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			require.NoError(t, err)
			if beneath, ours := strings.CutPrefix(name, module); ours {
				beneath = strings.TrimPrefix(beneath, "/")
				all[beneath] = append(all[beneath], path)
			}
		}
		return nil
	}))
	return all
}

// What is beneath root knows nothing of it; and what is beside it, only its public names.
func TestArrowsBetweenPackagesGoOneWay(t *testing.T) {
	internals := importsOf(t, "internal")
	require.NotEmpty(t, internals)
	for beneath, files := range internals {
		require.True(t, strings.HasPrefix(beneath, "internal/") || beneath == "device", "%q is imported by %v", beneath, files)
	}
	samplers := importsOf(t, "sampler")
	require.Contains(t, samplers, "")
	for beneath, files := range samplers {
		require.True(t, slices.Contains([]string{"", "internal/permute", "internal/mix"}, beneath), "%q is imported by %v", beneath, files)
	}
	root, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, path := range root {
		if !strings.HasSuffix(path, "_test.go") {
			require.NotContains(t, importsOf(t, path), "sampler", path)
		}
	}
}

// Who reads the repository for the first time finds the tuner's parts by these names.
func TestTheTopLevelHasAFileForEachPart(t *testing.T) {
	for _, name := range []string{"tuner.go", "loader.go", "pinned.go", "transfer.go", "search.go", "memory.go", "options.go", "examples", "internal"} {
		_, err := os.Stat(name)
		require.NoError(t, err)
	}
}
