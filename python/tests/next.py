"""Prints how long next() takes if the batch is ready, after a step of 5 ms and of 50 ms: next.py ADDRESS.

Beside it what json.loads of some 250 bytes takes after such a step: what has been in the CPU's caches may be gone.
"""

import json
import statistics
import sys
import time

from digests import epoch

import nwt

TEXT = json.dumps({f"key {n}": n for n in range(20)})


def took(step, what):
    time.sleep(step)  # meanwhile the next batches become ready
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


with nwt.Loader(sys.argv[1:]) as loader:
    for step in (0.005, 0.05):
        batches, own, control = epoch(loader, 0), [], []
        for _ in range(10):
            next(batches)
        for _ in range(min(80, len(loader) - 10)):
            own.append(took(step, lambda: next(batches)))
            control.append(took(step, lambda: json.loads(TEXT)))
        own, control = (statistics.median(times) * 1e6 for times in (own, control))
        print(f"after {step * 1e3:.0f} ms: next() {own:.0f} µs, json.loads {control:.0f} µs")
