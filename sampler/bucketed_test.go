package sampler_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/chancetest"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/sampler"
)

// lengthOf returns as uneven as the lengths of sentences: 1 … 1000, mostly short.
func lengthOf(index int) int {
	u := float64(permute.Mix64(uint64(index))>>11) / (1 << 53)
	return 1 + int(999*u*u*u)
}

// padding returns the share of places that hold nothing where each batch is as wide
// as its longest sample.
func padding(indices []int, batch int) float64 {
	var used, places int
	for samples := range slices.Chunk(indices, batch) {
		longest := 0
		for _, index := range samples {
			used += lengthOf(index)
			longest = max(longest, lengthOf(index))
		}
		places += longest * len(samples)
	}
	return 1 - float64(used)/float64(places)
}

func TestABucketedEpochVisitsEverySampleOnce(t *testing.T) {
	for _, n := range []int{1, 2, 7, 8, 9, 63, 64, 65, 100, 1000, 4321} {
		for _, b := range []sampler.Buckets{
			{BatchSize: 1, Window: 1}, {BatchSize: 8}, {BatchSize: 8, World: 3, Window: 2},
			{BatchSize: 5, Window: 7}, {BatchSize: 3, Window: math.MaxInt}, {BatchSize: 5000},
		} {
			s, err := sampler.Bucketed(n, lengthOf, b, 1)
			require.NoError(t, err)
			require.Equal(t, n, s.Len())
			for epoch := -1; epoch < 2; epoch++ {
				indices := orderOf(s, epoch)
				slices.Sort(indices)
				require.Equal(t, orderOf(nwt.Sequential(n), 0), indices, "n = %d, %+v, epoch %d", n, b, epoch)
			}
		}
	}
}

func TestALoaderLogsThatItsStepsMixTheLengthsOfBuckets(t *testing.T) {
	ds := nwt.NewDataset(96, []nwt.Field{{Name: "x", Type: nwt.Uint8}}, func(context.Context, int, *nwt.Sample) error { return nil })
	for _, c := range []struct {
		buckets      sampler.Buckets
		batch, world int
		mixes        bool
	}{
		{sampler.Buckets{BatchSize: 8}, 8, 1, false},
		{sampler.Buckets{BatchSize: 8, World: 2}, 8, 2, false},
		{sampler.Buckets{BatchSize: 8, World: 2}, 4, 1, false},
		{sampler.Buckets{BatchSize: 8}, 8, 3, true},
		{sampler.Buckets{BatchSize: 12}, 8, 1, true},
	} {
		s, err := sampler.Bucketed(96, lengthOf, c.buckets, rand.Uint64()) // a process logs once for each sampler
		require.NoError(t, err)
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil))
		l, err := nwt.NewLoader(ds, nwt.WithSampler(s), nwt.WithBatchSize(c.batch), nwt.WithRank(0, c.world), nwt.WithWorkers(1), nwt.WithLogger(logger))
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.Equal(t, c.mixes, strings.Contains(log.String(), "batches mix lengths"), "%+v: %s", c, &log)
	}
}

func TestBucketsSaveMostOfThePadding(t *testing.T) {
	const n, batch = 20_000, 32
	s, err := sampler.Bucketed(n, lengthOf, sampler.Buckets{BatchSize: batch}, 1)
	require.NoError(t, err)
	for epoch := range 2 {
		require.Greater(t, padding(orderOf(nwt.Shuffled(n, 1), epoch), batch), 0.7)
		require.Less(t, padding(orderOf(s, epoch), batch), 0.05)
	}
}

func TestAStepBeyondTheLastWindowIsBucketedToo(t *testing.T) {
	const batch, window = 32, 20
	s, err := sampler.Bucketed(batch*(window+1), lengthOf, sampler.Buckets{BatchSize: batch, Window: window}, 1)
	require.NoError(t, err)
	for epoch := range 10 {
		last := orderOf(s, epoch)[batch*window:]
		require.Less(t, padding(last, batch), 0.5)
	}
}

