"""Prints how many samples a second come, while nothing is done with them: rate.py EPOCHS ADDRESS..."""

import sys
import time

import nwt

epochs, *addresses = sys.argv[1:]
with nwt.Loader(addresses) as loader:
    list(map(len, loader))  # what is read for the first time
    samples, began = 0, time.perf_counter()
    for _ in range(int(epochs)):
        for batch in loader:
            samples += len(next(iter(batch.values())))
    print(f"{samples / (time.perf_counter() - began):.0f} samples/s")
