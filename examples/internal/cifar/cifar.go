// Package cifar reads the binary version of CIFAR-10 and prepares its images for training in the usual
// way: a random crop of the padded image, a random flip, and normalization.
package cifar

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"

	"github.com/nwt-go/nwt"
)

const (
	Side     = 32 // of an image, in pixels
	Channels = 3
	Classes  = 10

	plane      = Side * Side
	pixels     = Channels * plane
	recordSize = 1 + pixels
)

// A record is an image as it is stored in a file: the label, then the rows of the red, the green and the
// blue plane.
type record [recordSize]byte

// These are the fields of a sample.
var (
	schema nwt.Schema
	Image  = nwt.AddField[float32](&schema, "image", Channels, Side, Side) // augmented and normalized
	Label  = nwt.AddField[int64](&schema, "label")
)

// A Set is a dataset of images in memory.
type Set struct{ records []*record }

// Open reads the files data_batch_*.bin of a folder, in the order of their names.
func Open(dir string) (*Set, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Set{}
	for _, e := range entries {
		if match, _ := path.Match("data_batch_*.bin", e.Name()); !match {
			continue
		}
		name := filepath.Join(dir, e.Name())
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		records, err := parse(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		s.records = append(s.records, records...)
	}
	if len(s.records) == 0 {
		return nil, fmt.Errorf("%s: no data_batch_*.bin there: it must be the folder cifar-10-batches-bin from https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", dir)
	}
	return s, nil
}

// parse returns the records in data, the content of a file.
func parse(data []byte) ([]*record, error) {
	if len(data) == 0 || len(data)%recordSize != 0 {
		return nil, fmt.Errorf("%d bytes: a CIFAR-10 file is records of %d bytes, at least one", len(data), recordSize)
	}
	records := make([]*record, len(data)/recordSize)
	for i := range records {
		r := (*record)(data[i*recordSize:])
		if r[0] >= Classes {
			return nil, fmt.Errorf("record %d has label %d: labels are 0 … %d", i, r[0], Classes-1)
		}
		records[i] = r
	}
	return records, nil
}

// WriteSynthetic writes a file of n images of noise, for use without the real ones: they take the same
// time to load.
func WriteSynthetic(name string, n int, seed uint64) error {
	data := make([]byte, n*recordSize)
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(data)
	for i := range n {
		data[i*recordSize] %= Classes
	}
	return os.WriteFile(name, data, 0o644)
}

func (s *Set) Len() int { return len(s.records) }

func (s *Set) Fields() []nwt.Field { return schema.Fields() }

func (s *Set) Load(_ context.Context, index int, dst *nwt.Sample) error {
	r, rng := s.records[index], dst.Rand()
	image := (*[pixels]float32)(Image.Of(dst))
	augment(image, r, rng.IntN(2*padding+1), rng.IntN(2*padding+1), rng.IntN(2) == 1)
	Label.Set(dst, int64(r[0]))
	return nil
}