func TestTheBatchesOfAStepAreAlikeOnAllRanks(t *testing.T) {
	const batch, world, steps = 32, 8, 64
	s, err := sampler.Bucketed(batch*world*steps, lengthOf, sampler.Buckets{BatchSize: batch, World: world, Window: steps}, 1)
	require.NoError(t, err)
	longest := func(samples []int) (n int) {
		for _, index := range samples {
			n = max(n, lengthOf(index))
		}
		return n
	}
	var steep, all, longer int // steps that are longer than the one before
	var before int
	for samples := range slices.Chunk(orderOf(s, 0), batch*world) {
		whole := longest(samples)
		for of := range slices.Chunk(samples, batch) {
			all += whole
			longer += whole - longest(of)
		}
		if whole > before {
			steep++
		}
		before = whole
	}
	require.Less(t, longer, all/16, "ranks wait little for the one with the longest batch")
	require.InDelta(t, steps/2, steep, steps/4, "steps are shuffled")
}

// With many ranks, sorting for all of them would cost each one more than its training.
func TestARankAsksForTheLengthsOfItsOwnSamples(t *testing.T) {
	const batch, world, steps = 4, 50, 30
	asked := 0
	s, err := sampler.Bucketed(batch*world*steps, func(index int) int { asked++; return lengthOf(index) }, sampler.Buckets{BatchSize: batch, World: world, Window: 10}, 1)
	require.NoError(t, err)
	for step := range steps {
		for k := range batch {
			s.At(0, step*batch*world+7*batch+k)
		}
	}
	require.Equal(t, batch*steps, asked)
}

func TestNoLengthIsFavouredAtTheEndOfAnEpoch(t *testing.T) {
	const n, batch, epochs = 1003, 10, 400
	s, err := sampler.Bucketed(n, lengthOf, sampler.Buckets{BatchSize: batch}, 1)
	require.NoError(t, err)
	var all, last float64
	for i := range n {
		all += float64(lengthOf(i)) / n
	}
	for epoch := range epochs {
		for i := n - n%batch; i < n; i++ {
			last += float64(lengthOf(s.At(epoch, i))) / (epochs * (n % batch))
		}
	}
	require.InEpsilon(t, all, last, 0.15)
}

func TestBucketsOfEqualLengthsAreWellMixed(t *testing.T) {
	const n, batch, cells = 32_000, 10, 20
	s, err := sampler.Bucketed(n, func(int) int { return 7 }, sampler.Buckets{BatchSize: batch}, 1)
	require.NoError(t, err)
	position, epochs := make([]int, cells*cells), make([]int, cells*cells)
	for i := range n {
		index := s.At(0, i) * cells / n
		position[i*cells/n*cells+index]++
		epochs[index*cells+s.At(1, i)*cells/n]++
	}
	chancetest.Uniform(t, position, cells*cells, (cells-1)*(cells-1), "position and index")
	chancetest.Uniform(t, epochs, cells*cells, (cells-1)*(cells-1), "one epoch and the next")
}

func TestOrdersThatAreKeptStayPure(t *testing.T) {
	weights := make([]float64, 300)
	for i := range weights {
		weights[i] = float64(i + 1)
	}
	once, err := sampler.WeightedWithoutReplacement(weights, 300, 1)
	require.NoError(t, err)
	buckets, err := sampler.Bucketed(300, lengthOf, sampler.Buckets{BatchSize: 4, Window: 5}, 1)
	require.NoError(t, err)
	for _, s := range []nwt.Sampler{once, buckets} {
		const epochs = 6
		var want [epochs][]int
		for epoch := range want {
			want[epoch] = orderOf(s, epoch)
		}
		var wg sync.WaitGroup
		for goroutine := range uint64(8) {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(1, goroutine))
				for range 300 { // all over the epochs: most find their order gone
					epoch, i := random.IntN(epochs), random.IntN(300)
					if got := s.At(epoch, i); got != want[epoch][i] {
						t.Errorf("%T: epoch %d, position %d: %d, alone it was %d", s, epoch, i, got, want[epoch][i])
					}
				}
			})
		}
		wg.Wait()
	}
}

