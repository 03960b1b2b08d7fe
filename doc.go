// Package nwt feeds a training loop with as few loading workers as it needs.
//
// A dataset declares its fields, and loads each sample straight into its batch:
//
//	var schema nwt.Schema
//	image := nwt.AddField[float32](&schema, "image", 3, 224, 224)
//	label := nwt.AddField[int64](&schema, "label")
//	ds := nwt.NewDataset(len(files), schema.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
//		label.Set(dst, labels[i])
//		return decode(files[i], image.Of(dst))
//	})
//
// [Tune] finds the fewest workers that load this dataset on this machine as fast as more workers would.
// [WithStep] includes your training step. A [Loader] yields the batches. [NewTunedLoader] does both:
//
//	loader, err := nwt.NewTunedLoader(ctx, ds, nwt.WithBatchSize(128), nwt.WithShuffle(42))
//	…
//	defer loader.Close()
//	fmt.Println(loader.Result()) // the table of what was measured
//	for batch, err := range loader.Epoch(ctx, epoch) {
//		… // err ends the epoch
//		train(image.Of(batch), label.Of(batch))
//	}
//
// Tuning and training take options of the same type:
//
//   - What a batch is: [WithBatchSize], [WithDropLast], [WithShuffle], [WithSampler], [WithSeed];
//     for streams also [WithInterleave], [WithShuffleWindow], [WithEpochSamples].
//   - How it is loaded: [WithWorkers], [WithAutoWorkers], [WithPrefetch], [WithUnordered],
//     [WithWorkerInit], [WithBatchTransform], [WithDevice], [WithPinned], [WithoutPinned], [WithRank], [WithRankFromEnv].
//   - If something fails: [WithErrorBudget], [WithRetry], [WithTimeout], [WithLogger],
//     [WithChecks].
//   - How to tune: [WithStep], [WithStrategy], [WithAlpha], [WithRelativeAlpha],
//     [WithMaxWorkers], [WithMemoryLimit], [WithTuningTime], [WithIterations], [WithProgress],
//     [WithResultCache].
//
// Order, augmentation and resume points depend only on (seed, epoch, position in the epoch), never on
// the worker count or on timing. Memory depends on how many batches are loaded ahead. A [Batch]
// takes 32 bytes of the heap, and loading it allocates nothing else, except that a stream's reader may
// allocate, and a [Subset], [Split], [Zip] or [Concat] of BatchDatasets makes a few small slices. A bad
// sample, a panic in Load or a call that hangs becomes an error that names the sample; all batches before
// it come first.
package nwt
