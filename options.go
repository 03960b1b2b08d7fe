package nwt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/launch"
	"github.com/nwt-go/nwt/internal/retry"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/search"
)

// An Option configures [NewLoader] and [Tune]. One log line names those that have no effect there:
// they concern only the other, or only a stream. If an option is repeated, the last one wins.
type Option func(*options) error

// options is what the options have set.
type options struct {
	batchSize int
	workers   int
	fixed     bool // workers is WithWorkers'
	prefetch  int  // 0: from workers and batch size
	sampler   Sampler
	shuffle   bool
	seed      *uint64 // of Sample.Rand; nil without WithSeed
	shuffled  uint64  // the seed of WithShuffle
	dropLast  bool
	rank      int
	world     int
	maxBad    int
	timeout   time.Duration // of a sample; 0: none
	retry     retry.Policy
	init      func(ctx context.Context, worker int) error
	transform func(ctx context.Context, b *Batch) error
	log       *slog.Logger
	unordered bool
	drawn     func(log *slog.Logger) // of Precompute; nil for other loaders

	streamOptions
	tuneOptions

	launcher *Rank // with WithRankFromEnv
	device   Device
	pinned   *bool // nil: true if the device is not the host

	auto   bool // for NewLoader only
	checks bool

	machine host.Readings // real, except in virtual time
}

type streamOptions struct {
	interleave   int // 0: not set
	window       int
	epochSamples int
	aheadBytes   int64
}

type tuneOptions struct {
	strategy   search.Strategy
	alpha      search.Alpha
	iterations int           // 0: the default, adapted to how long a batch takes
	most       int           // −1: not bounded by WithMaxWorkers
	tuningTime time.Duration // 0: the default
	step       func(ctx context.Context, b *Batch) error
	progress   func(Progress)
	maxMemory  uint64 // bytes; 0: the default
	results    string // path; empty: none
	resultName string // of the dataset
}

const (
	maxWorkers  = search.MaxWorkers
	maxPrefetch = ring.Capacity - 2
)

// newOptions applies opts to the defaults. The error joins everything that is
// wrong.
func newOptions(opts []Option) (*options, error) {
	o := &options{
		batchSize: 32,
		world:     1,
		log:       slog.Default(),
		device:    Host(),
		retry:     retry.Policy{Times: 3, Wait: 10 * time.Millisecond},

		streamOptions: streamOptions{window: defaultWindow, aheadBytes: maxAheadBytes},
		tuneOptions:   tuneOptions{strategy: search.Greedy{}, alpha: search.DefaultAlpha, most: -1},

		machine: host.Real,
		checks:  os.Getenv("NWT_DEBUG") == "1",
	}
	var errs []error
	for i, opt := range opts {
		if opt == nil {
			errs = append(errs, optionError(part("options", i), nil, "must not be nil"))
			continue
		}
		errs = append(errs, opt(o))
	}
	if o.log != nil && o.launcher != nil {
		o.launcher.logOnce(o.log)
	}
	o.logUndivided()
	if !o.fixed {
		o.workers = min(o.cpus(), maxWorkers)
	}
	if o.shuffle && o.sampler != nil {
		errs = append(errs, optionError("WithSampler", nameOfSampler(o.sampler), "can't be combined with WithShuffle: a sampler is the whole order"))
	}
	return o, errors.Join(errs...)
}

// cpus returns how many CPUs this process has for itself.
func (o *options) cpus() int {
	all, n := o.machine.Procs(), o.ranks()
	if n == 1 {
		return all
	}
	if parents, bound := host.Bound(); bound {
		return max(1, min(all, parents/n)) // ranks may be bound to the same socket
	}
	return max(1, all/n)
}

// usable returns how many CPUs workers may keep busy: cpus is what Go would use.
func (o *options) usable() int {
	return int(math.Ceil(o.machine.CPUs().Mine(o.ranks(), o.cpus())))
}

// ranks returns how many processes share this host.
func (o *options) ranks() int {
	if o.launcher == nil {
		return 1
	}
	return o.launcher.LocalWorld
}

// mayInline reports whether tuning may go to 0 workers: WithTimeout doesn't hold there.
func (o *options) mayInline() bool { return o.timeout == 0 || o.most == 0 }

