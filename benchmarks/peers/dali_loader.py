"""DALI, on CPUs.

A worker is a thread of its pool.

  sample      decodes the crop alone, resizes it antialiased, mirrors and normalises, as its ImageNet example does
"""

from importlib.metadata import version as version_of

import numpy as np
from nvidia.dali import fn, pipeline_def, types

import photos
import shards

version = version_of("nvidia-dali-cuda120")


def open_data(workload):
    return {"paths": shards.tars()} if workload == "shards" else dict(zip(("files", "labels"), photos.paths()))


@pipeline_def(device_id=None)
def pipeline(source, normalised):
    if "paths" in source:
        data, label = fn.readers.webdataset(**source, ext=["jpg", "cls"], random_shuffle=True, initial_fill=1000)
    else:
        data, label = fn.readers.file(**source, random_shuffle=True, initial_fill=photos.PHOTOS)
    crops = fn.decoders.image_random_crop(data, device="cpu", random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3))
    crops = fn.resize(crops, size=(224, 224), interp_type=types.INTERP_LINEAR, antialias=True)
    crops = fn.crop_mirror_normalize(
        crops,
        dtype=types.FLOAT if normalised else types.UINT8,
        output_layout="CHW",
        mirror=fn.random.coin_flip(probability=0.5),
        mean=[0.485 * 255, 0.456 * 255, 0.406 * 255] if normalised else 0,
        std=[0.229 * 255, 0.224 * 255, 0.225 * 255] if normalised else 1,
    )
    return crops, label


def loader(name, workload, variant, workers, data):
    def start():
        pipe = pipeline(data, workload.dtype == np.float32, batch_size=workload.batch, num_threads=workers, prefetch_queue_depth=2)
        pipe.build()
        while True:
            crops, labels = pipe.run()
            crops = np.asarray(crops.as_tensor())
            yield (crops, [int(bytes(np.asarray(text))) for text in labels]) if name == "shards" else crops

    return start
