package sampler_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/sampler"
)

// Every sample comes once per epoch, and no batch has more tokens than allowed, padding
// included.
func TestATokenBatchIsWithinItsBound(t *testing.T) {
	for _, n := range []int{1, 2, 30, 1000, 5000} {
		for _, tokens := range []sampler.Tokens{{Max: 200}, {Max: 1000}, {Max: 1000, MaxSamples: 7}, {Max: 300, Window: 1}, {Max: 300, Window: 1000}} {
			s := kit.TokenBatches(t, n, tokens)
			for epoch := range 2 {
				var all []int
				for b := range s.Batches() {
					batch := kit.BatchOf(s, epoch, b)
					require.NotEmpty(t, batch)
					longest := 1
					for _, i := range batch {
						longest = max(longest, kit.TokensOf(i))
					}
					require.LessOrEqual(t, longest*len(batch), tokens.Max)
					if tokens.MaxSamples > 0 {
						require.LessOrEqual(t, len(batch), tokens.MaxSamples)
					}
					all = append(all, batch...)
				}
				filled := make([]int, n)
				s.(nwt.SamplerFiller).Fill(epoch, 0, filled)
				require.Equal(t, all, filled)
				for from := 0; from < n; from += 1 + n/7 {
					clear(filled)
					s.(nwt.SamplerFiller).Fill(epoch, from, filled[from:])
					require.Equal(t, all[from:], filled[from:])
				}
				slices.Sort(all)
				require.Equal(t, orderOf(nwt.Sequential(n), 0), all)
			}
		}
	}
}

// Epochs and seeds differ, in the order of the batches and in what is in them.
func TestTokenBatchesAreShuffledAnewInEachEpoch(t *testing.T) {
	s := kit.TokenBatches(t, 3000, sampler.Tokens{Max: 1000})
	first := map[string]bool{}
	for b := range s.Batches() {
		first[sortedText(kit.BatchOf(s, 0, b))] = true
	}
	same := 0
	for b := range s.Batches() {
		if first[sortedText(kit.BatchOf(s, 1, b))] {
			same++
		}
	}
	require.Less(t, same, s.Batches()/10, "batches that come again")
	other, err := sampler.TokenBatches(3000, kit.TokensOf, sampler.Tokens{Max: 1000}, 8)
	require.NoError(t, err)
	require.NotEqual(t, kit.BatchOf(s, 0, 0), kit.BatchOf(other, 0, 0))
}

func sortedText(indices []int) string { return fmt.Sprint(slices.Sorted(slices.Values(indices))) }

// Little of a batch is padding, and most of what is allowed is used.
func TestTokenBatchesAreFull(t *testing.T) {
	s := kit.TokenBatches(t, 5000, sampler.Tokens{Max: 1000})
	used, padded, tokens := 0, 0, 0
	for b := range s.Batches() {
		longest := 1
		for _, i := range kit.BatchOf(s, 0, b) {
			longest = max(longest, kit.TokensOf(i))
			tokens += max(1, kit.TokensOf(i))
		}
		used += longest * len(kit.BatchOf(s, 0, b))
		padded += 1000
	}
	require.Greater(t, float64(tokens)/float64(used), 0.85)
	require.Greater(t, float64(used)/float64(padded), 0.75)
}

func TestTokenBatchesStayWhatTheyWere(t *testing.T) {
	s := kit.TokenBatches(t, 40, sampler.Tokens{Max: 300})
	require.Equal(t, "TokenBatches(40, 8 batches of at most 300 tokens, seed 7)", fmt.Sprint(s))
	require.Equal(t, [][]int{{39, 13}, {3, 38, 15, 7, 11, 37}, {1, 35, 19}}, [][]int{kit.BatchOf(s, 0, 0), kit.BatchOf(s, 1, 3), kit.BatchOf(s, 5, 7)})
}

func TestTokenBatchesRefusesWhatItCantUse(t *testing.T) {
	for want, make := range map[string]func() (nwt.BatchSampler, error){
		"the number of samples must be 1 ": func() (nwt.BatchSampler, error) {
			return sampler.TokenBatches(permute.MaxLen+1, kit.TokensOf, sampler.Tokens{Max: 9}, 1)
		},
		"0: the number of samples must be 1": func() (nwt.BatchSampler, error) {
			return sampler.TokenBatches(0, kit.TokensOf, sampler.Tokens{Max: 9}, 1)
		},
		"the length function is nil":    func() (nwt.BatchSampler, error) { return sampler.TokenBatches(1, nil, sampler.Tokens{Max: 9}, 1) },
		"Tokens.Max must be at least 1": func() (nwt.BatchSampler, error) { return sampler.TokenBatches(1, kit.TokensOf, sampler.Tokens{}, 1) },
		"Tokens.MaxSamples must be": func() (nwt.BatchSampler, error) {
			return sampler.TokenBatches(1, kit.TokensOf, sampler.Tokens{Max: 1, MaxSamples: -1}, 1)
		},
		"Tokens.Window must be": func() (nwt.BatchSampler, error) {
			return sampler.TokenBatches(1, kit.TokensOf, sampler.Tokens{Max: 1, Window: -1}, 1)
		},
		"TokenBatches: length(3): 30: must be 0 … 29 (Tokens.Max)": func() (nwt.BatchSampler, error) {
			return sampler.TokenBatches(4, func(i int) int { return 10 * i }, sampler.Tokens{Max: 29}, 1)
		},
		"TokenBatches: length(0): -1: must be 0": func() (nwt.BatchSampler, error) {
			return sampler.TokenBatches(9, func(i int) int { return -1 }, sampler.Tokens{Max: 29}, 1)
		},
	} {
		_, err := make()
		require.ErrorContains(t, err, want)
	}
}

