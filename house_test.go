package nwt_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
	"github.com/nwt-go/nwt/split"
	"github.com/nwt-go/nwt/vision"
)

func TestMain(m *testing.M) { kit.Main(m) }

const docsImports = "bufio bytes context crypto/rand encoding/json errors expvar fmt image image/jpeg io io/fs iter log log/slog math os os/signal path/filepath runtime runtime/trace strconv sync syscall time " +
	"github.com/nwt-go/nwt github.com/nwt-go/nwt/folder github.com/nwt-go/nwt/packing github.com/nwt-go/nwt/sampler github.com/nwt-go/nwt/split github.com/nwt-go/nwt/vision github.com/nwt-go/nwt/wds"

const docsGiven = `ctx context.Context, ds nwt.Dataset, stream nwt.Stream, opts []nwt.Option, result *nwt.Result, loader *nwt.Loader,
		batch *nwt.Batch, epochs int, seed uint64, train func(images []float32, labels []int64), step func(context.Context, *nwt.Batch) error,
		files []string, labels []int64, image nwt.Column[float32], label nwt.Column[int64], lengths []int, weights []float64, pixels []float32, texts [][]int32, schema nwt.Schema, decode func(file string) (image.Image, error), load func(file string) ([]float32, error),
		normalize func(dst []float32, img image.Image, flip ...bool), augment func(ctx context.Context, src, dst *nwt.Sample) error, readClip func(ctx context.Context, path string, dst *nwt.Sample) error, save func(nwt.State) error, state nwt.State, rank, world int`

// documents returns the paths of all pages.
func documents(t *testing.T) (all []string) {
	for _, pattern := range []string{"*.md", "docs/*.md", "python/*.md", "benchmarks/*.md", "benchmarks/*/*.md", "examples/*.md", ".ci/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		all = append(all, found...)
	}
	return all
}

// link is a link of a page to a file or a title of this repository.
var link = regexp.MustCompile(`\]\(([^)\s:#]*)(?:#([^)\s]+))?\)`)

func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, found := range link.FindAllStringSubmatch(string(text), -1) {
			target := filepath.Join(filepath.Dir(path), found[1])
			if found[1] == "" {
				target = path
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s: %s", path, found[0])
			if found[2] != "" {
				page, err := os.ReadFile(target)
				require.NoError(t, err)
				require.Contains(t, anchors(string(page)), found[2], "%s: %s", path, found[0])
			}
		}
	}
}

// anchors returns the names by which GitHub links to the titles of a page.
func anchors(page string) (all []string) {
	for _, title := range regexp.MustCompile("(?m)^#+ (.*)$").FindAllStringSubmatch(page, -1) {
		bare := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(title[1]), "")
		all = append(all, strings.ReplaceAll(bare, " ", "-"))
	}
	return all
}

func TestCodeInDocumentsCompiles(t *testing.T) {
	if testing.Short() {
		t.Skip("asks the go command for what the code imports")
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", exportData(t))
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile("`(folder|packing|sampler|split|vision)\\.([A-Z]\\w+)").FindAllStringSubmatch(string(text), -1) {
			pkg, err := imports.Import("github.com/nwt-go/nwt/" + name[1])
			require.NoError(t, err)
			require.NotNil(t, pkg.Scope().Lookup(name[2]), "%s names %s.%s", path, name[1], name[2])
		}
		for _, b := range append(goBlocks(string(text)), inlineOptions(string(text))...) {
			t.Run(fmt.Sprintf("%s:%d", path, b.line), func(t *testing.T) {
				require.NoError(t, check(fset, imports, path, b))
			})
		}
	}
}

func TestCodeThatDoesNotCompileIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("asks the go command for what the code imports")
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", exportData(t))
	inline := inlineOptions("| GPU | `WithDevice(nwt.CUDA(0))` |\n`WithShuffle`\n`nwt.WithPinned()`")
	require.Len(t, inline, 2)
	require.ErrorContains(t, check(fset, imports, "x.md", inline[0]), "x.md:1:")
	require.NoError(t, check(fset, imports, "x.md", inline[1]))
	blocks := goBlocks("text\n```go\nloader.Epochs(ctx, 0)\n```\n```go\nfunc f() { nwt.Nothing() }\n```\n```sh\nno Go\n```\n```go\nx := loader.Len()\n```\n")
	require.Len(t, blocks, 3)
	require.ErrorContains(t, check(fset, imports, "x.md", blocks[0]), "x.md:3:")
	require.ErrorContains(t, check(fset, imports, "x.md", blocks[1]), "Nothing")
	require.NoError(t, check(fset, imports, "x.md", blocks[2]))
}

func TestTestsNamedInDocumentsExist(t *testing.T) {
	there := map[string]bool{}
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range regexp.MustCompile(`(?m)^func ((Test|Fuzz)\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			there[found[1]] = true
		}
		return err
	}))
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile("`((Test|Fuzz)[A-Z]\\w+)`").FindAllStringSubmatch(string(text), -1) {
			require.True(t, there[name[1]], "%s names %s", path, name[1])
		}
	}
}

// Commands of the pages that aren't run below, and why.
var notRun = map[string]string{
	"go test ./...":                        "would run this test again",
	"go run -C examples/gomlx-digits .":    "is a module of its own, which has a test",
	"go run ./examples/experiments choice": "measures for minutes",
	"go get github.com/nwt-go/nwt":         "needs a release",
}

func TestTheCommandsOfTheReadmeRunForANewUser(t *testing.T) {
	if testing.Short() {
		t.Skip("tunes for some seconds")
	}
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	onePage, err := os.ReadFile("docs/one-page.md")
	require.NoError(t, err)
	program := goBlocks(string(text))[0].code
	require.LessOrEqual(t, strings.Count(program, "\n"), 45)
	root, err := os.Getwd()
	require.NoError(t, err)
	modules, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	cache, proxy, _ := strings.Cut(strings.TrimSpace(string(modules)), "\n")
	home := t.TempDir() // with an empty folder and an empty module cache; -trimpath, else nothing is found in the build cache
	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOSUMDB=off",
		"GOMODCACHE="+filepath.Join(home, "cache"), "GOPROXY=file://"+filepath.ToSlash(filepath.Join(cache, "cache", "download"))+","+proxy)
	dir := filepath.Join(home, "new")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	shown := map[string]string{}
	sh := func(dir, command string) {
		run := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(command, "=../nwt", "="+root))
		run.Dir, run.Env = dir, env
		var said strings.Builder
		run.Stderr = &said
		out, err := run.Output()
		require.NoError(t, err, "%s: %s", command, &said)
		require.NotContains(t, said.String(), "without effect", command)
		shown[command] = string(out)
	}
	_, rest, found := strings.Cut(string(text), "\n## Set up\n")
	require.True(t, found)
	user, rest, found := strings.Cut(rest, "\nUntil the first tag")
	require.True(t, found)
	run := 0
	for _, part := range []struct{ dir, text string }{{dir, user}, {root, rest}, {dir, string(onePage)}} {
		for _, command := range commands(part.text) {
			if why := notRun[command]; why != "" {
				t.Logf("skipped: %s %s", command, why)
				continue
			}
			sh(part.dir, command)
			run++
		}
	}
	require.GreaterOrEqual(t, run, 5)
	sh(dir, "go vet . && gofmt -l .")
	require.Empty(t, shown["go vet . && gofmt -l ."])
	for _, title := range []string{"per batch", "CPUs busy", "memory", "chosen"} {
		require.Contains(t, shown["go mod tidy && go run ."], title)
		require.Contains(t, string(text), title)
	}
}

// commands returns the go commands of a document, in its text and in blocks that aren't Go.
func commands(text string) (all []string) {
	for _, found := range regexp.MustCompile("(?m)`(go [a-z][^`\n]*)`|^(go (?:doc|get|install|mod|run|test|vet) .*?)(?: +#.*)?$").FindAllStringSubmatch(text, -1) {
		all = append(all, found[1]+found[2])
	}
	return all
}

func TestCommandsAreFoundInTextAndInBlocks(t *testing.T) {
	require.Equal(t, []string{"go doc -all .", "go run ./x -n 1", "go mod tidy && go run ."},
		commands("see `go doc -all .` and `go.mod`\n```go\ngo func() {}()\n```\n```\ngo run ./x -n 1    # prints\ngo mod tidy && go run .\n```\n"))
}

type goBlock struct {
	line int // of its first line in the document
	code string
}

// goBlocks are the fenced blocks of a document that are marked as Go.
func goBlocks(text string) (blocks []goBlock) {
	var open *goBlock
	for i, line := range strings.Split(text, "\n") {
		switch {
		case open == nil && line == "```go":
			open = &goBlock{line: i + 2}
		case open != nil && line == "```":
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.code += line + "\n"
		}
	}
	return blocks
}

// inlineOptions are the options that a document's text gives with their arguments.
func inlineOptions(text string) (blocks []goBlock) {
	for i, line := range strings.Split(text, "\n") {
		for _, found := range regexp.MustCompile("`(?:nwt\\.)?(With[A-Z]\\w+\\([^`…]*\\))`").FindAllStringSubmatch(line, -1) {
			blocks = append(blocks, goBlock{i + 1, "opts = append(opts, nwt." + found[1] + ")\n"})
		}
	}
	return blocks
}

// check checks the types of a block: a file, declarations, or statements, which
// find what is given in the scope around them and may leave it unused.
func check(fset *token.FileSet, imports types.Importer, path string, b goBlock) error {
	var head strings.Builder
	head.WriteString("package p\n")
	for pkg := range strings.FieldsSeq(docsImports) {
		fmt.Fprintf(&head, "import %q\n", pkg)
	}
	line := fmt.Sprintf("//line %s:%d\n", path, b.line)
	parse := func(source string) (*ast.File, error) {
		return parser.ParseFile(fset, path, source, parser.SkipObjectResolution)
	}
	var file *ast.File
	var err error
	if strings.HasPrefix(b.code, "package ") {
		file, err = parse(line + b.code)
	} else if file, err = parse(head.String() + line + b.code); err != nil {
		file, err = parse(head.String() + "func _(" + docsGiven + ") error { {\n" + line + b.code + "\n}; return nil }")
	}
	if err != nil {
		return err
	}
	var wrong error
	config := types.Config{Importer: imports, Error: func(err error) {
		if e := err.(types.Error); !e.Soft && wrong == nil { // soft: unused
			wrong = err
		}
	}}
	_, _ = config.Check("p", fset, []*ast.File{file}, nil)
	return wrong
}

// exportData finds what the go command has compiled of docsImports.
func exportData(t *testing.T) importer.Lookup {
	args := append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, strings.Fields(docsImports)...)
	out, err := exec.CommandContext(t.Context(), "go", args...).Output()
	require.NoError(t, err)
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
}

func TestTheMapOfContributingNamesEveryFile(t *testing.T) {
	text, err := os.ReadFile("CONTRIBUTING.md")
	require.NoError(t, err)
	_, plan, found := strings.Cut(string(text), "## Where does my change go?\n\n```\n")
	require.True(t, found)
	plan, _, found = strings.Cut(plan, "```")
	require.True(t, found)
	words := strings.Fields(plan)
	for _, place := range []string{"*", "internal/*", "contrib/*", "serve/*/*", "python/nwt/*.py"} {
		paths, err := filepath.Glob(place)
		require.NoError(t, err)
		require.NotEmpty(t, paths, place)
		for _, path := range paths {
			name := strings.TrimPrefix(filepath.ToSlash(path), "python/nwt/")
			if info, err := os.Stat(path); name == "doc.go" || name[0] == '.' || strings.HasSuffix(name, "_test.go") ||
				err == nil && !info.IsDir() && filepath.Ext(name) != ".go" && filepath.Ext(name) != ".py" {
				continue
			}
			require.True(t, slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(word+"/", name+"/") }), "%s isn't in CONTRIBUTING's map", path)
		}
	}
	for _, word := range words {
		if regexp.MustCompile(`^[\w.]+(/\S*|\.go)$`).MatchString(word) {
			_, err := os.Stat(word)
			require.NoError(t, err, "%s is in CONTRIBUTING's map and nowhere else", word)
		} else if strings.HasSuffix(word, ".py") {
			_, err := os.Stat("python/nwt/" + word)
			require.NoError(t, err, "%s is in CONTRIBUTING's map and nowhere else", word)
		}
	}
}

