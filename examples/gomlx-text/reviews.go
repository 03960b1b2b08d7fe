package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"strings"

	"github.com/nwt-go/nwt"
)

const (
	vocabulary = 1 << 13
	longest    = 128 // tokens per review; further tokens are left out
)

var (
	schema = new(nwt.Schema)
	tokens = nwt.AddRagged[int32](schema, "tokens", 1, longest)
	label  = nwt.AddField[int32](schema, "label")
)

// openReviews returns a dataset of the reviews in a file of JSON lines, and a function that returns about
// how many tokens each has.
func openReviews(name string) (nwt.Dataset, func(int) int, error) {
	file, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	lines := bytes.Split(bytes.TrimSpace(file), []byte("\n"))
	ds := nwt.NewDataset(len(lines), schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		var review struct { // pointers, because a label that is missing or null would otherwise be 0
			Text  *string
			Label *int32
		}
		if err := json.Unmarshal(lines[i], &review); err != nil {
			return fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
		if review.Text == nil || review.Label == nil {
			return fmt.Errorf("%s:%d: text or label is missing or null", name, i+1)
		}
		if *review.Label != 0 && *review.Label != 1 {
			return fmt.Errorf("%s:%d: label %d must be 0 or 1", name, i+1, *review.Label)
		}
		label.Set(dst, *review.Label)
		tokens.SetLen(dst, tokenize(*review.Text, tokens.Of(dst)))
		return nil
	})
	// There are two tokens per word. The number is rounded up, so that GoMLX compiles for few shapes.
	length := func(i int) int { return min((2*len(bytes.Fields(lines[i]))+15)/16*16, longest) }
	return nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = length(i) }), length, nil
}

// tokenize writes two tokens for each word, as many as fit: a hash of the word, and a hash of the word
// and the one before it. Replace it by your tokenizer.
func tokenize(text string, to []int32) (n int) {
	before := ""
	for word := range strings.FieldsSeq(strings.ToLower(text)) {
		for _, token := range []string{word, before + " " + word} {
			if n < len(to) {
				hash := fnv.New32a()
				hash.Write([]byte(token))
				to[n] = int32(hash.Sum32() % vocabulary)
				n++
			}
		}
		before = word
	}
	return n
}
