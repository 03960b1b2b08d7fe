package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/checkpoint"
	"github.com/nwt-go/nwt/sampler"
)

// Reinforcement learning from a replay buffer: transitions are drawn by priorities that each training step
// changes, while new ones overwrite the oldest. A checkpoint between two draws holds everything.

const (
	remembered  = 300 // transitions in the buffer
	replayBatch = 16
	drawnAhead  = 4 // batches that are drawn at a time, by the priorities of that moment
)

var (
	replaySchema nwt.Schema
	observed     = nwt.AddField[float32](&replaySchema, "observed", 2)
	action       = nwt.AddField[int32](&replaySchema, "action")
	reward       = nwt.AddField[float32](&replaySchema, "reward")
	followed     = nwt.AddField[float32](&replaySchema, "followed", 2)
)

type transition struct {
	Observed, Followed [2]float32
	Action             int32
	Reward             float32
}

// A replay is what a checkpoint holds.
type replay struct {
	Transitions []transition // a ring
	Stored      int          // transitions so far; the next one goes to Stored % remembered
	Drawn       int          // epochs drawn so far
	Priorities  []byte
	Value       [2]float64 // the model: what each action is worth

	priorities *sampler.Prioritized
	loader     *nwt.Loader
}

func newReplay() (r *replay, err error) {
	r = &replay{Transitions: make([]transition, remembered)}
	if r.priorities, err = sampler.NewPrioritized(remembered, drawnAhead*replayBatch, 42); err != nil {
		return nil, err
	}
	ds := nwt.NewDataset(remembered, replaySchema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		t := &r.Transitions[i]
		observed.Set(dst, t.Observed[:]...)
		action.Set(dst, t.Action)
		reward.Set(dst, t.Reward)
		followed.Set(dst, t.Followed[:]...)
		return nil
	})
	r.loader, err = nwt.NewLoader(ds, nwt.WithSampler(r.priorities), nwt.WithBatchSize(replayBatch))
	return r, err
}

// store overwrites the oldest transition. No batch may be loading meanwhile: so it is called between epochs.
func (r *replay) store(t transition) error {
	i := r.Stored % remembered
	r.Transitions[i] = t
	r.Stored++
	return r.priorities.Set(i, 1) // a new one comes soon
}

// act plays a few steps of a game: action 1 is worth more where the first number is large.
func (r *replay) act(steps int) error {
	rng := rand.New(rand.NewPCG(7, uint64(r.Stored)))
	for range steps {
		t := transition{Observed: [2]float32{rng.Float32(), rng.Float32()}, Followed: [2]float32{rng.Float32(), rng.Float32()}, Action: int32(rng.IntN(2))}
		t.Reward = t.Observed[0]*float32(t.Action) + 0.1*rng.Float32()
		if err := r.store(t); err != nil {
			return err
		}
	}
	return nil
}

// learn draws a few batches, trains on them and sets their new priorities.
func (r *replay) learn(ctx context.Context, seen func(indices []int)) error {
	epoch, err := r.priorities.Draw()
	if err != nil {
		return err
	}
	for batch, err := range r.loader.Epoch(ctx, epoch) {
		if err != nil {
			return err
		}
		seen(batch.Indices())
		for k, index := range batch.Indices() {
			size := float64(min(r.Stored, remembered))
			correction := math.Pow(size*r.priorities.Probability(index), -0.5) // large for what is drawn seldom
			wrong := float64(reward.Of(batch)[k]) - r.Value[action.Of(batch)[k]]
			r.Value[action.Of(batch)[k]] += 0.02 * min(correction, 1) * wrong
			if err := r.priorities.Set(index, math.Abs(wrong)+0.01); err != nil {
				return err
			}
		}
	}
	r.Drawn++
	return nil
}

func (r *replay) save(path string) (err error) {
	if r.Priorities, err = r.priorities.MarshalBinary(); err != nil {
		return err
	}
	return checkpoint.Save(path, r)
}

func (r *replay) restore(path string) error {
	found, err := checkpoint.Restore(path, r)
	if found && err == nil {
		err = r.priorities.UnmarshalBinary(r.Priorities)
	}
	return err
}

// replayed acts and learns until so many epochs are drawn, from the latest checkpoint on.
func replayed(ctx context.Context, path string, epochs int, seen func(indices []int)) (*replay, error) {
	r, err := newReplay()
	if err != nil {
		return nil, err
	}
	defer r.loader.Close()
	if err := r.restore(path); err != nil {
		return nil, err
	}
	for r.Drawn < epochs {
		if err := r.act(30); err != nil {
			return nil, err
		}
		if err := r.learn(ctx, seen); err != nil {
			return nil, err
		}
		if err := r.save(path); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func replays(ctx context.Context, dir string, out io.Writer) error {
	for _, epochs := range []int{5, 30} { // stopped after 5
		r, err := replayed(ctx, filepath.Join(dir, "replay.json"), epochs, func([]int) {})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "  %d transitions, %d kept; %d batches; action 1 is worth %.2f, action 0 %.2f\n",
			r.Stored, min(r.Stored, remembered), r.Drawn*drawnAhead, r.Value[1], r.Value[0])
	}
	return nil
}
