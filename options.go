package nwt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/launch"
	"github.com/nwt-go/nwt/internal/oncelog"
	"github.com/nwt-go/nwt/internal/retry"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/testhook"
)

// An Option configures [NewLoader] and [Tune]. If an option is repeated, the last one counts. Options that
// concern only another function, or only streams, have no effect; one log line names them.
type Option func(*options) error

// effect says where an option takes effect.
type effect uint

const (
	inLoader     effect = 1 << iota
	inAuto              // in a loader WithAutoWorkers
	inTune              // in Tune and NewTunedLoader
	inPrecompute        // in the loading that fills the file
	ofProgress          // in Precompute itself
	ofStreams           // only if the dataset is a stream

	everywhere = inLoader | inAuto | inTune
)

// option makes an Option with this name, effect and check. key is what of its value a tuning's result depends
// on, if anything. If options.only leaves it out, it is checked but not set.
func option(name string, in effect, check error, set func(o *options), key ...any) Option {
	return func(o *options) error {
		if in&o.only != 0 {
			o.given = append(o.given, given{name, in, key})
			set(o)
		}
		return check
	}
}

// number makes an Option for a number, which must be low … high.
func number(name string, in effect, n, low, high int, set func(o *options), key ...any) Option {
	return option(name, in, between(name, n, low, high), set, key...)
}

// given is what is known of an option that was given.
type given struct {
	name string
	in   effect
	key  []any
}

// options holds what the options have set.
type options struct {
	given []given // in order
	only  effect  // options without any of these effects are left out

	batchSize int
	workers   int
	prefetch  int // 0: derived from workers and batch size
	sampler   Sampler
	shuffle   bool
	seed      *uint64 // seed of Sample.Rand; nil without WithSeed
	shuffled  uint64  // the seed of WithShuffle
	dropLast  bool
	rank      int
	world     int
	maxBad    int
	timeout   time.Duration // per sample; 0: none
	retry     retry.Policy
	init      func(ctx context.Context, worker int) error
	transform func(ctx context.Context, b *Batch) error
	log       *slog.Logger
	logged    *oncelog.Log // byProcess, except in tests
	unordered bool
	drawn     func(log *slog.Logger) // see common; only Precompute's loaders have one, which tells them from others

	// for streams
	interleave   int // 0: not set
	window       int
	epochSamples int
	aheadBytes   int64

	// for Tune
	strategy   Strategy
	alpha      search.Alpha
	iterations int           // 0: the default, adapted to how long a batch takes
	most       int           // −1: not bounded by WithMaxWorkers
	tuningTime time.Duration // 0: the default
	step       func(ctx context.Context, b *Batch) error
	progress   func(Progress)
	maxMemory  int64  // bytes; 0: the default
	results    string // path; "": no file
	resultName string // the dataset's name

	launcher *Rank // with WithRankFromEnv
	device   Device
	pinned   *bool // nil: true if the device is not the host

	auto   bool // for NewLoader only
	checks bool

	machine host.Readings // the real machine, except in virtual time
}

func init() {
	testhook.Machine = func(m host.Readings) any {
		return Option(func(o *options) error { o.machine = m; return nil })
	}
	testhook.ReadAhead = func(bytes int64) any {
		return Option(func(o *options) error { o.aheadBytes = bytes; return nil })
	}
}

const (
	maxWorkers  = search.MaxWorkers
	maxPrefetch = ring.Capacity - 2
)

// newOptions applies opts to the defaults. The error joins everything that is
// wrong.
func newOptions(opts []Option) (*options, error) {
	o := &options{
		only:      ^effect(0),
		batchSize: 32,
		world:     1,
		log:       slog.Default(),
		logged:    byProcess,
		device:    Host(),
		retry:     retry.Default,

		window:     defaultWindow,
		aheadBytes: maxAheadBytes,
		alpha:      search.DefaultAlpha,
		most:       -1,

		machine: host.Real,
		checks:  os.Getenv("NWT_DEBUG") == "1",
	}
	var errs []error
	for i, opt := range opts {
		if opt == nil {
			errs = append(errs, optionError(part("options", i), nil, "is nil"))
			continue
		}
		errs = append(errs, opt(o))
	}
	o.logRank()
	o.logUndivided()
	o.logMixedLengths()
	if !o.has("WithWorkers") {
		o.workers = o.defaultWorkers()
	}
	if o.shuffle && o.sampler != nil {
		errs = append(errs, optionError("WithSampler", nameOfSampler(o.sampler), "can't be combined with WithShuffle: a sampler defines the whole order"))
	}
	return o, errors.Join(errs...)
}

