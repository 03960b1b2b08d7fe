"""PyTorch's DataLoader.

Images are a NumPy array that the workers inherit by fork, and batches are gathered by NumPy: its take is twice as
fast as index_select and ten times as fast as tensor[list]. Each worker has one thread, and so has the program that
loads for itself (0 workers).

  sample      a function of one index; the batch is collated
  vectorised  a function of a batch of indices (BatchSampler, batch_size=None)
  split       the same with indices as tensors, from a sampler of our own
  cores       vectorised, without workers, with PyTorch's default of a thread a core: quick as long as nobody else
              wants a core, slow where the threads have to wait for each other
  endless     sample, with all epochs in one so that no worker stands still at an epoch's end
  unordered   sample, with in_order=False
  ahead-8     sample, with prefetch_factor=8 instead of 2; unordered-8: both
  threads     a function of a batch of indices which waits for all of them at once, on as many threads
  pillow      photos: ImageFolder and torchvision's transforms over Pillow, the usual ImageNet recipe; endless
  torchvision photos: decode_jpeg and transforms.v2 over tensors; endless
  simplejpeg  photos: a batch by __getitems__, in memory that both processes share, as tuned.py makes them; endless
"""

import itertools
import math
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler

import own
import photos
from workloads import IMAGES, OWN, PAD, PHOTOS, SCALE, SLEEPS, SHIFT, crop_flip, crop_flip_batch, images, normalise

version = torch.__version__
SCALE_T, SHIFT_T = torch.from_numpy(SCALE), torch.from_numpy(SHIFT)


def open_data(workload):
    if workload in PHOTOS:
        return photos.of(workload).paths()
    if workload in OWN:
        return own.dataset(workload)
    return images() if workload in IMAGES else None


class Loads(Dataset):
    """A dataset by function: of an index, or of a batch of them."""

    def __init__(self, samples, load):
        self.samples, self.load = samples, load

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return self.load(index)


def by_sample(workload, data):
    def augment(i):
        dy, dx = int(random.random() * (2 * PAD + 1)), int(random.random() * (2 * PAD + 1))
        return normalise(crop_flip(data[i], dy, dx, random.random() < 0.5))

    def wait(i):
        time.sleep(SLEEPS[workload](i))
        return float(i)

    return {"augment": augment, "raw": lambda i: data[i], "empty": float}.get(workload, wait)


def collate(samples):
    if isinstance(samples[0], float):
        return torch.tensor(samples, dtype=torch.float32)
    return torch.from_numpy(np.stack(samples))


def by_batch(workload, data):
    def augment(indices):
        dy, dx = np.random.randint(0, 2 * PAD + 1, (2, len(indices)))
        crops = crop_flip_batch(data.take(indices, 0), dy, dx, np.random.rand(len(indices)) < 0.5)
        return torch.from_numpy(crops).float().mul_(SCALE_T).add_(SHIFT_T)

    def wait(indices):
        return collate(list(threads().map(by_sample("wait", None), indices)))

    return {
        "augment": augment,
        "raw": lambda indices: torch.from_numpy(data.take(indices, 0)),
        "wait": wait,
        "empty": lambda indices: torch.as_tensor(indices, dtype=torch.float32),
    }[workload]


@cache
def threads():
    """Of a worker: as many as a batch of the waiting workload has samples."""
    return ThreadPoolExecutor(64)


class Split(Sampler):
    """Batches of shuffled indices as tensors, which spares the list of numbers that BatchSampler makes."""

    def __init__(self, samples, batch):
        self.samples, self.batch = samples, batch

    def __iter__(self):
        yield from torch.randperm(self.samples).split(self.batch)


