"""Grain.

Its worker processes are spawned and get the dataset pickled, so the images lie in shared memory. Data in memory is
read without threads, as Grain's ReadOptions recommends; a worker is a process, except where samples wait.

  sample      map, then batch; for the waiting workload a worker is a thread
  vectorised  batch, then map
  processes   wait: a worker is a process with one thread
  threads     wait: a worker is a process with 16 threads, which is Grain's default

  simplejpeg  photographs: as tuned.py makes them, by the sample; a worker is a thread
"""

import time
from importlib.metadata import version as version_of
from multiprocessing.shared_memory import SharedMemory

import grain
import numpy as np

import photos
from workloads import IMAGES, PAD, PHOTOS, SECONDS_PER_WAIT, crop_flip, crop_flip_batch, images, normalise

version = version_of("grain")


class Shared:
    """An array in shared memory; pickled, it is attached to and not copied."""

    def __init__(self, shape, dtype, name=None):
        self.memory = SharedMemory(name, create=name is None, size=int(np.prod(shape)))
        self.array = np.ndarray(shape, dtype, self.memory.buf)

    def __reduce__(self):
        return Shared, (self.array.shape, self.array.dtype, self.memory.name)

    def __array__(self, dtype=None, copy=None):
        return self.array

    def __getitem__(self, index):
        return self.array[index]


def open_data(workload):
    if workload in PHOTOS:
        return photos.of(workload).paths()[0]
    if workload not in IMAGES:
        return None
    source = images()
    shared = Shared(source.shape, source.dtype)
    shared.array[:] = source
    return shared


def crop(workload, variant):
    """Of a file and a window: uint8 [3, 224, 224]."""
    import tuned

    return tuned.decoder(variant)


def photograph(name, workload, variant, files):
    import tuned

    size, made = photos.of(name), tuned.decoder(variant)

    def load(i, rng):
        sample = np.empty(workload.shape, workload.dtype)
        tuned.load(made, size, files[i], sample, rng.uniform)
        return sample

    return load


def by_sample(workload, data):
    def augment(i, rng):
        dy, dx, flip = rng.integers(0, (2 * PAD + 1, 2 * PAD + 1, 2))
        return normalise(crop_flip(data[i], dy, dx, flip))

    def wait(i):
        time.sleep(SECONDS_PER_WAIT)
        return np.float32(i)

    return {"augment": augment, "raw": lambda i: data[i], "wait": wait, "empty": np.float32}[workload]


def by_batch(workload, data):
    def augment(indices, rng):
        dy, dx = rng.integers(0, 2 * PAD + 1, (2, len(indices)))
        return normalise(crop_flip_batch(data[indices], dy, dx, rng.random(len(indices)) < 0.5))

    return {
        "augment": augment,
        "raw": lambda indices: data[indices],
        "empty": lambda indices: indices.astype(np.float32),
    }[workload]


def loader(name, workload, variant, workers, data):
    def loaded(dataset, load):
        return dataset.random_map(load) if name == "augment" else dataset.map(load)

    batches = grain.MapDataset.range(workload.samples).seed(0).shuffle()
    if name in PHOTOS:
        batches = batches.random_map(photograph(name, workload, variant, data)).batch(workload.batch)
    elif variant == "vectorised":
        batches = loaded(batches.batch(workload.batch), by_batch(name, data))
    else:
        batches = loaded(batches, by_sample(name, data)).batch(workload.batch)

    threads, processes = 0, workers
    if name == "wait":
        threads, processes = {"sample": (workers, 0), "processes": (1, workers), "threads": (16, workers)}[variant]
    if name in PHOTOS:
        threads, processes = workers, 0
    if workers == 0:
        threads = 0
    reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    batches = batches.repeat().to_iter_dataset(reading)
    if processes:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(processes, per_worker_buffer_size=2))

    def start():
        iterator = iter(batches)
        try:
            yield from iterator
        finally:
            iterator.close()

    return start
