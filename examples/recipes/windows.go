package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// Forecasting: windows over series of different lengths, split by time. A sample is what a sensor has
// measured in 48 hours, and what it measures in the 12 hours after them. Where it has measured nothing, the
// value is 0 and the mask is false. Each sensor has its own scale, of what it measured before the cut.
// Training sees nothing that was measured after the cut, neither as input, nor as target, nor in the scale;
// the targets of validation are all after it. Random windows, split at random, would have nearly the same
// values in both.

const (
	history = 48
	horizon = 12
	stride  = 3    // hours from one window to the next
	cut     = 1000 // the hour at which training ends
)

// A sensor has measured a value each hour, from the hour begin on; NaN is a gap.
type sensor struct {
	begin  int
	values []float32
}

var (
	windowSchema nwt.Schema
	past         = nwt.AddField[float32](&windowSchema, "past", history)
	pastKnown    = nwt.AddField[bool](&windowSchema, "past_known", history)
	future       = nwt.AddField[float32](&windowSchema, "future", horizon)
	futureKnown  = nwt.AddField[bool](&windowSchema, "future_known", horizon) // leave the others out of the loss
	scaleUsed    = nwt.AddField[float32](&windowSchema, "scale", 2)           // mean and deviation, to scale forecasts back
	firstHour    = nwt.AddField[int64](&windowSchema, "first_hour")
	sensorNumber = nwt.AddField[int64](&windowSchema, "sensor")
)

// sensors returns series of 30 to 1500 hours, of different sizes, with gaps.
func sensors() (all []sensor) {
	rng := rand.New(rand.NewPCG(1, 1))
	for i, length := range []int{1500, 30, 400, 1200, 75, 900} {
		s := sensor{begin: i * 150}
		for hour := range length {
			value := float32(math.Pow(10, float64(i%3)))*float32(20+5*math.Sin(float64(s.begin+hour)*math.Pi/12)) + rng.Float32()
			if hour%100 > 90 {
				value = float32(math.NaN())
			}
			s.values = append(s.values, value)
		}
		all = append(all, s)
	}
	return all
}

// A scale is the mean and the deviation of what a sensor has measured.
type scale struct{ mean, deviation float32 }

// scaleOf returns the scale of what was measured before an hour; that of nothing leaves values as they are.
func scaleOf(s sensor, before int) scale {
	var n, sum, squares float64
	for _, v := range s.values[:max(0, min(len(s.values), before-s.begin))] {
		if !math.IsNaN(float64(v)) {
			n, sum, squares = n+1, sum+float64(v), squares+float64(v)*float64(v)
		}
	}
	if n == 0 {
		return scale{0, 1}
	}
	return scale{float32(sum / n), float32(math.Sqrt(max(squares/n-sum/n*sum/n, 1e-12)))}
}

// put writes values on the scale, and which of them are known.
func (c scale) put(dst []float32, known []bool, values []float32) {
	for k, v := range values {
		if known[k] = !math.IsNaN(float64(v)); known[k] {
			dst[k] = (v - c.mean) / c.deviation
		}
	}
}

// windows returns the windows that begin at the hour from or later and end before the hour to, one every
// stride hours and one sensor after the other, and how many each sensor has: for some that is 0.
func windows(all []sensor, from, to int) (ds nwt.Dataset, counts []int, err error) {
	var parts []nwt.Dataset
	for number, s := range all {
		first, end, own := max(from, s.begin), min(to, s.begin+len(s.values)), scaleOf(s, cut)
		n := max(0, (end-first-history-horizon)/stride+1)
		if end-first < history+horizon {
			n = 0
		}
		counts = append(counts, n)
		parts = append(parts, nwt.NewDataset(n, windowSchema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
			values := s.values[first-s.begin+i*stride:]
			own.put(past.Of(dst), pastKnown.Of(dst), values[:history])
			own.put(future.Of(dst), futureKnown.Of(dst), values[history:history+horizon])
			scaleUsed.Set(dst, own.mean, own.deviation)
			firstHour.Set(dst, int64(first+i*stride))
			sensorNumber.Set(dst, int64(number))
			return nil
		}))
	}
	ds, err = nwt.Concat(parts...)
	return ds, counts, err
}

// forecasts returns the datasets for training and validation, and an order for training in which each
// sensor that has windows comes equally often, however long it has measured.
func forecasts() (train, validation nwt.Dataset, order nwt.Sampler, err error) {
	all := sensors()
	train, counts, err := windows(all, 0, cut)
	if err != nil {
		return nil, nil, nil, err
	}
	// What was measured before the cut is known when the first forecast of validation is made.
	validation, _, err = windows(all, cut-history, math.MaxInt)
	if err != nil {
		return nil, nil, nil, err
	}
	weights := make([]float64, len(counts))
	for i, n := range counts {
		weights[i] = float64(min(n, 1)) // 0 for a sensor without windows
	}
	order, err = sampler.Mixed(train.Len(), nwt.Mix{Parts: counts, Phases: []nwt.Phase{{Weights: weights}}}, 42)
	return train, validation, order, err
}

func forecasting(ctx context.Context, _ string, out io.Writer) error {
	train, validation, order, err := forecasts()
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(train, nwt.WithBatchSize(32), nwt.WithSampler(order))
	if err != nil {
		return err
	}
	defer loader.Close()
	perSensor := map[int64]int{}
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		for _, number := range sensorNumber.Of(batch) {
			perSensor[number]++ // here a program trains on past.Of(batch) and future.Of(batch)
		}
	}
	fmt.Fprintf(out, "  %d windows before hour %d, drawn per sensor: %v; %d to validate, after it\n", train.Len(), cut, perSensor, validation.Len())
	return nil
}
