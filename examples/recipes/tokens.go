package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/nwt-go/nwt"
)

// A token file of Megatron-LM consists of a .bin with all documents' tokens, and a .idx that says where
// each document begins. The samples are windows that begin anywhere in the file, in each epoch at other
// places. Format: megatron/core/datasets/indexed_dataset.py of https://github.com/NVIDIA/Megatron-LM

const corpusWindow = 16

var (
	corpusSchema nwt.Schema
	corpusTokens = nwt.AddField[uint16](&corpusSchema, "tokens", corpusWindow+1) // inputs, and one token more for the targets
	corpusBegins = nwt.AddField[bool](&corpusSchema, "begins", corpusWindow+1)   // whether a document begins at the token
)

// tokenIndex returns the index of the first token of each document, and the end of the last document.
func tokenIndex(idx []byte) (starts []int, err error) {
	const head = 9 + 8 + 1 + 8 + 8
	if len(idx) < head || string(idx[:9]) != "MMIDIDX\x00\x00" || binary.LittleEndian.Uint64(idx[9:]) != 1 {
		return nil, fmt.Errorf("no index of Megatron-LM, version 1")
	}
	if code := idx[17]; code != 8 {
		return nil, fmt.Errorf("tokens of type %d: this program reads uint16, 8", code)
	}
	n := binary.LittleEndian.Uint64(idx[18:])
	if idx = idx[head:]; n > uint64(len(idx))/12 {
		return nil, fmt.Errorf("%d sequences in an index that has only %d bytes more", n, len(idx))
	}
	starts = make([]int, 1, n+1)
	for i := range int(n) {
		starts = append(starts, starts[i]+int(binary.LittleEndian.Uint32(idx[4*i:])))
	}
	return starts, nil
}

// corpusWindows returns a dataset of windows over name.bin and name.idx.
func corpusWindows(fsys fs.FS, name string) (nwt.Dataset, error) {
	idx, err := fs.ReadFile(fsys, name+".idx")
	if err != nil {
		return nil, err
	}
	starts, err := tokenIndex(idx)
	if err != nil {
		return nil, fmt.Errorf("%s.idx: %w", name, err)
	}
	file, err := fsys.Open(name + ".bin") // stays open until the program ends
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	tokens := starts[len(starts)-1]
	if info.Size() != int64(2*tokens) {
		return nil, fmt.Errorf("%s.bin has %d bytes, its index says %d", name, info.Size(), 2*tokens)
	}
	places := tokens - corpusWindow
	if places < 1 {
		return nil, fmt.Errorf("%s.bin has %d tokens, a window %d", name, tokens, corpusWindow+1)
	}
	load := func(_ context.Context, i int, dst *nwt.Sample) error {
		// Window i begins in the i-th stretch of the file.
		from := min(i*corpusWindow+dst.Rand().IntN(corpusWindow), places-1)
		var data [2 * (corpusWindow + 1)]byte
		if _, err := file.(io.ReaderAt).ReadAt(data[:], int64(2*from)); err != nil {
			return err
		}
		for k := range corpusTokens.Of(dst) {
			corpusTokens.Of(dst)[k] = binary.LittleEndian.Uint16(data[2*k:])
			_, corpusBegins.Of(dst)[k] = slices.BinarySearch(starts, from+k)
		}
		return nil
	}
	return nwt.NewDataset((places-1)/corpusWindow+1, corpusSchema.Fields(), load), nil
}

func tokenFile(ctx context.Context, _ string, out io.Writer) error {
	ds, err := corpusWindows(testdata, "testdata/corpus")
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(8), nwt.WithShuffle(1))
	if err != nil {
		return err
	}
	defer loader.Close()
	samples := 0
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		samples += batch.Len() // here a model is trained
	}
	fmt.Fprintf(out, "  %d windows of %d tokens\n", samples, corpusWindow)
	return nil
}
