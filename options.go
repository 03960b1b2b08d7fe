package nwt

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/search"
)

// An Option configures [NewLoader] and [Tune]; both take all of them, so that
// a program keeps one slice for both, and each ignores what concerns only the
// other. Their order doesn't matter, but that of one given twice the last wins.
type Option func(*options) error

// options is what the options have set.
type options struct {
	batchSize int
	workers   int
	prefetch  int // 0: from workers and batch size
	sampler   Sampler
	shuffle   bool
	seed      *uint64 // of Sample.Rand, where WithSeed gave one
	shuffled  uint64  // the seed of WithShuffle
	dropLast  bool
	rank      int
	world     int
	maxBad    int
	timeout   time.Duration // of a sample; 0: none
	retries   int
	backoff   time.Duration
	init      func(ctx context.Context, worker int) error
	finish    func(ctx context.Context, b *Batch) error
	log       *slog.Logger
	unordered bool

	// Of streams alone.
	interleave   int
	window       int
	epochSamples int

	launcher *Rank // with WithLauncher
	device   Device
	pinned   *bool // nil: where the device is not the host
	async    bool

	// Of Tune alone.
	strategy   Strategy
	alpha      search.Alpha
	iterations int           // 0: the default, adapted to how long a batch takes
	most       int           // −1: not bounded by WithMaxWorkers
	tuningTime time.Duration // 0: the default
	step       func(ctx context.Context, b *Batch) error
	progress   func(Progress)
	maxMemory  uint64 // bytes; 0: the default
	results    string // path; empty: none
	compare    bool   // page-locked with ordinary memory

	auto bool // of NewLoader alone
}

const (
	maxWorkers  = search.MaxWorkers
	maxPrefetch = ring.Capacity - 2
)

// newOptions applies opts to the defaults. All that is wrong is in the error.
func newOptions(opts []Option) (*options, error) {
	o := &options{
		batchSize:  32,
		workers:    -1,
		world:      1,
		log:        slog.Default(),
		device:     Host(),
		interleave: 4,
		window:     1024,
		retries:    3,
		backoff:    10 * time.Millisecond,
		strategy:   Greedy(),
		alpha:      search.DefaultAlpha,
		most:       -1,
	}
	var errs []error
	for i, opt := range opts {
		if opt == nil {
			errs = append(errs, optionError("Option", i, "option number %d is nil", i))
			continue
		}
		errs = append(errs, opt(o))
	}
	if o.launcher != nil && o.log != nil {
		o.launcher.logOnce(o.log)
	}
	if o.workers < 0 {
		o.workers = min(o.cpus(), maxWorkers)
	}
	if o.shuffle && o.sampler != nil {
		errs = append(errs, optionError("WithSampler", nameOfSampler(o.sampler), "can't be combined with WithShuffle: a sampler is the whole order"))
	}
	return o, errors.Join(errs...)
}

// cpus is how many CPUs this process has for itself.
func (o *options) cpus() int {
	all, n := runtime.GOMAXPROCS(0), o.ranks()
	if n == 1 {
		return all
	}
	if parents, bound := host.Bound(); bound {
		return max(1, min(all, parents/n)) // ranks may be bound to the same socket
	}
	return max(1, all/n)
}

// ranks is how many processes share this host.
func (o *options) ranks() int {
	if o.launcher == nil {
		return 1
	}
	return o.launcher.LocalWorld
}

// between is the error of an option whose value must lie in low … high.
func between(option string, n, low, high int) error {
	if n < low || n > high {
		return optionError(option, n, "must be %d … %d", low, high)
	}
	return nil
}

// WithBatchSize sets the samples of a batch, 1 … 2²⁴−1. The default is 32. The
// last batch of an epoch may be smaller.
func WithBatchSize(n int) Option {
	return func(o *options) error {
		o.batchSize = n
		return between("WithBatchSize", n, 1, ring.MaxPlaces)
	}
}