// has reports whether an option was given.
func (o *options) has(name string) bool {
	return slices.ContainsFunc(o.given, func(of given) bool { return of.name == name })
}

// key returns what of the options a tuning's result depends on. It leaves out what only changes which samples are
// loaded, or how the search proceeds.
func (o *options) key() string {
	key := []any{o.ranks(), o.cpus()}
	for _, of := range o.given {
		if of.key != nil {
			key = append(key, of.name, of.key)
		}
	}
	return fmt.Sprintf("%#v", key)
}

func (o *options) defaultWorkers() int { return min(o.cpus(), maxWorkers) }

// cpus returns how many CPUs this process has to itself.
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

// ranks returns how many processes share this host.
func (o *options) ranks() int {
	if o.launcher == nil {
		return 1
	}
	return o.launcher.LocalWorld
}

// mayInline reports whether tuning may try 0 workers: WithTimeout has no effect there.
func (o *options) mayInline() bool { return o.timeout == 0 || o.most == 0 }

// errorIf returns an error about an option's value if the value is bad, else nil.
func errorIf(bad bool, option string, value any, format string, args ...any) error {
	if bad {
		return optionError(option, value, format, args...)
	}
	return nil
}

// between returns the error of an option whose value must lie in low … high.
func between(option string, n, low, high int) error {
	return errorIf(n < low || n > high, option, n, "must be %d … %d", low, high)
}

// WithBatchSize sets how many samples a batch has, 1 … 2²⁴−1. The default is 32. The last batch of an epoch
// may be smaller. With a [BatchSampler], n is the size of the largest batch allowed.
func WithBatchSize(n int) Option {
	return number("WithBatchSize", everywhere|inPrecompute, n, 1, ring.MaxPlaces, func(o *options) { o.batchSize = n })
}

// WithWorkers sets how many goroutines load samples, 0 … 1024. The default is GOMAXPROCS. With 0, the loop's
// goroutine does. [Tune] ignores WithWorkers.
func WithWorkers(n int) Option {
	return number("WithWorkers", inLoader|inPrecompute, n, 0, maxWorkers, func(o *options) { o.workers = n })
}

// WithPrefetch sets how many batches are loaded ahead of the one in use, 1 … 1022. With 0 workers, no batch
// is loaded ahead. The default is at least 2, and rises if training waits while workers are idle. The
// additional batches take at most 256 MiB, and at most an eighth of the memory left.
func WithPrefetch(batches int) Option {
	return number("WithPrefetch", everywhere|inPrecompute, batches, 1, maxPrefetch, func(o *options) { o.prefetch = batches }, batches)
}

// WithShuffle gives every epoch another order, computed from seed and epoch. It also seeds [Sample.Rand] and
// [Batch.Rand]. By default, nothing is shuffled.
func WithShuffle(seed uint64) Option {
	return option("WithShuffle", everywhere, nil, func(o *options) { o.shuffle, o.shuffled = true, seed })
}

// WithSeed sets the seed of [Sample.Rand] and [Batch.Rand]. The default is the seed of [WithShuffle], or 0.
func WithSeed(seed uint64) Option {
	return option("WithSeed", everywhere, nil, func(o *options) { o.seed = &seed })
}

// WithSampler sets the order of the samples in each epoch. It can't be combined with [WithShuffle] or a
// stream.
func WithSampler(s Sampler) Option {
	return option("WithSampler", everywhere, errorIf(s == nil, "WithSampler", nil, "the sampler is nil"), func(o *options) { o.sampler = s })
}

// WithDropLast leaves out the last batch of an epoch if it is smaller than the others. With a [BatchSampler],
// it leaves out the last step if that step has fewer batches than ranks.
func WithDropLast() Option {
	return option("WithDropLast", everywhere, nil, func(o *options) { o.dropLast = true })
}

