package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/nwt-go/nwt"
)

// Pairs for retrieval: a question, a passage that answers it, and hard negatives: passages that the model
// ranks high although they don't answer it. They are mined anew after each epoch. Save them with the model:
// resuming in mid-epoch with others is an error.

const (
	questionLen  = 6
	passageLen   = 12
	negativesPer = 3  // for each question of a batch
	candidates   = 10 // hard negatives that are kept of each question
)

var (
	pairSchema nwt.Schema
	question   = nwt.AddField[int32](&pairSchema, "question", questionLen)
	passages   = nwt.AddField[int32](&pairSchema, "passages", 1+negativesPer, passageLen) // the first answers
	passageIDs = nwt.AddField[int32](&pairSchema, "passage_ids", 1+negativesPer)
)

type answered struct {
	question []int32
	by       []int // the passages that answer it, in ascending order
}

// A pairing is a dataset of questions.
type pairing struct {
	questions []answered
	passages  [][]int32
	hard      [][]int // of each question; changed only between epochs
	mined     uint64  // hash of hard
}

func (p *pairing) Len() int            { return len(p.questions) }
func (p *pairing) Fields() []nwt.Field { return pairSchema.Fields() }

func (p *pairing) Fingerprint() string {
	return fmt.Sprintf("%d questions, %d passages, negatives %x", len(p.questions), len(p.passages), p.mined)
}

func (p *pairing) answers(q, passage int) bool {
	_, ok := slices.BinarySearch(p.questions[q].by, passage)
	return ok
}

func (p *pairing) Load(_ context.Context, i int, dst *nwt.Sample) error {
	q, rng := &p.questions[i], dst.Rand()
	if len(q.by) == 0 {
		return errors.New("no passage answers it")
	}
	if len(p.passages)-len(q.by) < negativesPer {
		return errors.New("too many passages answer it")
	}
	question.Set(dst, q.question...)
	chosen := [1 + negativesPer]int{q.by[rng.IntN(len(q.by))]}
	for k := 1; k <= negativesPer; {
		n := rng.IntN(len(p.passages)) // until something is mined, and for every third, any passage
		if k%3 != 0 && len(p.hard[i]) >= negativesPer {
			n = p.hard[i][rng.IntN(len(p.hard[i]))]
		}
		if !p.answers(i, n) && !slices.Contains(chosen[:k], n) {
			chosen[k] = n
			k++
		}
	}
	for k, passage := range chosen {
		copy(passages.Of(dst)[k*passageLen:], p.passages[passage])
		passageIDs.Of(dst)[k] = int32(passage)
	}
	return nil
}

// mine finds the passages that score highest for each question, and don't answer it. Call it between epochs,
// and load with Epoch, not Epochs: no batch may be loading.
func (p *pairing) mine(score func(question, passage []int32) float64) {
	sum := fnv.New64a()
	for i := range p.questions {
		type scored struct {
			passage int
			score   float64
		}
		var all []scored
		for n, text := range p.passages {
			if !p.answers(i, n) {
				all = append(all, scored{n, score(p.questions[i].question, text)})
			}
		}
		slices.SortFunc(all, func(a, b scored) int { return cmp.Compare(b.score, a.score) })
		p.hard[i] = p.hard[i][:0]
		for _, s := range all[:min(candidates, len(all))] {
			p.hard[i] = append(p.hard[i], s.passage)
			fmt.Fprintln(sum, i, s.passage)
		}
	}
	p.mined = sum.Sum64()
}

// overlap stands for a model: how many words of the question are in the passage.
func overlap(question, passage []int32) (n float64) {
	for _, word := range question {
		if slices.Contains(passage, word) {
			n++
		}
	}
	return n
}

// madePairing returns n questions of one topic each; passages of this topic answer every other one of them.
func madePairing(n int) *pairing {
	rng := rand.New(rand.NewPCG(1, 1))
	words := func(topic, n int) (words []int32) {
		for range n {
			words = append(words, int32(topic*20+rng.IntN(20)))
		}
		return words
	}
	p := &pairing{hard: make([][]int, n)}
	for i := range 4 * n {
		p.passages = append(p.passages, words(i%10, passageLen))
	}
	for i := range n {
		q := answered{question: words(i%10, questionLen)}
		for passage := range p.passages {
			if passage%10 == i%10 && passage/10%2 == 0 {
				q.by = append(q.by, passage)
			}
		}
		p.questions = append(p.questions, q)
	}
	return p
}

func negatives(ctx context.Context, _ string, out io.Writer) error {
	p := madePairing(200)
	loader, err := nwt.NewLoader(p, nwt.WithBatchSize(20), nwt.WithShuffle(42))
	if err != nil {
		return err
	}
	defer loader.Close()
	for epoch := range 2 {
		hard := 0.0
		for batch, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			ids := passageIDs.Of(batch)
			for k, i := range batch.Indices() { // here a model is trained; the other passages of the batch are negatives, too
				for _, id := range ids[k*(1+negativesPer)+1 : (k+1)*(1+negativesPer)] {
					hard += overlap(p.questions[i].question, p.passages[id])
				}
			}
		}
		fmt.Fprintf(out, "  epoch %d: negatives share %.2f words with their question\n", epoch, hard/float64(p.Len()*negativesPer))
		p.mine(overlap)
	}
	return nil
}
