package wds_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

// indexed is shards of given lengths, whose samples are numbered, and their index.
func indexed(t *testing.T, lengths ...int) fstest.MapFS {
	files, shards, n := fstest.MapFS{}, []wds.Shard(nil), 0
	for i, length := range lengths {
		var data bytes.Buffer
		w := wds.NewWriter(&data)
		for range length {
			require.NoError(t, w.Write(fmt.Sprint("s", n), wds.File{Ext: "cls", Data: []byte(strconv.Itoa(n))}))
			n++
		}
		require.NoError(t, w.Close())
		name := fmt.Sprintf("%d.tar", i)
		files["train/"+name] = &fstest.MapFile{Data: data.Bytes()}
		shards = append(shards, w.Shard(name))
	}
	var data bytes.Buffer
	require.NoError(t, wds.WriteIndex(&data, shards))
	files["train/index.json"] = &fstest.MapFile{Data: data.Bytes()}
	return files
}

func numbers(files fstest.MapFS, shards string, opts ...wds.Option) (nwt.Dataset, error) {
	fields := []nwt.Field{{Name: "i", Type: nwt.Int64}}
	s, err := wds.New(files, []string{shards}, fields, func(_ context.Context, r *wds.Record, dst *nwt.Sample) error {
		data, err := r.File("cls")
		if err == nil {
			nwt.Values[int64](dst, 0)[0], err = strconv.ParseInt(string(data), 10, 64)
		}
		return err
	}, opts...)
	if err != nil {
		return nil, err
	}
	return nwt.Streamed(s), nil
}

func TestShardsWithAnIndexGoOnWithAnyNumberOfRanks(t *testing.T) {
	files := indexed(t, 13, 0, 40, 7)
	ds, err := numbers(files, "train/{0..3}.tar", wds.WithIndex("train/index.json"))
	require.NoError(t, err)
	var got []int64
	state := nwt.State{}
	for _, world := range []int{3, 1, 5} {
		var next nwt.State
		for rank := range world {
			l, err := nwt.NewLoader(ds, nwt.WithBatchSize(4), nwt.WithShuffle(1), nwt.WithRank(rank, world), nwt.WithWorkers(2))
			require.NoError(t, err)
			for b, err := range l.Resume(t.Context(), state) {
				require.NoError(t, err)
				got = append(got, nwt.Values[int64](b, 0)...)
				if next = b.State(); world < 5 && next.Samples > 20*(4-world) {
					break
				}
			}
			require.NoError(t, l.Close())
		}
		state = next
	}
	slices.Sort(got)
	require.Len(t, got, 60)
	require.Len(t, slices.Compact(got), 60)
}

func TestIndexSaysWhatTheWriterSays(t *testing.T) {
	files := indexed(t, 13, 0, 40, 7)
	shards, err := wds.Index(t.Context(), files, []string{"train/{0..3}.tar"})
	require.NoError(t, err)
	var data bytes.Buffer
	for i := range shards {
		shards[i].Name = shards[i].Name[len("train/"):]
	}
	require.NoError(t, wds.WriteIndex(&data, shards))
	require.Equal(t, string(files["train/index.json"].Data), data.String())
}

func TestAnIndexOlderThanItsShardIsAnErrorThatNamesBothSizes(t *testing.T) {
	files := indexed(t, 13, 5)
	other := indexed(t, 13, 40)
	files["train/1.tar"] = other["train/1.tar"]
	ds, err := numbers(files, "train/{0..1}.tar", wds.WithIndex("train/index.json"))
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(4))
	require.NoError(t, err)
	defer l.Close()
	for _, e := range l.Epoch(t.Context(), 0) {
		err = e
	}
	require.ErrorContains(t, err, fmt.Sprintf("train/1.tar: it has %d bytes, in the index train/index.json it has %d", len(other["train/1.tar"].Data), 6144))
}

func TestAnIndexThatIsNoneIsRefused(t *testing.T) {
	files := indexed(t, 3, 5)
	files["train/2.tar"] = files["train/1.tar"]
	_, err := numbers(files, "train/{0..2}.tar", wds.WithIndex("train/index.json"))
	require.ErrorContains(t, err, "shard train/2.tar isn't in it")
	_, err = numbers(files, "train/0.tar", wds.WithIndex("train/1.tar"))
	require.ErrorContains(t, err, "no index")
	_, err = numbers(files, "train/0.tar", wds.WithIndex("no.json"))
	require.ErrorContains(t, err, "no.json")
}

func TestAnIndexWithoutANumberLosesNoShard(t *testing.T) {
	files := indexed(t, 10, 7, 8)
	index := string(files["train/index.json"].Data)
	number := `"nsamples": 7,`
	require.Contains(t, index, number)
	twice := `{"url": "1.tar", "nsamples": 7, "filesize": 9216}, {"url": "1.tar", "nsamples": 6, "filesize": 9216}`
	for instead, want := range map[string]string{
		"": "shard train/1.tar: its number of samples (nsamples) is missing", `"nsamples": null,`: "is missing", `"nsamples": -1,`: "below 0",
		`"nsamples": "7",`: "no index",
	} {
		files["train/index.json"] = &fstest.MapFile{Data: []byte(strings.Replace(index, number, instead, 1))}
		_, err := numbers(files, "train/{0..2}.tar", wds.WithIndex("train/index.json"))
		require.ErrorContains(t, err, want, "%q", instead)
		_, err = numbers(files, "train/0.tar", wds.WithIndex("train/index.json"))
		require.Equal(t, want == "no index", err != nil, "others' entries aren't needed")
	}
	files["train/index.json"] = &fstest.MapFile{Data: []byte(`{"shardlist": [` + twice + `]}`)}
	_, err := numbers(files, "train/1.tar", wds.WithIndex("train/index.json"))
	require.ErrorContains(t, err, "shard train/1.tar is in it twice, with different entries")
}

func TestResumeRefusesOtherShards(t *testing.T) {
	files := indexed(t, 10, 10, 10, 10)
	resume := func(shards string, state nwt.State) (last nwt.State, err error) {
		ds, err := numbers(files, shards)
		require.NoError(t, err)
		l, err := nwt.NewLoader(ds, nwt.WithBatchSize(5))
		require.NoError(t, err)
		defer l.Close()
		for b, err := range l.Resume(t.Context(), state) {
			if err != nil {
				return state, err
			}
			return b.State(), nil
		}
		return state, nil
	}
	state, err := resume("train/{0..2}.tar", nwt.State{})
	require.NoError(t, err)
	_, err = resume("train/{0..2}.tar", state)
	require.NoError(t, err)
	for _, others := range []string{"train/{1..3}.tar", "train/{0,2,1}.tar"} {
		_, err := resume(others, state)
		require.ErrorContains(t, err, "another fingerprint of the stream", others)
	}
}
