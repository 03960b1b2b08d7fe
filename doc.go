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
// [Tune] finds the fewest workers that load this dataset as fast as this machine can. With [WithStep], Tune
// runs your training step too. A [Loader] yields the batches. [NewTunedLoader] tunes, and then makes a
// Loader:
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
//   - What a batch contains: [WithBatchSize], [WithDropLast], [WithShuffle], [WithSampler], [WithSeed];
//     for streams also [WithInterleave], [WithShuffleWindow], [WithEpochSamples].
//   - How batches are loaded: [WithWorkers], [WithAutoWorkers], [WithPrefetch], [WithUnordered],
//     [WithWorkerInit], [WithBatchTransform], [WithDevice], [WithPinned], [WithoutPinned], [WithRank],
//     [WithRankFromEnv].
//   - If something fails: [WithErrorBudget], [WithRetry], [WithTimeout], [WithLogger],
//     [WithChecks].
//   - How to tune: [WithStep], [WithStrategy], [WithAlpha], [WithRelativeAlpha],
//     [WithMaxWorkers], [WithMemoryLimit], [WithTuningTime], [WithIterations], [WithProgress],
//     [WithResultCache].
//
// Order, augmentation and resume points depend only on the seed, the epoch and the position in the epoch.
// They never depend on the worker count or on timing. Memory depends on how many batches are loaded ahead. A
// [Batch] takes 32 bytes of the heap. Its samples lie in memory that the loader reuses. If Load fails, panics
// or exceeds [WithTimeout], the epoch ends with an error that names the sample. Before the error, the epoch
// yields all earlier batches.
//
// A function that returns an error checks its arguments at once. [NewLoader] and [Tune] check those of
// others, such as options and [NewDataset]; [AddField] panics.
package nwt
