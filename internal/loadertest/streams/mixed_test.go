package streams_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

// A source is tallies whose numbers begin at so many millions, and whose records may be
// read by nobody else.
type source struct {
	*kit.Tallies
	millions int
}

const million = 1_000_000

func (s source) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	r, err := s.Tallies.Open(ctx, shard)
	if err != nil {
		return nil, err
	}
	if skipper, ok := r.(nwt.Skipper); ok {
		return &sourceSkipper{sourceReader{skipper, s.millions}, skipper}, nil
	}
	return &sourceReader{r, s.millions}, nil
}

func (s source) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	if r.Value != s.millions {
		return fmt.Errorf("stream %d got a record of %v", s.millions, r.Value)
	}
	if err := s.Tallies.Load(ctx, r, dst); err != nil {
		return err
	}
	nwt.Values[int64](dst, 0)[0] += int64(s.millions) * million
	if s.millions%2 == 1 {
		*r = nwt.Record{Value: s.millions}
	}
	return nil
}

type sourceReader struct {
	nwt.ShardReader
	millions int
}

func (r *sourceReader) Next(ctx context.Context, rec *nwt.Record) error {
	if rec.Value != nil && rec.Value != r.millions {
		return fmt.Errorf("stream %d got a record of %v to read into", r.millions, rec.Value)
	}
	err := r.ShardReader.Next(ctx, rec)
	if *rec = (nwt.Record{Data: rec.Data, Value: r.millions}); r.millions == 0 {
		rec.Value = 0
	}
	return err
}

type sourceSkipper struct {
	sourceReader
	skipper nwt.Skipper
}

func (r *sourceSkipper) Skip(ctx context.Context, n int) (int, error) { return r.skipper.Skip(ctx, n) }

// sources is streams with shards of the given lengths.
func sources(lengths ...[]int) (all []source) {
	for k, l := range lengths {
		all = append(all, source{&kit.Tallies{Lengths: l, Torn: map[int]string{}}, k})
	}
	return all
}

func mixedStreams(t *testing.T, m nwt.Mix, all []source) nwt.Dataset {
	t.Helper()
	var streams []nwt.Stream
	for _, s := range all {
		streams = append(streams, s)
	}
	ds, err := nwt.MixedStreams(m, 7, streams...)
	require.NoError(t, err)
	return ds
}

// restOf returns the numbers of the rest of an epoch, and the states of its batches.
func restOf(t *testing.T, ds nwt.Dataset, state nwt.State, opts ...nwt.Option) (numbers []int64, states []nwt.State) {
	t.Helper()
	numbers = []int64{}
	l := kit.NewLoader(t, ds, append([]nwt.Option{nwt.WithErrorBudget(1000), kit.Silent}, opts...)...)
	defer func() { require.NoError(t, l.Close()) }()
	for b, err := range l.Resume(t.Context(), state) {
		require.NoError(t, err)
		numbers = append(numbers, nwt.Values[int64](b, 0)...)
		states = append(states, b.State())
	}
	return numbers, states
}

// The mixture is the pattern that Mixed has, and each stream in it comes as it does
// alone.
func TestMixedStreamsAreEachStreamInOrder(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		all, m := randomMixture(rng)
		opts := []nwt.Option{nwt.WithInterleave(1 + rng.IntN(4))}
		samples, epoch := 1+rng.IntN(200), rng.IntN(3)
		if rng.IntN(2) == 0 {
			opts = append(opts, nwt.WithShuffle(seed), nwt.WithShuffleWindow([]int{1, 5, 100}[rng.IntN(3)]))
		}
		got, _ := restOf(t, mixedStreams(t, m, all), nwt.State{Epoch: epoch}, append(opts, nwt.WithEpochSamples(samples), nwt.WithWorkers(2), nwt.WithBatchSize(1+rng.IntN(9)))...)
		withParts := m
		withParts.Parts = slices.Repeat([]int{1}, len(all))
		pattern, err := sampler.Mixed(samples, withParts, 7)
		require.NoError(t, err)
		alone := make([][]int64, len(all))
		for k, s := range all {
			more := []nwt.Option{nwt.WithEpochSamples(samples)}
			if k > 0 { // seeds of their own
				more = append(more, withSeedOf(opts, seed, k)...)
			}
			alone[k], _ = restOf(t, nwt.Streamed(s), nwt.State{Epoch: epoch}, append(slices.Clone(opts), more...)...)
		}
		var want []int64
		for i := range samples {
			k := pattern.At(epoch, i)
			want, alone[k] = append(want, alone[k][0]), alone[k][1:]
		}
		require.Equal(t, want, got, "seed %d", seed)
	}
}

