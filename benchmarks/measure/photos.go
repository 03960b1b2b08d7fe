package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
	"github.com/nwt-go/nwt/wds"
)

// What peers/photos.py and peers/shards.py make.
var (
	photoFolder = filepath.Join("peers", "photos")
	largeFolder = filepath.Join("peers", "large")
	shardFolder = filepath.Join("peers", "shards", "tar")
)

const (
	photoSide = 224
	photoSize = 3 * photoSide * photoSide
)

// photographs returns a workload of JPEG files: photos and large are normalized, bytes and
// largebytes aren't; shards are photos with labels, each four times. Its variants are ways of nwt's.
func photographs[T float32 | uint8](name string) *workload[T] {
	samples := map[string]int{"large": 128, "largebytes": 128, "shards": 4 * 384}
	return &workload[T]{name: name, samples: cmp.Or(samples[name], 384), batch: 64, size: photoSize}
}

// filesOf returns the folder of a workload of JPEG files.
func filesOf(name string) string {
	if name == "large" || name == "largebytes" {
		return largeFolder
	}
	return photoFolder
}

// photoRecipe is ImageNet's; bytes aren't normalized.
func photoRecipe(bytes bool, opts ...vision.Option) (*vision.Pipeline, error) {
	recipe := []vision.Transform{vision.RandomResizedCrop{Size: vision.Square(photoSide)}, vision.RandomHorizontalFlip{P: 0.5}}
	if bytes {
		return vision.New(recipe, append(opts, vision.WithType(nwt.Uint8))...)
	}
	return vision.New(append(recipe, vision.ImageNetNormalize), opts...)
}

// waysOf returns how a variant decodes.
func waysOf(variant string) []vision.Option {
	if variant == "first" { // as in a first epoch, in which nothing is remembered of a file
		return []vision.Option{vision.WithRowMemory(0)}
	}
	return nil
}

// shardDataset returns the recipe over shards: an image and a label.
func shardDataset() (nwt.Dataset, error) {
	recipe, err := photoRecipe(false)
	if err != nil {
		return nil, err
	}
	shards := os.DirFS(shardFolder)
	names, err := wds.Glob(shards, "*.tar")
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("%s: no shards: peers/shards.py makes them (%v)", shardFolder, err)
	}
	fields := []nwt.Field{recipe.Field("image"), {Name: "label", Type: nwt.Int64}}
	stream, err := wds.New(shards, names, fields, func(_ context.Context, r *wds.Record, dst *nwt.Sample) error {
		number, err := r.File("cls")
		if err != nil {
			return err
		}
		if nwt.Values[int64](dst, 1)[0], err = strconv.ParseInt(string(number), 10, 64); err != nil {
			return err
		}
		jpeg, err := r.File("jpg")
		if err != nil {
			return err
		}
		return recipe.Load(dst, 0, jpeg)
	})
	if err != nil {
		return nil, err
	}
	return nwt.Streamed(stream), nil
}

// photoDataset returns the recipe over files, or over pictures that were decoded once, at
// 256 × 256. Bytes are what nwt-serve serves.
func photoDataset(name, variant string) (nwt.Dataset, error) {
	recipe, err := photoRecipe(name == "bytes" || name == "largebytes", waysOf(variant)...)
	if err != nil {
		return nil, err
	}
	folder, err := vision.OpenFolder(context.Background(), filesOf(name), recipe)
	if err != nil || variant != "precomputed" {
		return folder, err
	}
	store, err := vision.New([]vision.Transform{
		vision.Resize{Shorter: 256}, vision.CenterCrop{Size: vision.Square(256)},
	}, vision.WithType(nwt.Uint8))
	if err != nil {
		return nil, err
	}
	whole, err := folder.With(store)
	if err != nil {
		return nil, err
	}
	stored, err := nwt.Precompute(context.Background(), whole, filepath.Join(os.TempDir(), "nwt-photos"), "256")
	if err != nil {
		return nil, err
	}
	return nwt.Map(stored, folder.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		copy(dst.Bytes(1), src.Bytes(1))
		return recipe.LoadPixels(dst, 0, src.Bytes(0), 256, 256, vision.CHW)
	}), nil
}

