package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/photos"
	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/vision"
	"github.com/nwt-go/nwt/wds"
)

// A file is an image and its class.
type file struct {
	path  string
	class int
}

// pack writes the images below dir to shards, perShard images per shard and each image repeat times. The
// folder of the shards must be new. The shards are written beside it, in a folder that gets its name when
// all are there. So a reader that finds shards finds all of them.
func pack(ctx context.Context, dir, shards string, perShard, repeat int, stdout io.Writer) error {
	if _, err := os.Lstat(shards); err == nil {
		return fmt.Errorf("%s exists: the folder of the shards must be new", shards)
	}
	files, err := decodable(ctx, dir, stdout)
	if err != nil {
		return err
	}
	if repeat == 0 {
		repeat = (999 + len(files)) / len(files)
	}
	partial := filepath.Clean(shards) + ".partial"
	if err := os.Mkdir(partial, 0o755); err != nil {
		return fmt.Errorf("%w (what an interrupted run has left must be removed)", err)
	}
	// The images are in random order, since a stream is mixed only within a window.
	order, n := rand.New(rand.NewPCG(1, 0)).Perm(len(files)*repeat), 0
	for part := range slices.Chunk(order, perShard) {
		if err = ctx.Err(); err == nil {
			err = writeShard(filepath.Join(partial, fmt.Sprintf("train-%06d.tar", n)), files, part, n*perShard)
		}
		if n++; err != nil {
			return errors.Join(err, os.RemoveAll(partial))
		}
	}
	return os.Rename(partial, shards)
}

// decodable lists the images below dir, or those that come with Go, that can be decoded.
func decodable(ctx context.Context, dir string, stdout io.Writer) (files []file, err error) {
	var opts []folder.Option
	if dir == "" {
		opts = append(opts, folder.WithEmptyClasses()) // not all of Go's packages have images
		if dir, err = photos.Bundled(ctx); err != nil {
			return nil, err
		}
	}
	// This decodes each whole image.
	whole, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Square(8)}}, vision.WithType(nwt.Uint8))
	if err != nil {
		return nil, err
	}
	folder, err := vision.OpenFolder(ctx, dir, whole, opts...)
	if err != nil {
		return nil, err
	}
	for i := range folder.Len() {
		if _, err := nwt.LoadSample(ctx, folder, i); err == nil {
			files = append(files, file{folder.Path(i), folder.Class(i)})
		}
	}
	fmt.Fprintf(stdout, "%s: %d images, classes: %d; left out, for they can't be decoded: %d\n", dir, folder.Len(), len(folder.Classes()), folder.Len()-len(files))
	if len(files) == 0 {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("%s: none of the %d images can be decoded", dir, folder.Len()))
	}
	return files, nil
}

// writeShard writes the files that part lists, with keys that are numbered from first.
func writeShard(path string, files []file, part []int, first int) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buf := bufio.NewWriter(f)
	w := wds.NewWriter(buf)
	for i, n := range part {
		file := files[n%len(files)]
		data, err := os.ReadFile(file.path)
		if err != nil {
			return err
		}
		image := wds.File{Ext: strings.ToLower(filepath.Ext(file.path)[1:]), Data: data}
		class := wds.File{Ext: "cls", Data: strconv.AppendInt(nil, int64(file.class), 10)}
		if err := w.Write(fmt.Sprintf("%08d", first+i), image, class); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), buf.Flush(), f.Sync())
}