// between returns the error of an option whose value must lie in low … high.
func between(option string, n, low, high int) error {
	if n < low || n > high {
		return optionError(option, n, "must be %d … %d", low, high)
	}
	return nil
}

// WithBatchSize sets how many samples a batch has, 1 … 2²⁴−1, 32 by default; with a
// [BatchSampler], at most. The last batch of an epoch may be smaller.
func WithBatchSize(n int) Option {
	return func(o *options) error {
		o.batchSize = n
		return between("WithBatchSize", n, 1, ring.MaxPlaces)
	}
}

// WithWorkers sets how many goroutines load samples, 0 … 1024, GOMAXPROCS by default. With 0 the
// loop's own goroutine loads. [Tune] ignores this option.
func WithWorkers(n int) Option {
	return func(o *options) error {
		o.workers, o.fixed = n, true
		return between("WithWorkers", n, 0, maxWorkers)
	}
}

// WithPrefetch sets how many batches are loaded ahead of the one in use, 1 … 1022; none with 0
// workers. The default is 2, and more if workers would idle while training waits: at most 256
// MiB, and an eighth of the memory left.
func WithPrefetch(batches int) Option {
	return func(o *options) error {
		o.prefetch = batches
		return between("WithPrefetch", batches, 1, maxPrefetch)
	}
}

// WithShuffle gives every epoch another order, computed from seed and epoch, and seeds
// [Sample.Rand]. By default samples come in the dataset's order.
func WithShuffle(seed uint64) Option {
	return func(o *options) error {
		o.shuffle, o.shuffled = true, seed
		return nil
	}
}

// WithSeed sets the seed of [Sample.Rand] alone, by default [WithShuffle]'s, or 0.
func WithSeed(seed uint64) Option {
	return func(o *options) error {
		o.seed = &seed
		return nil
	}
}

// WithSampler sets the order of the epochs; not with [WithShuffle] or a stream.
func WithSampler(s Sampler) Option {
	return func(o *options) error {
		o.sampler = s
		if s == nil {
			return optionError("WithSampler", nil, "must not be nil")
		}
		return nil
	}
}

// WithDropLast leaves out a last batch that would be smaller than the others; with a
// [BatchSampler], last batches that are fewer than the ranks.
func WithDropLast() Option {
	return func(o *options) error {
		o.dropLast = true
		return nil
	}
}

// WithRank makes the loader load for one rank of world, 0 ≤ rank < world ≤ 2²⁰. The ranks load
// disjoint parts of the epoch, in equally many batches; a rank repeats another's samples only if
// fewer are left than ranks. For exceptions see [BatchSampler] and [Streamed]. It doesn't tell how
// many ranks share this host, so CPUs aren't divided, as one log line says: see [WithRankFromEnv].
func WithRank(rank, world int) Option {
	return func(o *options) error {
		o.rank, o.world = rank, world
		if err := between("WithRank (world)", world, 1, launch.MaxWorld); err != nil {
			return err
		}
		return between("WithRank (rank)", rank, 0, world-1)
	}
}

// WithRankFromEnv is [WithRank] with what [RankFromEnv] reads. Ranks of one host share its CPUs:
// [WithWorkers]' default and Tune's counts are divided.
func WithRankFromEnv() Option {
	return func(o *options) error {
		found, err := launch.Find(os.LookupEnv, os.Getpid())
		if err != nil {
			return optionError("WithRankFromEnv", "environment", "%v", err)
		}
		r := Rank(found)
		o.launcher, o.rank, o.world = &r, r.Rank, r.World
		return nil
	}
}

// WithUnordered delivers each batch as soon as it is loaded, so their order may differ from run
// to run, except on a GPU. The loader can't be resumed.
func WithUnordered() Option {
	return func(o *options) error {
		o.unordered = true
		return nil
	}
}

// maxInterleave is the most shards that are read at once.
const maxInterleave = 1024

// WithInterleave sets how many shards are read at once, 1 … 1024, by default 4 per rank, of a
// [CountedStream] 32 in all. The order depends on it.
func WithInterleave(shards int) Option {
	return func(o *options) error {
		o.interleave = shards
		return between("WithInterleave", shards, 1, maxInterleave)
	}
}

const defaultWindow = 1024

