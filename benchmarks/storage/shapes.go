package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// A shape is a workload of MLPerf Storage: retinanet and flux of version 3, the others of
// version 2.
type shape struct {
	folder  string
	ofFile  int // samples per file
	batch   int
	step    time.Duration // what an accelerator takes for a batch
	busy    float64       // the lowest AU that counts as busy
	open    func(s shape, accelerators, steps int) (nwt.Dataset, error)
	options []nwt.Option
	reader  []string // DLIO's configuration
}

var shuffled = []nwt.Option{nwt.WithShuffle(1)}

var shapes = map[string]shape{
	"retinanet": {"retinanet", 1, 24, 47550 * time.Microsecond, 0.85, whole(pictureBytes, read), shuffled, []string{
		"dataset.format=jpeg", "dataset.record_length=323000", "reader.reader_classname=dlio_reader.Counted"}},
	"decoded": {"retinanet", 1, 24, 47550 * time.Microsecond, 0.85, decoded, shuffled, []string{
		"dataset.format=jpeg", "dataset.record_length=323000", "reader.reader_classname=dlio_reader.Decoded"}},
	"resnet50": {"resnet50", 1251, 400, 224 * time.Millisecond, 0.90, records, nil, []string{
		"dataset.format=tfrecord", "dataset.record_length=114660", "dataset.record_length_resize=150528", "framework=tensorflow", "reader.data_loader=tensorflow"}},
	"flux": {"flux", 288, 48, 1350 * time.Millisecond, 0.90, rowGroups, append(shuffled, nwt.WithPrefetch(1)), []string{
		"dataset.format=hdf5", "dataset.record_length=2160000", "reader.reader_classname=dlio_reader.Counted"}},
	"unet3d": {"unet3d", 1, 7, 323 * time.Millisecond, 0.90, whole(2<<20, readAll), shuffled, []string{
		"dataset.format=npz", "dataset.record_length=146600628", "dataset.record_length_resize=2097152", "reader.reader_classname=dlio_reader.Counted"}},
}

const (
	pictureBytes  = 323_000
	width, height = 1024, 768
	recordBytes   = 114_660 + 44 // an image in a tf.train.Example
)

func (s shape) files() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(s.folder, "files", "*"))
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no files: files.py makes them (%v)", s.folder, err)
	}
	return files, err
}

// epoch makes a dataset of what is in files, over and over, for all steps of an epoch.
func (s shape) epoch(accelerators, steps int, field nwt.Field, load func(path string, k int, dst *nwt.Sample) error) (nwt.Dataset, error) {
	files, err := s.files()
	if err != nil {
		return nil, err
	}
	return nwt.WritesAll(nwt.NewDataset(accelerators*steps*s.batch, []nwt.Field{field}, func(_ context.Context, i int, dst *nwt.Sample) error {
		runtime.Gosched() // the loaders of other accelerators are in this process: let them have their batches
		return load(files[i/s.ofFile%len(files)], i%s.ofFile, dst)
	})), nil
}

// whole is one sample per file.
func whole(bytes int, load func(path string, dst *nwt.Sample) error) func(s shape, accelerators, steps int) (nwt.Dataset, error) {
	return func(s shape, accelerators, steps int) (nwt.Dataset, error) {
		return s.epoch(accelerators, steps, nwt.Field{Name: "bytes", Type: nwt.Uint8, Shape: []int{bytes}},
			func(path string, _ int, dst *nwt.Sample) error { return load(path, dst) })
	}
}

// read fills a sample from the beginning of a file.
func read(path string, dst *nwt.Sample) error { return readAt(path, 0, dst.Bytes(0)) }

func readAt(path string, at int64, to []byte) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.ReadAt(to, at)
	return err
}

