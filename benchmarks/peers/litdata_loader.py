"""LitData, over chunks that its optimize made, with its DataLoader's processes as workers.

  sample      decoded by LitData, to tensors; torchvision's transforms.v2
"""

from importlib.metadata import version as version_of

import torch
from litdata import StreamingDataLoader, StreamingDataset

import shards
from torch_loader import photo_steps

version = version_of("litdata")


def open_data(workload):
    return str(shards.FOLDER / "litdata")


def loader(name, workload, variant, workers, data):
    torch.set_num_threads(1)
    steps = photo_steps()
    dataset = StreamingDataset(data, shuffle=True, drop_last=False, transform=lambda sample: (steps(sample[0]), sample[1]))
    batches = StreamingDataLoader(dataset, batch_size=workload.batch, num_workers=workers, persistent_workers=workers > 0)

    def start():
        while True:
            yield from batches

    return start