// withSeedOf sets the seed of stream k's shards and window.
func withSeedOf(opts []nwt.Option, seed uint64, k int) []nwt.Option {
	if len(opts) == 1 {
		return nil
	}
	return []nwt.Option{nwt.WithShuffle(seed + uint64(k)*0x9e3779b97f4a7c15)}
}

func randomMixture(rng *rand.Rand) (all []source, m nwt.Mix) {
	for k := range 1 + rng.IntN(4) {
		s := source{&kit.Tallies{Torn: map[int]string{}}, k}
		for range 3 + rng.IntN(4) {
			s.Lengths = append(s.Lengths, rng.IntN(20))
		}
		for r := range 3 {
			s.Lengths[r]++ // every rank has a record, unless all are shuffled
		}
		all = append(all, s)
	}
	m.Block = 8 + rng.IntN(30)
	for range 1 + rng.IntN(3) {
		p := nwt.Phase{Samples: 1 + rng.IntN(100)}
		for range all {
			p.Weights = append(p.Weights, float64(1+rng.IntN(4)))
		}
		m.Phases = append(m.Phases, p)
	}
	return all, m
}

func TestLateInAnEpochOfMixedStreamsLittleIsRead(t *testing.T) {
	all := sources(slices.Repeat([]int{5000}, 4), slices.Repeat([]int{300}, 4))
	for _, s := range all {
		s.OnSkip = func(r *kit.TallyReader, n int) (int, error) { return over(r, n, false) }
	}
	m := nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{3, 1}}}}
	l := kit.NewLoader(t, mixedStreams(t, m, all), nwt.WithEpochSamples(20_000), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithPrefetch(1))
	for b, err := range l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 15_000}) {
		require.NoError(t, err)
		require.Equal(t, nwt.State{Epoch: 1, Samples: 15_010, World: 1}, kit.Progress(b.State()))
		break
	}
	require.NoError(t, l.Close())
	require.Less(t, all[0].Read.Load()+all[1].Read.Load(), int64(2500), "what is read ahead")
}

func TestAStreamOfAMixtureWithoutARecordEndsTheEpoch(t *testing.T) {
	all := sources([]int{10, 10}, []int{3, 0})
	m := nwt.Mix{Block: 10, Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}
	for _, workers := range []int{0, 2} {
		l := kit.NewLoader(t, mixedStreams(t, m, all), nwt.WithEpochSamples(100), nwt.WithRank(1, 2), nwt.WithBatchSize(1), nwt.WithWorkers(workers))
		var last error
		for _, err := range l.Epoch(t.Context(), 0) {
			last = err
		}
		require.ErrorContains(t, last, "nwt: epoch 0 has no sample of stream 1 for rank 1 of 2: its shards (of 2 in all) are empty")
	}
}