class Endless(Sampler):
    """Epoch after epoch in one, so that no worker stands still at an epoch's end."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


def loader(name, workload, variant, workers, data):
    if variant != "cores":
        torch.set_num_threads(1)
    if name in PHOTOS:
        return photographs(name, workload, variant, workers, data)
    if name in OWN:
        return of_our_own(workload, workers, data)
    common = {"num_workers": workers, "persistent_workers": workers > 0}
    order, _, ahead = variant.partition("-")
    if ahead:
        common["prefetch_factor"] = int(ahead)
    if order == "unordered":
        common["in_order"] = False
    if order in ("sample", "endless", "ahead", "unordered"):
        dataset = Loads(workload.samples, by_sample(name, data))
        sampler = BatchSampler(RandomSampler(dataset), workload.batch, drop_last=False)
        if variant == "endless":
            sampler = Endless(sampler)
        common |= {"batch_sampler": sampler, "collate_fn": collate}
    else:
        dataset = Loads(workload.samples, by_batch(name, data))
        if variant == "split":
            sampler = Split(workload.samples, workload.batch)
        else:
            sampler = BatchSampler(RandomSampler(dataset), workload.batch, drop_last=False)
        common |= {"sampler": sampler, "batch_size": None}
    batches = DataLoader(dataset, **common)

    def start():
        while True:
            yield from batches

    return start


def photo_steps(pillow=False, normalised=True):
    """From a picture, a tensor or Pillow's, to what a photograph's sample is."""
    from torchvision.transforms import v2

    normalise = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    crop, flip = v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()
    return v2.Compose([crop, flip, *[v2.PILToTensor()] * pillow, *normalise * normalised])


class Whole(Dataset):
    """Photographs by the batch, in memory that the worker and the program share."""

    def __init__(self, name, workload, files):
        import tuned

        self.size, self.workload, self.files = photos.of(name), workload, files
        self.load, self.crop = tuned.load, tuned.decoder("simplejpeg")

    def __len__(self):
        return len(self.files)

    def __getitems__(self, indices):
        batch = torch.empty(0, dtype=torch.float32 if self.workload.dtype == np.float32 else torch.uint8)
        shape = (len(indices), *self.workload.shape)
        if torch.utils.data.get_worker_info():
            batch = batch.new(batch._typed_storage()._new_shared(math.prod(shape))).view(shape)  # as default_collate does
        else:
            batch = batch.new_empty(shape)
        for i, dst in zip(indices, batch.numpy()):
            self.load(self.crop, self.size, self.files[i], dst)
        return batch


def photographs(name, workload, variant, workers, data):
    from torchvision import datasets, io

    files, _ = data
    steps = photo_steps(variant == "pillow", workload.dtype == np.float32)
    how = {}
    if variant == "simplejpeg":
        dataset, how = Whole(name, workload, files), {"collate_fn": lambda batch: batch}
    elif variant == "pillow":
        folder = datasets.ImageFolder(photos.of(name).folder, steps)
        dataset = Loads(workload.samples, lambda i: folder[i][0])
    else:
        dataset = Loads(workload.samples, lambda i: steps(io.decode_jpeg(io.read_file(files[i]), io.ImageReadMode.RGB)))
    order = Endless(BatchSampler(RandomSampler(dataset), workload.batch, drop_last=False))
    batches = DataLoader(dataset, batch_sampler=order, num_workers=workers, persistent_workers=workers > 0, **how)

    def start():
        yield from batches

    return start


def crop(workload, variant):
    """Of a file and a window: uint8 [3, 224, 224]."""
    from torchvision import io
    from torchvision.transforms.v2 import functional

    if variant == "simplejpeg":
        import tuned

        return tuned.decoder(variant)

    def load(file, window):
        from PIL import Image

        x, y, w, h = window
        picture = Image.open(file).convert("RGB") if variant == "pillow" else io.decode_jpeg(io.read_file(file), io.ImageReadMode.RGB)
        resized = functional.resized_crop(picture, y, x, h, w, [photos.SIDE] * 2, antialias=True)
        return functional.pil_to_tensor(resized) if variant == "pillow" else resized

    return load


class Seeded(Dataset):
    """Seeds what a sample may draw from, by epoch and number, so that a sample is the same at any number of workers."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, at):
        epoch, i = at
        seed = hash((1, epoch, i)) & 0xFFFFFFFF
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        return self.dataset[i]


class Numbered(Sampler):
    """Batches of epoch after epoch, shuffled: pairs of an epoch and an index."""

    def __init__(self, samples, batch):
        self.samples, self.batch = samples, batch

    def __iter__(self):
        for epoch in itertools.count():
            for indices in torch.randperm(self.samples).split(self.batch):
                yield [(epoch, i) for i in indices.tolist()]


def of_our_own(workload, workers, data):
    batches = DataLoader(Seeded(data), batch_sampler=Numbered(workload.samples, workload.batch), num_workers=workers, persistent_workers=True)

    def start():
        yield from batches

    return start