// WithRank makes the loader load one rank's part of the epoch. world is the number of ranks: 0 ≤ rank < world
// ≤ 2²⁰. The ranks load disjoint parts of the epoch, in the same number of batches. Only a rank that
// would have no sample, as with batches of 1, repeats one of another. [BatchSampler] and [Streamed] describe
// exceptions. WithRank doesn't divide the CPUs of this host among its ranks, and a log line says so: see
// [WithRankFromEnv].
func WithRank(rank, world int) Option {
	check := between("WithRank: world", world, 1, launch.MaxWorld)
	if check == nil {
		check = errorIf(rank < 0 || rank >= world, "WithRank: rank", rank, "must be 0 … %d, below world", world-1)
	}
	return option("WithRank", everywhere, check, func(o *options) { o.rank, o.world = rank, world })
}

// WithRankFromEnv does what [WithRank] does, with the rank that [RankFromEnv] reads. It also divides the CPUs
// of this host among its ranks. The default of [WithWorkers] and the search of [Tune] then use this rank's
// share.
func WithRankFromEnv() Option {
	return func(o *options) error {
		found, err := launch.Find(os.LookupEnv, os.Getpid())
		if err != nil {
			return optionError("WithRankFromEnv", nil, "%v", err)
		}
		r := Rank(found)
		return option("WithRankFromEnv", everywhere, nil, func(o *options) { o.launcher, o.rank, o.world = &r, r.Rank, r.World })(o)
	}
}

// Rank is the place of this process among those that train together.
type Rank struct {
	Rank, World           int    // number of this process, from 0, and number of processes
	LocalRank, LocalWorld int    // the rank among the processes of this host, and their number; 0 and 1 if no launcher tells them
	Source                string // the launcher: "torchrun", "Open MPI", "MPICH", "Slurm", "Kubernetes", "Lightning" or "none"
	Vars                  string // the variables that were read, such as "WORLD_SIZE=8 RANK=3 …", with up to 200 characters of each value
}

func (r Rank) String() string {
	found := fmt.Sprintf("rank %d of %d, %d of %d on this host, launcher: %s", r.Rank, r.World, r.LocalRank, r.LocalWorld, r.Source)
	if r.Vars != "" {
		found += " (" + r.Vars + ")"
	}
	return found
}

// RankFromEnv reads rank and world from the environment variables of the first launcher that has set any:
// torchrun, Open MPI, MPICH or Intel MPI, Slurm's srun, a Kubernetes indexed Job with WORLD_SIZE, Lightning.
// Without a launcher it returns rank 0 of 1. Variables that are malformed, out of range, missing or
// contradictory are an error. An empty variable counts as missing. A nil lookup means [os.LookupEnv].
func RankFromEnv(lookup func(key string) (string, bool)) (Rank, error) {
	if lookup == nil {
		lookup = os.LookupEnv
	}
	r, err := launch.Find(lookup, os.Getpid())
	if err != nil {
		return Rank{}, fmt.Errorf("nwt: %w", err)
	}
	return Rank(r), nil
}

// WithUnordered delivers each batch as soon as it is loaded, in an order that may vary. Batches for a GPU keep
// their order. Such epochs can't be resumed.
func WithUnordered() Option {
	return option("WithUnordered", everywhere, nil, func(o *options) { o.unordered = true }, true)
}

// WithInterleave sets how many shards are read at once, 1 … 1024. The default is 4 for each rank,
// or 32 for all ranks of a [CountedStream] together. The order of samples depends on this number.
func WithInterleave(shards int) Option {
	return number("WithInterleave", everywhere|ofStreams, shards, 1, 1024, func(o *options) { o.interleave = shards }, shards)
}

const defaultWindow = 1024

// WithShuffleWindow sets how many records of a stream [WithShuffle] mixes, 1 … 2²⁴. The default is 1024. The
// order depends on this number. The records are kept in memory: 1024 records of 4 MB take 4 GB. If they take
// more than an eighth of the memory left, a log line warns: see Stats.WindowBytes.
func WithShuffleWindow(samples int) Option {
	return number("WithShuffleWindow", everywhere|ofStreams, samples, 1, 1<<24, func(o *options) { o.window = samples })
}