// WithWorkers sets how many goroutines load samples, 0 … 1024. With 0 the
// caller of the iterator loads each batch when it asks for it, and no goroutine
// is started. The default is GOMAXPROCS; [Tune] finds a better one. Tune
// ignores it.
func WithWorkers(n int) Option {
	return func(o *options) error {
		o.workers = n
		return between("WithWorkers", n, 0, maxWorkers)
	}
}

// WithPrefetch fixes how many batches are ready or in flight ahead of the one in
// use, 1 … 1022. Each costs the memory of a batch. By default there are 2, more
// if the workers outnumber the samples of a batch, and more as long as workers
// would stand idle while training waits: behind a slow sample, or after a step
// that pauses. What is added takes at most 1 GiB, and at most an eighth of the
// memory that the machine or the container has left, divided by the ranks on the
// host; it is given back when it is no longer used. With 0 workers nothing is
// loaded ahead.
func WithPrefetch(batches int) Option {
	return func(o *options) error {
		o.prefetch = batches
		return between("WithPrefetch", batches, 1, maxPrefetch)
	}
}

// WithShuffle gives every epoch another order, computed from the seed and the
// epoch: see [Shuffled]. It also seeds [Sample.Rand]. By default the order is
// the dataset's.
func WithShuffle(seed uint64) Option {
	return func(o *options) error {
		o.shuffle, o.shuffled = true, seed
		return nil
	}
}

// WithSeed sets the seed of [Sample.Rand] by itself. The default is that of
// WithShuffle, else 0.
func WithSeed(seed uint64) Option {
	return func(o *options) error {
		o.seed = &seed
		return nil
	}
}

// WithSampler sets the order of the epochs. It excludes WithShuffle.
func WithSampler(s Sampler) Option {
	return func(o *options) error {
		o.sampler = s
		if s == nil {
			return optionError("WithSampler", nil, "must not be nil")
		}
		return nil
	}
}

// WithDropLast leaves out a last batch that would be smaller than the others.
func WithDropLast() Option {
	return func(o *options) error {
		o.dropLast = true
		return nil
	}
}

// WithRank makes the loader that of one rank among world: 0 ≤ rank < world.
// The ranks of an epoch see disjoint parts that make up all of it, in the same
// number of batches. Only where fewer samples than ranks are left in all do
// some ranks repeat one. The default is rank 0 of 1.
func WithRank(rank, world int) Option {
	return func(o *options) error {
		o.rank, o.world = rank, world
		if err := between("WithRank (world)", world, 1, maxWorld); err != nil {
			return err
		}
		return between("WithRank (rank)", rank, 0, world-1)
	}
}

const maxWorld = 1 << 20

// WithLauncher sets rank and world to what [RankFromEnv] reads from the
// launcher's environment: torchrun, Open MPI, MPICH, Slurm, Kubernetes. It logs
// once per process what it found. The ranks of a host share its CPUs: the default
// of WithWorkers and the space that [Tune] searches are GOMAXPROCS divided by
// their number. If the launcher binds a rank to fewer CPUs than the parent process
// may use, the rank gets its share of the parent's CPUs, at most as many as it is
// bound to (on Linux). An environment that contradicts itself is an error.
func WithLauncher() Option {
	return func(o *options) error {
		r, err := findRank(os.LookupEnv)
		if err != nil {
			return optionError("WithLauncher", "environment", "%v", err)
		}
		o.launcher, o.rank, o.world = &r, r.Rank, r.World
		return nil
	}
}

// WithUnordered delivers batches as soon as they are loaded, each once, so that a
// slow one holds up nothing. Which samples are in a batch doesn't change. Such a
// loader can't be resumed. On the way to a GPU, batches are copied and so
// delivered in order all the same.
func WithUnordered() Option {
	return func(o *options) error {
		o.unordered = true
		return nil
	}
}

// WithInterleave sets how many shards of a stream are read at once, a sample of
// each in turn, 1 … 1024. The default is 4. It is part of the order.
func WithInterleave(shards int) Option {
	return func(o *options) error {
		o.interleave = shards
		return between("WithInterleave", shards, 1, 1024)
	}
}

