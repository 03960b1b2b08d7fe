package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// ofBytes makes a shape's folder of files.
func ofBytes(t *testing.T, name string, files ...[]byte) shape {
	s := shapes[name]
	s.folder, s.batch = t.TempDir(), 2
	require.NoError(t, os.Mkdir(filepath.Join(s.folder, "files"), 0o755))
	for i, data := range files {
		require.NoError(t, os.WriteFile(filepath.Join(s.folder, "files", fmt.Sprint(i)), data, 0o644))
	}
	return s
}

// firsts returns the first byte of each sample that the ranks get.
func firsts(t *testing.T, s shape, world, steps int) (all []byte, err error) {
	ds, err := s.open(s, world, steps)
	require.NoError(t, err)
	for rank := range world {
		l, err := nwt.NewLoader(ds, append(s.options, nwt.WithBatchSize(s.batch), nwt.WithRank(rank, world))...)
		require.NoError(t, err)
		defer l.Close()
		k := 0
		for b, err := range l.Epoch(context.Background(), 0) {
			if err != nil {
				return nil, err
			}
			for i := range b.Len() {
				all = append(all, b.Bytes(0)[i*len(b.Bytes(0))/b.Len()])
			}
			if k++; k == steps {
				break
			}
		}
		assert.Equal(t, steps, k)
	}
	return all, nil
}

func TestTheFilesComeOverAndOverUntilAllStepsAreDone(t *testing.T) {
	s := ofBytes(t, "retinanet", bytes.Repeat([]byte{1}, pictureBytes), bytes.Repeat([]byte{2}, pictureBytes))
	all, err := firsts(t, s, 2, 5)
	require.NoError(t, err)
	assert.Equal(t, [2]int{10, 10}, [2]int{bytes.Count(all, []byte{1}), bytes.Count(all, []byte{2})})
}

func TestACutFileIsAnError(t *testing.T) {
	_, err := firsts(t, ofBytes(t, "retinanet", make([]byte, pictureBytes-1)), 1, 1)
	assert.ErrorContains(t, err, "EOF")
}

func TestRecordsAreFoundReadAndChecked(t *testing.T) {
	var file []byte
	for i := range 3 {
		data := bytes.Repeat([]byte{byte(i)}, recordBytes)
		crc := crc32.Checksum(data, castagnoli)
		file = append(binary.LittleEndian.AppendUint64(file, recordBytes), 0, 0, 0, 0)
		file = binary.LittleEndian.AppendUint32(append(file, data...), (crc>>15|crc<<17)+0xa282ead8)
	}
	s := ofBytes(t, "resnet50", file)
	s.ofFile = 3
	all, err := firsts(t, s, 1, 3)
	require.NoError(t, err)
	assert.Equal(t, []byte{0, 0, 0, 1, 1, 1}, all) // a record of each of three shards, and so on
	file[100]++
	_, err = firsts(t, ofBytes(t, "resnet50", file), 1, 1)
	assert.ErrorContains(t, err, "damaged")
}

func TestTheMostThatAreBusyIsFound(t *testing.T) {
	for most := range 40 {
		assert.Equal(t, most, mostBusy(func(n int) bool { return n <= most }))
	}
}

func TestNoneIsAheadOfTheOthersByMoreThanAStep(t *testing.T) {
	b := barrier{n: 5, open: make(chan struct{})}
	var steps atomic.Int32
	var all sync.WaitGroup
	for range b.n {
		all.Go(func() {
			for k := range 1000 {
				if n := int(steps.Add(1)); n <= k*b.n || n > (k+1)*b.n {
					t.Errorf("step %d is begun as number %d", k, n)
				}
				b.wait()
			}
		})
	}
	all.Wait()
}