// WithEpochSamples ends an epoch of a stream after n samples over all ranks, 1 … 2³¹−1. Each rank has the
// same number of batches. By default, an epoch is all that the shards hold. The next epoch of a
// [CountedStream] goes on where the last one ended. Any other stream starts its shards from the beginning. If
// every epoch stops before the shards end, their ends are never read. If a rank's shards hold too few
// samples, the rank reads them again.
func WithEpochSamples(n int) Option {
	return number("WithEpochSamples", everywhere|ofStreams, n, 1, math.MaxInt32, func(o *options) { o.epochSamples = n })
}

// shardsAtOnce returns how many shards of a stream without counts are read at once.
func (o *options) shardsAtOnce() int { return cmp.Or(o.interleave, 4) }

// WithErrorBudget leaves out samples that can't be loaded, up to maxBad per epoch. The default is 0. After
// [Loader.Resume], the count of bad samples begins anew. Batches that lack samples are smaller. A batch with
// no sample left is skipped; with several ranks, it ends the epoch with an error. If the rest of a stream's
// shard can't be read, it counts as one bad sample. The first ten bad samples are logged, then every tenth,
// every hundredth and so on: see [Loader.BadSamples]. If an error has a method EndsEpoch() bool that returns
// true, it ends the epoch in any case.
func WithErrorBudget(maxBad int) Option {
	return number("WithErrorBudget", everywhere|inPrecompute, maxBad, 0, math.MaxInt32, func(o *options) { o.maxBad = maxBad })
}

// WithTimeout gives up a call of Load that takes longer than perSample, which must be at least 1 ms. The
// sample is then bad, with [context.DeadlineExceeded]. LoadMany may take perSample times the number of its
// samples. If LoadMany is given up, its samples are loaded one by one. The time includes the repetitions of
// [WithRetry]. Each Open, Next, Skip and Close of a shard may take perSample. By default, there is no bound.
//
// A call that was given up keeps its goroutine and memory until it returns. Once 1024 such calls are
// outstanding, the epoch ends with an error. With 0 workers, the loader waits for every call, so tuning
// doesn't try 0.
func WithTimeout(perSample time.Duration) Option {
	return option("WithTimeout", everywhere|inPrecompute,
		errorIf(perSample < time.Millisecond, "WithTimeout", perSample, "must be at least 1ms"),
		func(o *options) { o.timeout = perSample }, true)
}

// WithWorkerInit makes each worker call f once, in its goroutine, before its first sample. With 0 workers,
// the goroutine of the loop calls f as worker 0. After SetWorkers(0), the previous worker 0 may still be
// loading. If f fails, the epoch ends with a *[LoadError] of Index −1; the next epoch tries again.
func WithWorkerInit(f func(ctx context.Context, worker int) error) Option {
	return option("WithWorkerInit", everywhere|inPrecompute,
		errorIf(f == nil, "WithWorkerInit", nil, "the function is nil"),
		func(o *options) { o.init = f }, true)
}

// WithBatchTransform makes a worker run f, such as mixup or masking, on each loaded batch before the copy to
// the device. Function f may change elements and lengths, and should draw random numbers from [Batch.Rand].
// Several workers may run f at once, for different batches. If f fails, panics or sets a length beyond
// [Batch.Shape], the epoch ends with a *[LoadError]. So a [SizedDataset] should leave room for what f adds.
// After f, the elements beyond each length are cleared. [WithTimeout] doesn't bound f.
func WithBatchTransform(f func(ctx context.Context, b *Batch) error) Option {
	return option("WithBatchTransform", everywhere,
		errorIf(f == nil, "WithBatchTransform", nil, "the function is nil"),
		func(o *options) { o.transform = f }, true)
}

// WithLogger sets where log lines go. The default is [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return option("WithLogger", everywhere|inPrecompute,
		errorIf(l == nil, "WithLogger", nil, "the logger is nil: slog.New(slog.DiscardHandler) logs nothing"),
		func(o *options) { o.log = l })
}

// WithDevice sets where batches must end up. The default is [Host].
func WithDevice(d Device) Option {
	return option("WithDevice", everywhere, errorIf(d == nil, "WithDevice", nil, "the device is nil"), func(o *options) { o.device = d })
}

// WithAlpha sets alpha, the difference in time that [Tune] ignores. It must be at least 0. Two worker counts
// are equally fast if, over the batches of [WithIterations], their times differ by less than d. By default,
// alpha is 0.5 s, but at least 1 % and at most 2 % of the fastest count's time. It is also at least 5 µs per
// batch.
func WithAlpha(d time.Duration) Option {
	return option("WithAlpha", inTune|inAuto,
		errorIf(d < 0, "WithAlpha", d, "must be at least 0"),
		func(o *options) { o.alpha = search.Alpha{Total: d, MaxShare: math.Inf(1)} }, d)
}

