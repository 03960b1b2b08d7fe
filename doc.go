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
// training, and each function ignores what concerns only the other.
//
//   - What a batch is: [WithBatchSize], [WithDropLast], [WithShuffle],
//     [WithSampler], [WithSeed]; of streams [WithInterleave], [WithShuffleWindow],
//     [WithEpochSamples].
//   - How it is loaded: [WithWorkers], [WithAutoWorkers], [WithPrefetch],
//     [WithUnordered], [WithWorkerInit], [WithFinish]; to where: [WithDevice],
//     [WithPinned]; among which ranks: [WithRank], [WithLauncher].
//   - What happens if a sample fails: [WithErrorBudget], [WithRetry],
//     [WithTimeout], [WithLogger]; and how mistakes are found: [WithChecks].
//   - How to tune: [WithStep], [WithStrategy], [WithAlpha], [WithRelativeAlpha],
//     [WithMaxWorkers], [WithMemoryLimit], [WithTuningTime], [WithIterations],
//     [WithProgress], [WithResultCache].
//
// # Terms
//
//   - A [Dataset] has a length and loads samples by index; a [Stream] reads shards in
//     sequence. A [Field] is one named tensor of a [Sample].
//   - A [Batch] is the samples of one training step, each field contiguous. A slot is
//     its memory, which is reused.
//   - A [Sampler] is the order of an epoch; package sampler has more of them.
//   - A worker is a goroutine that loads samples. With 0 workers the caller loads them.
//   - Prefetch is how many batches are ready or in flight ahead of the one in use.
//   - A step is what the program does with a batch. Wait is how long it is blocked when
//     it asks for the next one. Transfer is the copy of a batch to the [Device].
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
// A batch costs no allocation, except a few small slices with Subset, Split, Zip and
// Concat of BatchDatasets. Memory depends on how many batches are loaded ahead (see
// [WithPrefetch]), not on the worker count itself.
//
// A bad sample, a panic in Load or a hung call becomes an error that names the
// sample and comes after every batch before it. Once an epoch's loop has ended,
// however it ended, no Load of the epoch is running any more, except calls that
// [WithTimeout] gave up, and the loader can be used again.
package nwt
