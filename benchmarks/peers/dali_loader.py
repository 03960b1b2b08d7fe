"""DALI, on CPUs.

A worker is a thread of its pool. A batch is valid until the next one is asked for.

  sample      decodes the crop alone, resizes it antialiased, mirrors and normalises, as its ImageNet example does
  decode      decodes the crop alone; as many threads of the program's resize it with torch, as tuned.py does
"""

import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version as version_of

import numpy as np
from nvidia.dali import fn, pipeline_def, types

import photos
import shards

version = version_of("nvidia-dali-cuda120")


def open_data(workload):
    return {"paths": shards.tars()} if workload == "shards" else dict(zip(("files", "labels"), photos.of(workload).paths()))


def finished(crops, normalised=False, mirror=0):
    crops = fn.resize(crops, size=(photos.SIDE, photos.SIDE), interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.crop_mirror_normalize(
        crops,
        dtype=types.FLOAT if normalised else types.UINT8,
        output_layout="CHW",
        mirror=mirror,
        mean=[255 * mean for mean in photos.MEAN] if normalised else 0,
        std=[255 * std for std in photos.STD] if normalised else 1,
    )


@pipeline_def(device_id=None)
def pipeline(source, variant, normalised):
    if "paths" in source:
        data, label = fn.readers.webdataset(**source, ext=["jpg", "cls"], random_shuffle=True, initial_fill=1000)
    else:
        data, label = fn.readers.file(**source, random_shuffle=True, initial_fill=len(source["files"]))
    crops = fn.decoders.image_random_crop(data, device="cpu", random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3))
    return crops if variant == "decode" else finished(crops, normalised, fn.random.coin_flip(probability=0.5)), label


def loader(name, workload, variant, workers, data):
    def batches():
        pipe = pipeline(data, variant, workload.dtype == np.float32, batch_size=workload.batch, num_threads=workers, prefetch_queue_depth=2)
        pipe.build()
        while True:
            yield pipe.run()

    def start():
        for crops, labels in batches():
            crops = np.asarray(crops.as_tensor())
            yield (crops, [int(bytes(np.asarray(text))) for text in labels]) if name == "shards" else crops

    def start_decoding():
        import tuned

        memory = np.empty((workload.batch, *workload.shape), workload.dtype)

        def finish(crops, memory):
            for crop, dst in zip(crops, memory):
                tuned.place(tuned.resized(crop), random.random() < 0.5, dst)

        with ThreadPoolExecutor(workers) as threads:
            for crops, _ in batches():
                crops = [np.asarray(crops[i]) for i in range(len(crops))]
                list(threads.map(finish, [crops[i::workers] for i in range(workers)], [memory[i : len(crops) : workers] for i in range(workers)]))
                yield memory[: len(crops)]

    return start_decoding if variant == "decode" else start


def crop(workload, variant):
    """Of a file and a window: uint8 [3, 224, 224]."""

    @pipeline_def(device_id=None, batch_size=1, num_threads=1, prefetch_queue_depth=1)
    def one():
        file, at, size = (fn.external_source(name=name) for name in ("file", "at", "size"))
        crops = fn.decoders.image_slice(file, at, size, axis_names="WH", normalized_anchor=False, normalized_shape=False, device="cpu")
        return crops if variant == "decode" else finished(crops)

    if variant == "decode":
        import tuned

    @cache
    def pipe():
        pipe = one()
        pipe.build()
        return pipe

    def load(file, window):
        for name, value in (("file", np.fromfile(file, np.uint8)), ("at", np.float32(window[:2])), ("size", np.float32(window[2:]))):
            pipe().feed_input(name, [value])
        pixels = np.asarray(pipe().run()[0].as_tensor())[0]
        return tuned.resized(pixels) if variant == "decode" else pixels

    return load
