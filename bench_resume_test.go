package nwt_test

import (
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// BenchmarkResume measures how soon a new process has the first batch of an epoch, and
// the first after nine tenths of it: the time to make the order (order-ms), and from
// then on until 2 workers have loaded the batch (batch-ms).
func BenchmarkResume(b *testing.B) {
	const (
		billion = 1_000_000_000
		many    = 10_000_000 // of what takes memory per sample
	)
	length := func(i int) int { return 10 + i%491 }
	weights := slices.Repeat([]float64{1, 2}, 500_000)
	for _, c := range []struct {
		name  string
		n     int
		order func() (nwt.Sampler, error)
	}{
		{"Shuffled", billion, func() (nwt.Sampler, error) { return nwt.Shuffled(billion, 1), nil }},
		{"Bucketed", billion, func() (nwt.Sampler, error) {
			return sampler.Bucketed(billion, length, sampler.Buckets{BatchSize: 32}, 1)
		}},
		{"LocallyShuffled/blocks=1e+06", billion, func() (nwt.Sampler, error) {
			return sampler.LocallyShuffled(slices.Repeat([]int{1000}, billion/1000), 16, 1)
		}},
		{"Mixed", billion, func() (nwt.Sampler, error) {
			return sampler.Mixed(billion, nwt.Mix{
				Parts:  []int{billion / 3, billion / 3, billion / 3},
				Phases: []nwt.Phase{{Samples: billion / 10, Weights: []float64{8, 1, 1}}, {Weights: []float64{1, 1, 1}}},
			}, 1)
		}},
		{"Weighted/weights=1e+06", billion, func() (nwt.Sampler, error) { return sampler.Weighted(weights, billion, 1) }},
		{"WeightedWithoutReplacement", len(weights), func() (nwt.Sampler, error) {
			return sampler.WeightedWithoutReplacement(weights, len(weights), 1)
		}},
		{"Computed", many, func() (nwt.Sampler, error) {
			return sampler.Computed(many, func(epoch int) []int {
				order := make([]int, many)
				nwt.Shuffled(many, 1).(nwt.SamplerFiller).Fill(epoch, 0, order)
				return order
			})
		}},
		{"TokenBatches", many, func() (nwt.Sampler, error) {
			return sampler.TokenBatches(many, length, sampler.Tokens{Max: 4000, MaxSamples: 32}, 1)
		}},
	} {
		for _, tenths := range []int{0, 9} {
			b.Run(fmt.Sprintf("order=%s/n=%.0e/after=%d%%", c.name, float64(c.n), 10*tenths), func(b *testing.B) {
				order := func() nwt.Sampler {
					s, err := c.order()
					if err != nil {
						b.Fatal(err)
					}
					return s
				}
				samples := c.n / 10 * tenths
				if s, ok := order().(nwt.BatchSampler); ok && tenths > 0 {
					samples = s.Start(0, s.Batches()/10*tenths)
				}
				benchResume(b, samples, func() (nwt.Dataset, []nwt.Option) {
					return emptyDataset(billion), []nwt.Option{nwt.WithSampler(order())}
				})
			})
		}
	}
	for _, c := range []struct {
		name  string
		n     int
		skips bool
		opts  []nwt.Option
	}{
		{"read", many / 10, false, nil},
		{"skipped", billion, true, nil},
		{"skipped, shuffled", billion, true, []nwt.Option{nwt.WithShuffle(1)}},
	} {
		for _, tenths := range []int{0, 9} {
			b.Run(fmt.Sprintf("stream=%s/n=%.0e/after=%d%%", c.name, float64(c.n), 10*tenths), func(b *testing.B) {
				benchResume(b, c.n/10*tenths, func() (nwt.Dataset, []nwt.Option) {
					s := &tallies{lengths: slices.Repeat([]int{c.n / 100}, 100)}
					if c.skips {
						s.skip = leap
					}
					return nwt.Streamed(s), c.opts
				})
			})
		}
	}
}

// benchResume makes loaders and takes the first batch after some samples of an epoch.
func benchResume(b *testing.B, samples int, make func() (nwt.Dataset, []nwt.Option)) {
	var order, batch time.Duration
	n := 0
	for ; b.Loop(); n++ {
		began := time.Now()
		ds, opts := make()
		ordered := time.Now()
		l, err := nwt.NewLoader(ds, append(opts, nwt.WithWorkers(2))...)
		if err != nil {
			b.Fatal(err)
		}
		for _, err := range l.Resume(b.Context(), nwt.State{Samples: samples}) {
			if err != nil {
				b.Fatal(err)
			}
			order, batch = order+ordered.Sub(began), batch+time.Since(ordered)
			break
		}
		l.Close()
	}
	b.ReportMetric(1000*order.Seconds()/float64(n), "order-ms")
	b.ReportMetric(1000*batch.Seconds()/float64(n), "batch-ms")
}

// leap skips all that it is asked for at once, as with an index.
func leap(r *tallyReader, n int) (int, error) {
	if r.next == r.end {
		return 0, io.EOF
	}
	n = min(n, r.end-r.next)
	r.next += n
	return n, nil
}
