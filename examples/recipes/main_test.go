package main

import (
	"bytes"
	"iter"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// rest returns the samples from a state on, by their position in the epoch, as all ranks
// together load them.
func rest(t *testing.T, ds nwt.Dataset, opts []nwt.Option, state nwt.State, world, batch, workers, steps int) (samples map[int]string, reached nwt.State) {
	t.Helper()
	samples = map[int]string{}
	for rank := range world {
		l, err := nwt.NewLoader(ds, append(slices.Clip(opts), nwt.WithRank(rank, world), nwt.WithBatchSize(batch), nwt.WithWorkers(workers))...)
		require.NoError(t, err)
		reached = state
		done := 0
		for b, err := range l.Resume(t.Context(), state) {
			require.NoError(t, err)
			from, n := reached.Samples, b.State().Samples-reached.Samples
			for place := range b.Len() {
				var sample bytes.Buffer
				for f := range b.Fields() {
					sample.Write(content(b, f, place))
				}
				samples[from+n*rank/world+place] = sample.String()
			}
			reached = b.State()
			if done++; done == steps {
				break
			}
		}
		require.NoError(t, l.Close())
	}
	return samples, reached
}

// content returns what a field of a sample holds, without the padding, which depends on
// the batch.
func content(b *nwt.Batch, f, place int) (content []byte) {
	field, shape := b.Fields()[f], b.Shape(f)
	size := len(b.Bytes(f)) / b.Len()
	data := b.Bytes(f)[place*size : (place+1)*size]
	if field.RaggedDims == 0 {
		return data
	}
	for row := range slices.Chunk(data[:int(b.Lens(f, 0)[place])*size/shape[1]], size/shape[1]) {
		if field.RaggedDims == 2 {
			row = row[:int(b.Lens(f, 1)[place])*len(row)/shape[2]]
		}
		content = append(content, row...)
	}
	return content
}

// made are the recipes' datasets of about n samples, and how they are loaded. Mixup is
// left out: what it makes depends on the batches.
var made = map[string]func(tb testing.TB, n int) (nwt.Dataset, []nwt.Option, error){
	"pretrain": func(tb testing.TB, _ int) (nwt.Dataset, []nwt.Option, error) { return pretraining(tb.TempDir()) },
	"pictures": func(tb testing.TB, n int) (nwt.Dataset, []nwt.Option, error) {
		files, err := madePictures(n)
		require.NoError(tb, err)
		return picturesForTraining(files)
	},
	"metric": func(tb testing.TB, n int) (nwt.Dataset, []nwt.Option, error) {
		ds, labels, err := faces(n / perIdentity)
		require.NoError(tb, err)
		order, err := sampler.PerClass(labels, sampler.ClassBatch{Classes: perBatch, Samples: ofEach}, 42)
		return ds, []nwt.Option{nwt.WithSampler(order), nwt.WithBatchSize(perBatch * ofEach)}, err
	},
	"audio": func(tb testing.TB, n int) (nwt.Dataset, []nwt.Option, error) {
		file := filepath.Join(tb.TempDir(), "recordings.wav")
		all, err := writeRecordings(file, n)
		require.NoError(tb, err)
		return recordings(file, all)
	},
	"text":   func(_ testing.TB, n int) (nwt.Dataset, []nwt.Option, error) { return sentences(n) },
	"shapes": func(_ testing.TB, n int) (nwt.Dataset, []nwt.Option, error) { return scenes(n) },
	"detection": func(tb testing.TB, n int) (nwt.Dataset, []nwt.Option, error) {
		roads, err := madeRoads(n)
		require.NoError(tb, err)
		ds, err := detected(roads, detectionTransforms...)
		return ds, []nwt.Option{nwt.WithShuffle(42), nwt.WithBatchSize(8)}, err
	},
	"segmentation": func(tb testing.TB, n int) (nwt.Dataset, []nwt.Option, error) {
		dir := tb.TempDir()
		require.NoError(tb, makePairs(dir, n))
		photos, masks, err := pairs(dir)
		require.NoError(tb, err)
		ds, err := segmented(photos, masks, segmentationTransforms...)
		return ds, []nwt.Option{nwt.WithShuffle(42), nwt.WithBatchSize(8)}, err
	},
}

func TestEachRecipeGoesOnInTheMiddleOfAnEpochOnOtherRanks(t *testing.T) {
	for name, n := range map[string]int{
		"pretrain": 400, "pictures": 24, "audio": 200, "text": 200, "detection": 100, "segmentation": 24, "shapes": 100,
	} {
		t.Run(name, func(t *testing.T) {
			ds, opts, err := made[name](t, n)
			require.NoError(t, err)
			start := nwt.State{Epoch: 1}
			whole, end := rest(t, ds, opts, start, 1, 4, 0, -1)
			require.Len(t, whole, end.Samples)
			head, state := rest(t, ds, opts, start, 2, 3, 2, 3)
			require.Equal(t, 18, state.Samples)
			tail, _ := rest(t, ds, opts, state, 3, 2, 1, -1)
			maps.Copy(head, tail)
			require.NotEmpty(t, tail)
			for position, sample := range head {
				require.Equal(t, whole[position], sample, "position %d", position)
			}
			require.GreaterOrEqual(t, len(head), len(whole)-6, "but what WithDropLast leaves out")
		})
	}
}

func TestMetricLearningHasPClassesOfKSamplesAndGoesOnOnOtherRanks(t *testing.T) {
	ds, opts, err := made["metric"](t, 120)
	require.NoError(t, err)
	times := map[int32]int{}
	state := nwt.State{Epoch: 1}
	for step := range 10 {
		l, err := nwt.NewLoader(ds, append(opts, nwt.WithWorkers(step%4))...)
		require.NoError(t, err)
		for batch, err := range l.Resume(t.Context(), state) {
			require.NoError(t, err)
			state = batch.State()
			perClass, samples := map[int32]int{}, map[int]bool{}
			for i, class := range identity.Of(batch) {
				perClass[class]++
				samples[batch.Indices()[i]] = true
			}
			require.Len(t, perClass, perBatch)
			require.Len(t, samples, perBatch*ofEach)
			for class, n := range perClass {
				require.Equal(t, ofEach, n)
				times[class]++
			}
			break
		}
		require.NoError(t, l.Close())
	}
	require.Equal(t, 120, state.Samples)
	for class, n := range times { // 40 turns of 12 classes
		require.InDelta(t, 40.0/12, n, 1, "class %d", class)
	}
}

func TestMixupResumesWithTheSameBatches(t *testing.T) {
	ds, opts, err := made["pictures"](t, 24)
	require.NoError(t, err)
	opts = append(opts, nwt.WithBatchTransform(mixup))
	whole, _ := rest(t, ds, opts, nwt.State{Epoch: 1}, 1, 8, 0, -1)
	tail, _ := rest(t, ds, opts, nwt.State{Epoch: 1, Samples: 16}, 1, 8, 3, -1)
	require.Len(t, tail, 32)
	for position, sample := range tail {
		require.Equal(t, whole[position], sample)
	}
}

func TestTheRecipesRun(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	require.Contains(t, out.String(), `checkpoint: {"epoch":0,"samples":160,`)
	require.Contains(t, out.String(), "training: 48 pictures an epoch")
	require.Contains(t, out.String(), "validation: 24 pictures an epoch")
	require.Contains(t, out.String(), "epoch 1: 10 batches of 4 classes × 3")
	require.Contains(t, out.String(), "200 pictures with 900 boxes")
	require.Contains(t, out.String(), "40 photographs; boxes kept:")
	require.Contains(t, out.String(), "12 photographs; pixels of a class:")
	require.Contains(t, out.String(), "windows before hour 1000, drawn per sensor: map[0:")
	require.Contains(t, out.String(), "saved: epoch 1, 100 samples")
	require.Contains(t, out.String(), "900 transitions, 300 kept; 120 batches")
	require.Contains(t, out.String(), "epoch 1: negatives share 2.")
	require.Contains(t, out.String(), "11 batches, known before the first one; 10664 tokens in 10816 places")
	require.ErrorContains(t, run(t.Context(), []string{"cake"}, &out), `"cake": must be one of ["audio" "checkpoint" "detection" "forecasting" "jsonl" "metric" "negatives" "pictures" "pretrain" "replay" "segmentation" "shapes" "text" "tfrecord" "tokenise" "tokens"]`)
}

// Repeated augmentation makes a list for each epoch, before its first batch.
func TestRecipesAllocateNothingPerBatch(t *testing.T) {
	for name, n := range map[string]int{"pretrain": 400, "audio": 8 * 300, "text": 16 * 300, "detection": 300, "shapes": 8 * 300, "pictures": 300} {
		ds, opts, err := made[name](t, n)
		require.NoError(t, err)
		l, err := nwt.NewLoader(ds, append(opts, nwt.WithWorkers(0), nwt.WithBatchSize(1))...)
		require.NoError(t, err)
		next, stop := iter.Pull2(l.Epoch(t.Context(), 0))
		next()
		require.Zero(t, testing.AllocsPerRun(200, func() { next() }), name)
		stop()
		require.NoError(t, l.Close())
	}
}

func TestALogMelSpectrumIsLoudestAtItsTone(t *testing.T) {
	ds, _, err := made["audio"](t, 30)
	require.NoError(t, err)
	for i := range 30 {
		s, err := nwt.LoadSample(t.Context(), ds, i)
		require.NoError(t, err)
		require.Equal(t, framesOf(min(lengthOfRecording(i), mostClip)), spectrum.Len(s, 0))
		for frame := range slices.Chunk(spectrum.Of(s)[:spectrum.Len(s, 0)*bands], bands) {
			loudest := 0
			for band, loud := range frame {
				if loud > frame[loudest] {
					loudest = band
				}
			}
			low, _, high := bandEdges(loudest)
			require.True(t, low <= toneOf(i) && toneOf(i) <= high, "%d Hz in band %.0f … %.0f", int(toneOf(i)), low, high)
		}
	}
}

func TestGapsAreMaskedAndEachSensorHasItsScale(t *testing.T) {
	train, _, _, err := forecasts()
	require.NoError(t, err)
	all, gaps := sensors(), 0
	for i := range train.Len() {
		s, err := nwt.LoadSample(t.Context(), train, i)
		require.NoError(t, err)
		of := all[sensorNumber.Of(s)[0]]
		at, scale := int(firstHour.Of(s)[0])-of.begin, scaleUsed.Of(s)
		require.Zero(t, at%stride)
		for k := range history + horizon {
			value, known := past.Of(s)[min(k, history-1)], pastKnown.Of(s)[min(k, history-1)]
			if k >= history {
				value, known = future.Of(s)[k-history], futureKnown.Of(s)[k-history]
			}
			if raw := of.values[at+k]; !math.IsNaN(float64(raw)) {
				require.True(t, known)
				require.InEpsilon(t, raw, value*scale[1]+scale[0], 1e-3)
				require.Less(t, math.Abs(float64(value)), 3.0)
			} else {
				require.False(t, known)
				require.Zero(t, value)
				gaps++
			}
		}
	}
	require.Positive(t, gaps)
}

func TestNoValueThatValidationForecastsIsSeenInTraining(t *testing.T) {
	train, validation, order, err := forecasts()
	require.NoError(t, err)
	firsts := func(ds nwt.Dataset) (least, most int64) {
		least = 1 << 62
		for i := range ds.Len() {
			sample, err := nwt.LoadSample(t.Context(), ds, i)
			require.NoError(t, err)
			hour := firstHour.Of(sample)[0]
			least, most = min(least, hour), max(most, hour)
		}
		return least, most
	}
	_, last := firsts(train)
	require.Less(t, last+history+horizon-1, int64(cut), "the last value of training")
	require.GreaterOrEqual(t, last+history+horizon-1, int64(cut-stride))
	first, _ := firsts(validation)
	require.EqualValues(t, cut, first+history, "the first target of validation")
	all := sensors()
	for i := range all { // what comes after the cut changes nothing, the scale neither
		all[i].values = all[i].values[:max(0, min(len(all[i].values), cut-all[i].begin))]
	}
	again, _, err := windows(all, 0, 1<<30)
	require.NoError(t, err)
	require.Equal(t, train.Len(), again.Len())
	for i := range train.Len() {
		a, err := nwt.LoadSample(t.Context(), train, i)
		require.NoError(t, err)
		b, err := nwt.LoadSample(t.Context(), again, i)
		require.NoError(t, err)
		require.Equal(t, past.Of(a), past.Of(b))
	}
	require.Equal(t, train.Len(), order.Len())
}
