package wds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/files"
)

// Glob returns the names of the files in fsys that match a pattern, to be passed to [New]. Examples of
// patterns are "train-*.tar", "{train,extra}/shard-*.tar" and "train-{000..127}.tar". Braces mean the same
// as in a shell. The rest is a pattern of [path.Match], with *, ? and [a-z]. Folders don't match, nor do
// files that systems leave behind, such as ._a.tar.
//
// Braces stand for several patterns. The names that match the first pattern come first, sorted, then the
// names that match the second, and so on. A file that matches two patterns is returned once. If one of
// several patterns matches no file, Glob returns [fs.ErrNotExist].
//
// If a folder can't be read, Glob returns an error; fs.Glob would silently leave out the folder's files. If
// the error is temporary, Glob tries again first.
func Glob(fsys fs.FS, pattern string) ([]string, error) {
	patterns, err := expand(pattern, maxShards)
	for _, p := range patterns {
		if _, bad := path.Match(p, ""); err == nil && (bad != nil || !fs.ValidPath(p)) {
			err = errors.New("must be a pattern of " + validPath)
		}
	}
	if fsys == nil {
		err = errors.New("fsys is nil")
	}
	if err != nil {
		return nil, &nwt.ArgumentError{Name: "wds.Glob", Value: pattern, Reason: err.Error()}
	}
	g := globber{fsys, map[string][]fs.DirEntry{}}
	var names []string
	known := map[string]bool{}
	for _, p := range patterns {
		matches, err := g.match(".", p, true)
		if err == nil && len(matches) == 0 {
			err = &fs.PathError{Op: "glob", Path: p, Err: fmt.Errorf("no file matches: %w", fs.ErrNotExist)}
		}
		if err != nil {
			return nil, fmt.Errorf("wds: Glob: %w", err)
		}
		for _, name := range matches {
			if !known[name] {
				known[name] = true
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// A globber lists each folder once.
type globber struct {
	fsys   fs.FS
	listed map[string][]fs.DirEntry // sorted
}

// match returns the files below a folder that match a pattern. A folder that the pattern names, and no list
// does, may be missing.
func (g *globber) match(folder, pattern string, named bool) (names []string, err error) {
	element, rest, deeper := strings.Cut(pattern, "/")
	literal := !strings.ContainsAny(element, `*?[\`)
	if literal && deeper {
		return g.match(path.Join(folder, element), rest, true)
	}
	entries, err := g.list(folder)
	if named && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if literal {
		at, found := slices.BinarySearchFunc(entries, element, byName)
		entries = entries[at:]
		if entries = entries[:min(1, len(entries))]; !found {
			return nil, nil
		}
	}
	for _, e := range entries {
		if ok, _ := path.Match(element, e.Name()); !ok || !literal && files.IsLeftover(e.Name()) {
			continue
		}
		name, isFolder := path.Join(folder, e.Name()), e.IsDir()
		if e.Type()&fs.ModeSymlink != 0 {
			err := repeated(context.Background(), func() error {
				info, err := fs.Stat(g.fsys, name)
				isFolder = err == nil && info.IsDir()
				return err
			})
			if err != nil {
				return nil, err
			}
		}
		if deeper && isFolder {
			more, err := g.match(name, rest, false)
			if err != nil {
				return nil, err
			}
			names = append(names, more...)
		} else if !deeper && !isFolder {
			names = append(names, name)
		}
	}
	return names, nil
}

func (g *globber) list(folder string) (entries []fs.DirEntry, err error) {
	if entries, ok := g.listed[folder]; ok {
		return entries, nil
	}
	err = repeated(context.Background(), func() (err error) {
		entries, err = fs.ReadDir(g.fsys, folder)
		return err
	})
	if err == nil {
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return byName(a, b.Name()) })
		g.listed[folder] = entries
	}
	return entries, err
}

func byName(e fs.DirEntry, name string) int { return strings.Compare(e.Name(), name) }