// WithShuffleWindow sets within how many records WithShuffle mixes a stream,
// 1 … 2²⁴: so many are kept in memory as they were read. The default is 1024.
// It is part of the order.
func WithShuffleWindow(samples int) Option {
	return func(o *options) error {
		o.window = samples
		return between("WithShuffleWindow", samples, 1, 1<<24)
	}
}

// WithEpochSamples makes n samples an epoch of a stream, over all ranks, so that
// each rank has the same number of batches. A rank whose shards hold more than its
// n/world leaves out the rest; one whose shards hold fewer reads all of them again
// once each sample has come. By default an epoch is all that the shards hold.
func WithEpochSamples(n int) Option {
	return func(o *options) error {
		o.epochSamples = n
		return between("WithEpochSamples", n, 1, math.MaxInt32)
	}
}

// WithErrorBudget leaves out up to maxBad samples an epoch that can't be loaded:
// their batches are smaller by them, and one without any left is skipped. Each
// is logged and remembered, see [Loader.BadSamples]; one more ends the epoch.
// The default is 0: the first bad sample does.
func WithErrorBudget(maxBad int) Option {
	return func(o *options) error {
		o.maxBad = maxBad
		return between("WithErrorBudget", maxBad, 0, math.MaxInt32)
	}
}

// WithTimeout gives up a call of Load that takes longer than perSample,
// [WithRetry]'s pauses and calls included: the sample is bad, with an error that
// is [context.DeadlineExceeded], and the call's context ends. A call of LoadBatch
// may take perSample for each of its samples; if it is given up, they are loaded
// one by one.
//
// The call itself can't be stopped. It goes on in a goroutine that neither the
// epoch nor Close waits for, and keeps the memory that it may write to until it
// returns. Its [Sample.Worker] stays its own, so the goroutine that takes over
// has another number, which may be Workers or more. A call is given up at most
// an eighth of perSample, or 1 ms if that is more, after its time is over. Once 1024
// calls haven't returned, the epoch ends with an error. Without workers the caller's
// goroutine can't be left, nor the context ended: the loader waits for the call. The default is to wait for ever.
func WithTimeout(perSample time.Duration) Option {
	return func(o *options) error {
		o.timeout = perSample
		if perSample < time.Millisecond {
			return optionError("WithTimeout", perSample, "must be at least 1ms")
		}
		return nil
	}
}

// WithRetry sets how often a sample is loaded once more when its error calls
// itself temporary (has a method Temporary() bool that returns true, as those of
// package net and [context.DeadlineExceeded] do), 0 … 100,
// and how long to wait before the first time; the wait doubles each time. The
// default is 3 times from 10 ms on.
func WithRetry(times int, wait time.Duration) Option {
	return func(o *options) error {
		o.retries, o.backoff = times, wait
		if wait < 0 {
			return optionError("WithRetry", wait, "the wait must be at least 0")
		}
		return between("WithRetry", times, 0, 100)
	}
}

// WithWorkerInit calls f once in each worker's goroutine before its first
// sample, to prepare what the worker needs; with 0 workers, once by the caller
// as worker 0. Where f fails, the epoch ends with a *[LoadError] whose Index is
// −1, and the next epoch tries again.
func WithWorkerInit(f func(ctx context.Context, worker int) error) Option {
	return func(o *options) error {
		o.init = f
		if f == nil {
			return optionError("WithWorkerInit", nil, "must not be nil")
		}
		return nil
	}
}

// WithFinish runs f on each batch when its samples are loaded and before it is
// copied to the device: mixup, masking, packing, targets that are made of several
// samples. A worker runs it, so that it takes no time of training unless workers are
// short, and what [Tune] measures includes it. [Batch.Rand] is for what it draws.
//
// f may change the elements and lengths of b, by [Column.Of], [Batch.Bytes] and
// [Batch.Lens]. It is called for several batches at once. Bad samples that
// [WithErrorBudget] leaves out are gone before. If f fails or panics, the epoch ends
// with a *[LoadError] whose Index is −1, after all batches before. WithTimeout
// doesn't bound it.
func WithFinish(f func(ctx context.Context, b *Batch) error) Option {
	return func(o *options) error {
		o.finish = f
		if f == nil {
			return optionError("WithFinish", nil, "must not be nil")
		}
		return nil
	}
}

