"""SPDL.

A worker is a thread, of a pipeline that lives over all epochs.

  sample      a stage by sample, aggregated, collated
  vectorised  a stage by batch of indices, which the source deals out
"""

import random
import time
from importlib.metadata import version as version_of

import numpy as np
from spdl.pipeline import PipelineBuilder

from workloads import IMAGES, PAD, SECONDS_PER_WAIT, crop_flip, crop_flip_batch, images, normalise

version = version_of("spdl-core")


def open_data(workload):
    return images() if workload in IMAGES else None


class Shuffled:
    """The indices of an epoch, one by one or in arrays of a batch.

    Asynchronous, so that an index costs no change of threads: the pipeline's own loop takes it.
    """

    def __init__(self, samples, batch=None):
        self.samples, self.batch = samples, batch

    async def __aiter__(self):
        order = np.random.permutation(self.samples)
        if self.batch is None:
            order = order.tolist()
        else:
            order = np.split(order, range(self.batch, self.samples, self.batch))
        for item in order:
            yield item


def by_sample(workload, data):
    def augment(i):
        dy, dx = int(random.random() * (2 * PAD + 1)), int(random.random() * (2 * PAD + 1))
        return normalise(crop_flip(data[i], dy, dx, random.random() < 0.5))

    def wait(i):
        time.sleep(SECONDS_PER_WAIT)
        return np.float32(i)

    return {"augment": augment, "raw": lambda i: data[i], "wait": wait, "empty": lambda i: np.float32(i)}[workload]


def by_batch(workload, data):
    def augment(indices):
        dy, dx = np.random.randint(0, 2 * PAD + 1, (2, len(indices)))
        return normalise(crop_flip_batch(data[indices], dy, dx, np.random.rand(len(indices)) < 0.5))

    return {
        "augment": augment,
        "raw": lambda indices: data.take(indices, 0),
        "empty": lambda indices: indices.astype(np.float32),
    }[workload]


def loader(name, workload, variant, workers, data):
    def start():
        # A builder for each pipeline: what an aggregate stage has half collected would pass from one to the next.
        builder = PipelineBuilder()
        if variant == "sample":
            builder.add_source(Shuffled(workload.samples), continuous=True)
            builder.pipe(by_sample(name, data), concurrency=workers)
            builder.aggregate(workload.batch)
            builder.pipe(np.array if workload.shape == () else np.stack)
        else:
            builder.add_source(Shuffled(workload.samples, workload.batch), continuous=True)
            builder.pipe(by_batch(name, data), concurrency=workers)
        pipeline = builder.add_sink(3).build(num_threads=workers, max_failures=0)
        with pipeline.auto_stop():
            while True:
                yield from pipeline.get_iterator()

    return start
