package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/checkpoint"
	"github.com/nwt-go/nwt/packing"
)

// Tokenising while packing: texts become tokens where their shard is read, so packing knows how long each
// is, and no row has room in its middle. How many tokens a shard has is counted once and kept in a file:
// then the stream is counted, and any number of ranks may resume it.

const (
	packedLen      = 64
	longestText    = 1000 // tokens
	tokeniserIs    = "words, version 1"
	endOfText      = 0
	vocabularySize = 50_000
)

var (
	packSchema nwt.Schema
	packed     = nwt.AddRagged[int32](&packSchema, "tokens", 1, longestText)
)

// tokenise stands for a tokeniser: one token for each word, and one for the end.
func tokenise(text string) (all []int32, err error) {
	for word := range strings.FieldsSeq(text) {
		all = append(all, 1+int32(crc32.ChecksumIEEE([]byte(word))%(vocabularySize-1)))
	}
	if all = append(all, endOfText); len(all) > longestText {
		return nil, fmt.Errorf("%d tokens, want at most %d", len(all), longestText)
	}
	return all, nil
}

// texts yields the tokens of each line of a file.
func texts(ctx context.Context, path string) iter.Seq2[[]int32, error] {
	return func(yield func([]int32, error) bool) {
		file, err := os.Open(path)
		if err != nil {
			yield(nil, err)
			return
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		for line := 1; lines.Scan() && ctx.Err() == nil; line++ {
			tokens, err := tokenise(lines.Text())
			if err != nil {
				err = fmt.Errorf("%s:%d: %w", path, line, err)
			}
			if !yield(tokens, err) || err != nil {
				return
			}
		}
		if err := errors.Join(lines.Err(), ctx.Err()); err != nil {
			yield(nil, err)
		}
	}
}

// A total is how many tokens a file has, as long as the file and the tokeniser stay the same.
type total struct {
	Bytes     int64
	Changed   int64 // when, in nanoseconds
	Tokeniser string
	Tokens    int
}

// totals returns the tokens of each file. Those that aren't kept are counted, several files at a time.
func totals(ctx context.Context, kept string, files []string) ([]int, error) {
	known := map[string]total{}
	if _, err := checkpoint.Restore(kept, &known); err != nil {
		return nil, err
	}
	counts, now := make([]int, len(files)), make([]total, len(files))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, path := range files {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		now[i] = total{Bytes: info.Size(), Changed: info.ModTime().UnixNano(), Tokeniser: tokeniserIs}
		if before := known[path]; before.Bytes == now[i].Bytes && before.Changed == now[i].Changed && before.Tokeniser == tokeniserIs {
			now[i] = before
			continue
		}
		g.Go(func() error {
			for tokens, err := range texts(ctx, path) {
				if err != nil {
					return err
				}
				now[i].Tokens += len(tokens)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, path := range files {
		counts[i], known[path] = now[i].Tokens, now[i]
	}
	return counts, checkpoint.Save(kept, known)
}

// packedTexts returns the rows of all files.
func packedTexts(ctx context.Context, dir string, files []string) (nwt.Stream, error) {
	counts, err := totals(ctx, filepath.Join(dir, "totals.json"), files)
	if err != nil {
		return nil, err
	}
	docs := nwt.NewStream(packSchema.Fields(), len(files), func(ctx context.Context, shard int) iter.Seq2[[]int32, error] {
		return texts(ctx, files[shard])
	}, func(_ context.Context, tokens []int32, dst *nwt.Sample) error {
		packed.SetLen(dst, len(tokens))
		copy(packed.Of(dst), tokens)
		return nil
	})
	size := func(r *nwt.Record) int { return len(*r.Value.(*[]int32)) }
	return packing.NewStream(docs, packedLen, size, func(shard int) int { return counts[shard] })
}

// writeTexts makes files of lines of different lengths.
func writeTexts(dir string, n int) (files []string, err error) {
	for f := range n {
		var text strings.Builder
		for line := range 50 + 7*f {
			text.WriteString(strings.Repeat(fmt.Sprintf("word%d ", line%40), 1+line*line%90) + "\n")
		}
		files = append(files, filepath.Join(dir, fmt.Sprintf("texts-%d.txt", f)))
		err = errors.Join(err, os.WriteFile(files[f], []byte(text.String()), 0o644))
	}
	return files, err
}

func packTexts(ctx context.Context, dir string, out io.Writer) error {
	files, err := writeTexts(dir, 4)
	if err != nil {
		return err
	}
	rows, err := packedTexts(ctx, dir, files)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(nwt.Streamed(rows), nwt.WithBatchSize(16), nwt.WithShuffle(42))
	if err != nil {
		return err
	}
	defer loader.Close()
	tokens, places := 0, 0
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		for _, segment := range nwt.Values[int32](batch, 1) { // 0 where a row is empty
			if places++; segment > 0 {
				tokens++
			}
		}
	}
	fmt.Fprintf(out, "  %d batches, known before the first one; %d tokens in %d places\n", loader.Len(), tokens, places)
	return nil
}
