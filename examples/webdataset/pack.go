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
	"github.com/nwt-go/nwt/vision"
	"github.com/nwt-go/nwt/wds"
)

// A file is an image and its class.
type file struct {
	path  string
	class int
}

// pack writes the images below dir into shards of so many, each image as often as
// told, and returns the shards' names. They come in a random order, since a
// stream is mixed only within a window; what can't be decoded is left out. Where
// it fails, no shard is left.
func pack(ctx context.Context, dir, shards string, perShard, repeat int, stdout io.Writer) (names []string, err error) {
	if dir == "" {
		if dir, err = photos.Bundled(ctx); err != nil {
			return nil, err
		}
	}
	// Of each, the whole is looked at.
	whole, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Square(8)}}, vision.WithType(nwt.Uint8))
	if err != nil {
		return nil, err
	}
	folder, err := vision.OpenFolder(ctx, dir, whole)
	if err != nil {
		return nil, err
	}
	var files []file
	found, classes := folder.Len(), folder.Classes()
	for i := range found {
		if _, err := nwt.LoadSample(ctx, folder, i); err == nil {
			files = append(files, file{folder.Path(i), folder.Class(i)})
		}
	}
	fmt.Fprintf(stdout, "%s: %d images, classes: %d; left out, for they can't be decoded: %d\n", dir, found, len(classes), found-len(files))
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: none of the %d images can be decoded", dir, found)
	}
	if repeat == 0 {
		repeat = (999 + len(files)) / len(files)
	}

	if err := os.MkdirAll(shards, 0o755); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, name := range names {
				_ = os.Remove(filepath.Join(shards, name)) // err says why already
			}
		}
	}()
	order := rand.New(rand.NewPCG(1, 0)).Perm(len(files) * repeat)
	for part := range slices.Chunk(order, perShard) {
		if err := ctx.Err(); err != nil {
			return names, err
		}
		first := len(names) * perShard
		names = append(names, fmt.Sprintf("train-%06d.tar", len(names)))
		if err := writeShard(filepath.Join(shards, names[len(names)-1]), files, part, first); err != nil {
			return names, err
		}
	}
	return names, nil
}

// writeShard writes the files that part names, with keys numbered from first on.
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
	return errors.Join(w.Close(), buf.Flush())
}
