"""Threads by hand, as a patient engineer would write them: each makes a whole batch, in memory that is used again, so that
a batch is valid until the next one is asked for. tuned.py says how a photograph is made, and what the variants are.

  simplejpeg, cropping, scaled
"""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as version_of

import numpy as np
import torch

import photos
import tuned

version = f"with simplejpeg {version_of('simplejpeg')}"


def open_data(workload):
    return photos.of(workload).paths()[0]


def crop(workload, variant):
    return tuned.decoder(variant)


def loader(name, workload, variant, workers, data):
    sys.setswitchinterval(0.0005)
    size, decode = photos.of(name), tuned.decoder(variant)

    def order():
        while True:
            shuffled = random.sample(data, len(data))
            for first in range(0, len(shuffled), workload.batch):
                yield shuffled[first : first + workload.batch]

    def batch(files, memory):
        for path, dst in zip(files, memory):
            tuned.load(decode, size, path, dst)
        return memory, len(files)

    def start():
        free = [np.empty((workload.batch, *workload.shape), workload.dtype) for _ in range(2 * workers + 1)]
        waiting, orders = [], order()
        with ThreadPoolExecutor(workers) as threads:
            try:
                while True:
                    while len(free) > 1:
                        waiting.append(threads.submit(batch, next(orders), free.pop()))
                    memory, n = waiting.pop(0).result()
                    waiting.append(threads.submit(batch, next(orders), free.pop()))
                    yield torch.from_numpy(memory[:n])
                    free.append(memory)
            finally:
                threads.shutdown(cancel_futures=True)

    return start