func TestAWindowIsSortedOnceWhileALoaderPasses(t *testing.T) {
	const n, behind = 1000, 150
	calls := 0
	s, err := sampler.Bucketed(n, func(index int) int { calls++; return lengthOf(index) }, sampler.Buckets{BatchSize: 10, Window: 10}, 1)
	require.NoError(t, err)
	for k := range 3 * n {
		s.At(k/n, k%n)
		if late := k - behind; late >= 0 { // what slow workers still look at
			s.At(late/n, late%n)
		}
	}
	require.Equal(t, 3*n, calls)
}

func TestTwoSuccessiveEpochsAreKept(t *testing.T) {
	weighted, err := sampler.WeightedWithoutReplacement([]float64{1, 2, 3}, 3, 1)
	require.NoError(t, err)
	local, err := sampler.LocallyShuffled([]int{2, 3}, 1, 1)
	require.NoError(t, err)
	tokens, err := sampler.TokenBatches(5, lengthOf, sampler.Tokens{Max: 1000}, 1)
	require.NoError(t, err)
	computed, err := sampler.Computed(3, func(int) []int { return make([]int, 3) })
	require.NoError(t, err)
	for _, s := range []nwt.Sampler{weighted, local, tokens, computed} {
		for epoch := -3; epoch < 3; epoch++ {
			require.Zero(t, testing.AllocsPerRun(5, func() { s.At(epoch, 2); s.At(epoch+1, 0) }), "%v", s)
		}
		require.Positive(t, testing.AllocsPerRun(5, func() { s.At(1, 2); s.At(2, 0); s.At(3, 0) }), "%v keeps no third", s)
	}
}

func TestBucketedOrdersStayWhatTheyWere(t *testing.T) {
	s, err := sampler.Bucketed(11, lengthOf, sampler.Buckets{BatchSize: 2, Window: 3}, 42)
	require.NoError(t, err)
	require.Equal(t, []int{10, 7, 6, 2, 0, 3, 5, 8, 1, 9, 4}, orderOf(s, 0))
	require.Equal(t, []int{8, 2, 0, 1, 4, 6, 3, 9, 7, 10, 5}, orderOf(s, 1))
}

func TestBadBucketsAreNamed(t *testing.T) {
	for _, c := range []struct {
		n      int
		length func(int) int
		b      sampler.Buckets
		want   string
	}{
		{0, lengthOf, sampler.Buckets{BatchSize: 1}, "0: the number of samples must be at least 1"},
		{9, nil, sampler.Buckets{BatchSize: 1}, "the length function is nil"},
		{9, lengthOf, sampler.Buckets{}, "0: Buckets.BatchSize must be at least 1"},
		{9, lengthOf, sampler.Buckets{BatchSize: 1, World: -2}, "-2: Buckets.World must be at least 1, or 0 for 1"},
		{9, lengthOf, sampler.Buckets{BatchSize: 1, Window: -1}, "-1: Buckets.Window must be at least 1, or 0 for 64"},
		{9, lengthOf, sampler.Buckets{BatchSize: math.MaxInt, World: 2}, fmt.Sprintf("Buckets.BatchSize × World must be at most %d", math.MaxInt)},
	} {
		s, err := sampler.Bucketed(c.n, c.length, c.b, 1)
		require.ErrorContains(t, err, c.want)
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
		require.Nil(t, s)
	}
	_, err := sampler.Bucketed(0, nil, sampler.Buckets{}, 1)
	require.Len(t, err.(interface{ Unwrap() []error }).Unwrap(), 3, "all at once")
}
