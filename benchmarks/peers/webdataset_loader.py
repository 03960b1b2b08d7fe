"""WebDataset, over tar files, with a DataLoader's processes as workers, each of which collates its batches.

  torchvision decode_jpeg and transforms.v2 over tensors
  pillow      decoded by WebDataset with Pillow, the way of its documentation; torchvision's transforms
"""

import torch
import webdataset

import shards
from torch_loader import photo_steps

version = webdataset.__version__


def open_data(workload):
    return shards.tars()


def decoded(extension, data):
    from torchvision import io

    if extension.endswith("jpg"):
        return io.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), io.ImageReadMode.RGB)


def loader(name, workload, variant, workers, data):
    torch.set_num_threads(1)
    samples = webdataset.WebDataset(data, shardshuffle=len(data)).shuffle(1000)
    samples = samples.decode("pil" if variant == "pillow" else decoded).to_tuple("jpg", "cls")
    batches = samples.map_tuple(photo_steps(variant == "pillow"), int).batched(workload.batch)
    batches = webdataset.WebLoader(batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0)

    def start():
        while True:
            yield from batches

    return start