// WithLogger sets where warnings go. The default is slog.Default().
func WithLogger(l *slog.Logger) Option {
	return func(o *options) error {
		o.log = l
		if l == nil {
			return optionError("WithLogger", nil, "must not be nil; for silence use slog.DiscardHandler")
		}
		return nil
	}
}

// WithDevice sets where batches must end up. The default is [Host].
func WithDevice(d Device) Option {
	return func(o *options) error {
		o.device = d
		if d == nil {
			return optionError("WithDevice", nil, "must not be nil")
		}
		return nil
	}
}

// WithPinned decides whether batches are loaded into page-locked memory. If the
// device is a GPU, that is the default: copies from other memory are slower and
// not asynchronous.
//
// On the [Host] the default is ordinary memory. WithPinned(true) is for programs
// that copy batches to a GPU themselves. It takes the CUDA driver's page-locked
// memory; if there is no driver, pages that the system locks; and if these are
// refused, ordinary ones, with a log line that says which limit is too low. It
// only helps if what copies recognizes such memory. XLA doesn't: it copies each
// batch into a buffer of its own first, unless its GPU client is made with the
// option should_stage_host_to_device_transfers set to false (see docs/gomlx.md).
func WithPinned(on bool) Option {
	return func(o *options) error {
		o.pinned = &on
		return nil
	}
}

// WithAsyncTransfer delivers batches when their copy to the device is queued,
// before it is done: the training program's stream must wait for [Batch.Event],
// and no CPU has to. See [Batch.ReleaseAfterEvent] for how the loader then waits
// for the program. That a copy has failed is told by a later batch, or after the
// last.
func WithAsyncTransfer() Option {
	return func(o *options) error {
		o.async = true
		return nil
	}
}

// WithPinnedComparison makes [Tune] measure its choice once more with batches in
// ordinary memory instead of page-locked, see [Result.Unpinned]. It does nothing
// where batches aren't copied from page-locked memory: on the [Host], and with
// WithPinned(false).
func WithPinnedComparison() Option {
	return func(o *options) error {
		o.compare = true
		return nil
	}
}

// WithStrategy sets how [Tune] searches: [Greedy] by default, or [Exhaustive].
func WithStrategy(s Strategy) Option {
	return func(o *options) error {
		o.strategy = s
		if s == nil {
			return optionError("WithStrategy", nil, "must not be nil")
		}
		return nil
	}
}

// WithAlpha sets the difference in accumulated time that the choice of [Tune]
// ignores: over as many iterations as WithIterations says, 100 by default. The
// default is 0.5 s, but never more than 10 % of the fastest count's time; given
// here, the duration alone counts. 0 chooses the fastest.
func WithAlpha(d time.Duration) Option {
	return func(o *options) error {
		o.alpha = search.Alpha{Total: d, Share: math.Inf(1)}
		if d < 0 {
			return optionError("WithAlpha", d, "must be at least 0")
		}
		return nil
	}
}

// WithRelativeAlpha is WithAlpha as a share of the fastest count's time, 0 … 1;
// that share alone counts.
func WithRelativeAlpha(share float64) Option {
	return func(o *options) error {
		o.alpha = search.Alpha{Total: math.MaxInt64, Share: share}
		if !(share >= 0 && share <= 1) {
			return optionError("WithRelativeAlpha", share, "must be 0 … 1")
		}
		return nil
	}
}

// WithIterations sets how many batches [Tune] measures at a worker count that
// stays in the race, 1 … 1 000 000. By default it is 100, and more or fewer
// where batches are very fast or slow.
func WithIterations(n int) Option {
	return func(o *options) error {
		o.iterations = n
		return between("WithIterations", n, 1, 1_000_000)
	}
}