const module = "github.com/nwt-go/nwt"

// importsOf returns what the packages in a folder and beneath it import of this module: the paths
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

// A user who upgrades the root alone would otherwise have modules that don't compile.
func TestNoNestedModuleImportsInternalPackagesOfRoot(t *testing.T) {
	modules := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "go.mod" || path == "go.mod" {
			return err
		}
		modules++
		for beneath, files := range importsOf(t, filepath.Dir(path)) {
			if strings.HasPrefix(beneath, "internal/") {
				t.Errorf("%q is imported by %v", beneath, files)
			}
		}
		return nil
	}))
	require.Greater(t, modules, 5)
}

// What is beneath root, loadertest aside, knows nothing of it; and what is beside it, only its public names.
func TestArrowsBetweenPackagesGoOneWay(t *testing.T) {
	internals := importsOf(t, "internal")
	require.NotEmpty(t, internals)
	require.Equal(t, []string{filepath.FromSlash("internal/loadertest/kit/machine.go")}, internals["internal/testhook"], "is for tests")
	for beneath, files := range internals {
		files = slices.DeleteFunc(files, func(path string) bool { return strings.HasPrefix(filepath.ToSlash(path), "internal/loadertest/") })
		if len(files) > 0 {
			require.True(t, strings.HasPrefix(beneath, "internal/") || beneath == "driver", "%q is imported by %v", beneath, files)
		}
	}
	samplers := importsOf(t, "sampler")
	require.Contains(t, samplers, "")
	for beneath, files := range samplers {
		require.True(t, slices.Contains([]string{"", "internal/permute", "internal/mixture"}, beneath), "%q is imported by %v", beneath, files)
	}
	for beneath, files := range importsOf(t, "packing") {
		require.True(t, slices.Contains([]string{"", "internal/permute", "internal/usercall"}, beneath), "%q is imported by %v", beneath, files)
	}
	root, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, path := range root {
		if !strings.HasSuffix(path, "_test.go") {
			require.NotContains(t, importsOf(t, path), "sampler", path)
			require.NotContains(t, importsOf(t, path), "packing", path)
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

// A text that reaches a user begins with the name of its package, or says only what the text around it leaves open.
func TestTextsBeginWithTheirPackage(t *testing.T) {
	packages := strings.Fields("nwt vision wds folder objects sampler split packing serve gomlx plot prometheus")
	texts, logged := 0, regexp.MustCompile(`^(Debug|Info|Warn|Error)$`)
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "loadertest") || strings.Contains(path, "/cmd/") {
			return err
		}
		own, _, nested := strings.Cut(strings.TrimPrefix(filepath.ToSlash(path), "contrib/"), "/")
		if !nested || own == "internal" {
			own = "nwt"
		}
		if !slices.Contains(packages, own) {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			var text ast.Expr
			log, argument := false, false
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) > 0 {
					log = logged.MatchString(f.Sel.Name) && len(n.Args)%2 == 1
					if log || slices.Contains([]string{"New", "Errorf"}, f.Sel.Name) {
						text = n.Args[0]
					}
				} else if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "panic" {
					text = n.Args[0]
				}
			case *ast.CompositeLit:
				if of, ok := n.Type.(*ast.SelectorExpr); ok && of.Sel.Name == "ArgumentError" {
					text, argument = n.Elts[0].(*ast.KeyValueExpr).Value, true
				}
			}
			said, ok := leftmost(text)
			if !ok && !argument {
				return true
			}
			texts++
			first := regexp.MustCompile(`^\w*[:.]?`).FindString(said)
			right := first == own+":" || !log && !slices.Contains(packages, strings.TrimRight(first, ":."))
			if argument {
				right = first == own+"."
			}
			if !right {
				t.Errorf("%s: %q", path, said)
			}
			return !argument
		})
		return nil
	}))
	require.Greater(t, texts, 400)
}

