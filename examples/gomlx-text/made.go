package main

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// For each topic: what is judged, words of praise, and words of blame.
var topics = map[string][3][]string{
	"films": {{"plot", "film", "ending", "music"}, {"good", "great", "gripping", "moving", "witty"}, {"bad", "awful", "dull", "shallow", "predictable"}},
	"food":  {{"soup", "bread", "service", "dessert"}, {"good", "great", "fresh", "tasty", "crisp"}, {"bad", "awful", "stale", "greasy", "cold"}},
}

var asides = []string{"we went on a monday", "my sister came along", "it was raining", "we had booked a week ahead", "a friend had told us about it", "it took two hours"}

// writeReviews writes n reviews of a topic, the same ones for the same seed.
func writeReviews(name, topic string, n int, seed uint64) error {
	var text bytes.Buffer
	out, rng := json.NewEncoder(&text), rand.New(rand.NewPCG(seed, 1))
	for range n {
		words, label := review(rng, topics[topic])
		if err := out.Encode(map[string]any{"text": words, "label": label}); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, text.Bytes(), 0o644)
}

// review returns a verdict, which may be negated, among up to eight digressions.
func review(rng *rand.Rand, topic [3][]string) (text string, label int) {
	pick := func(from []string) string { return from[rng.IntN(len(from))] }
	label = rng.IntN(2)
	verdict := "the " + pick(topic[0]) + " was "
	if rng.IntN(4) == 0 {
		verdict += "not " + pick(topic[1+label])
	} else {
		verdict += pick(topic[2-label])
	}
	said := []string{verdict}
	for range rng.IntN(9) {
		said = append(said, pick(asides))
	}
	rng.Shuffle(len(said), func(i, j int) { said[i], said[j] = said[j], said[i] })
	return strings.Join(said, " and "), label
}
