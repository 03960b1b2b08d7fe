"""Datasets as people write them: an object with __len__ and __getitem__, which has a sample made by Python.

own-small     3 kB, a row of an array and its number
own-large     150 kB, likewise
own-pillow    a photograph by Pillow: a random crop, resized and mirrored
own-numpy     the same, and changed by NumPy; with nwt.ImageFolder(transform=augment) Pillow isn't needed
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

    def crop(self, i):
        from PIL import Image

        x, y, w, h = self.size.window(random.uniform)
        with Image.open(self.files[i]) as picture:
            return np.asarray(picture.resize((photos.SIDE, photos.SIDE), Image.BILINEAR, (x, y, x + w, y + h)))

    def __getitem__(self, i):
        pixels = self.crop(i)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)), self.classes[i]


class Augmented(Pictures):
    def __getitem__(self, i):
        rng = np.random.default_rng(random.getrandbits(64))
        return np.ascontiguousarray(augment(self.crop(i), rng)), self.classes[i]


LEVELS = np.arange(256)


def augment(image, rng):
    """Mirrors a picture, makes it brighter or darker, and cuts a square out of it."""
    if rng.random() < 0.5:
        image = image[:, ::-1]
    image = np.clip(LEVELS * rng.uniform(0.6, 1.4), 0, 255).astype(np.uint8)[image]
    y, x = rng.integers(0, photos.SIDE - 56, 2)
    image[y : y + 56, x : x + 56] = 0
    return image.transpose(2, 0, 1)


def dataset(workload):
    if workload in ("own-small", "own-large"):
        return Rows(WORKLOADS[workload].samples, WORKLOADS[workload].shape[0])
    return (Augmented if workload == "own-numpy" else Pictures)(photos.SMALL)
