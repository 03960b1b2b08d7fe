package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"math"

	"github.com/nwt-go/nwt"
)

// TFRecord files of tf.train.Example. A record is its length (8 bytes), a checksum of the length, the
// data, and a checksum of the data: https://www.tensorflow.org/tutorials/load_data/tfrecord

var (
	pixelSchema nwt.Schema
	pixelImage  = nwt.AddField[uint8](&pixelSchema, "image", 2, 2, 3)
	pixelLabel  = nwt.AddField[int64](&pixelSchema, "label")
	pixelBox    = nwt.AddField[float32](&pixelSchema, "box", 4)
)

// longestRecord keeps a damaged file from taking all memory.
const longestRecord = 1 << 30

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func masked(data []byte) uint32 {
	crc := crc32.Checksum(data, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}

// tfRecords yields the records of a file, all in one buffer.
func tfRecords(fsys fs.FS, name string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		file, err := fsys.Open(name)
		if err != nil {
			yield(nil, err)
			return
		}
		defer file.Close()
		in, record := bufio.NewReaderSize(file, 1<<18), []byte(nil)
		for {
			if record, err = tfRecord(in, record); err == io.EOF {
				return
			}
			if err != nil {
				yield(nil, fmt.Errorf("%s: %w", name, err))
				return
			}
			if !yield(record, nil) {
				return
			}
		}
	}
}

// tfRecord reads a record into memory that it may reuse. After the last record, its error is io.EOF
// itself.
func tfRecord(in io.Reader, record []byte) ([]byte, error) {
	var head [12]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(head[:])
	if masked(head[:8]) != binary.LittleEndian.Uint32(head[8:]) || n > longestRecord {
		return nil, errors.New("no TFRecord, or damaged: the length's checksum is wrong")
	}
	if record = record[:0]; uint64(cap(record)) < n+4 {
		record = make([]byte, 0, n+4)
	}
	record = record[:n+4]
	if _, err := io.ReadFull(in, record); err != nil {
		return nil, fmt.Errorf("cut: %w", err)
	}
	if masked(record[:n]) != binary.LittleEndian.Uint32(record[n:]) {
		return nil, errors.New("damaged: a record's checksum is wrong")
	}
	return record[:n], nil
}

// A feature has values of one of three kinds.
type feature struct {
	bytes  [][]byte
	floats []float32
	ints   []int64
}

// example returns the features of a tf.train.Example.
func example(data []byte) (map[string]feature, error) {
	all := map[string]feature{}
	err := message(data, func(_ int, features []byte, _ uint64) error { // Example.features
		return message(features, func(_ int, entry []byte, _ uint64) error { // Features.feature
			name, f := "", feature{}
			err := message(entry, func(field int, data []byte, _ uint64) error { // key, value
				if field == 1 {
					name = string(data)
					return nil
				}
				return message(data, f.list)
			})
			all[name] = f
			return err
		})
	})
	return all, err
}

// list adds a BytesList (1), a FloatList (2) or an Int64List (3). Numbers may be packed.
func (f *feature) list(kind int, list []byte, _ uint64) error {
	return message(list, func(_ int, data []byte, number uint64) error {
		switch {
		case kind == 1:
			f.bytes = append(f.bytes, data)
		case kind == 2 && data == nil:
			f.floats = append(f.floats, math.Float32frombits(uint32(number)))
		case kind == 2:
			for ; len(data) >= 4; data = data[4:] {
				f.floats = append(f.floats, math.Float32frombits(binary.LittleEndian.Uint32(data)))
			}
		case data == nil:
			f.ints = append(f.ints, int64(number))
		default:
			for len(data) > 0 {
				v, n := binary.Uvarint(data)
				if n <= 0 {
					return errProto
				}
				f.ints, data = append(f.ints, int64(v)), data[n:]
			}
		}
		return nil
	})
}

var errProto = errors.New("not a protocol buffer")

// message calls f for each field of a protocol buffer, with the field's bytes or, if they are nil, its
// number.
func message(data []byte, f func(field int, data []byte, number uint64) error) error {
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 {
			return errProto
		}
		data = data[n:]
		var value []byte
		number := uint64(0)
		switch tag & 7 {
		case 0, 2:
			if number, n = binary.Uvarint(data); n <= 0 {
				return errProto
			}
			if data = data[n:]; tag&7 == 2 {
				if number > uint64(len(data)) {
					return errProto
				}
				value, data = data[:number:number], data[number:]
			}
		case 5:
			if len(data) < 4 {
				return errProto
			}
			number, data = uint64(binary.LittleEndian.Uint32(data)), data[4:]
		default:
			return errProto
		}
		if err := f(int(tag>>3), value, number); err != nil {
			return err
		}
	}
	return nil
}

func pixels(fsys fs.FS, files []string) nwt.Stream {
	read := func(_ context.Context, shard int) iter.Seq2[[]byte, error] { return tfRecords(fsys, files[shard]) }
	return nwt.NewStream(pixelSchema.Fields(), len(files), read, func(_ context.Context, record []byte, dst *nwt.Sample) error {
		e, err := example(record)
		if err != nil {
			return err
		}
		image, label, box := e["image"].bytes, e["label"].ints, e["box"].floats
		if len(image) != 1 {
			return fmt.Errorf("an example with %d images", len(image))
		}
		pixelImage.Set(dst, image[0]...)
		pixelLabel.Set(dst, label...)
		pixelBox.Set(dst, box...)
		return nil
	})
}

// countedPixels knows how many records its files have, so a job that loses a rank can continue.
type countedPixels struct {
	nwt.Stream
	counts []int
}

func (p countedPixels) Records(shard int) int { return p.counts[shard] }

func tfRecordFiles(ctx context.Context, _ string, out io.Writer) error {
	stream := countedPixels{pixels(testdata, []string{"testdata/pixels-0.tfrecord", "testdata/pixels-1.tfrecord"}), []int{10, 10}}
	state, samples := nwt.State{}, 0
	for world := 2; world > 0; world-- { // after one step, one of two ranks is lost
		reached := state
		for rank := range world {
			loader, err := nwt.NewLoader(nwt.Streamed(stream), nwt.WithBatchSize(4), nwt.WithShuffle(1), nwt.WithRank(rank, world))
			if err != nil {
				return err
			}
			defer loader.Close()
			for batch, err := range loader.Resume(ctx, state) {
				if err != nil {
					return err
				}
				samples, reached = samples+batch.Len(), batch.State() // here a model is trained
				if world == 2 {
					break
				}
			}
		}
		state = reached
	}
	fmt.Fprintf(out, "  %d pictures, first on two ranks, then on one\n", samples)
	return nil
}
