"""SPDL.

A worker is a thread, of a pipeline that lives over all epochs.

  sample      a stage by sample, aggregated, collated
  vectorised  a stage by batch of indices, which the source deals out
  ordered     sample, with output_order="input" instead of as they are completed

  ffmpeg      photographs: decoded, cropped and resized by FFmpeg's filters, a chain made for each of them
  simplejpeg  photographs: as tuned.py makes them, a batch by a thread
"""

import random
import time
from importlib.metadata import version as version_of

import numpy as np
from spdl.pipeline import PipelineBuilder

import photos
from workloads import IMAGES, PAD, PHOTOS, SLEEPS, crop_flip, crop_flip_batch, images, normalise

version = version_of("spdl-core")


def open_data(workload):
    if workload in PHOTOS:
        return photos.of(workload).paths()[0]
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
        time.sleep(SLEEPS[workload](i))
        return np.float32(i)

    return {"augment": augment, "raw": lambda i: data[i], "empty": lambda i: np.float32(i)}.get(workload, wait)


def crop(workload, variant):
    """Of a file and a window: uint8 [3, 224, 224]."""
    import spdl.io
    import tuned

    if variant == "simplejpeg":
        return tuned.decoder(variant)

    def load(file, window):
        x, y, w, h = window
        chain = f"crop={w}:{h}:{x}:{y}:exact=1,scale=224:224:flags=bilinear,format=pix_fmts=rgb24"
        frames = spdl.io.decode_packets(spdl.io.demux_image(file), filter_desc=chain)
        return np.ascontiguousarray(spdl.io.to_numpy(spdl.io.convert_frames(frames)).transpose(2, 0, 1))

    return load


def photographs(name, workload, variant, data):
    """Of a batch of indices."""
    import tuned

    size, made = photos.of(name), crop(name, variant)

    def load(indices):
        batch = np.empty((len(indices), *workload.shape), workload.dtype)
        for i, dst in zip(indices, batch):
            tuned.load(made, size, data[i], dst)
        return batch

    return load


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
        if variant in ("sample", "ordered"):
            builder.add_source(Shuffled(workload.samples), continuous=True)
            builder.pipe(by_sample(name, data), concurrency=workers, output_order="input" if variant == "ordered" else "completion")
            builder.aggregate(workload.batch)
            builder.pipe(np.array if workload.shape == () else np.stack)
        else:
            builder.add_source(Shuffled(workload.samples, workload.batch), continuous=True)
            load = photographs(name, workload, variant, data) if name in PHOTOS else by_batch(name, data)
            builder.pipe(load, concurrency=workers)
        pipeline = builder.add_sink(3).build(num_threads=workers, max_failures=0)
        with pipeline.auto_stop():
            while True:
                yield from pipeline.get_iterator()

    return start
