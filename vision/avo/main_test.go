package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestTheAssemblyIsWhatThisProgramWrites(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "run", ".", "-out", filepath.Join(dir, "s"), "-stubs", filepath.Join(dir, "go"), "-pkg", "vision")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for made, kept := range map[string]string{"s": "../avx2_amd64.s", "go": "../avx2_amd64.go"} {
		a, err := os.ReadFile(filepath.Join(dir, made))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(kept)
		if err != nil {
			t.Fatal(err)
		}
		if a, b = code(a), code(b); !bytes.Equal(a, b) {
			t.Errorf("%s isn't what avo writes: run go generate in vision", kept)
		}
	}
}

// code is a file without its first line, which tells the command.
func code(file []byte) []byte {
	_, rest, _ := bytes.Cut(file, []byte("\n"))
	return rest
}
