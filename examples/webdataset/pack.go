package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

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

// find returns the names of the shards in a folder, in order, or none if there are none.
func find(shards string) (names []string, err error) {
	names, err = wds.Glob(os.DirFS(shards), "*.tar")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

// packed returns the names of the shards in a folder. If the folder has none or doesn't exist, they are
// packed first (see pack), in a folder beside it. That folder is renamed when all shards are written. So
// a reader that finds shards finds all of them, even if an earlier packing was killed. If several ranks
// on a host start together, one packs while the others wait.
func packed(ctx context.Context, dir, shards string, perShard, repeat int, stdout io.Writer) (names []string, err error) {
	if names, err = find(shards); err != nil || len(names) > 0 {
		return names, err
	}
	shards = filepath.Clean(shards)
	if at, err := filepath.EvalSymlinks(shards); err == nil {
		shards = at // a symbolic link is kept
	}
	if err := os.MkdirAll(filepath.Dir(shards), 0o755); err != nil {
		return nil, err
	}
	lock := flock.New(shards+".lock", flock.SetPermissions(0o644))
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		return nil, fmt.Errorf("waiting for who packs %s: %w", shards, err)
	}
	defer lock.Close()
	if names, err = find(shards); err != nil || len(names) > 0 {
		return names, err
	}
	switch others, err := os.ReadDir(shards); { // if it is a file, that is an error
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case len(others) > 0:
		return nil, fmt.Errorf("%s has no shards but other files, such as %s: name an empty folder or a new one", shards, others[0].Name())
	}
	partial := shards + ".partial"
	if err := removePartial(partial); err != nil {
		return nil, err
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return nil, err
	}
	if names, err = pack(ctx, dir, partial, perShard, repeat, stdout); err != nil {
		return nil, errors.Join(err, removePartial(partial))
	}
	if info, err := os.Lstat(shards); err == nil && info.IsDir() { // it can be removed only if it is empty
		if err := os.Remove(shards); err != nil {
			return nil, err
		}
	}
	return names, os.Rename(partial, shards)
}

// removePartial removes what a killed packing has left, and nothing else.
func removePartial(folder string) error {
	left, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, file := range left {
		if ours, _ := filepath.Match(shardName(-1), file.Name()); !ours || !file.Type().IsRegular() {
			return fmt.Errorf("%s is in the way, and %s in it is no shard of an earlier run: move or remove it", folder, file.Name())
		}
	}
	for _, file := range left {
		err = errors.Join(err, os.Remove(filepath.Join(folder, file.Name())))
	}
	if err != nil {
		return err
	}
	return os.Remove(folder)
}

const maxShards = 999_999 // names have no digits for more

// shardName returns the name of shard i, or a pattern for all of them.
func shardName(i int) string {
	if i < 0 {
		return "train-[0-9][0-9][0-9][0-9][0-9][0-9].tar"
	}
	return fmt.Sprintf("train-%06d.tar", i)
}

// pack writes the images below dir to shards, perShard images per shard and each image repeat times, and
// returns the shards' names. The images are in random order, since a stream is mixed only within a
// window. Images that can't be decoded are left out.
func pack(ctx context.Context, dir, shards string, perShard, repeat int, stdout io.Writer) (names []string, err error) {
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

	if n := (len(files)*repeat + perShard - 1) / perShard; n > maxShards {
		return nil, fmt.Errorf("%d images, %d times each, %d in a shard, are more than %d shards", len(files), repeat, perShard, maxShards)
	}
	order := rand.New(rand.NewPCG(1, 0)).Perm(len(files) * repeat)
	for part := range slices.Chunk(order, perShard) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		first := len(names) * perShard
		names = append(names, shardName(len(names)))
		if err := writeShard(filepath.Join(shards, names[len(names)-1]), files, part, first); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// writeShard writes the files that part lists, with keys that are numbered from first.
func writeShard(path string, files []file, part []int, first int) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
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
