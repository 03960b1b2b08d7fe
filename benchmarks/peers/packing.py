"""Documents packed into rows by Grain, as BenchmarkNew of ../../packing/packing_test.go does it with nwt.

    .venv/bin/python packing.py best 256   # or first; open rows

prints documents a second of the second pass, and the share of the rows that is left empty. The lengths are the same:
20 000 quantiles of a lognormal distribution of median 245, cut to 8 ... 2048, in another random order.
"""

import json
import math
import sys
import time
from statistics import NormalDist

import grain
import numpy as np

LENGTH, N = 2048, 20_000


def main():
    lengths = [int(min(max(245 * math.exp(NormalDist().inv_cdf((k + 0.5) / N)), 8), LENGTH)) for k in range(N)]
    np.random.default_rng(1).shuffle(lengths)
    text = np.zeros(LENGTH, np.int32)
    docs = grain.MapDataset.source([{"tokens": text[:n]} for n in lengths]).to_iter_dataset()
    fit, bins = sys.argv[1], int(sys.argv[2])
    pack = {"best": grain.experimental.BestFitPackIterDataset, "first": grain.experimental.FirstFitPackIterDataset}[fit]
    for _ in range(2):
        rows = empty = 0
        began = time.perf_counter()
        for row in pack(docs, length_struct={"tokens": LENGTH}, num_packing_bins=bins):
            rows += 1
            empty += int(np.count_nonzero(row["tokens_segment_ids"] == 0))
        took = time.perf_counter() - began
    print(json.dumps({"peer": "grain", "fit": fit, "bins": bins, "documents": N / took, "rows": rows, "padding": empty / (rows * LENGTH)}))


if __name__ == "__main__":
    main()
