package packing_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/packing"
)

// A written document has n tokens: token k of it is first + k.
type written struct{ first, n int }

// writtenShards are documents of random lengths, up to 120, and how long those of each shard are.
func writtenShards(seed uint64) (shards [][]written, totals []int, all int) {
	draws := rand.New(rand.NewPCG(seed, 1))
	totals = make([]int, 5)
	shards = make([][]written, 5)
	for s := range shards {
		for range draws.IntN(40) {
			n := draws.IntN(20)
			if draws.IntN(5) == 0 {
				n = draws.IntN(121)
			}
			shards[s] = append(shards[s], written{1 + all, n})
			all, totals[s] = all+n, totals[s]+n
		}
	}
	return shards, totals, all
}

// writtenStream is a stream of documents: as bytes, or as values.
func writtenStream(shards [][]written, asBytes bool) nwt.Stream {
	var schema nwt.Schema
	tokens := nwt.AddRagged[int32](&schema, "tokens", 1, 120)
	load := func(dst *nwt.Sample, d written) {
		tokens.SetLen(dst, d.n)
		for k := range d.n {
			tokens.Of(dst)[k] = int32(d.first + k)
		}
	}
	if !asBytes {
		return nwt.NewStream(schema.Fields(), len(shards), func(_ context.Context, shard int) iter.Seq2[written, error] {
			return func(yield func(written, error) bool) {
				for _, d := range shards[shard] {
					if !yield(d, nil) {
						return
					}
				}
			}
		}, func(_ context.Context, d written, dst *nwt.Sample) error { load(dst, d); return nil })
	}
	return nwt.NewStream(schema.Fields(), len(shards), func(_ context.Context, shard int) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			var reused []byte
			for _, d := range shards[shard] {
				if reused = fmt.Appendf(reused[:0], "%d %d", d.first, d.n); !yield(reused, nil) {
					return
				}
			}
		}
	}, func(_ context.Context, text []byte, dst *nwt.Sample) error {
		var d written
		if _, err := fmt.Sscan(string(text), &d.first, &d.n); err != nil {
			return err
		}
		load(dst, d)
		return nil
	})
}

func sizeOfWritten(r *nwt.Record) (n int) {
	if d, ok := r.Value.(*written); ok {
		return d.n
	}
	var first int
	if _, err := fmt.Sscan(string(r.Data), &first, &n); err != nil {
		return -1
	}
	return n
}

// rowsOf checks the rows of a batch, notes their tokens in seen, and returns how many there are.
func rowsOf(t *testing.T, b *nwt.Batch, length int, seen map[int32]int) (n int) {
	t.Helper()
	for row := range b.Len() {
		at := row * length
		tokens, segments, positions := nwt.Values[int32](b, 0)[at:at+length], nwt.Values[int32](b, 1)[at:at+length], nwt.Values[int32](b, 2)[at:at+length]
		for k := range length {
			if segments[k] == 0 {
				require.Zero(t, tokens[k])
				require.Zero(t, positions[k])
				continue
			}
			seen[tokens[k]]++
			n++
			switch {
			case k == 0:
				require.EqualValues(t, 1, segments[k])
				require.Zero(t, positions[k])
			case segments[k] == segments[k-1]:
				require.Equal(t, tokens[k-1]+1, tokens[k])
				require.Equal(t, positions[k-1]+1, positions[k])
			default:
				require.Equal(t, segments[k-1]+1, segments[k], "nothing is left empty before a document")
				require.Zero(t, positions[k])
			}
		}
	}
	return n
}

func TestPackedStreamsHoldEachTokenOnceAndGoOnWhereTheyStood(t *testing.T) {
	for seed := range uint64(12) {
		shards, totals, all := writtenShards(seed)
		length := []int{7, 64, 300}[seed%3]
		var total func(int) int
		if seed%2 == 0 {
			total = func(shard int) int { return totals[shard] }
		}
		s, err := packing.NewStream(writtenStream(shards, seed%4 < 2), length, sizeOfWritten, total)
		require.NoError(t, err)
		ranks := 1 + int(seed%2) // of a stream without counts; the other changes its ranks
		seen := map[int32]int{}
		state, over := nwt.State{}, false
		for part := 0; !over; part++ {
			if total != nil {
				ranks = 1 + part%3
			}
			var last nwt.State
			stops := 1 + part%4
			for rank := range ranks {
				l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(int(seed)%4), nwt.WithShuffle(seed), nwt.WithShuffleWindow(9), nwt.WithRank(rank, ranks))
				taken := 0
				over = true
				for b, err := range l.Resume(t.Context(), state) {
					require.NoError(t, err)
					rowsOf(t, b, length, seen)
					last = b.State()
					if taken++; taken == stops && total != nil {
						over = b.Last()
						break
					}
				}
			}
			state = last
		}
		require.Len(t, seen, all, "seed %d", seed)
		for token, times := range seen {
			require.Equal(t, 1, times, "token %d, seed %d", token, seed)
		}
	}
}

// One rank, no counts: what follows a State is what followed it without a pause.
func TestARestOfAPackedStreamIsTheOneThatWouldHaveCome(t *testing.T) {
	shards, _, _ := writtenShards(3)
	s, err := packing.NewStream(writtenStream(shards, true), 10, sizeOfWritten, nil)
	require.NoError(t, err)
	l := newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(3), nwt.WithWorkers(2), nwt.WithInterleave(1))
	var states []nwt.State
	whole := [][]byte{}
	for b, err := range l.Epoch(t.Context(), 1) {
		require.NoError(t, err)
		whole, states = append(whole, append([]byte(nil), b.Bytes(0)...)), append(states, b.State())
	}
	for i, state := range states {
		var rest [][]byte
		for b, err := range l.Resume(t.Context(), state) {
			require.NoError(t, err)
			rest = append(rest, append([]byte(nil), b.Bytes(0)...))
		}
		require.Equal(t, len(whole)-i-1, len(rest))
		for k := range rest {
			require.Equal(t, whole[i+1+k], rest[k])
		}
	}
}

