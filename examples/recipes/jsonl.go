package main

import (
	"bufio"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"iter"

	"github.com/klauspost/compress/zstd"

	"github.com/nwt-go/nwt"
)

// JSON lines, compressed by Zstandard: reading decompresses and splits, loading parses and tokenizes.
// Replace tokenize by your tokenizer: several workers call it at once.

// Python libraries wrote these files: see testdata/make.py.
//
//go:embed testdata
var testdata embed.FS

const longestStory = 64

var (
	storySchema nwt.Schema
	storyID     = nwt.AddField[int64](&storySchema, "id")
	storyWeight = nwt.AddField[float32](&storySchema, "weight")
	storyTokens = nwt.AddRagged[int32](&storySchema, "tokens", 1, longestStory)
)

// longestLine keeps a damaged file from taking all memory.
const longestLine = 64 << 20

func stories(fsys fs.FS, files []string) nwt.Stream {
	read := func(_ context.Context, shard int) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			file, err := fsys.Open(files[shard])
			if err != nil {
				yield(nil, err)
				return
			}
			defer file.Close()
			unpacked, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1))
			if err != nil {
				yield(nil, err)
				return
			}
			defer unpacked.Close()
			lines := bufio.NewScanner(unpacked)
			lines.Buffer(nil, longestLine)
			for lines.Scan() {
				if len(lines.Bytes()) > 0 && !yield(lines.Bytes(), nil) {
					return
				}
			}
			if err := lines.Err(); err != nil {
				yield(nil, fmt.Errorf("%s: %w", files[shard], err))
			}
		}
	}
	return nwt.NewStream(storySchema.Fields(), len(files), read, func(_ context.Context, line []byte, dst *nwt.Sample) error {
		var story struct { // pointers, because json silently makes 0 of a number that is missing or null
			ID     *int64   `json:"id"`
			Weight *float32 `json:"weight"`
			Text   *string  `json:"text"`
		}
		err := json.Unmarshal(line, &story)
		text := value(&err, line, "text", story.Text)
		storyID.Of(dst)[0] = value(&err, line, "id", story.ID)
		storyWeight.Of(dst)[0] = value(&err, line, "weight", story.Weight, 1)
		storyTokens.SetLen(dst, tokenize(text, storyTokens.Of(dst)))
		return err
	})
}

// value returns the value of a key in a line, or the default if the key is missing or null. If there is
// no default, that is an error; the loader adds the line's number in its shard.
func value[T any](err *error, line []byte, key string, v *T, byDefault ...T) (zero T) {
	switch {
	case v != nil:
		return *v
	case len(byDefault) > 0:
		return byDefault[0]
	case *err == nil:
		*err = fmt.Errorf("key %q is missing or null in the line %.100q", key, line)
	}
	return zero
}

// tokenize writes the tokens of a text, as many as fit; its tokens are bytes.
func tokenize(text string, tokens []int32) (n int) {
	for n = 0; n < len(text) && n < len(tokens); n++ {
		tokens[n] = int32(text[n])
	}
	return n
}

func jsonLines(ctx context.Context, _ string, out io.Writer) error {
	stream := stories(testdata, []string{"testdata/stories-0.jsonl.zst", "testdata/stories-1.jsonl.zst"})
	loader, err := nwt.NewLoader(nwt.Streamed(stream), nwt.WithBatchSize(8), nwt.WithShuffle(1))
	if err != nil {
		return err
	}
	defer loader.Close()
	samples, words := 0, 0
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		samples += batch.Len() // here a model is trained
		for _, n := range storyTokens.Lens(batch, 0) {
			words += int(n)
		}
	}
	fmt.Fprintf(out, "  %d stories, %d tokens\n", samples, words)
	return nil
}