// WithMaxWorkers sets the highest worker count that [Tune] tries, 0 … 1024. By
// default that is GOMAXPROCS, and more as long as more workers win while CPUs
// are idle; for [Exhaustive] it is GOMAXPROCS − 1.
func WithMaxWorkers(n int) Option {
	return func(o *options) error {
		o.most = n
		return between("WithMaxWorkers", n, 0, maxWorkers)
	}
}

// WithTuningTime bounds the time that [Tune] takes for measuring, by no more than
// the batch that is under way then. The best answer until then is returned; it is
// never worse than the default of WithWorkers by more than alpha, as far as was
// measured. By default that is 2 minutes, unless WithIterations or [Exhaustive]
// say how much is to be measured, and the search ends when it is sure.
func WithTuningTime(d time.Duration) Option {
	return func(o *options) error {
		o.tuningTime = d
		if d <= 0 {
			return optionError("WithTuningTime", d, "must be more than 0")
		}
		return nil
	}
}

// WithStep makes [Tune] run f on every batch that it measures, as training
// would: the answer is then the fewest workers at which training doesn't wait.
// The first call with a batch of each length isn't measured, nor counted by
// [WithTuningTime]: a framework with a compiler, as XLA is, compiles in it. What f
// changes is the program's to restore.
func WithStep(f func(ctx context.Context, b *Batch) error) Option {
	return func(o *options) error {
		o.step = f
		if f == nil {
			return optionError("WithStep", nil, "must not be nil")
		}
		return nil
	}
}

// WithProgress makes [Tune] call f whenever there is something to show, in the
// goroutine that called Tune.
func WithProgress(f func(Progress)) Option {
	return func(o *options) error {
		o.progress = f
		if f == nil {
			return optionError("WithProgress", nil, "must not be nil")
		}
		return nil
	}
}

// WithMemoryLimit sets the peak resident set, in bytes, that the whole process
// may reach at the worker count that [Tune] chooses. A count that exceeds it, or
// by what fewer workers took would, is ruled out: see Result.RuledOut. By
// default the process may grow by 80 % of what the container or the machine has
// left, divided by the ranks of the host that WithLauncher found.
func WithMemoryLimit(bytes uint64) Option {
	return func(o *options) error {
		o.maxMemory = bytes
		if bytes == 0 {
			return optionError("WithMemoryLimit", bytes, "must be at least 1 byte")
		}
		return nil
	}
}

// WithResultCache keeps what [Tune] finds in a file, and takes it from there the next
// time: for the same hardware, device, fields, dataset type, step function and
// options, and batches within a factor of two in bytes. What Load does, and the
// storage it reads from, don't count: datasets that differ in these alone need
// a file each.
//
// Several processes may share the file. Those that start together wait for the
// first of them to tune, and read its answer. The CPUs and the memory that it
// may choose from are its share of the host (see WithLauncher); but it measures
// while the others wait, so what they all will do to storage, memory bandwidth
// and the network at once is not in its figures.
//
// A file that can't be read or written costs a log line, and tuning anew.
func WithResultCache(path string) Option {
	return func(o *options) error {
		o.results = path
		if path == "" {
			return optionError("WithResultCache", path, "must be the path of a file")
		}
		return nil
	}
}

// WithAutoWorkers makes a loader tune itself while training goes on: it times
// the first batches at one worker count after another, the loop body's time
// included, and settles on the fewest workers at which training hardly waits;
// see [Loader.Result]. Where the share of time spent waiting drifts from what
// that promised, it measures again. What is trained on doesn't change.
//
// WithWorkers is where it starts, WithMaxWorkers the highest count it tries, and
// WithAlpha or WithRelativeAlpha what it ignores, by default 2 % of the fastest.
// A [Loader.SetWorkers] of the program's own ends it. [Tune] ignores it.
func WithAutoWorkers() Option {
	return func(o *options) error {
		o.auto = true
		return nil
	}
}