// textStream is a stream of texts, one token for every byte that isn't a space. If a text holds a !, load
// panics.
func textStream(texts ...string) nwt.Stream {
	var schema nwt.Schema
	tokens := nwt.AddRagged[int32](&schema, "tokens", 1, 120)
	return nwt.NewStream(schema.Fields(), 1, func(context.Context, int) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			for _, text := range texts {
				if !yield([]byte(text), nil) {
					return
				}
			}
		}
	}, func(_ context.Context, text []byte, dst *nwt.Sample) error {
		n := 0
		tokens.SetLen(dst, 120)
		for _, b := range text {
			if b == '!' {
				panic("not a word")
			}
			if b != ' ' {
				tokens.Of(dst)[n] = int32(b)
				n++
			}
		}
		tokens.SetLen(dst, n)
		return nil
	})
}

// The size may be a bound, such as the bytes of a text: a document, or the part of it that a row has, may
// then be empty.
func TestSegmentsBeginAt1AndHaveNoGapsAlsoIfDocumentsAreShorterThanTold(t *testing.T) {
	s, err := packing.NewStream(textStream("ab  ", "    ", "c   ", "  ", "de"), 10, func(r *nwt.Record) int { return len(r.Data) }, nil)
	require.NoError(t, err)
	var segments []int32
	for b, err := range newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(8)).Epoch(t.Context(), 0) {
		require.NoError(t, err)
		segments = append(segments, nwt.Values[int32](b, 1)...)
	}
	require.Equal(t, []int32{1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}, segments)
}

func TestRowsThatAreMostlyRoomAreToldOnce(t *testing.T) {
	for pad, want := range map[string]int{"": 0, "                    ": 1} {
		var log bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		t.Cleanup(func() { slog.SetDefault(before) })
		s, err := packing.NewStream(textStream(slices.Repeat([]string{"word" + pad}, 40)...), 16, func(r *nwt.Record) int { return len(r.Data) }, nil)
		require.NoError(t, err)
		for _, err := range newLoader(t, nwt.Streamed(s), nwt.WithBatchSize(8)).Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		require.Equal(t, want, strings.Count(log.String(), "rows are mostly room: size returns more"), "%s", log.String())
	}
}

func TestAPanicIsToldWithItsDocument(t *testing.T) {
	s, err := packing.NewStream(textStream("abc", "d", "!"), 2, func(r *nwt.Record) int { return len(r.Data) }, nil)
	require.NoError(t, err)
	fields := []nwt.Field{{Name: "tokens", Type: nwt.Int32, Shape: []int{9}, RaggedDims: 1}}
	docs := nwt.NewDataset(4, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		if i == 2 {
			panic("not a word")
		}
		dst.SetLen(0, 9)
		return nil
	})
	rows, err := packing.New(nwt.Sized(docs, func(_ int, sizes []int) { sizes[0] = 9 }), 4, 1)
	require.NoError(t, err)
	for _, ds := range []nwt.Dataset{nwt.Streamed(s), rows} {
		for _, err = range newLoader(t, ds).Epoch(t.Context(), 0) {
		}
		require.ErrorContains(t, err, "panic: document 2: not a word")
		require.Regexp(t, `stream_test.go:\d+\)`, err.Error(), "it names the program's line")
	}
}

func TestWhatCannotBePackedInAStreamIsTold(t *testing.T) {
	shards := [][]written{{{1, 5}, {6, 120}, {126, 3}}}
	docs := writtenStream(shards, false)
	of := func(_ nwt.Stream, err error) error { return err }
	packed := func(size func(*nwt.Record) int, total func(int) int) error {
		s, err := packing.NewStream(docs, 50, size, total)
		require.NoError(t, err)
		for _, err = range newLoader(t, nwt.Streamed(s)).Epoch(t.Context(), 0) {
		}
		return err
	}
	_, byIndex := packing.New(nwt.Streamed(docs), 8, 1)
	require.NotContains(t, byIndex.Error(), "streamDataset")
	for want, err := range map[string]error{
		"packing: New: Dataset: is a stream":                                         byIndex,
		"packing: NewStream: the stream is nil":                                      of(packing.NewStream(nil, 8, sizeOfWritten, nil)),
		"the length of a row must be 1":                                              of(packing.NewStream(docs, 0, sizeOfWritten, nil)),
		"packing: NewStream: size is nil":                                            of(packing.NewStream(docs, 8, nil, nil)),
		"as each field of the documents must be":                                     of(packing.NewStream(nwt.NewStream[int](scalars.Fields(), 1, nil, nil), 8, sizeOfWritten, nil)),
		"document 0: its size is 121: must be 0 … 120":                               packed(func(*nwt.Record) int { return 121 }, nil),
		"document 1 of the shard: its length 120 is more than the 60 that size gave": packed(func(r *nwt.Record) int { return min(sizeOfWritten(r), 60) }, nil),
		"panic: document 0: no idea":                                                 packed(func(*nwt.Record) int { panic("no idea") }, nil),
		"it has 3 records: its stream said 4":                                        packed(sizeOfWritten, func(int) int { return 151 }),
		"it has more than 2 records: its stream said 2":                              packed(sizeOfWritten, func(int) int { return 100 }),
	} {
		require.ErrorContains(t, err, want)
	}
}