// A stream that comes later, or came before, costs nothing: its files needn't even be
// there.
func TestAStreamThatAnEpochDoesNotDrawFromIsNotOpened(t *testing.T) {
	m := nwt.Mix{Block: 10, Phases: []nwt.Phase{{Samples: 96, Weights: []float64{1, 1, 0}}, {Samples: 96, Weights: []float64{1, 0, 0}}, {Weights: []float64{1, 0, 1}}}}
	for _, workers := range []int{0, 2} {
		for _, world := range []int{1, 3} {
			var opened [3]atomic.Int32
			var streams []nwt.Stream
			for k := range opened {
				streams = append(streams, opening(&opened[k], 7, 8, 9, 10))
			}
			l := kit.NewLoader(t, kit.MixedOf(t, m, streams...), nwt.WithEpochSamples(48), nwt.WithRank(world-1, world), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithShuffle(1))
			for epoch, needed := range [][3]bool{{true, true}, {true, true}, {true}, {true}, {true, false, true}} {
				for _, from := range []int{0, 12 * world} {
					for k := range opened {
						opened[k].Store(0)
					}
					for _, err := range l.Resume(t.Context(), nwt.State{Epoch: epoch, Samples: from}) {
						require.NoError(t, err)
					}
					for k, is := range needed {
						require.Equal(t, is, opened[k].Load() > 0, "stream %d in epoch %d, %d ranks, %d workers", k, epoch, world, workers)
					}
				}
			}
		}
	}
}

func TestALostShardOfMixedStreamsIsCountedOverAll(t *testing.T) {
	all := sources([]int{10, 10}, []int{3, 4, 5})
	all[1].Torn[2001] = "error"
	m := nwt.Mix{Block: 10, Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}
	l := kit.NewLoader(t, mixedStreams(t, m, all), nwt.WithEpochSamples(20), nwt.WithErrorBudget(9), kit.Silent)
	for _, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
	}
	require.NotEmpty(t, l.BadSamples())
	var lost *nwt.ShardError
	require.ErrorAs(t, l.BadSamples()[0], &lost)
	require.Equal(t, 4, lost.Shard)
	require.Equal(t, 1, lost.Record)
	require.ErrorIs(t, lost, io.EOF)
}

func TestAShardOfMixedStreamsThatCannotBeClosedIsCountedOverAll(t *testing.T) {
	var log kit.Journal
	mix := nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}
	ds := kit.MixedOf(t, mix, kit.NewShelves(4, 4, 4), &kit.Breaking{Shelves: kit.NewShelves(5, 5), OnClose: at(1, kit.ErrTorn)})
	_, err := kit.Values(t, kit.NewLoader(t, ds, nwt.WithEpochSamples(20), log.Option()), 0)
	require.NoError(t, err)
	require.Contains(t, log.String(), "a shard could not be closed\" shard=4 error=torn")
}

func TestMixedStreamsThatCanNotBeUsedAreNamed(t *testing.T) {
	one := nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1}}}}
	two := nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}
	for _, c := range []struct {
		mix     nwt.Mix
		streams []nwt.Stream
		says    string
	}{
		{one, nil, "MixedStreams: needs at least one stream"},
		{one, []nwt.Stream{nil}, "MixedStreams: stream 0: Streamed: the stream is nil"},
		{nwt.Mix{Parts: []int{1}, Phases: one.Phases}, []nwt.Stream{kit.NewShelves(1)}, "MixedStreams: [1]: Mix.Parts must be nil"},
		{one, []nwt.Stream{kit.NewShelves(1), kit.NewShelves(1)}, "Weights must be 2 numbers, one for each part"},
		{two, []nwt.Stream{kit.NewShelves(1), sources([]int{1})[0]}, "stream 1 differs from those before: field 0 has the name \"number\", want \"i\""},
		{nwt.Mix{Block: -1, Phases: one.Phases}, []nwt.Stream{kit.NewShelves(1)}, "Mix.Block must be 1"},
	} {
		_, err := nwt.MixedStreams(c.mix, 1, c.streams...)
		var oe *nwt.ArgumentError
		require.ErrorAs(t, err, &oe)
		require.ErrorContains(t, err, c.says)
	}
	ds, err := nwt.MixedStreams(two, 1, kit.NewShelves(1, 1), kit.NewShelves(1))
	require.NoError(t, err)
	_, err = nwt.NewLoader(ds)
	require.ErrorContains(t, err, "WithEpochSamples: must be set for MixedStreams")
	_, err = nwt.NewLoader(ds, nwt.WithEpochSamples(10), nwt.WithRank(0, 2))
	require.ErrorContains(t, err, "WithRank: world: 2: each rank needs a shard, and the stream has 1 (stream 1 of MixedStreams): make more shards")
	_, err = nwt.NewLoader(ds, nwt.WithEpochSamples(10), nwt.WithSampler(nwt.Sequential(3)))
	require.ErrorContains(t, err, "WithSampler")
	_, err = nwt.Concat(ds)
	require.ErrorContains(t, err, "is a stream")
}

