"""nwt's client for Python: a server beside this process loads, in memory that both have mapped.

A worker is one of the server's. NWT_SERVE names its program.

  sample      batches of bytes, which torch takes as they are
"""

import os
import pathlib
import sys

import torch

import photos

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))
import nwt

version = ""


def open_data(workload):
    return photos.FOLDER


def loader(name, workload, variant, workers, data):
    def start():
        with nwt.ImageFolder(data, batch_size=workload.batch, shuffle=True, seed=1, train=True, num_workers=workers, program=os.environ["NWT_SERVE"]) as batches:
            while True:
                for batch in batches:
                    yield torch.from_numpy(batch["image"])

    return start