// WithRelativeAlpha does what [WithAlpha] does. Its alpha is a share, 0 … 1, of the shortest measured time.
func WithRelativeAlpha(share float64) Option {
	return option("WithRelativeAlpha", inTune|inAuto,
		errorIf(!(share >= 0 && share <= 1), "WithRelativeAlpha", share, "must be 0 … 1"),
		func(o *options) { o.alpha = search.Alpha{Total: math.MaxInt64, MaxShare: share} }, share)
}

// WithIterations sets how many batches [Tune] measures, 1 … 1 000 000, for each worker count that it may
// choose. If batch times vary, Tune measures more. The default is 100, fewer if batches are slow, and more if
// they are fast.
func WithIterations(n int) Option {
	return number("WithIterations", inTune|inAuto, n, 1, 1_000_000, func(o *options) { o.iterations = n }, n)
}

// WithMaxWorkers sets how many workers [Tune] tries at most, 0 … 1024. By default, Tune tries up to two
// workers per CPU that the process may use, and more while that is faster and CPUs are idle. Without
// [WithStep], if a batch takes under 10 ms, it stops after both 64 workers and 4 per CPU.
func WithMaxWorkers(n int) Option {
	return number("WithMaxWorkers", inTune|inAuto, n, 0, maxWorkers, func(o *options) { o.most = n }, n)
}

// WithTuningTime sets how long [Tune] may measure; d must be above 0. After that time, Tune ends the context
// of Load, waits for the calls under way, and returns the best answer so far. At least one worker count is measured,
// even if its first batches take longer. The default is 1 minute. Without [WithStep], it is 20 s if batches
// take less than half a second. With [WithIterations] or [Exhaustive], the default is no limit.
func WithTuningTime(d time.Duration) Option {
	return option("WithTuningTime", inTune, errorIf(d <= 0, "WithTuningTime", d, "must be more than 0"), func(o *options) { o.tuningTime = d })
}

// WithStep makes [Tune] run f on every batch, as training does. Tune then finds the fewest workers at which
// training doesn't wait. The first call with each batch shape isn't measured. After Tune, restore what f has
// changed.
func WithStep(f func(ctx context.Context, b *Batch) error) Option {
	return option("WithStep", inTune, errorIf(f == nil, "WithStep", nil, "the function is nil"), func(o *options) { o.step = f }, true)
}

// WithProgress makes [Tune] and [Precompute] call f whenever there is something new. Without it, they log
// every 10 s, and Tune also its beginning and end.
func WithProgress(f func(Progress)) Option {
	return option("WithProgress", inTune|ofProgress, errorIf(f == nil, "WithProgress", nil, "the function is nil"), func(o *options) { o.progress = f })
}

// WithResultCache keeps the result of [Tune] in the file at path, under a name for the dataset. The next Tune
// uses the result if hardware, device, fields and options are the same. First it loads a few batches. If a
// batch takes more than twice or less than half the time in the file, Tune measures anew. If processes call
// Tune at once, one tunes and the others wait. If the file is unusable, Tune logs that and tunes. A result
// holds for only one day if repeatability was below 90 %, or if memory ruled out counts. It holds for only ten
// minutes if repeatability was below 80 %, or if other programs kept CPUs busy. Functions that Tune calls must
// not call Tune with the same file.
func WithResultCache(path, name string) Option {
	return option("WithResultCache", inTune,
		errorIf(path == "" || name == "", "WithResultCache", fmt.Sprintf("%q, %q", path, name), "needs the path of a file and a name for the dataset"),
		func(o *options) { o.results, o.resultName = path, name }, name)
}

// WithAutoWorkers makes a loader tune itself while training goes on. The loader settles on the fewest workers
// at which training hardly waits. If waiting changes, it measures again. It starts with the count of
// [WithWorkers], and tries at most that of [WithMaxWorkers]. It ignores the same differences as [Tune]: see
// [WithAlpha]. [Loader.SetWorkers] stops it.
func WithAutoWorkers() Option {
	return option("WithAutoWorkers", everywhere, nil, func(o *options) { o.auto = true })
}