// Samples of the same window meet in a batch, sooner or later; others never do. Here all
// samples are of the same length, two in a batch.
func TestAWindowOfTokenBatchesIsAsWideAsItsDocumentationSays(t *testing.T) {
	for _, c := range []struct{ batches, window, want int }{
		{10, 1, 1}, {10, 3, 3}, {10, 1000, 10},
		{3, 0, 3}, {12, 0, 4}, {32 * 4, 0, 4}, {32 * 9, 0, 9}, {32*10 - 1, 0, 9}, {32 * 70, 0, 64},
	} {
		s, err := sampler.TokenBatches(2*c.batches, func(int) int { return 5 }, sampler.Tokens{Max: 10, Window: c.window}, 1)
		require.NoError(t, err)
		require.Equal(t, c.batches, s.Batches())
		farthest := 0
		for epoch := range 20 {
			for b := range s.Batches() {
				batch := kit.BatchOf(s, epoch, b)
				require.Len(t, batch, 2)
				require.Equal(t, batch[0]/(2*c.want), batch[1]/(2*c.want), "%+v", c)
				farthest = max(farthest, batch[0]-batch[1], batch[1]-batch[0])
			}
		}
		require.GreaterOrEqual(t, farthest, c.want, "%+v: they do meet", c)
	}
}

// A window ends where a sample is less than three quarters as long as its longest, and
// all its batches hold as many samples as the longest allows.
func TestAWindowOfTokenBatchesHoldsSimilarLengths(t *testing.T) {
	for _, longest := range []int{4, 5, 6, 7, 8, 1000} {
		for _, c := range []struct {
			shorter int
			one     bool // they are in one window
		}{{(3*longest + 3) / 4, true}, {(3*longest+3)/4 - 1, false}} {
			s, err := sampler.TokenBatches(20, func(i int) int {
				if i < 10 {
					return longest
				}
				return c.shorter
			}, sampler.Tokens{Max: 5 * longest}, 1)
			require.NoError(t, err)
			mixed := false
			for epoch := range 20 {
				for b := range s.Batches() {
					batch := slices.Sorted(slices.Values(kit.BatchOf(s, epoch, b)))
					mixed = mixed || batch[0] < 10 && batch[len(batch)-1] >= 10
					require.True(t, !c.one || len(batch) == 5)
				}
			}
			require.Equal(t, c.one, mixed, "%d and %d", longest, c.shorter)
		}
	}
}

// The shortest samples and the longest that Max allows have batches too.
func TestASampleMayHaveAllTokensOfABatch(t *testing.T) {
	s, err := sampler.TokenBatches(3, func(i int) int { return i % 2 }, sampler.Tokens{Max: 1}, 1)
	require.NoError(t, err)
	require.Equal(t, 3, s.Batches(), "a length of 0 counts as 1")
	s, err = sampler.TokenBatches(4, func(i int) int { return []int{0, 9, 1, 9}[i] }, sampler.Tokens{Max: 9, MaxSamples: 1}, 1)
	require.NoError(t, err)
	require.Equal(t, 4, s.Batches())
}

// Batches of at most 12 tokens, padding included: each as long as its longest text.
func ExampleTokenBatches() {
	texts := []string{"a", "to", "the", "long", "longer", "be", "or", "not", "question", "is"}
	var schema nwt.Schema
	text := nwt.AddRagged[uint8](&schema, "text", 1, 100)
	ds := nwt.Sized(nwt.NewDataset(len(texts), schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		text.SetLen(dst, copy(text.Of(dst), texts[i]))
		return nil
	}), func(i int, sizes []int) { sizes[0] = len(texts[i]) })
	order, err := sampler.TokenBatches(len(texts), func(i int) int { return len(texts[i]) }, sampler.Tokens{Max: 12}, 1)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := nwt.NewLoader(ds, nwt.WithSampler(order), nwt.WithBatchSize(12))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %q\n", text.Shape(batch), text.Of(batch))
	}
	// Output:
	// [1 6] "longer"
	// [1 8] "question"
	// [3 4] "not\x00longthe\x00"
	// [5 2] "beortoa\x00is"
}
