"""Prints how long next() takes if the batch is ready: next.py ADDRESS."""

import statistics
import sys
import time

import nwt

with nwt.Loader(sys.argv[1:]) as loader:
    took = []
    for epoch in range(1000):
        batches = loader.epoch(epoch)
        next(batches)
        for _ in range(min(20, len(loader) - 1)):
            time.sleep(0.05)  # the step: meanwhile the next batches become ready
            began = time.perf_counter()
            batch = next(batches)
            took.append(time.perf_counter() - began)
        del batches
        if len(took) >= 100:
            break
    size = sum(array.nbytes for array in batch.values())
    print(f"{size / 1e6:.1f} MB: median {statistics.median(took) * 1e6:.0f} µs, most {max(took) * 1e6:.0f} µs of {len(took)}")