// WithShuffleWindow sets within how many records [WithShuffle] mixes a stream, 1 … 2²⁴, 1024 by
// default, all kept in memory: of 4 MB each, that is 4 GB. If they take more than an eighth of the
// memory left, a warning says so; see Stats.WindowBytes. The order depends on it.
func WithShuffleWindow(samples int) Option {
	return func(o *options) error {
		o.window = samples
		return between("WithShuffleWindow", samples, 1, 1<<24)
	}
}

// WithEpochSamples ends an epoch of a stream after n samples, 1 … 2³¹−1, over all ranks, each
// with the same number of batches. By default an epoch is all that the shards hold. An epoch of a
// [CountedStream] begins where the one before ended. Any other begins its shards anew: if that
// ends before they do, their ends are never read, which is logged. A rank whose shards hold fewer
// reads them again.
func WithEpochSamples(n int) Option {
	return func(o *options) error {
		o.epochSamples = n
		return between("WithEpochSamples", n, 1, math.MaxInt32)
	}
}

// shardsAtOnce returns how many shards of a stream without counts are read at once.
func (o *options) shardsAtOnce() int { return cmp.Or(o.interleave, 4) }

// WithErrorBudget leaves out samples that can't be loaded, up to maxBad per epoch, 0 by default,
// and logs the first, then every tenth, hundredth and so on: see [Loader.BadSamples]. Their
// batches are smaller. A batch with no sample left is skipped; with several ranks it ends the
// epoch with an error. An unreadable remainder of a stream's shard counts as one bad sample.
func WithErrorBudget(maxBad int) Option {
	return func(o *options) error {
		o.maxBad = maxBad
		return between("WithErrorBudget", maxBad, 0, math.MaxInt32)
	}
}

// WithTimeout gives up a call of Load that takes longer than perSample, at least 1 ms,
// [WithRetry]'s repetitions included; LoadBatch gets it for each sample, and each Open, Next,
// Skip and Close of a shard anew. The sample is then bad, with [context.DeadlineExceeded]. There
// is no default bound.
//
// A call that was given up keeps its goroutine and memory until it returns; once 1024 such calls are
// outstanding, the epoch ends with an error. With 0 workers the loader waits for every call, so tuning leaves 0
// out.
func WithTimeout(perSample time.Duration) Option {
	return func(o *options) error {
		o.timeout = perSample
		if perSample < time.Millisecond {
			return optionError("WithTimeout", perSample, "must be at least 1ms")
		}
		return nil
	}
}

// WithWorkerInit makes each worker call f once, in its goroutine, before its first sample; with
// 0 workers the caller does, as worker 0. If f fails, the epoch ends with a *[LoadError] whose
// Index is −1; the next one tries again.
func WithWorkerInit(f func(ctx context.Context, worker int) error) Option {
	return func(o *options) error {
		o.init = f
		if f == nil {
			return optionError("WithWorkerInit", nil, "must not be nil")
		}
		return nil
	}
}

// WithBatchTransform makes a worker run f on each loaded batch before it is copied to the device: for
// mixup or masking. f may change elements and lengths, and draws from [Batch.Rand]. It is called
// for several batches at once. If it fails or panics, or sets a length beyond the batch's
// [Batch.Shape], the epoch ends with a *[LoadError]: a [SizedDataset] should tell sizes with room
// for what f adds. What lies behind the lengths is then cleared. [WithTimeout] doesn't bound f.
func WithBatchTransform(f func(ctx context.Context, b *Batch) error) Option {
	return func(o *options) error {
		o.transform = f
		if f == nil {
			return optionError("WithBatchTransform", nil, "must not be nil")
		}
		return nil
	}
}

// WithLogger sets where log lines go, by default [slog.Default]. Its handler must not call [Tune]
// or [Precompute] on the file that a line is about.
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

// WithAlpha sets the difference that [Tune] ignores, at least 0, in time over [WithIterations]
// iterations. The default is 0.5 s, but at most 5 % of the fastest count's time, and at least 1 %
// of it and 5 µs per batch.
func WithAlpha(d time.Duration) Option {
	return func(o *options) error {
		o.alpha = search.Alpha{Total: d, Share: math.Inf(1)}
		if d < 0 {
			return optionError("WithAlpha", d, "must be at least 0")
		}
		return nil
	}
}

