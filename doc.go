// Package nwt measures how many data-loader workers training needs, and feeds the training loop
// at that count.
//
// [Tune] times the real loader with the program's own dataset, device and, if given, training
// step at several worker counts, and picks the fewest that are as good as the fastest. A [Loader]
// trains at that count. [NewTunedLoader] does both:
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
// The dataset declares its fields, and loads a sample straight into its place in a batch:
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
// All options are of one type, so that a program keeps one slice for tuning and training:
//
//   - What a batch is: [WithBatchSize], [WithDropLast], [WithShuffle], [WithSampler], [WithSeed];
//     of streams [WithInterleave], [WithShuffleWindow], [WithEpochSamples].
//   - How it is loaded: [WithWorkers], [WithAutoWorkers], [WithPrefetch], [WithUnordered],
//     [WithWorkerInit], [WithFinish]; to where: [WithDevice], [WithPinned]; among which ranks:
//     [WithRank], [WithLauncher].
//   - If a sample fails: [WithErrorBudget], [WithRetry], [WithTimeout], [WithLogger]; how
//     mistakes are found: [WithChecks].
//   - How to tune: [WithStep], [WithStrategy], [WithAlpha], [WithRelativeAlpha],
//     [WithMaxWorkers], [WithMemoryLimit], [WithTuningTime], [WithIterations], [WithProgress],
//     [WithResultCache].
//
// # What is promised
//
// Order, augmentation ([Sample.Rand]) and resume points ([State]) depend on (seed, epoch,
// position in the epoch) alone, never on the worker count or on timing.
//
// A batch costs no allocation, except a few small slices with [Subset], [Split], [Zip] and
// [Concat] of BatchDatasets. Memory depends on how many batches are loaded ahead, not on the
// worker count.
//
// A bad sample, a panic in Load or a hung call becomes an error that names the sample and comes
// after every batch before it. Once an epoch's loop has ended, however it ended, no Load is
// running any more, except calls that [WithTimeout] gave up.
package nwt
