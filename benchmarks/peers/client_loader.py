"""nwt's client for Python: a server beside this process loads, in memory that both have mapped, so that a batch is valid
until the next one is asked for.

A worker is one of the server's, for data of our own with a process of Python. NWT_SERVE names its program.

  sample      torch tensors of the batches as they are
"""

import os
import pathlib
import sys

import numpy as np
import torch

import own
import photos
from workloads import OWN

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))
import nwt

version = ""


def open_data(workload):
    return own.dataset(workload) if workload in OWN else photos.of(workload).folder


def loader(name, workload, variant, workers, data):
    how = dict(batch_size=workload.batch, shuffle=True, seed=1, num_workers=workers, program=os.environ["NWT_SERVE"])

    def photographs():
        pixels = dict(dtype="float32", normalize=True) if workload.dtype == np.float32 else {}
        with nwt.ImageFolder(data, train=True, **pixels, **how) as batches:
            while True:
                for batch in batches:
                    yield torch.from_numpy(batch["image"])

    def of_our_own():
        with nwt.DataLoader(data, **how) as batches:
            while True:
                for images, labels in batches:
                    yield torch.from_numpy(images), torch.from_numpy(labels)

    def augmented():
        with nwt.ImageFolder(data.size.folder, train=True, flip=0, transform=own.augment, **how) as batches:
            while True:
                for batch in batches:
                    yield torch.from_numpy(batch["image"]), torch.from_numpy(batch["label"])

    return augmented if name == "own-numpy" else of_our_own if name in OWN else photographs