// WithRelativeAlpha is [WithAlpha] as a share of the fastest's time, 0 … 1.
func WithRelativeAlpha(share float64) Option {
	return func(o *options) error {
		o.alpha = search.Alpha{Total: math.MaxInt64, Share: share}
		if !(share >= 0 && share <= 1) {
			return optionError("WithRelativeAlpha", share, "must be 0 … 1")
		}
		return nil
	}
}

// WithIterations sets over how many batches [Tune] measures each worker count that it may
// choose, 1 … 1 000 000: more if batches vary. The default is 100, fewer if batches are slow,
// more if they are fast.
func WithIterations(n int) Option {
	return func(o *options) error {
		o.iterations = n
		return between("WithIterations", n, 1, 1_000_000)
	}
}

// WithMaxWorkers sets the highest worker count that [Tune] tries, 0 … 1024. The default is twice
// the CPUs that the process may use, for [Exhaustive] one less than these, and more as long as
// more workers win while CPUs are idle.
func WithMaxWorkers(n int) Option {
	return func(o *options) error {
		o.most = n
		return between("WithMaxWorkers", n, 0, maxWorkers)
	}
}

// WithTuningTime bounds how long [Tune] measures, above 0. Then Tune ends the context of Load,
// waits for the calls under way, and returns the best answer so far. The default is 1 minute,
// none with [WithIterations] or [Exhaustive].
func WithTuningTime(d time.Duration) Option {
	return func(o *options) error {
		o.tuningTime = d
		if d <= 0 {
			return optionError("WithTuningTime", d, "must be more than 0")
		}
		return nil
	}
}

// WithStep makes [Tune] run f on every batch, as training would. The answer is then the fewest
// workers at which training doesn't wait. The first call with each shape isn't measured. If f
// changes anything, restore it afterwards.
func WithStep(f func(ctx context.Context, b *Batch) error) Option {
	return func(o *options) error {
		o.step = f
		if f == nil {
			return optionError("WithStep", nil, "must not be nil")
		}
		return nil
	}
}

// WithProgress makes [Tune] and [Precompute] call f whenever there is something to show, instead of
// logging a line every 10 s; Tune also logs one when it begins and at the end.
func WithProgress(f func(Progress)) Option {
	return func(o *options) error {
		o.progress = f
		if f == nil {
			return optionError("WithProgress", nil, "must not be nil")
		}
		return nil
	}
}

// WithResultCache keeps what [Tune] finds in a file, under a name for the dataset. The next Tune
// takes it from there if hardware, device, fields and options are the same, and a few batches
// are as large and as slow as it says, within a factor of two. A result that isn't sure counts
// for a day. If other programs kept CPUs busy meanwhile, or if fewer than 80 % of runs would
// choose the same, it counts for ten minutes, for the processes of the same job. Of several
// processes one tunes, the others wait. If the file can't be used, Tune logs that and tunes. What
// Tune calls must not tune with the same file.
func WithResultCache(path, name string) Option {
	return func(o *options) error {
		o.results, o.resultName = path, name
		if path == "" || name == "" {
			return optionError("WithResultCache", fmt.Sprintf("%q, %q", path, name), "must be the path of a file and a name")
		}
		return nil
	}
}

// WithAutoWorkers makes a loader tune itself while training goes on: it settles on the fewest
// workers at which training hardly waits, and measures again if waiting changes. It starts at
// [WithWorkers], tries at most [WithMaxWorkers], and ignores differences of [WithAlpha] or
// [WithRelativeAlpha], by default 2 %. [Loader.SetWorkers] ends it.
func WithAutoWorkers() Option {
	return func(o *options) error {
		o.auto = true
		return nil
	}
}

// maxAheadBytes bounds the memory of the records that a stream reads ahead.
const maxAheadBytes = 256 << 20

// logUndivided logs once per process that WithRank divides no CPUs, if the count of workers depends
// on them.
func (o *options) logUndivided() {
	if o.world > 1 && o.launcher == nil && !o.fixed && o.log != nil && !saidUndivided.Swap(true) {
		o.log.Info("nwt: WithRank doesn't tell how many ranks share this host, so CPUs aren't divided among them: WithRankFromEnv divides them, or set WithWorkers or GOMAXPROCS",
			"rank", o.rank, "world", o.world, "CPUs", o.cpus())
	}
}

// saidUndivided reports whether this process has logged that CPUs aren't divided.
var saidUndivided atomic.Bool