// readFile reads a file into memory that the worker keeps.
func readFile(path string, dst *nwt.Sample) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	kept, err := nwt.Scratch(dst, func() (*[]byte, error) { return new([]byte), nil })
	if err != nil {
		return nil, err
	}
	if int64(cap(*kept)) < info.Size() {
		*kept = make([]byte, info.Size())
	}
	*kept = (*kept)[:info.Size()]
	_, err = io.ReadFull(file, *kept)
	return *kept, err
}

// readAll reads a whole file and keeps what a sample has room for, as a crop would.
func readAll(path string, dst *nwt.Sample) error {
	data, err := readFile(path, dst)
	copy(dst.Bytes(0), data)
	return err
}

func decoded(s shape, accelerators, steps int) (nwt.Dataset, error) {
	pipeline, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Size{Height: height, Width: width}}}, vision.WithType(nwt.Uint8))
	if err != nil {
		return nil, err
	}
	return s.epoch(accelerators, steps, pipeline.Field("image"), func(path string, _ int, dst *nwt.Sample) error {
		data, err := readFile(path, dst)
		if err != nil {
			return err
		}
		return pipeline.Load(dst, 0, data)
	})
}

// rowGroups is a sample per row group of a Parquet file, of one row and not compressed. Its
// bytes are taken, not decoded, as MLPerf Storage's reader does.
func rowGroups(s shape, accelerators, steps int) (nwt.Dataset, error) {
	index, err := os.ReadFile(filepath.Join(s.folder, "rowgroups.json"))
	if err != nil {
		return nil, err
	}
	var groups [][2]int64 // offset and length, alike in all files
	if err := json.Unmarshal(index, &groups); err != nil {
		return nil, err
	}
	field := nwt.Field{Name: "row group", Type: nwt.Uint8, Shape: []int{int(groups[0][1])}}
	return s.epoch(accelerators, steps, field, func(path string, k int, dst *nwt.Sample) error {
		return readAt(path, groups[k][0], dst.Bytes(0))
	})
}

// A record is where it lies in a TFRecord file, in which its length and a checksum go before
// it, and a checksum of it follows.
type record struct {
	path string
	at   int64
}

// records is a stream of TFRecord files. Reading a shard finds records; workers read them and,
// as TensorFlow does, check them. A sample is the bytes of a tf.train.Example.
func records(s shape, accelerators, steps int) (nwt.Dataset, error) {
	files, err := s.files()
	if err != nil {
		return nil, err
	}
	field := nwt.Field{Name: "example", Type: nwt.Uint8, Shape: []int{recordBytes}}
	find := func(_ context.Context, shard int) iter.Seq2[record, error] { return find(files[shard%len(files)]) }
	return nwt.WritesAll(nwt.Streamed(nwt.NewStream([]nwt.Field{field}, accelerators*(1+steps*s.batch/s.ofFile), find, loadRecord))), nil
}

func find(path string) iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		file, err := os.Open(path)
		if err != nil {
			yield(record{}, err)
			return
		}
		defer file.Close()
		var size [8]byte
		for r := (record{path, 12}); ; r.at += int64(binary.LittleEndian.Uint64(size[:])) + 16 {
			if _, err := file.ReadAt(size[:], r.at-12); err == io.EOF || !yield(r, err) || err != nil {
				return
			}
		}
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func loadRecord(_ context.Context, r record, dst *nwt.Sample) error {
	runtime.Gosched()
	file, err := os.Open(r.path)
	if err != nil {
		return err
	}
	defer file.Close()
	data := dst.Bytes(0)
	if _, err := file.ReadAt(data, r.at); err != nil {
		return err
	}
	var sum [4]byte
	if _, err := file.ReadAt(sum[:], r.at+int64(len(data))); err != nil {
		return err
	}
	if crc := crc32.Checksum(data, castagnoli); (crc>>15|crc<<17)+0xa282ead8 != binary.LittleEndian.Uint32(sum[:]) {
		return fmt.Errorf("%s: the record at %d is damaged", r.path, r.at)
	}
	return nil
}
