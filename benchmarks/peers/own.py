"""Datasets as people write them: an object with __len__ and __getitem__, which has a sample made by Python.

own-small     3 kB, a row of an array and its number
own-large     150 kB, likewise
own-pillow    a photograph by Pillow: a random crop, resized and mirrored
"""

import random

import numpy as np

import photos
from workloads import WORKLOADS


class Rows:
    """What is drawn from the generator shows whether samples are seeded."""

    def __init__(self, samples, size):
        self.samples, self.base = samples, np.arange(size, dtype=np.uint8)

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return self.base + np.uint8(random.getrandbits(8)), i


class Pictures:
    def __init__(self, size):
        self.size = size
        self.files, self.classes = size.paths()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        from PIL import Image

        x, y, w, h = self.size.window(random.uniform)
        with Image.open(self.files[i]) as picture:
            pixels = np.asarray(picture.resize((photos.SIDE, photos.SIDE), Image.BILINEAR, (x, y, x + w, y + h)))
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)), self.classes[i]


def dataset(workload):
    if workload in ("own-small", "own-large"):
        return Rows(WORKLOADS[workload].samples, WORKLOADS[workload].shape[0])
    return Pictures(photos.SMALL)