// The plan of all training is made with the loader, not with each epoch.
func TestAnEpochOfMixedStreamsCostsNoMoreForManyPhases(t *testing.T) {
	perEpoch := func(phases int) float64 {
		m := nwt.Mix{Block: 8}
		for range phases {
			m.Phases = append(m.Phases, nwt.Phase{Samples: 3, Weights: []float64{1, 3}})
		}
		l := kit.NewLoader(t, kit.MixedOf(t, m, kit.NewShelves(40), kit.NewShelves(40)), nwt.WithEpochSamples(32), nwt.WithWorkers(0))
		return testing.AllocsPerRun(5, func() {
			for _, err := range l.Epoch(t.Context(), 1) {
				require.NoError(t, err)
			}
		})
	}
	require.InDelta(t, perEpoch(1), perEpoch(1000), 20)
}

func TestMixedStreamsCanBeTuned(t *testing.T) {
	m := nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 3}}}}
	r, err := nwt.Tune(t.Context(), mixedStreams(t, m, sources([]int{50, 60}, []int{7, 8})), nwt.WithEpochSamples(500), nwt.WithIterations(20), nwt.WithMaxWorkers(1), kit.Silent)
	require.NoError(t, err)
	require.NotEmpty(t, r.Trials)
}

func TestMixedStreamsStayWhatTheyWere(t *testing.T) {
	m := nwt.Mix{Block: 8, Phases: []nwt.Phase{{Samples: 13, Weights: []float64{1, 3}}, {Weights: []float64{1, 1}}}}
	opts := []nwt.Option{nwt.WithEpochSamples(24), nwt.WithRank(1, 2), nwt.WithShuffle(42), nwt.WithShuffleWindow(4)}
	got, _ := restOf(t, mixedStreams(t, m, sources([]int{4, 4, 4}, []int{9, 9, 9})), nwt.State{Epoch: 1}, opts...)
	require.Equal(t, []int64{1002, 1002003, 1003, 1001, 1002004, 1002000, 1000, 1002005, 1002006, 1003, 1002002, 1001}, got)
}

// The blocks that such an epoch cuts have more records than an int of 32 bits counts.
func TestAnEpochOfMixedStreamsMayBeAsLongAsIsAllowed(t *testing.T) {
	m := nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1}}}, Block: 1 << 30}
	ds, err := nwt.MixedStreams(m, 7, kit.NewShelves(1000))
	require.NoError(t, err)
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithEpochSamples(math.MaxInt32))
	for b, err := range l.Epoch(t.Context(), 1) {
		require.NoError(t, err)
		require.Equal(t, 4, b.Len())
		break
	}
	require.NoError(t, l.Close())
}

