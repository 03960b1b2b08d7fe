package sampler_test

import (
	"bytes"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// someLabels are the classes of n samples, in no order.
func someLabels(n, classes int, seed uint64) []int {
	draws := rand.New(rand.NewPCG(seed, 1))
	labels := make([]int, n)
	for i := range labels {
		labels[i] = i % classes
	}
	draws.Shuffle(n, func(i, k int) { labels[i], labels[k] = labels[k], labels[i] })
	return labels
}

func TestABatchOfPerClassHasPClassesOfKSamples(t *testing.T) {
	for seed := range uint64(60) {
		draws := rand.New(rand.NewPCG(seed, 2))
		all := 1 + draws.IntN(40)
		classes, each := 1+draws.IntN(all), 1+draws.IntN(6)
		labels := someLabels(all*each+draws.IntN(400), all, seed)
		b, err := sampler.PerClass(labels, sampler.ClassBatch{Classes: classes, Samples: each}, seed)
		require.NoError(t, err)
		require.Equal(t, classes*each, b.Largest())
		require.Equal(t, max(1, len(labels)/(classes*each))*classes*each, b.Len())
		require.Equal(t, b.Len(), b.Start(0, b.Batches()))
		for epoch := range 3 {
			for k := range b.Batches() {
				samples, perClass := map[int]bool{}, map[int]int{}
				for i := b.Start(epoch, k); i < b.Start(epoch, k+1); i++ {
					index := b.At(epoch, i)
					samples[index] = true
					perClass[labels[index]]++
				}
				require.Len(t, samples, classes*each, "no sample comes twice")
				require.Len(t, perClass, classes)
				for _, n := range perClass {
					require.Equal(t, each, n)
				}
			}
		}
	}
}

func TestClassesOfPerClassComeEquallyOften(t *testing.T) {
	const all = 21
	labels := someLabels(4000, all-1, 1)
	labels[7] = all - 1 // a class of one sample
	s, err := sampler.PerClass(labels, sampler.ClassBatch{Classes: 4, Samples: 5}, 1)
	require.NoError(t, err)
	times := make([]float64, all)
	for i := range s.Len() {
		times[labels[s.At(0, i)]] += 1.0 / 5
	}
	for class, n := range times {
		require.InDelta(t, 800.0/all, n, 1, "class %d", class)
	}
}

// Classes must not meet the same others all the time.
func TestClassesOfPerClassMeetAtRandom(t *testing.T) {
	labels := someLabels(10_000, 50, 1)
	s, err := sampler.PerClass(labels, sampler.ClassBatch{Classes: 5, Samples: 4}, 1)
	require.NoError(t, err)
	meet := map[[2]int]int{}
	for k := range s.Len() / 20 {
		for i := range 5 {
			for j := range 5 {
				meet[[2]int{labels[s.At(0, 20*k+4*i)], labels[s.At(0, 20*k+4*j)]}]++
			}
		}
	}
	most := 0
	for pair, n := range meet {
		if pair[0] != pair[1] {
			most = max(most, n)
		}
	}
	require.LessOrEqual(t, most, 17, "about 4 of 50 turns are expected")
	require.Greater(t, len(meet), 2300, "of 2500 pairs")
}

func TestPerClassIsPureAndDependsOnSeedAndEpoch(t *testing.T) {
	labels := someLabels(300, 10, 1)
	epochOf := func(seed uint64, epoch int) (order []int) {
		s, err := sampler.PerClass(labels, sampler.ClassBatch{Classes: 3, Samples: 4}, seed)
		require.NoError(t, err)
		for i := s.Len() - 1; i >= 0; i-- {
			order = append(order, s.At(epoch, i))
		}
		return order
	}
	require.Equal(t, epochOf(1, 2), epochOf(1, 2))
	require.NotEqual(t, epochOf(1, 2), epochOf(1, 3))
	require.NotEqual(t, epochOf(1, 2), epochOf(2, 2))
}

// Otherwise each epoch would begin with a wait for its order.
func TestTheOrderOfTheNextEpochIsMadeWhileThisOneIsInUse(t *testing.T) {
	const n = 50_000
	once, err := sampler.WeightedWithoutReplacement(slices.Repeat([]float64{1, 2}, n/2), n, 1)
	require.NoError(t, err)
	byClass, err := sampler.PerClass(someLabels(n, 100, 1), sampler.ClassBatch{Classes: 8, Samples: 4}, 1)
	require.NoError(t, err)
	for _, s := range []nwt.Sampler{once, byClass} {
		synctest.Test(t, func(t *testing.T) {
			s.At(3, 0)
			s.At(3, s.Len()/2)
			synctest.Wait() // the order has been made
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s.At(4, 0)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(n), "%v", s)
		})
	}
}

func TestAClassWithTooFewSamplesIsTold(t *testing.T) {
	var log bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(was)
	labels := []int{0, 0, 0, 0, 1, 1}
	s, err := sampler.PerClass(labels, sampler.ClassBatch{Classes: 2, Samples: 3}, 1)
	require.NoError(t, err)
	require.Contains(t, log.String(), `classes=1 "fewer than"=3`)
	times := map[int]int{}
	for i := range s.Len() {
		times[s.At(0, i)]++
	}
	require.Equal(t, 3, times[4]+times[5])
	require.LessOrEqual(t, max(times[4], times[5]), 2)
}

func TestWhatPerClassCannotDoIsAnError(t *testing.T) {
	labels := someLabels(30, 3, 1)
	type given struct {
		labels []int
		batch  sampler.ClassBatch
	}
	for want, g := range map[string]given{
		"PerClass: ClassBatch.Classes: 4: a batch needs that many, but only 3 have samples": {labels, sampler.ClassBatch{Classes: 4, Samples: 2}},
		"PerClass: ClassBatch.Classes: 0: must be 1":                                        {labels, sampler.ClassBatch{Classes: 0, Samples: 2}},
		"PerClass: ClassBatch.Samples: 0: must be at least 1":                               {labels, sampler.ClassBatch{Classes: 2, Samples: 0}},
		"and a batch at most":                                           {labels, sampler.ClassBatch{Classes: 1 << 20, Samples: math.MaxInt32}},
		"PerClass: labels: 0: the number of labels must be":             {nil, sampler.ClassBatch{Classes: 2, Samples: 2}},
		"PerClass: labels[1] = -1: must be a class, 0":                  {[]int{0, -1}, sampler.ClassBatch{Classes: 1, Samples: 1}},
		"PerClass: labels[1] = 16777216: must be a class, 0 … 16777215": {[]int{0, 1 << 24}, sampler.ClassBatch{Classes: 1, Samples: 1}},
	} {
		_, err := sampler.PerClass(g.labels, g.batch, 1)
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
		require.ErrorContains(t, err, want)
	}
}