// leftmost returns the string literal with which a text begins.
func leftmost(text ast.Expr) (said string, ok bool) {
	switch text := text.(type) {
	case *ast.BinaryExpr:
		return leftmost(text.X)
	case *ast.CallExpr:
		if len(text.Args) > 0 {
			return leftmost(text.Args[0])
		}
	case *ast.BasicLit:
		said, err := strconv.Unquote(text.Value)
		return said, err == nil && text.Kind == token.STRING
	}
	return "", false
}

func TestErrorsInErrorsNameThePackageOnce(t *testing.T) {
	fields := []nwt.Field{{Name: "x", Type: nwt.Int8}}
	of := func(load func() error, opts ...nwt.Option) error {
		l, err := nwt.NewLoader(nwt.NewDataset(1, fields, func(context.Context, int, *nwt.Sample) error { return load() }), opts...)
		if err != nil {
			return err
		}
		defer l.Close()
		for _, err = range l.Epoch(t.Context(), 0) {
		}
		return err
	}
	fine, closed := func() error { return nil }, func() error { return nwt.ErrClosed }
	composed := func(_ any, err error) error { return err }
	empty := nwt.NewDataset(0, fields, nil)
	for what, err := range map[string]error{
		"Load":               of(closed),
		"panic":              of(func() error { panic(nwt.ErrClosed) }),
		"WithErrorBudget":    of(closed, nwt.WithErrorBudget(0)),
		"WithWorkerInit":     of(fine, nwt.WithWorkerInit(func(context.Context, int) error { return nwt.ErrClosed })),
		"WithBatchTransform": of(fine, nwt.WithBatchTransform(func(context.Context, *nwt.Batch) error { return nwt.ErrClosed })),
		"another sample":     of(func() error { return of(closed) }),
		"Concat":             composed(nwt.Concat(empty, nwt.Map(nwt.Map(nil, nil, nil), nil, nil))),
		"Split":              composed(nwt.Split(nwt.Cached(empty, 1), 1, 1)),
		"Precompute":         composed(nwt.Precompute(t.Context(), nwt.NewDataset(1, fields, func(context.Context, int, *nwt.Sample) error { return nwt.ErrClosed }), filepath.Join(t.TempDir(), "f"), "")),
		"folder":             composed(folder.Open(t.Context(), t.TempDir(), nil, nil, nil)),
		"sampler":            composed(sampler.Select(nil, nil)),
		"split":              composed(split.Stratified(nwt.Map(nil, nil, nil), 0, nil, 1)),
		"vision":             composed(vision.New([]vision.Transform{nil, nil})),
	} {
		require.Error(t, err, what)
		for line := range strings.SplitSeq(err.Error(), "\n") {
			prefix, rest, _ := strings.Cut(line, ": ")
			require.Contains(t, []string{"nwt", "folder", "sampler", "split", "vision"}, prefix, what)
			require.NotContains(t, rest, prefix+": ", what)
		}
	}
}
