// Package nwt measures how many data-loader workers training needs, and feeds
// the training loop at that count.
//
// Training waits for data when too few workers load it; too many waste memory
// and CPU. [Tune] times the real loader with the program's own dataset, device
// and, if given, training step at several worker counts, and picks the fewest
// that are as good as the fastest. A [Loader] then trains at that count.
// [NewTunedLoader] does both:
//
//	loader, err := nwt.NewTunedLoader(ctx, ds, nwt.WithBatchSize(128), nwt.WithShuffle(42))
//	…
//	defer loader.Close()
//	fmt.Println(loader.Result()) // the table of what was measured
//	for epoch := range epochs {
//		for batch, err := range loader.Epoch(ctx, epoch) {
//			…
//			train(image.Of(batch), label.Of(batch))
//		}
//	}
//
// The dataset declares its fields with their types, once, and loads a sample
// straight into its place in a batch:
//
//	var schema nwt.Schema
//	image := nwt.AddField[float32](&schema, "image", 3, 224, 224)
//	label := nwt.AddField[int64](&schema, "label")
//	ds := nwt.NewDataset(len(files), schema.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
//		label.Of(dst)[0] = labels[i]
//		return decode(files[i], image.Of(dst))
//	})
//
// # Options
//
// All options are of one type: a program keeps one slice for tuning and for
// training, and each function ignores what concerns only the other. If an option
// is repeated, the last one wins.
//
//   - What a batch is: [WithBatchSize], [WithDropLast], [WithShuffle],
//     [WithSampler], [WithSeed]; of streams [WithInterleave], [WithShuffleWindow],
//     [WithEpochSamples].
//   - How it is loaded: [WithWorkers], [WithAutoWorkers], [WithPrefetch],
//     [WithUnordered], [WithWorkerInit], [WithFinish].
//   - Where it ends up: [WithDevice], [WithPinned].
//   - Among which ranks: [WithRank], [WithLauncher].
//   - What happens if a sample fails: [WithErrorBudget], [WithRetry],
//     [WithTimeout], [WithLogger].
//   - What tuning measures and chooses: [WithStep], [WithStrategy], [WithAlpha],
//     [WithRelativeAlpha], [WithMaxWorkers], [WithMemoryLimit].
//   - How long tuning takes and what is kept of it: [WithTuningTime],
//     [WithIterations], [WithProgress], [WithResultCache].
//
// # Terms
//
//   - A [Dataset] is a map-style source: Len, Fields, Load by index. A [Stream]
//     is an iterable-style one: shards that are read in sequence.
//   - A [Field] is one named tensor of a sample: element type and shape. If it is
//     ragged, samples differ in length; a [SizedDataset] knows their sizes before they
//     are loaded, and its batches are only as long as their longest sample.
//   - A [Sample] is one item; while it is being loaded, it is the view of its place
//     in a batch.
//   - A [Batch] is the samples of one training step, each field contiguous.
//   - A slot is a batch's memory: reused, outside the Go heap, page-locked if copies
//     to a GPU need it.
//   - A [Sampler] is the order of an epoch: position → dataset index. An epoch
//     is one pass over it. [Sequential] and [Shuffled] are samplers; package sampler has
//     others: Weighted, Bucketed, Mixed, LocallyShuffled, TokenBatches, Computed, and
//     Select for parts. A [BatchSampler] also says where batches end.
//   - A worker is a goroutine that loads samples. With 0 workers the caller
//     loads them itself.
//   - Prefetch is how many batches are ready or in flight ahead of the one in
//     use.
//   - A step is what the training program does with a batch. Wait is how long
//     it is blocked when it asks for the next batch. Transfer is the copy of a batch to the
//     [Device].
//   - A trial is the measurement of one worker count. Alpha is the difference in
//     accumulated time that the choice ignores.
//   - World is the number of processes that train together, rank the number of one
//     of them, from 0.
//
// # What is promised
//
// Order, augmentation ([Sample.Rand]) and resume points ([State]) depend on
// (seed, epoch, position in the epoch) alone, and never on the worker count or on
// timing. So tuning changes how fast training runs, but not what is trained on.
//
// A batch costs no allocation, except that Subset, Split, Zip and Concat of
// BatchDatasets make a few small slices per call. Memory depends on how
// many batches are loaded ahead, not on the worker count itself: several workers
// fill one batch side by side, and load samples straight into their places in it.
// Unless [WithPrefetch] fixes the number of batches, it grows if much time is lost
// because workers stand idle while training waits. The batches that are added take at
// most 256 MiB, and at most an eighth of the memory that is left.
//
// A bad sample, a panic in Load or a hung call becomes an error that names the
// sample and comes after every batch before it. Once an epoch's loop has ended,
// however it ended, no Load of the epoch is running any more, except calls that
// WithTimeout gave up, and the loader can be used again.
package nwt