// difference returns how far a variant's crops of a folder's files are from Pillow's, which
// peers/photos.py has made: the mean, of values 0 … 255.
func difference(folder, variant string) float64 {
	made := filepath.Join(filepath.Dir(folder), "crops", filepath.Base(folder))
	var crops []struct {
		File   string `json:"file"`
		Window [4]int `json:"window"` // in the middle of the file: left, top, width, height
	}
	listed, err := os.ReadFile(made + ".json")
	if err == nil {
		err = json.Unmarshal(listed, &crops)
	}
	if err != nil {
		log.Fatal(err)
	}
	theirs, err := os.ReadFile(made + ".bin")
	if err != nil || len(theirs) != len(crops)*photoSize {
		log.Fatalf("%s: %d bytes, want %d crops (%v)", made, len(theirs), len(crops), err)
	}
	fields := []nwt.Field{{Name: "image", Shape: []int{photoSize}, Type: nwt.Uint8}}
	ds := nwt.NewDataset(len(crops), fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		crop := vision.CenterCrop{Size: vision.Size{Width: crops[i].Window[2], Height: crops[i].Window[3]}}
		p, err := vision.New([]vision.Transform{crop, vision.Resize{Size: vision.Square(photoSide)}}, append(waysOf(variant), vision.WithType(nwt.Uint8))...)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(filepath.Join(folder, crops[i].File))
		if err != nil {
			return err
		}
		return p.Load(dst, 0, data)
	})
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(len(crops)), nwt.WithWorkers(0))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	sum := 0
	for b, err := range l.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		for k, level := range nwt.Values[uint8](b, 0) {
			sum += max(int(level)-int(theirs[k]), int(theirs[k])-int(level))
		}
	}
	return float64(sum) / float64(len(theirs))
}

// decodingAlone returns the batches a second of goroutines in which libjpeg-turbo
// decodes the files, which are in memory, to planes, and nothing else.
func decodingAlone(w *workload[float32], workers int, seconds time.Duration) float64 {
	names, err := filepath.Glob(filepath.Join(photoFolder, "*", "*.jpg"))
	if err != nil || len(names) == 0 {
		log.Fatalf("%s: no photographs: peers/photos.py makes them (%v)", photoFolder, err)
	}
	var files [][]byte
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			log.Fatal(err)
		}
		files = append(files, data)
	}
	lib, err := purego.Dlopen("libturbojpeg.so.0", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		log.Fatal(err)
	}
	symbol := func(name string) uintptr {
		p, err := purego.Dlsym(lib, name)
		if err != nil {
			log.Fatal(err)
		}
		return p
	}
	open, decode := symbol("tjInitDecompress"), symbol("tjDecompressToYUVPlanes")
	var stop atomic.Bool
	var n atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for g := range workers {
		wg.Go(func() {
			handle, _, _ := purego.SyscallN(open)
			memory := make([]byte, 1<<20)
			planes := new([3]*byte)
			for i := g; !stop.Load(); i++ {
				data := files[i%len(files)]
				width, height, err := size420(data)
				if err != nil || width*height*3/2 > len(memory) {
					log.Fatalf("%s: %d × %d pixels: %v", names[i%len(files)], width, height, err)
				}
				half := (width + 1) / 2 * ((height + 1) / 2)
				planes[0], planes[1] = &memory[0], &memory[len(memory)-2*half]
				planes[2] = &memory[len(memory)-half]
				status, _, _ := purego.SyscallN(decode, handle, uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)),
					uintptr(unsafe.Pointer(planes)), 0, 0, 0, 0)
				runtime.KeepAlive(memory)
				if int32(status) != 0 {
					log.Fatalf("%s: libjpeg-turbo can't decode it", names[i%len(files)])
				}
				n.Add(1)
			}
		})
	}
	time.Sleep(seconds)
	stop.Store(true)
	wg.Wait()
	return float64(n.Load()) / float64(w.batch) / time.Since(began).Seconds()
}

// size420 returns the size of a baseline picture with half the chroma each way.
func size420(data []byte) (width, height int, err error) {
	at := bytes.Index(data, []byte{0xff, 0xc0, 0, 17, 8})
	if at < 0 || data[at+11] != 0x22 {
		return 0, 0, fmt.Errorf("not a baseline picture of 4:2:0")
	}
	return int(binary.BigEndian.Uint16(data[at+7:])), int(binary.BigEndian.Uint16(data[at+5:])), nil
}