// A stream of a mixture whose records are counted goes on where the epoch before ended: over all
// ranks, each of its records comes once in each pass, also if a rank has no shard of its own.
func TestCountedStreamsOfAMixtureGoOnWhereTheEpochBeforeEnded(t *testing.T) {
	for seed := range uint64(80) {
		rng := rand.New(rand.NewPCG(seed, 48))
		var streams []nwt.Stream
		var all []source
		var lengths [][]int
		m := nwt.Mix{Block: 50, Phases: []nwt.Phase{{}}}
		for range 1 + rng.IntN(3) {
			l := make([]int, 1+rng.IntN(5))
			for i := range l {
				l[i] = 1 + rng.IntN(40)
			}
			lengths = append(lengths, l)
			m.Phases[0].Weights = append(m.Phases[0].Weights, float64(1+rng.IntN(4)))
		}
		world := 1 + rng.IntN(4)
		uncounted := -1
		if rng.IntN(3) == 0 {
			uncounted, lengths[0] = 0, slices.Repeat([]int{7}, world)
		}
		all = sources(lengths...)
		for k, s := range all {
			if rng.IntN(2) == 0 {
				s.OnSkip = func(r *kit.TallyReader, n int) (int, error) { return over(r, n, true) }
			}
			streams = append(streams, withCounts{s, lengths[k]})
			if k == uncounted {
				streams[k] = s
			}
		}
		ds, err := nwt.MixedStreams(m, seed, streams...)
		require.NoError(t, err)
		n := world * (1 + rng.IntN(120))
		opts := []nwt.Option{nwt.WithEpochSamples(n), nwt.WithBatchSize(1 + rng.IntN(9)), kit.Silent}
		if rng.IntN(2) == 0 {
			opts = append(opts, nwt.WithInterleave(1+rng.IntN(8)))
		}
		if rng.IntN(3) > 0 {
			opts = append(opts, nwt.WithShuffle(seed), nwt.WithShuffleWindow(1+rng.IntN(60)))
		}
		epochs := 5000 / n
		epochs -= epochs % max(1, 50*world/gcd(n, 50*world)) // whole blocks of each rank
		if epochs == 0 {
			continue
		}
		times := map[int64]int{}
		for rank := range world {
			l := kit.NewLoader(t, ds, append(slices.Clone(opts), nwt.WithRank(rank, world), nwt.WithWorkers(rng.IntN(3)))...)
			var whole []int64
			var states []nwt.State
			var upto []int
			for b, err := range l.Epochs(t.Context(), 0, epochs) {
				require.NoError(t, err)
				for _, number := range nwt.Values[int64](b, 0) {
					times[number]++
				}
				whole = append(whole, nwt.Values[int64](b, 0)...)
				states, upto = append(states, b.State()), append(upto, len(whole))
			}
			for range 3 {
				k := rng.IntN(len(states))
				var rest []int64
				for b, err := range l.ResumeEpochs(t.Context(), states[k], min(epochs, states[k].Epoch+2)) {
					require.NoError(t, err)
					rest = append(rest, nwt.Values[int64](b, 0)...)
				}
				require.Equal(t, whole[upto[k]:upto[k]+len(rest)], append([]int64{}, rest...), "seed %d, rank %d of %d, %v", seed, rank, world, states[k])
			}
			require.NoError(t, l.Close())
		}
		for k, l := range lengths {
			if k == uncounted {
				continue
			}
			least, most, records := math.MaxInt, 0, 0
			for shard, length := range l {
				records += length
				for i := range length {
					n := times[int64(k*million+1000*shard+i)]
					least, most = min(least, n), max(most, n)
				}
			}
			require.LessOrEqual(t, most-least, 2+20/records, "in the middle of a step between two passes: seed %d: of stream %d, in %d epochs of %d, %d ranks", seed, k, epochs, n, world)
			require.Positive(t, most)
		}
		for _, s := range all {
			require.Zero(t, s.Opened.Load())
		}
	}
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

func TestEachStreamOfAMixtureHasScratchOfItsOwn(t *testing.T) {
	var streams []nwt.Stream
	for k := range 2 {
		streams = append(streams, nwt.NewStream(kit.Scalar, 1, func(context.Context, int) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for i := 0; i < 50 && yield(i, nil); i++ {
				}
			}
		}, func(_ context.Context, _ int, dst *nwt.Sample) error {
			mine, err := nwt.Scratch(dst, func() (int, error) { return k, nil })
			require.Equal(t, k, mine)
			return err
		}))
	}
	ds, err := nwt.MixedStreams(nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}, 1, streams...)
	require.NoError(t, err)
	for _, err := range kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithEpochSamples(80), nwt.WithWorkers(1), nwt.WithLogger(kit.Quiet)).Epoch(t.Context(), 0) {
		require.NoError(t, err)
	}
}