// maxAheadBytes bounds the memory of the records that a stream reads ahead.
const maxAheadBytes = 256 << 20

// byProcess is what is logged once per process: Tune, NewLoader and each trial read the options anew.
var byProcess = &oncelog.Log{}

// logRank logs the rank, unless it was logged before or WithRank has set another.
func (o *options) logRank() {
	if r := o.launcher; r != nil && r.Rank == o.rank && r.World == o.world && o.log != nil && o.logged.First(*r) {
		o.log.Info("nwt: " + r.String())
	}
}

// logUndivided logs, once per process, that WithRank doesn't divide the CPUs, if the worker count depends
// on them.
func (o *options) logUndivided() {
	if o.world > 1 && o.launcher == nil && !o.has("WithWorkers") && o.log != nil && o.logged.First("undivided") {
		o.log.Info("nwt: WithRank doesn't tell how many ranks share this host, so CPUs aren't divided among them: WithRankFromEnv divides them, or set WithWorkers or GOMAXPROCS",
			"rank", o.rank, "world", o.world, "CPUs", o.cpus())
	}
}

// logMixedLengths logs, once per process, that a step of the loader doesn't divide a step of the sampler.
func (o *options) logMixedLengths() {
	buckets, ok := o.sampler.(interface{ BucketStep() int }) // of package sampler
	step := o.batchSize * o.world
	if ok && step > 0 && buckets.BucketStep()%step != 0 && o.log != nil && o.logged.First(nameOfSampler(o.sampler)) {
		o.log.Warn("nwt: batches mix lengths, because a step of the sampler isn't a whole number of the loader's steps: "+
			"set Buckets.BatchSize and Buckets.World to those of the loader, if no epoch is resumed that began with others",
			"sampler", nameOfSampler(o.sampler), "samples per step", step)
	}
}

// WithRetry sets how many times, 0 … 100, a sample is loaded again if its error is temporary. The default is
// 3. LoadMany is called again, with all its samples. The wait before the first repetition is 10 ms by default, and
// doubles each time. [WithTimeout] bounds the total time of a sample's loads and waits. After a temporary
// error of Open, Next or Skip, the shard is opened again, and reading goes on at the same place. WithTimeout
// bounds each of these calls, but not the waits.
//
// An error is temporary if it has a method Temporary() bool that returns true. Timeouts have this method, and
// [Retryable] adds it. If it returns false, the error isn't temporary. Without it, an error is temporary if
//   - a connection was reset or refused, or a host or network is unreachable
//   - it is [io.ErrUnexpectedEOF], or ESTALE or EIO of a network file system
//   - its method HTTPStatusCode() int returns 408, 429 or 5xx
//   - its method ErrorCode() string returns a transient error code of S3
//   - its method SQLState() string returns a state of class 08, 40, 53 or 57P
//   - it is ErrBadConn of database/sql/driver
//
// In package objects, other errors are temporary too.
func WithRetry(times int, wait time.Duration) Option {
	return option("WithRetry", everywhere|inPrecompute,
		errors.Join(between("WithRetry", times, 0, 100), errorIf(wait < 0, "WithRetry", wait, "the wait must be at least 0")),
		func(o *options) { o.retry = retry.Policy{Times: times, Wait: wait, Asked: true} })
}

// Retryable marks an error as temporary: see [WithRetry]. Retryable(nil) is nil.
func Retryable(err error) error { return retry.As(err, true) }

// WithChecks finds code that uses a batch after it has gone back to the loader. NWT_DEBUG=1 in the
// environment does the same. Each batch gets new memory, which becomes unreadable when the batch goes back. A
// loop body that touches this memory panics with the batch's name. If other code touches it, the program ends
// with "unexpected fault address". Debug log lines say which batch had that memory. The error that ends an
// epoch is logged too.
func WithChecks() Option {
	return option("WithChecks", everywhere, nil, func(o *options) { o.checks = true })
}

// tellOfChecks logs, once per process, what a crash of the program may mean.
func (o *options) tellOfChecks() {
	if o.logged.First("checks") {
		o.log.Info("nwt: checks are on: if the program ends with \"unexpected fault address\", it may have used what a batch held after " + goneBack)
	}
}
